#include "schedule/cyclic_v.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "schedule/cyclic_path.hpp"

namespace trainwright {

namespace {

constexpr int64_t kActions = kCyclicActions;
using Starts = CyclicStarts;

// How a beam looks: what waits cost, those of F0 and I0, which delay fewer ranks than those of F1
// and I1, and those of weight gradients, which delay one; and where ranks may have their slack. No
// way is best for all: the shortest period is often found by the last.
struct Look {
  double outer, weight_grad;
  bool in_one_gap;
};
constexpr std::array<Look, 5> kLooks{{{1.0, 0.05, false},
                                      {0.3, 0.4, false},
                                      {0.3, 0.05, false},
                                      {1.0, 0.05, true},
                                      {0.3, 0.4, true}}};
constexpr double kHair = 1e-9;        // of the period: starts that rounding puts before an arrival
constexpr double kSame = 1e-6;        // of the period: phases that are one
constexpr int64_t kFirst = 16;        // times as many states on the first rank, which are alike
constexpr double kNearEnough = 5e-3;  // of the period: where halving ends

enum Mode : int64_t { kSoon, kLate, kGap };  // the last of each of the gaps

struct State {
  Starts phase{};
  double cost = 0;
  int32_t from = 0;
};

// The beginning of a cyclic order: where the last action ends, the slack that is left, and the most
// that any part of the beginning costs, as rounding may take a hair off again.
struct Begun {
  State state;
  double now_s = 0, slack_s = 0, most = 0;
};

class Search {
 public:
  Search(const CyclicProblem& problem, double period_s, Look look)
      : x_(problem), period_s_(period_s), look_(look), p_(problem.num_ranks()) {}

  // Starts of all ranks of the first end of the beam within the limits; none where there is none.
  std::vector<double> run() {
    std::vector<std::vector<State>> beam;
    beam.push_back(first());
    for (int64_t r = 0; r + 1 < p_; ++r) beam.push_back(next(r, beam.back()));
    for (size_t end = 0; end < beam.back().size(); ++end) {
      std::vector<double> starts = unrolled(beam, end);
      const std::vector<double> over = bytes_beyond(x_, period_s_, starts);
      if (std::ranges::all_of(over, [](double bytes) { return bytes <= 0; })) return starts;
    }
    return {};
  }

 private:
  const double* own_s(int64_t r) const { return x_.duration_s.data() + r * kActions; }

  double modulo(double time_s) const { return cyclic_modulo(time_s, period_s_); }

  double slack_s(int64_t r) const {
    return std::max(0.0, period_s_ - std::accumulate(own_s(r), own_s(r) + kActions, 0.0));
  }

  // What is waited on a rank by itself: its weight gradients, on the first rank the loss, on the
  // last both turns.
  double own_cost(int64_t r, const Starts& at) const {
    const double* d = own_s(r);
    double cost = look_.weight_grad *
                  (modulo(at[kW1] - at[kI1] - d[kI1]) + modulo(at[kW0] - at[kI0] - d[kI0]));
    if (r == 0) cost += modulo(at[kI1] - at[kF1] - d[kF1]);
    if (r == p_ - 1) {
      cost += modulo(at[kF1] - at[kF0] - d[kF0]) + modulo(at[kI0] - at[kI1] - d[kI1]);
    }
    return cost;
  }

  // Every cyclic order, with the slack after one of its actions, or half of it after each of two.
  std::vector<State> first() const {
    const double* d = own_s(0);
    const double half_s = slack_s(0) / 2;
    const int64_t places = half_s > kSame * period_s_ ? kActions : 1;
    std::array<int64_t, kActions> order{kF0, kF1, kI1, kI0, kW1, kW0};
    std::vector<State> found;
    do {
      for (int64_t one = 0; one < places; ++one) {
        for (int64_t other = one; other < places; ++other) {
          State state;
          double at_s = 0;
          for (int64_t k = 0; k < kActions; ++k) {
            state.phase[order[k]] = at_s;
            at_s += d[order[k]] + half_s * ((k == one) + (k == other));
          }
          state.cost = own_cost(0, state.phase);
          found.push_back(state);
        }
      }
    } while (std::next_permutation(order.begin() + 1, order.end()));
    return kept(std::move(found), kFirst * x_.width);
  }

  // One action of the next rank after the other in a cyclic order, the first where it makes nobody
  // wait. Either all slack is in one gap; or each of the others starts where it makes nobody wait
  // if the slack that is left reaches there, else as soon as it can, or, where the rank before
  // waits for it, as late.
  std::vector<State> next(int64_t r, const std::vector<State>& states) const {
    const double *d = own_s(r), *e = own_s(r + 1);
    const int64_t far = 2 * p_ - 2 - r;  // the edge between both far stages
    const double whole_slack_s = slack_s(r + 1);
    const bool is_tight = whole_slack_s <= kSame * period_s_;
    const int64_t first_mode = look_.in_one_gap && !is_tight ? kGap : kSoon;
    const int64_t after_mode = is_tight ? kLate : look_.in_one_gap ? kGap + kActions : kGap;
    const size_t most = 4 * static_cast<size_t>(x_.width);
    std::vector<State> found;
    found.reserve(2 * most);
    double enough = std::numeric_limits<double>::infinity();
    const auto is_less = [](const State& a, const State& b) { return a.cost < b.cost; };
    for (size_t from = 0; from < states.size(); ++from) {
      const Starts& at = states[from].phase;
      const std::array<double, 4> target{
          at[kF0] + d[kF0] + x_.forward_transfer_s[r],     // the next F0 starts then or later
          at[kF1] - x_.forward_transfer_s[far] - e[kF1],   // its F1 then or before
          at[kI1] + d[kI1] + x_.backward_transfer_s[far],  // its I1 then or later
          at[kI0] - x_.backward_transfer_s[r] - e[kI0],    // its I0 then or before
      };
      // Orders with the same beginning share what it costs; letters ascend, so that those which
      // begin with a weight gradient, and need not be looked at, come last.
      std::array<std::array<Begun, kGap + kActions>, kActions> begun;
      const auto start = [&](int64_t action, int64_t mode) {
        Begun& one = begun[0][mode];
        one.state = {{}, states[from].cost, static_cast<int32_t>(from)};
        one.state.phase[action] = target[action];
        one.now_s = target[action] + e[action];
        one.slack_s = whole_slack_s;
        one.most = one.state.cost;
      };
      const auto follow = [&](int64_t k, int64_t action, int64_t mode) {
        Begun& one = begun[k][mode];
        one = begun[k - 1][mode];
        if (one.most >= enough) return;
        const bool is_outward = action == kF1 || action == kI0;
        const double ahead_s = action <= kI0 ? modulo(target[action] - one.now_s) : 0.0;
        double moved_s = 0;
        if (mode >= kGap) {
          moved_s = mode == kGap + k - 1 ? whole_slack_s : 0.0;
        } else if (ahead_s > 0) {
          moved_s = ahead_s <= one.slack_s        ? ahead_s
                    : mode == kLate && is_outward ? one.slack_s
                                                  : 0.0;
        }
        one.now_s += moved_s;
        one.slack_s -= moved_s;
        if (action <= kI0) {
          const double waits_s =
              modulo(is_outward ? target[action] - one.now_s : one.now_s - target[action]);
          one.state.cost += (action == kF0 || action == kI0 ? look_.outer : 1.0) * waits_s;
        }
        one.state.phase[action] = one.now_s;
        one.now_s += e[action];
        one.most = std::max(one.most, one.state.cost);
      };
      const auto keep = [&](const Begun& whole) {
        if (whole.most >= enough) return;
        State one = whole.state;
        one.cost += own_cost(r + 1, one.phase);
        if (one.cost >= enough) return;
        found.push_back(one);
        if (found.size() < 2 * most) return;
        std::nth_element(found.begin(), found.begin() + static_cast<int64_t>(most), found.end(),
                         is_less);
        found.resize(most);
        enough = std::max_element(found.begin(), found.end(), is_less)->cost;
      };
      const auto go_on = [&](const auto& self, int64_t k, unsigned used) -> void {
        for (int64_t action = 0; action < (k == 0 ? kW1 : kActions); ++action) {
          if (used >> action & 1) continue;
          double least = std::numeric_limits<double>::infinity();
          for (int64_t mode = first_mode; mode < after_mode; ++mode) {
            k == 0 ? start(action, mode) : follow(k, action, mode);
            least = std::min(least, begun[k][mode].most);
          }
          if (least >= enough) continue;
          if (k + 1 < kActions) {
            self(self, k + 1, used | 1u << action);
            continue;
          }
          for (int64_t mode = first_mode; mode < after_mode; ++mode) keep(begun[k][mode]);
        }
      };
      go_on(go_on, 0, 0u);
    }
    return kept(std::move(found), x_.width);
  }

  // The best of those whose phases differ.
  std::vector<State> kept(std::vector<State> found, int64_t most) const {
    std::sort(found.begin(), found.end(), [](const State& a, const State& b) {
      return a.cost != b.cost ? a.cost < b.cost : a.from < b.from;
    });
    std::vector<State> best;
    for (State& one : found) {
      for (double& start_s : one.phase) start_s = modulo(start_s);
      const bool is_known = std::any_of(best.begin(), best.end(), [&](const State& other) {
        for (int64_t k = 0; k <= kI0; ++k) {
          if (std::abs(one.phase[k] - other.phase[k]) > kSame * period_s_) return false;
        }
        return true;
      });
      if (!is_known) best.push_back(one);
      if (static_cast<int64_t>(best.size()) == most) break;
    }
    return best;
  }

  // One microbatch along its path, each action at its phase.
  std::vector<double> unrolled(const std::vector<std::vector<State>>& beam, size_t end) const {
    std::vector<Starts> on(static_cast<size_t>(p_));
    for (int64_t r = p_ - 1; r >= 0; --r) {
      on[r] = beam[r][end].phase;
      end = static_cast<size_t>(beam[r][end].from);
    }
    return cyclic_starts(x_, period_s_, on);
  }

  const CyclicProblem& x_;
  double period_s_;
  Look look_;
  int64_t p_;
};

constexpr int64_t kPriceRounds = 16;

std::vector<double> at_period(const CyclicProblem& problem, double period_s) {
  if (problem.exact) return cyclic_path(problem, period_s, kPriceRounds);
  for (const Look& look : kLooks) {
    std::vector<double> starts = Search(problem, period_s, look).run();
    if (!starts.empty()) return starts;
  }
  return {};
}

}  // namespace

double cyclic_modulo(double time_s, double period_s) {
  const double hair_s = kHair * period_s, shifted = time_s + hair_s;
  // Mostly within a period of 0, where no quotient need be rounded down.
  if (shifted >= 0 && shifted < period_s) return shifted - hair_s;
  if (shifted < 0 && shifted >= -period_s) return shifted + period_s - hair_s;
  return shifted - period_s * std::floor(shifted / period_s) - hair_s;
}

std::vector<double> path_starts(
    const CyclicProblem& x, double from_s,
    const std::function<double(int64_t rank, Letter action, double ready_s)>& start_of) {
  const int64_t p = x.num_ranks();
  std::vector<double> starts(static_cast<size_t>(p * kActions));
  double now_s = from_s;
  const auto run = [&](int64_t r, Letter action, double ready_s) {
    const double start_s = start_of(r, action, ready_s);
    starts[r * kActions + action] = start_s;
    return start_s + x.duration_s[r * kActions + action];
  };
  for (int64_t r = 0; r < p; ++r) {
    now_s = run(r, kF0, now_s);
    if (r + 1 < p) now_s += x.forward_transfer_s[r];
  }
  for (int64_t r = p - 1; r >= 0; --r) {
    now_s = run(r, kF1, now_s);
    if (r > 0) now_s += x.forward_transfer_s[2 * p - 1 - r];
  }
  for (int64_t r = 0; r < p; ++r) {
    now_s = run(r, kI1, now_s);
    run(r, kW1, now_s);
    if (r + 1 < p) now_s += x.backward_transfer_s[2 * p - 2 - r];
  }
  for (int64_t r = p - 1; r >= 0; --r) {
    now_s = run(r, kI0, now_s);
    run(r, kW0, now_s);
    if (r > 0) now_s += x.backward_transfer_s[r - 1];
  }
  return starts;
}

std::vector<double> cyclic_starts(const CyclicProblem& x, double period_s,
                                  const std::vector<CyclicStarts>& phases) {
  const auto at_phase = [&](int64_t r, Letter action, double ready_s) {
    return ready_s + cyclic_modulo(phases[r][action] - ready_s, period_s);
  };
  std::vector<double> starts = path_starts(x, phases[0][kF0], at_phase);
  const double origin_s = starts[kF0];
  for (double& start_s : starts) start_s -= origin_s;
  return starts;
}

std::vector<double> bytes_beyond(const CyclicProblem& x, double period_s,
                                 const std::vector<double>& starts) {
  std::vector<double> beyond;
  for (int64_t r = 0; r < x.num_ranks(); ++r) {
    const int64_t first = r * kActions;
    double most_bytes = 0;  // what a microbatch takes it leaves again, so that differences count
    for (int64_t now = 0; now < kActions; ++now) {  // as this action starts
      const double now_s = starts[first + now];
      double held_bytes = x.transient_bytes[first + now];
      for (int64_t action = 0; action < kActions; ++action) {
        const double bytes = x.delta_bytes[first + action];
        const double since_s =
            starts[first + action] + (bytes < 0 ? x.duration_s[first + action] : 0.0);
        held_bytes += bytes * std::floor((now_s - since_s) / period_s + kHair);
      }
      most_bytes = std::max(most_bytes, held_bytes);
    }
    beyond.push_back(most_bytes - x.room_bytes[r] * (1 + kHair));
  }
  return beyond;
}

CyclicV cyclic_v(const CyclicProblem& problem) {
  double low_s = 0;
  for (int64_t r = 0; r < problem.num_ranks(); ++r) {
    const auto own = problem.duration_s.subspan(r * kActions, kActions);
    low_s = std::max(low_s, std::accumulate(own.begin(), own.end(), 0.0));
  }
  CyclicV found;
  double high_s = problem.longest_period_s, tried_s = low_s;
  for (int64_t round = 0; round < problem.rounds && tried_s > 0 && tried_s < high_s; ++round) {
    std::vector<double> starts = at_period(problem, tried_s);
    if (starts.empty()) {
      low_s = tried_s;
    } else {
      high_s = tried_s;
      found = {tried_s, std::move(starts)};
    }
    if (high_s - low_s <= kNearEnough * low_s) break;
    tried_s = (low_s + high_s) / 2;
  }
  return found;
}

}  // namespace trainwright
