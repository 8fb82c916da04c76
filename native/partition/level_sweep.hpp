// One pass: is there a plan with every stage within a threshold?
//
// Labels (s, k) are taken in ascending s. All labels still to come have a larger s, so a label
// taken is final, and y = 1 + ceil(s'/d) is the same for all labels of one level and one d. This
// is the level sweep of partitioning.md section 6, swept by s and with Pareto sets in place of
// numbers: for t = 1 (s = k) each downset has one label and both coincide.
//
// Stages in front of a label come either from pair cursors (few downsets) or from a scan in index
// order that skips groups of 64 downsets by the additive bounds.
// A label is dropped when what is left cannot be placed (completion_caps.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "partition/additive_bounds.hpp"
#include "partition/completion_caps.hpp"
#include "partition/cut_floors.hpp"
#include "partition/downsets.hpp"
#include "partition/instance.hpp"
#include "partition/labels.hpp"
#include "partition/member_bits.hpp"
#include "partition/pair_cursors.hpp"
#include "partition/reach_limits.hpp"
#include "partition/rejection_audit.hpp"
#include "partition/stage_test.hpp"
#include "partition/superset_scan.hpp"

namespace trainwright {

enum class PassAnswer { yes, no, unresolved, stopped, too_wide };

class LevelSweep {
 public:
  LevelSweep(const Instance& instance, const Downsets& sets, const PartitionLimits& limits,
             RejectionAudit& audit);

  PassAnswer run(double threshold_s, const Stop& stop);

  // Is told of a plan, and returns the threshold that a better one has to meet.
  using Found = std::function<double(const std::vector<PartitionStage>&)>;
  // One pass for the best plan with every stage within `ceiling_s`: "no" when every plan better
  // than those found is excluded, "yes" when it ended early at a plan within `floor_s`. Scans only.
  // "too_wide" when there were more than `most_labels`.
  PassAnswer run_window(double floor_s, double ceiling_s, int64_t most_labels, const Found& found,
                        const Stop& stop);
  // The same without a floor: no label carries a time, and "yes" where any plan was found.
  PassAnswer run_through(double threshold_s, const Found& found, const Stop& stop);
  // Lowers the caps of passes within this threshold by the labels of the last pass that cannot be
  // completed (dead_ends.cpp). True if that is a proof that no plan is within it.
  bool find_dead_ends(double threshold_s, const Stop& stop);
  bool can_find_dead_ends() const { return scanning_ && caps_.can_learn(); }
  // From now on labels are extended only where they are no worse placed than this plan was there,
  // but for `slack` devices: finds plans near it, and proves nothing. No stages: all labels again.
  void follow(const std::vector<PartitionStage>& stages, double time_s, int32_t slack);
  int64_t num_labels() const { return labels_.size(); }  // of the last pass
  bool can_run_window() const { return !cursors_; }

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

  struct Scanning {
    Scanning(const Instance& instance, const Downsets& sets, const StageTest& test,
             CompletionCaps& caps)
        : members(sets), cuts(instance, sets, test), reach(instance, sets, caps) {}
    MemberBits members;
    CutFloors cuts;
    ReachLimits reach;
  };

  bool next_batch();
  void count();
  void expand_by_pairs(int32_t from);
  void extend_pair(int32_t from, const PairCursors::Pair& pair, int32_t t);
  void expand_by_scan(const std::vector<int32_t>& batch, const Stop& stop);
  void start_scan(int32_t below, SupersetScan& scan);
  void scan_degree(int32_t from, int32_t degree, int64_t data_degree,
                   const SupersetScan::Limits<ReachLimits::Row>& limits, SupersetScan& scan);
  bool is_within(const Label& label);
  bool can_complete(const Label& label, SupersetScan& scan);
  void bury(const Label& label);
  PassAnswer sweep(const Stop& stop);
  bool is_alive(const Label& label);
  bool fits(const StageKey& stage, double threshold_s);
  // Slowest stage of the label extended by the stage: 0 within the floor, infinity beyond the
  // threshold.
  double late_s(const Label& behind, const StageKey& stage);
  void audit_skipped(StageKey stage, int32_t first, int32_t end, int32_t sum);
  void reach(int32_t from, const StageKey& stage, double late_s);
  void reach_goal(const Label& label);
  std::vector<PartitionStage> plan_from(const Label& first);

  const Instance* in_;
  const Downsets* sets_;
  AdditiveBounds bounds_;
  CompletionCaps caps_;
  StageTest test_;
  std::unique_ptr<PairCursors> cursors_;  // either these
  std::unique_ptr<Scanning> scanning_;    // or this
  Labels labels_;
  RejectionAudit* audit_;
  std::vector<Queued> queue_;        // binary heap
  std::vector<int32_t> batch_;       // labels being extended
  std::vector<SupersetScan> scans_;  // one per label of the batch
  CutFloors::From from_;             // of the label being extended
  double threshold_s_ = 0;
  double floor_s_ = 0;            // of a window; without one, the threshold
  const Found* found_ = nullptr;  // of a window
  bool has_window_ = false;
  bool has_found_ = false;
  int64_t most_labels_ = 0;  // of a window
  bool is_unresolved_ = false;
  int32_t goal_ = -1;  // label at V
  PartitionCounters counters_;
};

}  // namespace trainwright
