#include "schedule/target_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainwright {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// One action of the list scheduler costs as much as this many of the incremental simulator.
constexpr int64_t kListWork = 16;
constexpr int64_t kWorkBetweenPauses = 10'000'000;  // about a tenth of a second

}  // namespace

TargetSearch::TargetSearch(const StreamProblem& problem, RandomSource& random, Found found,
                           Pause pause)
    : problem_(problem),
      random_(random),
      found_(std::move(found)),
      pause_(std::move(pause)),
      list_(problem),
      target_s_(problem.num_actions),
      life_share_(problem.streams.size()),
      leg_length_(std::min(problem.num_ranks, problem.num_stages)),
      num_legs_((2 * problem.num_stages + leg_length_ - 1) / leg_length_),
      best_guide_s_(kInfinite) {}

TargetPlan TargetSearch::walk(const std::vector<double>& leg_wait_s, double turn_s,
                              double period_s) const {
  TargetPlan plan{.offset_s = std::vector<double>(problem_.streams.size(), 0.0),
                  .period_s = period_s,
                  .rule = {}};
  double at_s = 0.0;
  for (size_t step = 0; step < problem_.path.size(); ++step) {
    const int32_t id = problem_.path[step];
    const Stream& stream = problem_.streams[id];
    if (step > 0) at_s += stream.lag_s + leg_wait_s[step / leg_length_];
    if (step == problem_.path.size() / 2) at_s += turn_s;
    plan.offset_s[id] = at_s;
    at_s += stream.duration_s;
  }
  return plan;
}

double TargetSearch::guide_of(const TargetPlan& plan) {
  const int32_t microbatches = problem_.num_microbatches;
  const auto repeat = [&](int32_t id, double offset_s) {
    double* target_s = &target_s_[problem_.slot(id, 0)];
    for (int32_t j = 0; j < microbatches; ++j) target_s[j] = offset_s + j * plan.period_s;
  };
  for (const int32_t id : problem_.path) {
    repeat(id, plan.offset_s[id]);
    const Stream& stream = problem_.streams[id];
    const int32_t recompute = problem_.streams_of_stage[stream.stage][kRecompute];
    if (stream.kind != kForward && recompute != kNoStream)
      repeat(recompute, plan.offset_s[id] - problem_.streams[recompute].duration_s);
  }
  if (!plan.rule.strict && plan.rule.reserve == Reserve::by_lifespan) {
    const auto& path = problem_.path;
    std::vector<double> total_s(problem_.num_ranks, 0.0);
    for (int32_t stage = 0; stage < problem_.num_stages; ++stage) {
      const int32_t forward = path[stage], back = path[path.size() - 1 - stage];
      life_share_[forward] = std::max(plan.offset_s[back] - plan.offset_s[forward], 1e-9);
      total_s[problem_.streams[forward].rank] += life_share_[forward];
    }
    for (int32_t stage = 0; stage < problem_.num_stages; ++stage)
      life_share_[path[stage]] /= total_s[problem_.streams[path[stage]].rank];
  }
  work_ += kListWork * problem_.num_actions;
  if (work_ >= next_pause_) {
    next_pause_ = work_ + kWorkBetweenPauses;
    if (pause_()) stopped_ = true;
  }
  if (!list_.run(target_s_, life_share_, plan.rule)) return kInfinite;
  const double guide_s = list_.length().guide(problem_.objective);
  if (found_(list_.words(), list_.length())) stopped_ = true;
  if (guide_s < best_guide_s_) {
    best_guide_s_ = guide_s;
    best_ = plan;
  }
  return guide_s;
}

ListRule TargetSearch::random_rule() {
  ListRule rule{.strict = random_.chance(0.5)};
  rule.reserve = static_cast<Reserve>(random_.below(kNumReserves));
  rule.w_gap = random_.between(0.0, 1.2);
  rule.tolerance_s = random_.chance(0.3) ? 0.0 : random_.between(0.0, 1.5) * problem_.mean_action_s;
  return rule;
}

TargetPlan TargetSearch::random_plan() {
  const double unit_s = problem_.mean_action_s;
  std::vector<double> leg_wait_s(num_legs_ + 1);
  const double scale_s = 3.0 * unit_s * random_.unit() * random_.unit();
  for (double& wait_s : leg_wait_s) wait_s = random_.chance(0.3) ? 0.0 : scale_s * random_.unit();
  if (random_.chance(0.5))
    for (int32_t leg = 0; 2 * leg + 1 < num_legs_; ++leg)
      leg_wait_s[num_legs_ / 2 + leg] = leg_wait_s[leg];
  const double turn_s = random_.chance(0.5) ? 0.0 : 2.0 * unit_s * random_.unit();
  const double stretch = 1.0 + (random_.chance(0.4) ? 0.0 : 0.5 * random_.unit() * random_.unit());
  TargetPlan plan = walk(leg_wait_s, turn_s, stretch * problem_.largest_work_s);
  plan.rule = random_rule();
  return plan;
}

// Walks with the steps of V-Min (1,1), V-Half (2,1), ZB-V (4,2) and others between them, in slots
// away from the turn and returning to it.
void TargetSearch::sample_blocks(int64_t end) {
  const double slot_s = problem_.mean_action_s;
  for (const auto& [away, returning] :
       {std::pair{0.0, 0.0}, {1.0, 0.0}, {1.0, 1.0}, {2.0, 1.0}, {3.0, 1.0}, {0.5, 0.0}}) {
    std::vector<double> leg_wait_s(num_legs_ + 1);
    for (int32_t leg = 0; leg < num_legs_; ++leg)
      leg_wait_s[leg] = (leg % 2 == 0 ? away : returning) * slot_s;
    for (const double stretch : {1.0, 1.1}) {
      TargetPlan plan = walk(leg_wait_s, 0.0, stretch * problem_.largest_work_s);
      for (const double w_gap : {0.0, 0.5, 1.0}) {
        plan.rule = {.strict = true, .w_gap = w_gap};
        guide_of(plan);
        plan.rule.strict = false;
        for (int reserve = 0; reserve < kNumReserves; ++reserve) {
          plan.rule.reserve = static_cast<Reserve>(reserve);
          guide_of(plan);
          if (stopped_ || work_ >= end) return;
        }
      }
    }
  }
}

void TargetSearch::sample(int64_t work) {
  const int64_t end = work_ + work;
  sample_blocks(end);
  while (!stopped_ && work_ < end) {
    const bool fresh = best_guide_s_ == kInfinite || random_.chance(0.5);
    guide_of(fresh ? random_plan() : varied(best_, 0.3));
  }
}

TargetPlan TargetSearch::varied(const TargetPlan& plan, double scale) {
  TargetPlan other = plan;
  do {
    if (random_.chance(0.7)) {
      shift_offsets(other, scale);
    } else {
      change_rule(other, scale);
    }
  } while (random_.chance(0.4));
  return other;
}

void TargetSearch::shift_offsets(TargetPlan& plan, double scale) {
  const auto& path = problem_.path;
  const auto size = static_cast<int32_t>(path.size());
  const double shift_s = scale * problem_.mean_action_s * random_.between(-2.0, 2.0);
  const int32_t at = random_.below(size);
  switch (random_.below(3)) {
    case 0:
      plan.offset_s[path[at]] += shift_s;
      break;
    case 1:
      for (int32_t step = at; step < size; ++step) plan.offset_s[path[step]] += shift_s;
      break;
    default: {
      // A leg: the wait of every step grows, what follows moves by the sum.
      const int32_t first = at / leg_length_ * leg_length_;
      for (int32_t step = first; step < size; ++step) {
        const int32_t steps = std::min(step - first, leg_length_);
        plan.offset_s[path[step]] += shift_s * steps / leg_length_;
      }
    }
  }
}

void TargetSearch::change_rule(TargetPlan& plan, double scale) {
  switch (random_.below(5)) {
    case 0:
      plan.period_s *= 1.0 + scale * random_.between(-0.1, 0.1);
      break;
    case 1:
      plan.rule.w_gap = random_.between(0.0, 1.2);
      break;
    case 2:
      plan.rule.tolerance_s =
          random_.chance(0.3) ? 0.0 : random_.between(0.0, 1.5) * problem_.mean_action_s;
      break;
    case 3:
      plan.rule.reserve = static_cast<Reserve>(random_.below(kNumReserves));
      break;
    default:
      plan.rule.strict = !plan.rule.strict;
  }
}

void TargetSearch::anneal(int64_t work) {
  if (best_guide_s_ == kInfinite) return;
  const int64_t begin = work_;
  TargetPlan plan = best_;
  double guide_s = best_guide_s_;
  while (!stopped_ && work_ < begin + work) {
    const double done = static_cast<double>(work_ - begin) / static_cast<double>(work);
    const double heat = std::pow(0.02, done);
    TargetPlan next = varied(plan, 0.05 + 0.5 * heat);
    const double next_s = guide_of(next);
    const double allowed_s = 0.7 * heat * problem_.mean_action_s * random_.exponential();
    if (next_s > guide_s + allowed_s) continue;
    plan = std::move(next);
    guide_s = next_s;
  }
}

}  // namespace trainwright
