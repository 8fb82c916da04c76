#include "schedule/reorder.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace trainwright {

namespace {

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
    RankGaps gaps(standing_limits(orders_, memory_));
    for (int64_t sweep = 0; sweep < window.sweeps; ++sweep) {
      if (!squeeze(gaps, window.until_s)) {
        result_.complete = false;
        break;
      }
      const auto& actions = result_.actions;
      const int64_t num_moves = gaps.close(
          window.from_s, [&](int32_t row) { return ready_s(actions[row]); },
          [](int32_t, int32_t) { return false; },
          [&](int32_t row, double end_s) { announce(actions[row], end_s); });
      if (num_moves == 0) break;
      write_back(gaps);
    }
    return std::move(result_);
  }

 private:
  int64_t at(const ActionRow& a) const { return a.kind * stages_ + a.stage; }
  int64_t key(const ActionRow& a) const { return a.stage * microbatches_ + a.microbatch; }

  // What starts at `until_s` or later is never visited, and not taken up.
  bool squeeze(RankGaps& gaps, double until_s) {
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
    gaps.clear();
    for (int64_t r = 0; r < orders_.num_ranks(); ++r) {
      for (int64_t row = orders_.rank_offsets[r]; row < orders_.rank_offsets[r + 1]; ++row) {
        if (simulation.start_s[row] >= until_s) break;
        const auto& a = result_.actions[row];
        gaps.append(r, {.row = static_cast<int32_t>(row),
                        .start_s = simulation.start_s[row],
                        .duration_s = costs_.of(a, stages_),
                        .delta_bytes = memory_.delta_bytes[at(a)],
                        .transient_bytes = memory_.transient_bytes[at(a)],
                        .level_bytes = memory_.static_bytes[r]});
        note_end(a, simulation.end_s[row]);
      }
    }
    return true;
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

  void announce(const ActionRow& a, double end_s) {
    if (a.kind == kForward) forward_arrival_s_[key(a)] = end_s + transfers_.forward_s[a.stage];
    if (a.kind == kInputGrad || a.kind == kBackward)
      backward_arrival_s_[key(a)] = end_s + transfers_.backward_s[a.stage];
    note_end(a, end_s);
  }

  void write_back(const RankGaps& gaps) {
    const std::vector<ActionRow> before = result_.actions;
    for (int64_t r = 0; r < orders_.num_ranks(); ++r)
      std::ranges::transform(gaps.of(r), result_.actions.begin() + orders_.rank_offsets[r],
                             [&](const PlacedAction& placed) { return before[placed.row]; });
  }

  const Orders& orders_;
  const ActionCosts& costs_;
  const ActionMemory& memory_;
  const int64_t stages_, microbatches_;
  const Transfers transfers_;
  std::vector<double> forward_arrival_s_, backward_arrival_s_;            // [S, m]
  std::vector<double> forward_end_s_, backward_end_s_, recompute_end_s_;  // [S, m], 0 where none
  ReorderedOrders result_;
};

}  // namespace

ReorderedOrders reorder(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
                        const ReorderWindow& window) {
  return Reorderer(orders, costs, memory).run(window);
}

}  // namespace trainwright
