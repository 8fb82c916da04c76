// Does a stage (layers between two downsets, t, d, y) fit a threshold? Cheapest proof first.
//
// Written for the sum over layers: tau(o) = p + 4 (d-1)/(N B) (w - least w) + 2/B (dearer sync of
// the edges this stage cuts), the stage fits when some choice of options has
//
//     sum tau <= lambda d - 2/B X - 4 (d-1)/(N B) W,      sum (a y + b) <= M
//
// with X and W from the smallest sync and gradient bytes. Layers whose options differ in time and
// memory only ("plain") have tau = p, so their answers do not depend on d and are remembered over
// thresholds.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/additive_bounds.hpp"
#include "partition/downsets.hpp"
#include "partition/instance.hpp"
#include "partition/knapsack.hpp"

namespace trainwright {

enum class Verdict { yes, no, unknown };

struct StageKey {
  int32_t below, above;  // downsets D' and D
  int32_t degree;        // slot of t
  int64_t data_degree;
  int64_t in_flight;  // y
};

class StageTest {
 public:
  struct Source {  // a layer outside D' with edges into it
    int32_t layer;
    int32_t first;  // into bytes, one value per degree
  };
  struct Boundary {
    int32_t below = -1;
    std::vector<Source> sources;
    std::vector<double> bytes;
  };
  StageTest(const Instance& instance, const Downsets& sets, AdditiveBounds& bounds,
            const PartitionLimits& limits);

  // Prepares the edges that enter `below` from outside, for cut_bytes and the rest.
  const Boundary& start_at(int32_t below);

  Verdict fits(const StageKey& stage, double threshold_s);
  // The same for a stage that the additive bounds have not rejected.
  Verdict settle(const StageKey& stage, double threshold_s);

  // The time of a stage known to fit the threshold, with its fastest options. With a capped
  // knapsack (counted) it is the time of some options.
  double least_s(const StageKey& stage, double threshold_s);

  // The fastest options of a stage known to fit some threshold.
  PartitionStage best(const StageKey& stage);

  // Least compute time and gradient bytes of the stage's layers, from prefix sums.
  double fastest_s(int32_t below, int32_t above, int32_t t) const {
    return prefix_[t].time_s[above] - prefix_[t].time_s[below];
  }
  double gradient_bytes(int32_t below, int32_t above, int32_t t) const {
    return prefix_[t].gradient_bytes[above] - prefix_[t].gradient_bytes[below];
  }
  // Bytes over the boundary of a downset, charged to the stage inside and to the one outside.
  double in_bytes(int32_t i, int32_t t) const { return prefix_[t].in_bytes[i]; }
  double out_bytes(int32_t i, int32_t t) const { return prefix_[t].out_bytes[i]; }
  // X with the smallest sync values; start_at(below) must have been called.
  double cut_bytes(int32_t above, int32_t t) const;
  bool offers(int32_t below, int32_t above, int32_t t) const {
    return prefix_[t].missing[above] == prefix_[t].missing[below];
  }
  // Absolute rounding error of the differences above, in seconds.
  double rounding_s(int32_t t) const { return prefix_[t].rounding_s; }

  PartitionCounters& counters() { return counters_; }

 private:
  struct Prefix {  // sums over a downset at one degree
    std::vector<double> time_s, gradient_bytes;
    std::vector<double> in_bytes, out_bytes;  // boundary edges: cost at the inner, outer end
    std::vector<int32_t> missing;             // layers that do not offer the degree
    double rounding_s = 0;
  };
  struct Known {
    uint64_t pair = ~uint64_t{0};
    uint32_t y = 0;
    uint16_t degree = 0, data_slot = 0;
    double lower_s = 0, upper_s = 0;
  };

  void sum_prefixes(int32_t t);
  void gather(const StageKey& stage);
  void find_cut_edges(const StageKey& stage, int32_t v);
  double option_extra_s(const StageKey& stage, int32_t v, const Option& option) const;
  double fixed_s(const StageKey& stage) const;
  Known& recall(const StageKey& stage);

  const Instance* in_;
  const Downsets* sets_;
  AdditiveBounds* bounds_;
  int64_t max_states_;
  std::vector<Prefix> prefix_;
  std::vector<uint8_t> is_plain_;     // per degree: all layers are
  std::vector<Boundary> boundaries_;  // a cache, by downset modulo its size
  const Boundary* boundary_ = nullptr;
  struct CutEdge {
    int32_t sync;
    double bytes, least_bytes;
  };
  std::vector<CutEdge> cut_edges_;  // of one layer
  Knapsack knapsack_;
  std::vector<Known> known_;
  int64_t num_known_ = 0;
  PartitionCounters counters_;
};

}  // namespace trainwright
