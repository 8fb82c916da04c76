#include "schedule/zero_bubble.hpp"

#include <algorithm>

namespace trainwright {

namespace {

constexpr double kUnknown = -1.0;

struct Rank {
  double free_s = 0.0, first_start_s = kUnknown, idle_s = 0.0, level_bytes = 0.0;
  int64_t forwards = 0, input_grads = 0, weight_grads = 0;
  std::vector<ActionRow> order;
};

class Heuristic {
 public:
  Heuristic(int64_t num_microbatches, const ActionCosts& costs, const ActionMemory& memory,
            const ZeroBubbleRule& rule)
      : num_ranks_(static_cast<int64_t>(memory.static_bytes.size())),
        microbatches_(num_microbatches),
        costs_(costs),
        memory_(memory),
        rule_(rule),
        ranks_(num_ranks_),
        forward_end_s_(num_ranks_ * microbatches_, kUnknown),
        input_grad_end_s_(num_ranks_ * microbatches_, kUnknown) {
    for (int64_t r = 0; r < num_ranks_; ++r) ranks_[r].level_bytes = memory.static_bytes[r];
  }

  FilledOrders run() {
    for (int64_t r = 0; r < num_ranks_; ++r) {
      if (!fits(r, kForward)) return {.complete = false};
      execute(r, kForward);
    }
    warm_up();
    for (int64_t r = num_ranks_ - 1; r >= 0; --r)
      if (!fill_and_execute(r, kInputGrad)) return {.complete = false};
    for (int64_t j = 0; j + 1 < microbatches_; ++j)
      if (!round(j)) return {.complete = false};
    for (int64_t r = 0; r < num_ranks_; ++r)
      while (has_pending(r)) execute(r, kWeightGrad);
    return collect();
  }

 private:
  double duration(int64_t r, int32_t kind) const {
    return costs_.duration_s[kind * num_ranks_ + r];
  }

  bool fits(int64_t r, int32_t kind) const {
    const int64_t at = kind * num_ranks_ + r;
    // What stays allocated leaves room for the W that may have to release it.
    const double delta_bytes = std::max(memory_.delta_bytes[at], 0.0);
    const double after_bytes =
        delta_bytes > 0 ? memory_.transient_bytes[kWeightGrad * num_ranks_ + r] : 0.0;
    return ranks_[r].level_bytes + delta_bytes +
               std::max(memory_.transient_bytes[at], after_bytes) <=
           memory_.most_bytes(r);
  }

  bool has_pending(int64_t r) const { return ranks_[r].weight_grads < ranks_[r].input_grads; }

  // When the input of the next action of a kind arrives; kUnknown if its producer did not run yet.
  double arrival_s(int64_t r, int32_t kind) const {
    const auto& rank = ranks_[r];
    if (kind == kForward) {
      if (r == 0) return 0.0;
      const double end_s = forward_end_s_[(r - 1) * microbatches_ + rank.forwards];
      return end_s < 0 ? kUnknown : end_s + costs_.forward_transfer_s[r - 1];
    }
    if (kind == kWeightGrad || r == num_ranks_ - 1) return 0.0;
    const double end_s = input_grad_end_s_[(r + 1) * microbatches_ + rank.input_grads];
    return end_s < 0 ? kUnknown : end_s + costs_.backward_transfer_s[r];
  }

  void execute(int64_t r, int32_t kind) {
    auto& rank = ranks_[r];
    const double start_s = std::max(rank.free_s, arrival_s(r, kind));
    if (rank.first_start_s < 0) {
      rank.first_start_s = start_s;
    } else {
      rank.idle_s += start_s - rank.free_s;
    }
    rank.free_s = start_s + duration(r, kind);
    rank.level_bytes += memory_.delta_bytes[kind * num_ranks_ + r];
    int64_t& done = kind == kForward     ? rank.forwards
                    : kind == kInputGrad ? rank.input_grads
                                         : rank.weight_grads;
    const int64_t at = r * microbatches_ + done;
    if (kind == kForward) forward_end_s_[at] = rank.free_s;
    if (kind == kInputGrad) input_grad_end_s_[at] = rank.free_s;
    rank.order.push_back({kind, static_cast<int32_t>(r), static_cast<int32_t>(done)});
    ++done;
  }

  void warm_up() {
    double gradient_s = ranks_[num_ranks_ - 1].free_s;
    std::vector<double> first_gradient_s(num_ranks_);
    for (int64_t r = num_ranks_ - 1; r >= 0; --r) {
      first_gradient_s[r] = gradient_s;
      if (r > 0) gradient_s += duration(r, kInputGrad) + costs_.backward_transfer_s[r - 1];
    }
    for (int64_t r = 0; r + 1 < num_ranks_; ++r) {
      auto& rank = ranks_[r];
      while (rank.forwards < microbatches_ && fits(r, kForward) &&
             (r == 0 || rank.forwards + 1 < ranks_[r - 1].forwards)) {
        const double start_s = std::max(rank.free_s, arrival_s(r, kForward));
        const double bound_s = rule_.late_warm_up ? start_s : start_s + duration(r, kForward);
        const double slack_s = kSumRounding * first_gradient_s[r];
        if (bound_s > first_gradient_s[r] + (rule_.late_warm_up ? -slack_s : slack_s)) break;
        execute(r, kForward);
      }
    }
  }

  // A forward on each rank that has room, then input gradient j + 1.
  bool round(int64_t j) {
    std::vector<bool> postponed(num_ranks_, false);
    for (int64_t r = 0; r < num_ranks_; ++r) {
      if (ranks_[r].forwards == microbatches_) continue;
      const bool needed = ranks_[r].forwards <= j + 1;
      if (!needed && (arrival_s(r, kForward) < 0 || !could_fit(r))) continue;
      postponed[r] = !needed && may_wait(r);
      if (!postponed[r] && !fill_and_execute(r, kForward)) return false;
    }
    for (int64_t r = num_ranks_ - 1; r >= 0; --r) {
      const bool gradient_first =
          arrival_s(r, kInputGrad) <= std::max(ranks_[r].free_s, arrival_s(r, kForward));
      if (postponed[r] && !gradient_first && !fill_and_execute(r, kForward)) return false;
      if (!fill_and_execute(r, kInputGrad)) return false;
      if (postponed[r] && gradient_first && !fill_and_execute(r, kForward)) return false;
    }
    return true;
  }

  // Whether a forward fits once every pending weight gradient is done.
  bool could_fit(int64_t r) const {
    const auto& rank = ranks_[r];
    const double released_bytes = static_cast<double>(rank.input_grads - rank.weight_grads) *
                                  memory_.delta_bytes[kWeightGrad * num_ranks_ + r];
    const int64_t at = kForward * num_ranks_ + r;
    return rank.level_bytes + released_bytes + std::max(memory_.delta_bytes[at], 0.0) +
               memory_.transient_bytes[at] <=
           memory_.most_bytes(r);
  }

  // The next rank has another forward to do meanwhile.
  bool may_wait(int64_t r) const {
    return rule_.prefer_backward && r + 1 < num_ranks_ &&
           ranks_[r].forwards >= ranks_[r + 1].forwards + 2;
  }

  bool fill_and_execute(int64_t r, int32_t kind) {
    while (!fits(r, kind)) {
      if (!has_pending(r)) return false;
      execute(r, kWeightGrad);
    }
    while (has_pending(r)) {
      const double wait_s = arrival_s(r, kind) - ranks_[r].free_s;
      if (wait_s <= kSumRounding * ranks_[r].free_s) break;
      const bool whole = duration(r, kWeightGrad) <= wait_s * (1 + kSumRounding);
      if (!whole && rule_.tolerant && ranks_[r].idle_s + wait_s <= largest_idle_s()) break;
      execute(r, kWeightGrad);
    }
    execute(r, kind);
    return true;
  }

  double largest_idle_s() const {
    double largest = 0.0;
    for (const auto& rank : ranks_) largest = std::max(largest, rank.idle_s);
    return largest;
  }

  FilledOrders collect() const {
    FilledOrders orders;
    orders.rank_offsets.push_back(0);
    double last_s = 0.0;
    for (const auto& rank : ranks_) {
      orders.actions.insert(orders.actions.end(), rank.order.begin(), rank.order.end());
      orders.rank_offsets.push_back(static_cast<int64_t>(orders.actions.size()));
      orders.span_s = std::max(orders.span_s, rank.free_s - rank.first_start_s);
      last_s = std::max(last_s, rank.free_s);
    }
    orders.makespan_s = last_s;
    return orders;
  }

  const int64_t num_ranks_, microbatches_;
  const ActionCosts& costs_;
  const ActionMemory& memory_;
  const ZeroBubbleRule rule_;
  std::vector<Rank> ranks_;
  std::vector<double> forward_end_s_, input_grad_end_s_;  // [p, m], negative while unknown
};

}  // namespace

FilledOrders zero_bubble_orders(int64_t num_microbatches, const ActionCosts& costs,
                                const ActionMemory& memory, const ZeroBubbleRule& rule) {
  return Heuristic(num_microbatches, costs, memory, rule).run();
}

}  // namespace trainwright
