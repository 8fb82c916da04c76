// The search over thresholds: bracket, bisect, then one last "no" just below the best plan.
#include "partition/partition.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "partition/exchanged_cuts.hpp"
#include "partition/level_sweep.hpp"
#include "partition/position_bound.hpp"
#include "partition/restricted_cuts.hpp"

namespace trainwright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// What is a proof: a plan is optimal when the bound comes this near, and the last threshold lies a
// hundredth of that below the best plan, above the rounding of sums (1e-12).
constexpr double kOptimalGap = 1e-9;
constexpr double kFinalStep = 1e-11;

// Bisection, on small families. Below a gap of 1.5% the plan tends to be the best already, so
// thresholds lean towards it; below 0.03% every other one is the last, which would end the search.
constexpr double kNearGap = 0.015;
constexpr double kBisectGap = 3e-4;

// Wide graphs, where a pass costs tenths of a second. Tuned on blocks of branches of 9,634 and
// 16,756 downsets on 32 and 256 devices (benchmarks/wide.py). Plans on few cuts tend to be 0.5%
// from the best, so the first pass asks for that: 1.4 s in place of 1.9. In a window of 0.2% the
// best plan is found and proved in one pass; 0.1 and 0.3% are alike, 1% costs as much as seven
// passes.
constexpr double kFirstStep = 5e-3;
constexpr double kWindow = 2e-3;
// With several degrees on many devices such a window reached three times the labels of a plain pass
// and was given up after 9 s. Narrow windows, at first of 0.05%, took 18 s to the proof in place
// of 26 to 33. They are taken from 60 labels per downset in a plain pass on.
constexpr int64_t kWindowLabels = 3;
constexpr double kNarrowWindow = 2e-4;
constexpr int64_t kManyLabels = 60;
// Passes near the best plan first, with several degrees on more than 64 devices: each costs a tenth
// to a half of a pass over all labels. Steps shorten down to the width of a narrow window.
constexpr double kFollowStep = 1e-3;
constexpr double kLeastStep = 2e-4;
// After a quarter of the time limit one refused pass, cheap so far below a plan, so that a stop
// leaves a gap of 2% in place of the first bound's 10%.
constexpr double kCoarseStep = 2e-2;
constexpr double kCoarseFrom = 0.25;
// Among few cuts. Rounds go on while they gain this much. 4,000 downsets around each cut took half
// of the time beyond 400 layers and gained 0.05%.
constexpr double kLeastGain = 1e-5;
constexpr int32_t kFewLayers = 400;
// Up to here a pass over all downsets takes milliseconds (GNMT's 17,914 are proved in 17), and a
// first plan on few cuts saves none.
constexpr int32_t kFirstPlanDownsets = 2000;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Search {
 public:
  Search(const PartitionProblem& problem, const PartitionLimits& limits)
      : problem_(problem),
        limits_(limits),
        in_(problem),
        audit_(in_, limits.audit_sample, limits.audit_seed),
        begin_(std::chrono::steady_clock::now()) {
    stop_ = [this] { return should_stop(); };
  }

  PartitionResult run();

 private:
  double elapsed_s() const;
  bool should_stop();
  // Narrows [lower, best] by passes over one family; false: stopped, or no plan in the family.
  bool narrow(LevelSweep& sweep, double gap, bool is_complete);
  bool find_first_plan(LevelSweep& sweep, bool is_complete);
  PassAnswer ask(LevelSweep& sweep, double threshold_s, bool is_complete);
  void find_any_plan();
  void plan_on_chains(double gap);
  void move_cuts_once(int64_t per_cut, double gain);
  void move_cuts(int64_t per_cut, double gain);
  void move_cuts_far() {
    for (int64_t per_cut : {400, 1000}) move_cuts(per_cut, 1e-4);
  }
  void descend(LevelSweep& sweep, double gain);
  void exchange();
  void sweep_cuts(std::vector<uint64_t> rows);
  void bound_by_positions();
  // A pass has several labels to extend per downset: passes near the best plan go first.
  bool has_many_labels() const { return in_.num_degrees > 1 && in_.max_sum > limits_.priced_from; }
  void follow_plan(LevelSweep& sweep, double step);
  void bound_coarsely(LevelSweep& sweep);
  bool halve(LevelSweep& sweep, double gap);
  void close_gap(LevelSweep& sweep);
  void close_by_dead_ends(LevelSweep& sweep);
  bool accept(const std::vector<PartitionStage>& stages);
  void count(const LevelSweep& sweep);
  void finish();
  double longest_stage_s() const;
  double last_threshold_s() const { return result_.time_per_sample_s * (1 - kFinalStep); }

  const PartitionProblem& problem_;
  const PartitionLimits& limits_;
  Instance in_;
  RejectionAudit audit_;
  std::chrono::steady_clock::time_point begin_;
  Stop stop_;
  double last_poll_s_ = 0;
  int64_t calls_ = 0;
  PartitionResult result_;
  double floor_s_ = 0;  // largest threshold answered "no" (proved or not) in the current family
  bool is_infeasible_ = false;
  bool is_last_resort_ = false;  // the search was stopped, and looks for any plan
};

double Search::elapsed_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

bool Search::should_stop() {
  if (is_last_resort_) return false;
  if (result_.interrupted || result_.time_limited) return true;
  if ((++calls_ & 15) != 0) return false;
  const double now = elapsed_s();
  if (now >= limits_.time_limit_s) result_.time_limited = true;
  if (limits_.poll && now - last_poll_s_ >= 0.05) {
    last_poll_s_ = now;
    result_.interrupted = limits_.poll({now, result_.time_per_sample_s, result_.lower_bound_s,
                                        result_.counters.downsets, result_.counters.passes});
  }
  return result_.interrupted || result_.time_limited;
}

// No stage can take longer: every layer slow, every edge cut twice, all gradients.
double Search::longest_stage_s() const {
  double total = 0;
  for (double p : problem_.option_time_s) total += p;
  for (double c : problem_.edge_bytes) total += 2 * in_.cut_s_per_byte * c;
  for (double c : problem_.option_boundary_bytes) total += in_.cut_s_per_byte * c;
  for (double w : problem_.option_gradient_bytes) total += in_.sync_s_per_byte * w;
  return total;
}

// Keeps the plan if it is the best; false if the evaluator refuses it.
bool Search::accept(const std::vector<PartitionStage>& stages) {
  const PlanEvaluation price = evaluate_plan(problem_, stages);
  if (price.valid && price.time_per_sample_s < result_.time_per_sample_s) {
    result_.time_per_sample_s = price.time_per_sample_s;
    result_.stages = stages;
  }
  return price.valid;
}

PassAnswer Search::ask(LevelSweep& sweep, double threshold_s, bool is_complete) {
  const PassAnswer answer = sweep.run(threshold_s, stop_);
  ++result_.counters.passes;
  if (answer == PassAnswer::yes) {
    if (!accept(sweep.plan())) return PassAnswer::unresolved;  // rounding at the memory limit
  } else if (answer != PassAnswer::stopped) {
    floor_s_ = std::max(floor_s_, threshold_s);
    if (answer == PassAnswer::no && is_complete)
      result_.lower_bound_s = std::max(result_.lower_bound_s, threshold_s);
  }
  return answer;
}

// Thresholds grow from the bound until a plan is found, or none can exist.
bool Search::find_first_plan(LevelSweep& sweep, bool is_complete) {
  const double longest = longest_stage_s();
  double step = 0.02;
  // A restricted family proves nothing: take any plan first, it comes quickest without a threshold.
  double threshold = floor_s_ > 0 && is_complete ? floor_s_ * (1 + step) : longest;
  while (result_.time_per_sample_s == kInfinity) {
    threshold = std::min(threshold, longest);
    const PassAnswer answer = ask(sweep, threshold, is_complete);
    if (answer == PassAnswer::yes && result_.time_per_sample_s < kInfinity) return true;
    if (answer == PassAnswer::stopped) return false;
    if (threshold >= longest) {
      // Sums beyond every double prove nothing.
      is_infeasible_ = answer == PassAnswer::no && is_complete && std::isfinite(longest);
      return false;
    }
    step *= 2.5;
    threshold = step < 10 ? floor_s_ * (1 + step) : longest;
  }
  return true;
}

bool Search::narrow(LevelSweep& sweep, double gap, bool is_complete) {
  if (!find_first_plan(sweep, is_complete)) return false;
  bool try_final = true;
  while (result_.time_per_sample_s > 0 && floor_s_ < result_.time_per_sample_s * (1 - gap)) {
    const double best = result_.time_per_sample_s, last = best * (1 - kFinalStep);
    const double step = best > floor_s_ * (1 + kNearGap) ? 0.5 : 0.3;
    double threshold = last;
    if (floor_s_ <= 0)
      threshold = best * 1e-3;
    else if (best > 1.5 * floor_s_)
      threshold = std::sqrt(best * floor_s_);
    else if (best > floor_s_ * (1 + kBisectGap) || !try_final)
      threshold = best - step * (best - floor_s_);
    try_final = threshold < last;
    const PassAnswer answer = ask(sweep, std::min(threshold, last), is_complete);
    if (answer == PassAnswer::stopped) return false;
    // A "yes" that is no better than the plan known: rounding, treat the threshold as reached.
    if (answer == PassAnswer::yes && result_.time_per_sample_s >= best) floor_s_ = threshold;
  }
  return true;
}

void Search::count(const LevelSweep& sweep) {
  const PartitionCounters& own = sweep.counters();
  PartitionCounters& all = result_.counters;
  all.labels += own.labels;
  all.starts += own.starts;
  all.dead_ends += own.dead_ends;
  all.candidates += own.candidates;
  all.relaxations += own.relaxations;
  all.knapsacks += own.knapsacks;
  all.capped_knapsacks += own.capped_knapsacks;
  all.bound_tables += own.bound_tables;
  all.peak_label_bytes = std::max(all.peak_label_bytes, own.peak_label_bytes);
}

// A plan on the prefixes of linear orders, within `gap` of the best there.
void Search::plan_on_chains(double gap) {
  for (size_t num_orders : {size_t{1}, size_t{4}}) {  // perhaps another order fits
    const Downsets sets = family_of(in_, linear_cuts(in_, num_orders));
    LevelSweep sweep(in_, sets, limits_, audit_);
    result_.lower_bound_s = std::max(result_.lower_bound_s, sweep.root_bound_s());
    floor_s_ = result_.lower_bound_s;
    narrow(sweep, gap, false);
    count(sweep);
    if (!result_.stages.empty() || stop_()) return;
  }
}

// Moves the cuts of the best plan among the `per_cut` downsets around each, in steps down to
// `gain`.
void Search::move_cuts_once(int64_t per_cut, double gain) {
  std::vector<uint64_t> rows = cuts_near(in_, cuts_of(in_, result_.stages), per_cut);
  const std::vector<uint64_t> chains = linear_cuts(in_, 4);
  rows.insert(rows.end(), chains.begin(), chains.end());
  const Downsets sets = family_of(in_, rows);
  if (result_.restricted)
    result_.counters.downsets = std::max<int64_t>(result_.counters.downsets, sets.count);
  LevelSweep sweep(in_, sets, limits_, audit_);
  descend(sweep, gain);
  count(sweep);
}

// The same again until it gains less than `gain`.
void Search::move_cuts(int64_t per_cut, double gain) {
  for (double before = kInfinity; result_.time_per_sample_s < before * (1 - gain) && !stop_();) {
    before = result_.time_per_sample_s;
    move_cuts_once(per_cut, gain);
  }
}

// Steps down from the best plan, larger ones after a success, until a step of `gain` fails.
void Search::descend(LevelSweep& sweep, double gain) {
  for (double step = 4 * gain; !stop_();) {
    const double best = result_.time_per_sample_s;
    if (has_many_labels()) sweep.follow(result_.stages, best, 1);
    const PassAnswer answer = ask(sweep, best * (1 - step), false);
    if (answer == PassAnswer::stopped) return;
    if (answer == PassAnswer::yes && result_.time_per_sample_s < best) {
      step *= 2;
    } else {
      if (step <= gain) return;
      step = std::max(gain, step / 8);
    }
  }
}

// Exchanges layers between stages: quickly under several data degrees, as long as that helps under
// those of the best plan, then slowly.
void Search::exchange() {
  if (result_.stages.size() < 2) return;
  sweep_cuts(regrouped_cuts(in_, result_.stages, stop_));
  for (double before = kInfinity;
       result_.time_per_sample_s < before * (1 - kLeastGain) && !stop_();) {
    before = result_.time_per_sample_s;
    sweep_cuts(exchanged_cuts(in_, result_.stages, kShortAnneal, stop_));
  }
  sweep_cuts(exchanged_cuts(in_, result_.stages, 1, stop_));
}

// The best plan among these cuts and its own.
void Search::sweep_cuts(std::vector<uint64_t> rows) {
  const std::vector<uint64_t> known = cuts_of(in_, result_.stages);
  rows.insert(rows.end(), known.begin(), known.end());
  const Downsets sets = family_of(in_, rows);
  LevelSweep sweep(in_, sets, limits_, audit_);
  descend(sweep, kLeastGain);
  count(sweep);
}

void Search::bound_by_positions() {
  const double bound_s = position_bound(in_, result_.time_per_sample_s, stop_);
  floor_s_ = result_.lower_bound_s = std::max(result_.lower_bound_s, bound_s);
}

// Stopped before any plan was known: the prefixes of one linear order give one in milliseconds.
void Search::find_any_plan() {
  is_last_resort_ = true;
  const Downsets sets = family_of(in_, linear_cuts(in_, 1));
  LevelSweep sweep(in_, sets, limits_, audit_);
  floor_s_ = result_.lower_bound_s = std::max(result_.lower_bound_s, sweep.root_bound_s());
  find_first_plan(sweep, false);
  count(sweep);
  is_last_resort_ = false;
}

// Halves what is left between bound and plan down to `gap`; false when a pass does not help.
bool Search::halve(LevelSweep& sweep, double gap) {
  while (result_.lower_bound_s < result_.time_per_sample_s * (1 - gap)) {
    const double best = result_.time_per_sample_s;
    const PassAnswer answer = ask(sweep, 0.5 * (result_.lower_bound_s + best), true);
    if (answer == PassAnswer::stopped || answer == PassAnswer::unresolved) return false;
    if (answer == PassAnswer::yes && result_.time_per_sample_s >= best) return false;
  }
  return true;
}

// Steps down from the best plan among those near it, shorter ones after a failure.
void Search::follow_plan(LevelSweep& sweep, double step) {
  while (step >= kLeastStep && !stop_()) {
    if (elapsed_s() > kCoarseFrom * limits_.time_limit_s) bound_coarsely(sweep);
    const double best = result_.time_per_sample_s;
    sweep.follow(result_.stages, best, 0);
    ask(sweep, best * (1 - step), false);
    if (result_.time_per_sample_s >= best) step /= 4;
  }
  sweep.follow({}, 0, 0);
  floor_s_ = result_.lower_bound_s;
}

// The steps prove nothing: where they take long, a stop would leave the gap of the first bound.
void Search::bound_coarsely(LevelSweep& sweep) {
  const double threshold_s = result_.time_per_sample_s * (1 - kCoarseStep);
  if (result_.lower_bound_s >= threshold_s * (1 - kCoarseStep / 2)) return;
  sweep.follow({}, 0, 0);
  ask(sweep, threshold_s, true);
}

// Passes just below the best plan that go on when they find a better one. Each makes the next one
// shorter.
void Search::close_by_dead_ends(LevelSweep& sweep) {
  const auto found = [&](const std::vector<PartitionStage>& stages) {
    return accept(stages) ? last_threshold_s() : kInfinity;
  };
  while (!stop_()) {
    const double best = result_.time_per_sample_s;
    ++result_.counters.passes;
    const PassAnswer answer = sweep.run_through(last_threshold_s(), found, stop_);
    if (answer != PassAnswer::no && result_.time_per_sample_s >= best) return;
    if (answer == PassAnswer::no || sweep.find_dead_ends(last_threshold_s(), stop_)) {
      floor_s_ = result_.lower_bound_s = last_threshold_s();
      return;
    }
  }
}

// Steps down, then windows below the best plan until one holds no better plan.
void Search::close_gap(LevelSweep& sweep) {
  double width = has_many_labels() ? kNarrowWindow : kWindow;
  if (has_many_labels()) {
    follow_plan(sweep, kFollowStep);
    if (sweep.can_find_dead_ends()) return close_by_dead_ends(sweep);
    const double best = result_.time_per_sample_s;
    if (ask(sweep, last_threshold_s(), true) != PassAnswer::yes) return;
    if (result_.time_per_sample_s >= best) return;
  } else {
    const PassAnswer answer = ask(sweep, result_.time_per_sample_s * (1 - kFirstStep), true);
    if (answer == PassAnswer::stopped) return;
    if (answer == PassAnswer::no && !halve(sweep, 1.3 * width)) return;
  }
  const int64_t plain = has_many_labels() ? kManyLabels * result_.counters.downsets
                                          : std::max(sweep.num_labels(), result_.counters.downsets);
  while (result_.time_per_sample_s > 0 && result_.lower_bound_s < last_threshold_s() && !stop_()) {
    const double best = result_.time_per_sample_s;
    const double floor_s = std::max(result_.lower_bound_s, best * (1 - width));
    ++result_.counters.passes;
    const auto found = [&](const std::vector<PartitionStage>& stages) {
      return accept(stages) ? last_threshold_s() : kInfinity;
    };
    const PassAnswer answer =
        sweep.run_window(floor_s, last_threshold_s(), kWindowLabels * plain, found, stop_);
    if (answer == PassAnswer::no) floor_s_ = result_.lower_bound_s = last_threshold_s();
    // Below the floor the window is left early: there the next one begins.
    if (answer == PassAnswer::too_wide) {
      width /= 4;
      if (!halve(sweep, 2 * width)) return;
    } else if (answer != PassAnswer::yes || result_.time_per_sample_s >= best) {
      return;
    } else {
      width = std::min(2 * width, kWindow);
    }
  }
}

PartitionResult Search::run() {
  const double start_s = cpu_seconds();
  if (in_.data_degrees.empty()) {
    is_infeasible_ = true;
  } else {
    const Downsets sets = enumerate_downsets(in_, limits_.max_downsets, stop_);
    result_.restricted = sets.count == 0;
    if (result_.restricted || sets.count > kFirstPlanDownsets) {
      plan_on_chains(1e-2);
      if (!result_.stages.empty()) move_cuts(40, 1e-2);
      if (!result_.stages.empty()) move_cuts(120, 2e-3);
      if (!result_.stages.empty() && !result_.restricted && has_many_labels())
        move_cuts_once(400, 1e-3);
    }
    if (result_.restricted) {
      if (!result_.stages.empty()) bound_by_positions();
      const bool is_small = in_.num_layers <= kFewLayers;
      if (!result_.stages.empty() && is_small) move_cuts_far();
      if (!result_.stages.empty() && is_small) move_cuts(4000, 1e-3);
      if (!result_.stages.empty()) exchange();
      if (!result_.stages.empty()) move_cuts_far();
    } else if (!stop_()) {
      result_.counters.downsets = sets.count;
      LevelSweep sweep(in_, sets, limits_, audit_);
      result_.lower_bound_s = std::max(result_.lower_bound_s, sweep.root_bound_s());
      floor_s_ = result_.lower_bound_s;
      if (sweep.can_run_window()) {
        if (result_.stages.empty()) narrow(sweep, kFirstStep, true);
        if (!result_.stages.empty()) close_gap(sweep);
      }
      if (!is_infeasible_) narrow(sweep, kFinalStep * 1.5, true);
      count(sweep);
    }
    if (result_.stages.empty() && !is_infeasible_) find_any_plan();
  }
  finish();
  result_.audit = audit_.take();
  result_.solver_s = cpu_seconds() - start_s;
  return std::move(result_);
}

void Search::finish() {
  if (in_.is_clamped) {  // the search has not seen every plan: it proves nothing
    is_infeasible_ = false;
    result_.lower_bound_s = 0;
  }
  result_.lower_bound_s = std::min(result_.lower_bound_s, result_.time_per_sample_s);
  if (is_infeasible_) {
    result_.status = PartitionStatus::infeasible;
    result_.lower_bound_s = kInfinity;
  } else if (result_.stages.empty()) {
    result_.status = PartitionStatus::unknown;
  } else {
    const bool closed = result_.lower_bound_s >= result_.time_per_sample_s * (1 - kOptimalGap);
    result_.status = closed ? PartitionStatus::optimal : PartitionStatus::gap;
  }
}

}  // namespace

PartitionResult solve_partition(const PartitionProblem& problem, const PartitionLimits& limits) {
  return Search(problem, limits).run();
}

}  // namespace trainwright
