#include "schedule/fill_weight_grads.hpp"

#include <algorithm>

namespace trainwright {

namespace {

constexpr double kUnknown = -1.0;
constexpr int64_t kNothing = -1;

struct Rank {
  int64_t next_row = 0;
  int64_t waits_for = kNothing;
  double free_s = 0.0;
  double first_start_s = kUnknown;
  double idle_s = 0.0;
  double level_bytes = 0.0;
  double weight_grad_transient_bytes = 0.0;  // the largest of its stages
  size_t oldest_pending = 0;
  std::vector<ActionRow> pending;  // W made ready by I; those before `oldest_pending` are done
  std::vector<ActionRow> order;

  bool has_pending() const { return oldest_pending < pending.size(); }
};

class Filler {
 public:
  Filler(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
         double tolerated_idle_s)
      : orders_(orders),
        costs_(costs),
        memory_(memory),
        tolerated_idle_s_(tolerated_idle_s),
        stages_(orders.num_stages()),
        microbatches_(orders.num_microbatches),
        transfers_(orders, costs),
        forward_arrival_s_(stages_ * microbatches_, kUnknown),
        backward_arrival_s_(stages_ * microbatches_, kUnknown),
        ranks_(orders.num_ranks()) {}

  FilledOrders run() {
    for (int64_t r = orders_.num_ranks(); r-- > 0;) {
      ranks_[r].next_row = orders_.rank_offsets[r];
      ranks_[r].level_bytes = memory_.static_bytes[r];
      ranks_[r].order.reserve(orders_.rank_offsets[r + 1] - orders_.rank_offsets[r] +
                              microbatches_);
      ready_.push_back(r);
    }
    for (int64_t stage = 0; stage < stages_; ++stage) {
      auto& most = ranks_[orders_.rank_of_stage[stage]].weight_grad_transient_bytes;
      most = std::max(most, memory_.transient_bytes[kWeightGrad * stages_ + stage]);
    }
    while (!ready_.empty() && !overflow_) {
      const int64_t r = ready_.back();
      ready_.pop_back();
      advance(r);
    }
    return collect();
  }

 private:
  void advance(int64_t r) {
    auto& rank = ranks_[r];
    const int64_t end = orders_.rank_offsets[r + 1];
    for (; rank.next_row < end; ++rank.next_row) {
      const auto& a = orders_.actions[rank.next_row];
      if (a.kind == kWeightGrad) continue;
      if (!make_room(r, a)) return;
      const double arrival_s = arrival_of(r, a);
      if (arrival_s < 0) return;
      fill_wait(rank, arrival_s);
      execute(rank, a, std::max(arrival_s, rank.free_s));
    }
    while (rank.has_pending()) execute_oldest_pending(rank);
  }

  bool make_room(int64_t r, const ActionRow& a) {
    auto& rank = ranks_[r];
    const int64_t at = a.kind * stages_ + a.stage;
    // What stays allocated leaves room for the W that may have to release it.
    const double delta_bytes = std::max(memory_.delta_bytes[at], 0.0);
    const double after_bytes = delta_bytes > 0 ? rank.weight_grad_transient_bytes : 0.0;
    const double need_bytes = delta_bytes + std::max(memory_.transient_bytes[at], after_bytes);
    const double limit_bytes = memory_.most_bytes(r);
    while (need_bytes > 0 && rank.level_bytes + need_bytes > limit_bytes) {
      if (!rank.has_pending()) {
        overflow_ = true;
        return false;
      }
      execute_oldest_pending(rank);
    }
    return true;
  }

  void fill_wait(Rank& rank, double arrival_s) {
    while (rank.has_pending()) {
      const double wait_s = arrival_s - rank.free_s;
      if (wait_s <= kSumRounding * arrival_s) return;
      const int64_t stage = rank.pending[rank.oldest_pending].stage;
      const bool fits =
          costs_.duration_s[kWeightGrad * stages_ + stage] <= wait_s + kSumRounding * arrival_s;
      if (!fits && rank.idle_s + wait_s <= tolerated_idle_s_) return;
      execute_oldest_pending(rank);
    }
  }

  void execute_oldest_pending(Rank& rank) {
    execute(rank, rank.pending[rank.oldest_pending++], rank.free_s);
  }

  void execute(Rank& rank, const ActionRow& a, double start_s) {
    if (rank.first_start_s < 0) {
      rank.first_start_s = start_s;
    } else {
      rank.idle_s += start_s - rank.free_s;
    }
    const int64_t at = a.kind * stages_ + a.stage;
    const int64_t key = a.stage * microbatches_ + a.microbatch;
    rank.free_s = start_s + costs_.duration_s[at];
    rank.level_bytes += memory_.delta_bytes[at];
    rank.order.push_back(a);
    if (a.kind == kForward) {
      forward_arrival_s_[key] = rank.free_s + transfers_.forward_s[a.stage];
      if (a.stage + 1 < stages_) wake(orders_.rank_of_stage[a.stage + 1], key);
    } else if (a.kind == kInputGrad || a.kind == kBackward) {
      backward_arrival_s_[key] = rank.free_s + transfers_.backward_s[a.stage];
      if (a.stage > 0) wake(orders_.rank_of_stage[a.stage - 1], gradient_key(key));
      if (a.kind == kInputGrad) rank.pending.push_back({kWeightGrad, a.stage, a.microbatch});
    }
  }

  int64_t gradient_key(int64_t key) const { return stages_ * microbatches_ + key; }

  double arrival_of(int64_t r, const ActionRow& a) {
    const int64_t at = a.stage * microbatches_ + a.microbatch;
    if (a.kind == kForward)
      return a.stage == 0 ? 0.0
                          : known(r, forward_arrival_s_[at - microbatches_], at - microbatches_);
    if (forward_arrival_s_[at] < 0) return known(r, kUnknown, at);
    if (a.kind == kRecompute || a.stage == stages_ - 1) return 0.0;
    return known(r, backward_arrival_s_[at + microbatches_], gradient_key(at + microbatches_));
  }

  double known(int64_t r, double arrival_s, int64_t produced_key) {
    if (arrival_s < 0) ranks_[r].waits_for = produced_key;
    return arrival_s;
  }

  void wake(int64_t r, int64_t produced_key) {
    if (ranks_[r].waits_for != produced_key) return;
    ranks_[r].waits_for = kNothing;
    ready_.push_back(r);
  }

  FilledOrders collect() {
    FilledOrders filled;
    filled.rank_offsets.push_back(0);
    double first_s = 0.0, last_s = 0.0;
    bool any = false;
    for (int64_t r = 0; r < orders_.num_ranks(); ++r) {
      const auto& rank = ranks_[r];
      filled.complete = filled.complete && rank.next_row == orders_.rank_offsets[r + 1];
      filled.actions.insert(filled.actions.end(), rank.order.begin(), rank.order.end());
      filled.rank_offsets.push_back(static_cast<int64_t>(filled.actions.size()));
      if (rank.first_start_s < 0) continue;
      filled.span_s = std::max(filled.span_s, rank.free_s - rank.first_start_s);
      first_s = any ? std::min(first_s, rank.first_start_s) : rank.first_start_s;
      last_s = std::max(last_s, rank.free_s);
      any = true;
    }
    filled.makespan_s = last_s - first_s;
    return filled;
  }

  const Orders& orders_;
  const ActionCosts& costs_;
  const ActionMemory& memory_;
  const double tolerated_idle_s_;
  const int64_t stages_, microbatches_;
  const Transfers transfers_;
  std::vector<double> forward_arrival_s_, backward_arrival_s_;  // [S, m], negative while unknown
  std::vector<Rank> ranks_;
  std::vector<int64_t> ready_;
  bool overflow_ = false;
};

}  // namespace

FilledOrders fill_weight_grads(const Orders& orders, const ActionCosts& costs,
                               const ActionMemory& memory, double tolerated_idle_s) {
  return Filler(orders, costs, memory, tolerated_idle_s).run();
}

}  // namespace trainwright
