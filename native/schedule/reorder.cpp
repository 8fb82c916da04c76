#include "schedule/reorder.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace trainwright {

namespace {

constexpr double kRounding = 1e-9;

// An action in its place, with the memory level of its rank before it starts.
struct Placed {
  ActionRow action;
  double start_s, end_s;
  double level_bytes;
};

class Reorderer {
 public:
  Reorderer(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory)
      : orders_(orders),
        costs_(costs),
        memory_(memory),
        stages_(orders.num_stages()),
        microbatches_(orders.num_microbatches),
        transfers_(orders, costs),
        result_{.actions = {orders.actions.begin(), orders.actions.end()}} {}

  ReorderedOrders run(const ReorderWindow& window) {
    for (int64_t sweep = 0; sweep < window.sweeps; ++sweep) {
      if (!squeeze(window.until_s)) {
        result_.complete = false;
        break;
      }
      const int64_t before = result_.num_moves;
      visit_all(window);
      write_back();
      if (result_.num_moves == before) break;
    }
    return std::move(result_);
  }

 private:
  int64_t at(const ActionRow& a) const { return a.kind * stages_ + a.stage; }
  int64_t key(const ActionRow& a) const { return a.stage * microbatches_ + a.microbatch; }

  // What starts at `until_s` or later is never visited, and not taken up.
  bool squeeze(double until_s) {
    const Orders current{.actions = result_.actions,
                         .rank_offsets = orders_.rank_offsets,
                         .rank_of_stage = orders_.rank_of_stage,
                         .pairs = {},
                         .num_microbatches = microbatches_};
    const Simulation simulation = simulate(current, costs_);
    if (!simulation.complete) return false;
    forward_arrival_s_ = simulation.forward_arrival_s;
    backward_arrival_s_ = simulation.backward_arrival_s;
    for (auto* end_s : {&forward_end_s_, &backward_end_s_, &recompute_end_s_})
      end_s->assign(stages_ * microbatches_, 0.0);
    ranks_.resize(orders_.num_ranks());
    for (int64_t r = 0; r < orders_.num_ranks(); ++r) {
      ranks_[r].clear();
      double level_bytes = memory_.static_bytes[r];
      for (int64_t row = orders_.rank_offsets[r]; row < orders_.rank_offsets[r + 1]; ++row) {
        if (simulation.start_s[row] >= until_s) break;
        const auto& a = result_.actions[row];
        ranks_[r].push_back({a, simulation.start_s[row], simulation.end_s[row], level_bytes});
        level_bytes += memory_.delta_bytes[at(a)];
        note_end(a, simulation.end_s[row]);
      }
    }
    return true;
  }

  // By start time over all ranks, lowest rank first: a merge of the ranks' orders. A move only
  // touches what was visited, so a rank's next action stays where its cursor points.
  void visit_all(const ReorderWindow& window) {
    using Next = std::pair<double, int64_t>;
    std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
    std::vector<size_t> cursor(orders_.num_ranks(), 0);
    latest_gap_end_s_.assign(orders_.num_ranks(), 0.0);
    for (int64_t r = 0; r < orders_.num_ranks(); ++r) {
      while (cursor[r] < ranks_[r].size() && ranks_[r][cursor[r]].start_s < window.from_s)
        note_gap_before(r, cursor[r]++);
      if (cursor[r] < ranks_[r].size()) next.emplace(ranks_[r][cursor[r]].start_s, r);
    }
    while (!next.empty()) {
      const int64_t r = next.top().second;
      next.pop();
      move_earlier(r, cursor[r]);
      if (++cursor[r] < ranks_[r].size()) next.emplace(ranks_[r][cursor[r]].start_s, r);
    }
  }

  // When the inputs of `a` are on its rank; a W or R needs only what its own rank did.
  double ready_s(const ActionRow& a) const {
    switch (a.kind) {
      case kForward:
        return a.stage == 0 ? 0.0 : forward_arrival_s_[key(a) - microbatches_];
      case kInputGrad:
      case kBackward: {
        const double own_s = std::max(forward_end_s_[key(a)], recompute_end_s_[key(a)]);
        if (a.stage == stages_ - 1) return own_s;
        return std::max(own_s, backward_arrival_s_[key(a) + microbatches_]);
      }
      case kWeightGrad:
        return backward_end_s_[key(a)];
      default:
        return forward_end_s_[key(a)];
    }
  }

  // Ends are kept beside arrivals: an arrival less its transfer can, by rounding, lie before the
  // end, and an action of no length would then move in front of what it needs.
  void note_end(const ActionRow& a, double end_s) {
    if (a.kind == kForward) forward_end_s_[key(a)] = end_s;
    if (a.kind == kInputGrad || a.kind == kBackward) backward_end_s_[key(a)] = end_s;
    if (a.kind == kRecompute) recompute_end_s_[key(a)] = end_s;
  }

  void note_gap_before(int64_t r, size_t position) {
    const double before_s = position > 0 ? ranks_[r][position - 1].end_s : 0.0;
    const double start_s = ranks_[r][position].start_s;
    if (before_s < start_s) latest_gap_end_s_[r] = start_s;
  }

  void move_earlier(int64_t r, size_t from) {
    auto& order = ranks_[r];
    const ActionRow a = order[from].action;
    const double ready = ready_s(a);
    const double duration_s = order[from].end_s - order[from].start_s;
    const double delta = memory_.delta_bytes[at(a)];
    const double transient = memory_.transient_bytes[at(a)];
    const double limit = memory_.limit_bytes[r] * (1 + kRounding);
    size_t best = from;
    note_gap_before(r, from);
    // Most actions of a dense schedule find no gap after their inputs.
    for (size_t q = latest_gap_end_s_[r] > ready ? from : 0; q-- > 0;) {
      const auto& later = order[q];
      const int64_t there = at(later.action);
      const double peak = later.level_bytes + std::max(memory_.delta_bytes[there], 0.0) +
                          memory_.transient_bytes[there];
      if (delta > 0 && peak + delta > limit) break;
      const double gap_start_s = std::max(q > 0 ? order[q - 1].end_s : 0.0, ready);
      if (later.start_s <= ready) break;
      const bool fits = gap_start_s + duration_s <= later.start_s * (1 + kRounding);
      const bool room = later.level_bytes + std::max(delta, 0.0) + transient <= limit;
      if (fits && room) best = q;
    }
    const double new_start_s = std::max(best > 0 ? order[best - 1].end_s : 0.0, ready);
    const double level_bytes = order[best].level_bytes;
    std::rotate(order.begin() + best, order.begin() + from, order.begin() + from + 1);
    for (size_t q = best + 1; q <= from; ++q) order[q].level_bytes += delta;
    order[best].level_bytes = level_bytes;
    order[best].start_s = new_start_s;
    order[best].end_s = new_start_s + duration_s;
    announce(a, order[best].end_s);
    result_.num_moves += best != from;
  }

  void announce(const ActionRow& a, double end_s) {
    if (a.kind == kForward) forward_arrival_s_[key(a)] = end_s + transfers_.forward_s[a.stage];
    if (a.kind == kInputGrad || a.kind == kBackward)
      backward_arrival_s_[key(a)] = end_s + transfers_.backward_s[a.stage];
    note_end(a, end_s);
  }

  void write_back() {
    for (int64_t r = 0; r < orders_.num_ranks(); ++r)
      std::transform(ranks_[r].begin(), ranks_[r].end(),
                     result_.actions.begin() + orders_.rank_offsets[r],
                     [](const Placed& placed) { return placed.action; });
  }

  const Orders& orders_;
  const ActionCosts& costs_;
  const ActionMemory& memory_;
  const int64_t stages_, microbatches_;
  const Transfers transfers_;
  std::vector<double> forward_arrival_s_, backward_arrival_s_;            // [S, m]
  std::vector<double> forward_end_s_, backward_end_s_, recompute_end_s_;  // [S, m], 0 where none
  std::vector<std::vector<Placed>> ranks_;
  std::vector<double> latest_gap_end_s_;  // per rank, up to its cursor
  ReorderedOrders result_;
};

}  // namespace

ReorderedOrders reorder(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
                        const ReorderWindow& window) {
  return Reorderer(orders, costs, memory).run(window);
}

}  // namespace trainwright
