#include "schedule/word_annealing.hpp"

#include <algorithm>
#include <cmath>

namespace trainwright {

namespace {

// Shares of moves: of an action on the critical path, with 50 or 90% in its place (4 ranks, 8 to 12
// microbatches) 80 runs show no difference; and of one stream over a range of microbatches. A long
// range costs a simulation of all that runs meanwhile and is hardly ever accepted (12 ranks, 24
// microbatches: of those to the last one in nine, up to an inner one in thirty, from the first one
// in twenty, of all none in 38,000), so that equal shares spent 85% of what trials simulate.
constexpr double kOnCriticalPath = 0.7;
constexpr double kTwoMicrobatches = 0.07, kToLast = 0.04, kInnerRange = 0.01, kFromFirst = 0.005,
                 kAll = 0.001;
// A refused proposal is cheap, not free: without this a search that only refuses never ends.
constexpr int64_t kProposalWork = 4;
constexpr double kRoundedUp = 1.0 + 1e-12;          // sums in another order
constexpr int64_t kWorkBetweenPauses = 10'000'000;  // about a tenth of a second

}  // namespace

double first_temperature(int64_t num_actions) {
  const double size = static_cast<double>(num_actions) / 192.0;
  return std::clamp(0.2 * std::pow(size, -0.52), 0.025, 0.2);
}

WordAnnealing::WordAnnealing(const StreamProblem& problem, RandomSource& random, Found found,
                             Pause pause)
    : problem_(problem),
      random_(random),
      found_(std::move(found)),
      pause_(std::move(pause)),
      state_(problem) {}

void WordAnnealing::run(const Words& start, const AnnealingPlan& plan) {
  if (!state_.load(start)) return;
  const int64_t begin = work_;
  int64_t seen = state_.work();
  double guide_s = state_.length().guide(problem_.objective), best_s = guide_s;
  double temperature_s = 0.0;
  int64_t next_pause = work_;
  state_.trace_critical_path(critical_);
  for (int64_t step = 0; !stopped_ && work_ < begin + plan.work; ++step) {
    if (step % 64 == 0) {
      const double done = static_cast<double>(work_ - begin) / static_cast<double>(plan.work);
      temperature_s = problem_.mean_action_s * plan.hot * std::pow(plan.cold / plan.hot, done);
    }
    if (work_ >= next_pause) {
      next_pause = work_ + kWorkBetweenPauses;
      if (pause_()) stopped_ = true;
    }
    work_ += kProposalWork;
    if (!propose()) continue;
    const double allowed_s = temperature_s * random_.exponential();
    const double value_s = state_.length().value(problem_.objective);
    const bool tried = state_.try_window(rank_, first_, window_, value_s * kRoundedUp + allowed_s);
    work_ += state_.work() - seen;
    seen = state_.work();
    if (!tried) continue;
    const double next_s = state_.length().guide(problem_.objective);
    if (next_s > guide_s + allowed_s) {
      state_.reject();
      continue;
    }
    state_.accept();
    guide_s = next_s;
    state_.trace_critical_path(critical_);
    work_ += static_cast<int64_t>(critical_.size());
    if (guide_s >= best_s) continue;
    best_s = guide_s;
    stopped_ = found_(state_);
  }
}

int32_t WordAnnealing::random_distance() {
  if (random_.chance(0.05)) return 1 + random_.below(20);
  int32_t distance = 1;
  while (distance < 20 && random_.chance(0.4)) ++distance;
  return distance;
}

bool WordAnnealing::propose() {
  WordState::Place place;
  if (!critical_.empty() && random_.chance(kOnCriticalPath)) {
    place = critical_[random_.below(static_cast<int64_t>(critical_.size()))];
  } else {
    place.rank = random_.below(problem_.num_ranks);
    if (state_.word_size(place.rank) == 0) return false;
    place.position = random_.below(state_.word_size(place.rank));
  }
  rank_ = place.rank;
  const int32_t stream = state_.stream_at(place.rank, place.position);
  const int32_t microbatch = state_.microbatch_at(place.rank, place.position);
  const bool earlier = random_.chance(0.5);
  const int32_t distance = random_distance();
  int32_t from = microbatch, to = microbatch;
  const int32_t last = problem_.num_microbatches - 1;
  double drawn = random_.unit();
  const auto falls_in = [&](double share) { return (drawn -= share) < 0; };
  if (falls_in(kTwoMicrobatches)) {
    to = std::min(last, microbatch + 1);
  } else if (falls_in(kToLast)) {
    to = last;
  } else if (falls_in(kInnerRange)) {
    from = random_.below(microbatch + 1);
    to = microbatch + random_.below(last - microbatch + 1);
  } else if (falls_in(kFromFirst)) {
    from = 0;
  } else if (falls_in(kAll)) {
    from = 0;
    to = last;
  }
  shift_range(stream, from, to, distance, earlier);
  return !window_.empty();
}

void WordAnnealing::take(int32_t low, int32_t high) {
  first_ = low;
  window_.clear();
  for (int32_t at = low; at <= high; ++at) window_.push_back(state_.stream_at(rank_, at));
}

void WordAnnealing::shift_range(int32_t stream, int32_t from, int32_t to, int32_t distance,
                                bool earlier) {
  const int32_t begin = state_.position(stream, from), end = state_.position(stream, to);
  const int32_t size = state_.word_size(rank_);
  if (earlier) {
    take(std::max(0, begin - distance), end);
    for (int32_t j = from; j <= to; ++j) {
      const int32_t at = state_.position(stream, j) - first_;
      const int32_t target = std::max(0, at - distance);
      std::rotate(window_.begin() + target, window_.begin() + at, window_.begin() + at + 1);
    }
  } else {
    take(begin, std::min(size - 1, end + distance));
    for (int32_t j = to; j >= from; --j) {
      const int32_t at = state_.position(stream, j) - first_;
      const int32_t target = std::min(static_cast<int32_t>(window_.size()) - 1, at + distance);
      std::rotate(window_.begin() + at, window_.begin() + at + 1, window_.begin() + target + 1);
    }
  }
  // Trim what stays as it is.
  int32_t low = 0, high = static_cast<int32_t>(window_.size()) - 1;
  while (low <= high && window_[low] == state_.stream_at(rank_, first_ + low)) ++low;
  while (high >= low && window_[high] == state_.stream_at(rank_, first_ + high)) --high;
  window_.erase(window_.begin() + high + 1, window_.end());
  window_.erase(window_.begin(), window_.begin() + low);
  first_ += low;
}

}  // namespace trainwright
