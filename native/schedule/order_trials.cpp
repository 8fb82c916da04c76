#include "schedule/order_trials.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "schedule/improve_weight_grads.hpp"
#include "schedule/justify.hpp"
#include "schedule/reorder.hpp"

namespace trainwright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Rows>
std::string bytes_of(const Rows& rows) {
  return {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(*rows.data())};
}

bool same_rows(const std::vector<ActionRow>& one, const std::vector<ActionRow>& other) {
  return std::ranges::equal(one, other, [](const ActionRow& a, const ActionRow& b) {
    return a.kind == b.kind && a.stage == b.stage && a.microbatch == b.microbatch;
  });
}

}  // namespace

OrderTrials::OrderTrials(const ActionCosts& costs, const ActionMemory& memory, Objective objective,
                         double enough_s, int64_t sweeps, std::vector<int64_t> held)
    : costs_(costs),
      memory_(memory),
      objective_(objective),
      enough_s_(enough_s),
      sweeps_(sweeps),
      held_(std::move(held)) {}

double OrderTrials::objective_s(const Trial& trial) const {
  return objective_ == Objective::span ? trial.span_s : trial.makespan_s;
}

bool OrderTrials::is_less(const Trial& one, const Trial& other) const {
  const double own_s = objective_s(one), other_s = objective_s(other);
  if (own_s != other_s) return own_s < other_s;
  return one.span_s + one.makespan_s < other.span_s + other.makespan_s;
}

bool OrderTrials::holds(const Orders& orders) const {
  const size_t stages = orders.rank_of_stage.size(), rows = held_.size() / stages;
  for (int64_t rank = 0; rank < orders.num_ranks(); ++rank) {
    std::vector<size_t> own;
    for (size_t stage = 0; stage < stages; ++stage)
      if (orders.rank_of_stage[stage] == rank) own.push_back(stage);
    std::vector<int64_t> now(stages, 0);
    std::vector<char> was(rows, 0);
    for (int64_t at = orders.rank_offsets[rank]; at < orders.rank_offsets[rank + 1]; ++at) {
      const ActionRow& action = orders.actions[at];
      if (action.kind == kInputGrad) --now[action.stage];
      if (action.kind != kForward) continue;
      ++now[action.stage];
      for (size_t row = 0; row < rows; ++row) {
        const auto enough = [&](size_t stage) { return now[stage] >= held_[row * stages + stage]; };
        if (!was[row]) was[row] = std::ranges::all_of(own, enough);
      }
    }
    if (!std::ranges::all_of(was, [](char one) { return one != 0; })) return false;
  }
  return true;
}

bool OrderTrials::add(const Orders& order) {
  if (!order.pairs.empty()) throw std::invalid_argument("orders must have no pairs");
  if (is_enough_) return true;
  rank_of_stage_.assign(order.rank_of_stage.begin(), order.rank_of_stage.end());
  num_microbatches_ = order.num_microbatches;
  if (!orders_.insert(bytes_of(order.rank_offsets) + bytes_of(order.actions)).second) return false;
  if (!holds(order)) return false;
  for (const double tolerated_idle_s : {kInfinity, 0.0}) {
    const FilledOrders filled = fill_weight_grads(order, costs_, memory_, tolerated_idle_s);
    if (!filled.complete || !filled_.insert(bytes_of(filled.actions)).second) continue;
    trials_.push_back(closed(filled.actions, filled.rank_offsets));
    if (objective_s(trials_.back()) <= enough_s_) return is_enough_ = true;
  }
  return false;
}

FilledOrders OrderTrials::best(const PolishEffort& effort) const {
  if (trials_.empty()) return {.complete = false};
  const auto answer = [](const Trial& trial) {
    return FilledOrders{.actions = trial.actions,
                        .rank_offsets = trial.rank_offsets,
                        .span_s = trial.span_s,
                        .makespan_s = trial.makespan_s};
  };
  if (is_enough_) return answer(trials_.back());
  std::vector<const Trial*> ranked;
  for (const Trial& trial : trials_) ranked.push_back(&trial);
  std::ranges::stable_sort(
      ranked, [this](const Trial* one, const Trial* other) { return is_less(*one, *other); });
  if (std::cmp_less(effort.num_finalists, ranked.size()))
    ranked.resize(static_cast<size_t>(effort.num_finalists));
  Trial best = *ranked.front();
  for (size_t i = 0; i < ranked.size(); ++i) {
    const auto is_same = [&](const Trial* other) {
      return same_rows(other->actions, ranked[i]->actions);
    };
    const auto here = ranked.begin() + static_cast<ptrdiff_t>(i);
    if (std::any_of(ranked.begin(), here, is_same)) continue;  // gaps closed alike
    if (Trial found = polished(*ranked[i], effort); is_less(found, best)) best = std::move(found);
  }
  return answer(best);
}

Orders OrderTrials::view(const std::vector<ActionRow>& actions,
                         const std::vector<int64_t>& rank_offsets) const {
  return {.actions = actions,
          .rank_offsets = rank_offsets,
          .rank_of_stage = rank_of_stage_,
          .pairs = {},
          .num_microbatches = num_microbatches_};
}

OrderTrials::Trial OrderTrials::timed(std::vector<ActionRow> actions,
                                      const std::vector<int64_t>& rank_offsets) const {
  const Simulation times = simulate(view(actions, rank_offsets), costs_);
  if (!times.complete) throw std::logic_error("orders must run without deadlock");
  Trial trial{.actions = std::move(actions), .rank_offsets = rank_offsets};
  double first_s = kInfinity, last_s = -kInfinity;
  for (size_t rank = 0; rank + 1 < rank_offsets.size(); ++rank) {
    const auto begin = static_cast<size_t>(rank_offsets[rank]);
    const auto end = static_cast<size_t>(rank_offsets[rank + 1]);
    if (begin == end) continue;
    trial.span_s = std::max(trial.span_s, times.end_s[end - 1] - times.start_s[begin]);
    for (size_t row = begin; row < end; ++row) {
      first_s = std::min(first_s, times.start_s[row]);
      last_s = std::max(last_s, times.end_s[row]);
    }
  }
  trial.makespan_s = last_s - first_s;
  return trial;
}

OrderTrials::Trial OrderTrials::closed(const std::vector<ActionRow>& actions,
                                       const std::vector<int64_t>& rank_offsets) const {
  const Orders orders = view(actions, rank_offsets);
  ReorderedOrders moved =
      reorder(orders, costs_, memory_, {.from_s = 0.0, .until_s = kInfinity, .sweeps = sweeps_});
  if (!moved.complete) throw std::logic_error("orders must run without deadlock");
  if (!holds(view(moved.actions, rank_offsets))) return timed(actions, rank_offsets);
  return timed(std::move(moved.actions), rank_offsets);
}

OrderTrials::Trial OrderTrials::polished(const Trial& trial, const PolishEffort& effort) const {
  Trial current = closed(trial.actions, trial.rank_offsets);
  const int64_t budget = effort.simulations * static_cast<int64_t>(trial.actions.size());
  double least_s = kInfinity;
  for (int64_t round = 0; round < effort.rounds; ++round) {
    const FilledOrders placed = improve_weight_grads(view(current.actions, current.rank_offsets),
                                                     costs_, memory_, objective_, budget);
    current = closed(placed.actions, current.rank_offsets);
    if (objective_s(current) >= least_s) break;
    least_s = objective_s(current);
  }
  Trial shorter = justified(current, effort.rounds);
  return is_less(shorter, current) ? shorter : current;
}

OrderTrials::Trial OrderTrials::justified(const Trial& trial, int64_t rounds) const {
  const Orders orders = view(trial.actions, trial.rank_offsets);
  if (!can_justify(orders, costs_)) return trial;
  ActionMemory memory = memory_;
  const std::vector<double> peaks = peak_bytes(orders, memory_);
  if (!held_.empty()) memory.limit_bytes = peaks;  // limits are counts, activations differ in bytes
  const std::vector<double> nothing(static_cast<size_t>(orders.num_ranks()));
  ReorderedOrders found = justify(orders, costs_, memory, {.after_s = nothing}, rounds);
  if (!found.complete) throw std::logic_error("orders must run without deadlock");
  if (!holds(view(found.actions, trial.rank_offsets))) return trial;
  return timed(std::move(found.actions), trial.rank_offsets);
}

}  // namespace trainwright
