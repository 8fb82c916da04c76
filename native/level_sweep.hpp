// One pass: is there a plan with every stage within a threshold?
//
// Labels (s, k) are taken in ascending s. All labels still to come have a larger s, so a label
// taken is final, and y = 1 + ceil(s'/d) is the same for all labels of one level and one d. This
// is the level sweep of partitioning.md section 6, swept by s and with Pareto sets in place of
// numbers: for t = 1 (s = k) each downset has one label and both coincide.
//
// Stages in front of a label come either from pair cursors (few downsets) or from a scan in index
// order that skips groups of 64 and 512 downsets by the additive bounds.
//
// A label is dropped when what is left cannot be placed: a stage with s' behind it holds
// sum(a (d + s') + b d) <= d M over its d replicas, so for every mu
//
//     sum over unplaced layers of phi_{mu, y = 1 + s'}  <=  (lambda + mu M) (devices left).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "additive_bounds.hpp"
#include "downsets.hpp"
#include "instance.hpp"
#include "labels.hpp"
#include "pair_cursors.hpp"
#include "stage_test.hpp"

namespace trainwright {

enum class PassAnswer { yes, no, unresolved, stopped };

class LevelSweep {
 public:
  LevelSweep(const Instance& instance, const Downsets& sets, const PartitionLimits& limits);

  PassAnswer run(double threshold_s, const Stop& stop);

  // After "yes": the plan found, every stage with its fastest options.
  std::vector<PartitionStage> plan();

  // Thresholds below this admit no plan at all (0 devices left over by the whole graph).
  double root_bound_s();

  const PartitionCounters& counters() const { return counters_; }

 private:
  struct Queued {
    int32_t sum, devices, downset, label;
    bool operator<(const Queued& other) const;  // later in the queue
  };

  void find_caps();
  bool completable(const Label& label);
  void expand_by_pairs(int32_t from);
  void expand_by_scan(int32_t from);
  void scan_degree(int32_t from, int32_t degree, int64_t data_degree);
  void scan_group(int32_t from, const StageKey& stage, int32_t group, const BoundTable& table,
                  const int32_t* thresholds);
  void reach(int32_t from, const StageKey& stage);

  const Instance* in_;
  const Downsets* sets_;
  AdditiveBounds bounds_;
  StageTest test_;
  Labels labels_;
  std::unique_ptr<PairCursors> cursors_;        // null: scan
  std::vector<Queued> queue_;                   // binary heap
  std::vector<int32_t> sum_cap_, devices_cap_;  // per downset: labels beyond cannot be completed
  double threshold_s_ = 0;
  bool is_unresolved_ = false;
  int32_t goal_ = -1;  // label at V
  PartitionCounters counters_;
};

}  // namespace trainwright
