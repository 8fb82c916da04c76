// Layers onto devices for one tensor degree t and one data degree d: PHAZE's problem, exactly.
//
// A cut is a set of layers that some stages have taken; an arc leads from one cut to a later one
// and is a stage. With s stages in a suffix, of which q have no layer that is split over tensor
// ranks and take one device each, the suffix occupies t s - (t - 1) q devices, so that
//
//   front[i][s][q] = Pareto minima of (max load, max synchronised bytes) over the arcs i -> j
//                    of (load(arc, s), bytes(arc)) v front[j][s - 1][q - narrow(arc)]
//
// replaces an axis of devices. A batch of N microbatches then takes
//
//   load (ceil(N / d) + s - 1) + sync_factor (d - 1) / d bytes / B
//
// where bytes are those of the first stage alone, or of the heaviest. A stage with s - 1 stages
// after it holds min(s, cap) microbatches, and recomputes where it may and does not fit otherwise.
// O(arcs x stages x (1 + q)) times the size of the fronts, which is 1 with bytes of the first
// stage.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace trainwright {

struct StageArc {
  int32_t target = 0;            // the cut behind the stage
  bool narrow = false;           // takes one device instead of t
  double parameter_bytes = 0;    // to synchronise between replicas
  double plain_s = 0;            // forward and backward of one microbatch
  int64_t plain_until = 0;       // most microbatches in flight that fit
  double recomputed_s = 0;       // with the forward run again
  int64_t recomputed_until = 0;  // 0 where recomputing is not allowed
};

// Arcs of cut i are arcs[arc_offset[i] .. arc_offset[i + 1]), all to later cuts; the last is full.
struct StageGraph {
  std::vector<int64_t> arc_offset;
  std::vector<StageArc> arcs;

  int32_t num_cuts() const { return static_cast<int32_t>(arc_offset.size()) - 1; }
};

struct PlacementRules {
  int64_t tensor_parallel = 1;  // t
  int64_t num_devices = 1;
  int64_t num_microbatches = 1;  // N
  int64_t max_data_parallel = 1;
  int64_t max_stages = 1;
  int64_t max_narrow = 0;  // most stages of a plan that can be narrow
  double bandwidth_bytes_per_s = 1;
  double sync_factor = 2;         // times a tensor's bytes, at infinitely many replicas
  bool sync_first_stage = false;  // else the slowest
  bool cap_in_flight = true;      // no stage holds more microbatches than its replica has
};

struct PlacedStages {
  double time_s = std::numeric_limits<double>::infinity();  // of a batch; infinite: nothing fits
  int64_t data_parallel = 0;
  std::vector<int64_t> arcs;  // of the stages, in pipeline order
  bool stopped = false;       // before all was looked at
};

// The fastest placement not slower than `cutoff_s`; equal times (to 1e-12) go to the smaller d,
// then to fewer stages, then to earlier cuts. `poll` is asked now and then whether to stop.
PlacedStages place(const StageGraph& graph, const PlacementRules& rules, double cutoff_s,
                   const std::function<bool()>& poll);

}  // namespace trainwright
