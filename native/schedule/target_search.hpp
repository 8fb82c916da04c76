// Search over target offsets: where on a time axis of period T the actions of one microbatch lie.
//
// A plan gives each stream an offset and repeats it every T; the list scheduler turns it into
// orders. Offsets are built by walking one microbatch's path (forwards up, backwards down), adding
// duration, transfer and a wait that is the same along a leg (p stages one way). Block schedules
// are such walks: V-Min waits nowhere, V-Half one slot per stage on the legs away from the turn.
// The number of microbatches does not enter a plan.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/random_source.hpp"
#include "schedule/stream_problem.hpp"
#include "schedule/target_list.hpp"

namespace trainwright {

struct TargetPlan {
  std::vector<double> offset_s;  // [stream]; W has none
  double period_s = 0.0;
  ListRule rule;
};

class TargetSearch {
 public:
  // Tells the owner of every schedule found; true stops the search.
  using Found = std::function<bool(const Words&, const Length&)>;

  // Asked now and then; true stops the search as well.
  using Pause = std::function<bool()>;

  TargetSearch(const StreamProblem& problem, RandomSource& random, Found found, Pause pause);

  // Block offsets, then random walks and variations of the best until `work` is spent.
  void sample(int64_t work);
  // Anneal the offsets of the best plan so far.
  void anneal(int64_t work);

  int64_t work() const { return work_; }
  bool stopped() const { return stopped_; }

 private:
  void sample_blocks(int64_t end);
  TargetPlan walk(const std::vector<double>& leg_wait_s, double turn_s, double period_s) const;
  TargetPlan random_plan();
  ListRule random_rule();
  TargetPlan varied(const TargetPlan& plan, double scale);
  void shift_offsets(TargetPlan& plan, double scale);
  void change_rule(TargetPlan& plan, double scale);
  double guide_of(const TargetPlan& plan);  // infinite where the list scheduler got stuck

  const StreamProblem& problem_;
  RandomSource& random_;
  Found found_;
  Pause pause_;
  TargetList list_;
  std::vector<double> target_s_, life_share_;
  int32_t leg_length_, num_legs_;
  TargetPlan best_;
  double best_guide_s_;
  int64_t work_ = 0, next_pause_ = 0;
  bool stopped_ = false;
};

}  // namespace trainwright
