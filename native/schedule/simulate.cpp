#include "schedule/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainwright {

namespace {

constexpr double kUnknown = -1.0;
constexpr int64_t kNothing = -1;
constexpr int64_t kNever = -2;  // what waits for it stays blocked

// Where the input of an action stands: known or not, since when, and for how long receiving it
// occupies the rank.
struct Input {
  bool known = true;
  double arrival_s = 0.0;
  double receive_s = 0.0;
};

// `kPlain`: plain orders whose transfers do not contend and whose pairs do not overlap, which is
// the common case and needs a third less time.
template <bool kPlain>
class Simulator {
 public:
  Simulator(const Orders& orders, const ActionCosts& costs, std::vector<int64_t>* sequence)
      : orders_(orders),
        costs_(costs),
        stages_(orders.num_stages()),
        microbatches_(orders.num_microbatches),
        busy_fraction_(costs.model == TransferModel::blocking ? costs.blocking_fraction : 0.0),
        transfers_(orders, costs),
        paired_(overlapped_pairs(orders, costs)),
        next_row_(orders.rank_offsets.begin(), orders.rank_offsets.end() - 1),
        rank_free_s_(orders.num_ranks(), 0.0),
        waits_for_(orders.num_ranks(), kNothing),
        sequence_(sequence) {
    if constexpr (!kPlain) {
      host_free_s_.assign(orders.num_ranks(), 0.0);
      copied_s_.assign(stages_ * microbatches_, kUnknown);
      loaded_s_.assign(stages_ * microbatches_, kUnknown);
      for (auto* barrier : {&head_, &head_grad_})
        barrier->assign(orders.head_barriers > 0 ? microbatches_ : 0, {});
    }
    const auto rows = orders.actions.size();
    result_.start_s.resize(rows);
    result_.end_s.resize(rows);
    result_.forward_arrival_s.assign(stages_ * microbatches_, kUnknown);
    result_.backward_arrival_s.assign(stages_ * microbatches_, kUnknown);
    if (costs.model == TransferModel::link)
      link_free_s_.assign(orders.num_ranks() * orders.num_ranks(), 0.0);
  }

  Simulation run() {
    for (int64_t rank = orders_.num_ranks(); rank-- > 0;) ready_.push_back(rank);
    while (!ready_.empty()) {
      const int64_t rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
    result_.blocked_rows.assign(orders_.num_ranks(), kNothing);
    for (int64_t rank = 0; rank < orders_.num_ranks(); ++rank) {
      if (next_row_[rank] == orders_.rank_offsets[rank + 1]) continue;
      result_.blocked_rows[rank] = next_row_[rank];
      result_.complete = false;
    }
    return std::move(result_);
  }

 private:
  int64_t key(const ActionRow& a) const { return a.stage * microbatches_ + a.microbatch; }
  int64_t gradient_key(int64_t key) const { return stages_ * microbatches_ + key; }
  int64_t head_key(int64_t microbatch) const { return 2 * stages_ * microbatches_ + microbatch; }
  int64_t head_grad_key(int64_t microbatch) const { return head_key(microbatches_ + microbatch); }

  bool is_first(int64_t stage) const { return kPlain ? stage == 0 : orders_.is_first(stage); }
  bool is_last(int64_t stage) const {
    return kPlain ? stage + 1 == stages_ : orders_.is_last(stage);
  }

  void advance(int64_t rank) {
    const int64_t end = orders_.rank_offsets[rank + 1];
    int64_t row = next_row_[rank];
    while (row < end) {
      const auto& a = orders_.actions[row];
      Input input = input_of(rank, a);
      if (!input.known) break;
      double duration_s =
          kPlain ? costs_.duration_s[a.kind * stages_ + a.stage] : costs_.of(a, stages_);
      if (!kPlain && on_host_link(a.kind)) {
        const double start_s = std::max(rank_free_s_[rank], host_free_s_[rank]);
        host_free_s_[rank] = start_s + duration_s;
        finish(rank, row++, start_s, start_s + duration_s);
        continue;
      }
      const bool pair = !kPlain && !paired_.empty() && !std::isinf(paired_[row]);
      if (pair) {
        const Input second = input_of(rank, orders_.actions[row + 1]);
        if (!second.known) break;
        input.arrival_s = std::max(input.arrival_s, second.arrival_s);
        input.receive_s += second.receive_s;
        duration_s = paired_[row];
      }
      const double start_s = std::max(input.arrival_s, rank_free_s_[rank] + input.receive_s);
      rank_free_s_[rank] = start_s + duration_s;
      for (const int64_t last = row + pair; row <= last; ++row)
        finish(rank, row, start_s, start_s + duration_s);
    }
    next_row_[rank] = row;
  }

  Input input_of(int64_t rank, const ActionRow& a) {
    const int64_t at = key(a);
    const auto& forward = result_.forward_arrival_s;
    const auto& backward = result_.backward_arrival_s;
    switch (a.kind) {
      case kForward:
        if (is_first(a.stage)) return {};
        return received(rank, forward[at - microbatches_], at - microbatches_,
                        transfers_.forward_s[a.stage - 1]);
      case kInputGrad:
      case kBackward:
        if (forward[at] < 0) return wait(rank, at);
        if (is_last(a.stage)) return kPlain ? Input{} : after_reload(rank, at, after_head(rank, a));
        return after_reload(
            rank, at,
            received(rank, backward[at + microbatches_], gradient_key(at + microbatches_),
                     transfers_.backward_s[a.stage + 1]));
      case kWeightGrad:
        return backward[at] < 0 ? wait(rank, gradient_key(at)) : Input{};
      case kRecompute:
      case kOffload:
        return forward[at] < 0 ? wait(rank, at) : after_reload(rank, at, {});
      default:
        if constexpr (!kPlain) return input_of_other(rank, a, at);
        return wait(rank, at);
    }
  }

  Input input_of_other(int64_t rank, const ActionRow& a, int64_t at) {
    if (a.kind == kDrop || a.kind == kReload)
      return copied_s_[at] < 0 ? wait(rank, kNever) : Input{.arrival_s = copied_s_[at]};
    if (head_.empty()) return wait(rank, kNever);
    if (a.kind == kHeadGrad)
      return after_barrier(rank, head_[a.microbatch], head_key(a.microbatch));
    const int64_t last = (stages_ - 1) * microbatches_ + a.microbatch;
    return received(rank, result_.forward_arrival_s[last], last, 0.0);
  }

  // What computes with activations that were copied to the host waits for them.
  Input after_reload(int64_t rank, int64_t at, Input input) {
    if constexpr (!kPlain) {
      if (!input.known || copied_s_[at] < 0) return input;
      if (loaded_s_[at] < 0) return wait(rank, kNever);
      input.arrival_s = std::max(input.arrival_s, loaded_s_[at]);
    }
    return input;
  }

  // The loss of a cut head, as the last stage receives it.
  Input after_head(int64_t rank, const ActionRow& a) {
    if (head_.empty()) return {};
    if (orders_.head_barriers == 1)
      return after_barrier(rank, head_[a.microbatch], head_key(a.microbatch));
    return after_barrier(rank, head_grad_[a.microbatch], head_grad_key(a.microbatch));
  }

  struct Barrier {
    int64_t arrived = 0;
    double last_s = 0.0;
  };

  Input after_barrier(int64_t rank, const Barrier& barrier, int64_t barrier_key) {
    if (barrier.arrived < orders_.num_ranks()) return wait(rank, barrier_key);
    return {.arrival_s = barrier.last_s + costs_.barrier_s};
  }

  void arrive(Barrier& barrier, double end_s, int64_t barrier_key) {
    barrier.last_s = std::max(barrier.last_s, end_s);
    if (++barrier.arrived == orders_.num_ranks()) wake_all(barrier_key);
  }

  void wake_all(int64_t produced_key) {
    for (int64_t rank = 0; rank < orders_.num_ranks(); ++rank) wake(rank, produced_key);
  }

  Input wait(int64_t rank, int64_t produced_key) {
    waits_for_[rank] = produced_key;
    return {.known = false};
  }

  Input received(int64_t rank, double arrival_s, int64_t produced_key, double transfer_s) {
    if (arrival_s < 0) return wait(rank, produced_key);
    return {.arrival_s = arrival_s, .receive_s = kPlain ? 0.0 : busy_fraction_ * transfer_s};
  }

  void finish(int64_t rank, int64_t row, double start_s, double end_s) {
    const auto& a = orders_.actions[row];
    result_.start_s[row] = start_s;
    result_.end_s[row] = end_s;
    if (sequence_ != nullptr) sequence_->push_back(row);
    if (a.kind == kForward) {
      result_.forward_arrival_s[key(a)] =
          sent(rank, a.stage, a.stage + 1, end_s, transfers_.forward_s);
      if (!is_last(a.stage)) {
        wake(orders_.rank_of_stage[a.stage + 1], key(a));
      } else if (!kPlain && !head_.empty()) {
        result_.forward_arrival_s[key(a)] += costs_.barrier_s;
        wake_all(key(a));
      }
    } else if (a.kind == kInputGrad || a.kind == kBackward) {
      result_.backward_arrival_s[key(a)] =
          sent(rank, a.stage, a.stage - 1, end_s, transfers_.backward_s);
      if (!is_first(a.stage)) wake(orders_.rank_of_stage[a.stage - 1], gradient_key(key(a)));
    } else if constexpr (!kPlain) {
      if (a.kind == kOffload) copied_s_[key(a)] = end_s;
      if (a.kind == kReload) loaded_s_[key(a)] = end_s;
      if (a.kind == kHead) arrive(head_[a.microbatch], end_s, head_key(a.microbatch));
      if (a.kind == kHeadGrad) arrive(head_grad_[a.microbatch], end_s, head_grad_key(a.microbatch));
    }
  }

  // When what an action produced at `end_s` reaches the neighbouring stage.
  double sent(int64_t rank, int64_t stage, int64_t neighbour, double end_s,
              const std::vector<double>& transfer_s) {
    const double duration_s = transfer_s[stage];
    if constexpr (kPlain) return end_s + duration_s;
    rank_free_s_[rank] += busy_fraction_ * duration_s;
    if (link_free_s_.empty() || duration_s == 0.0) return end_s + duration_s;
    double& free_s = link_free_s_[rank * orders_.num_ranks() + orders_.rank_of_stage[neighbour]];
    free_s = std::max(free_s, end_s) + duration_s;
    return free_s;
  }

  void wake(int64_t rank, int64_t produced_key) {
    if (waits_for_[rank] != produced_key) return;
    waits_for_[rank] = kNothing;
    ready_.push_back(rank);
  }

  const Orders& orders_;
  const ActionCosts& costs_;
  const int64_t stages_, microbatches_;
  const double busy_fraction_;
  const Transfers transfers_;
  const std::vector<double> paired_;
  std::vector<int64_t> next_row_;
  std::vector<double> rank_free_s_;
  std::vector<int64_t> waits_for_;  // per rank the key of the output it waits for
  std::vector<double> link_free_s_;
  std::vector<double> host_free_s_;          // per rank, its link to the host
  std::vector<double> copied_s_, loaded_s_;  // [S, m], ends of O and of L
  std::vector<Barrier> head_, head_grad_;    // [m], of V and of T; empty where no head is cut
  std::vector<int64_t> ready_;
  std::vector<int64_t>* sequence_;
  Simulation result_;
};

}  // namespace

Transfers::Transfers(const Orders& orders, const ActionCosts& costs)
    : forward_s(orders.num_stages()), backward_s(orders.num_stages()) {
  for (int64_t s = 0; s + 1 < orders.num_stages(); ++s) {
    if (orders.rank_of_stage[s] == orders.rank_of_stage[s + 1] || orders.is_last(s)) continue;
    forward_s[s] = costs.forward_transfer_s[s];
    backward_s[s + 1] = costs.backward_transfer_s[s];
  }
}

bool Orders::is_plain() const {
  if (num_pipelines > 1 || head_barriers > 0) return false;
  return std::all_of(actions.begin(), actions.end(),
                     [](const ActionRow& a) { return a.kind <= kRecompute; });
}

std::vector<double> overlapped_pairs(const Orders& orders, const ActionCosts& costs) {
  constexpr double kApart = std::numeric_limits<double>::infinity();
  const int64_t stages = orders.num_stages();
  std::vector<double> paired;
  for (const int64_t row : orders.pairs) {
    const auto &first = orders.actions[row], &second = orders.actions[row + 1];
    const bool backward = second.kind == kInputGrad || second.kind == kBackward;
    double pair_s = backward ? costs.pair_s[first.stage] : kApart;
    if (std::isinf(pair_s)) {
      if (costs.network_s.empty()) continue;
      const double first_s = costs.of(first, stages), second_s = costs.of(second, stages);
      const double network_s = costs.network_s[first.kind * stages + first.stage] +
                               costs.network_s[second.kind * stages + second.stage];
      pair_s = std::max({first_s, second_s, network_s, first_s + second_s - network_s});
      if (pair_s >= first_s + second_s) continue;
    }
    if (paired.empty()) paired.assign(orders.actions.size(), kApart);
    paired[row] = pair_s;
  }
  return paired;
}

Simulation simulate(const Orders& orders, const ActionCosts& costs,
                    std::vector<int64_t>* sequence) {
  const bool plain = costs.model == TransferModel::free && costs.slice_s.empty() &&
                     overlapped_pairs(orders, costs).empty() && orders.is_plain();
  return plain ? Simulator<true>(orders, costs, sequence).run()
               : Simulator<false>(orders, costs, sequence).run();
}

std::vector<double> peak_bytes(const Orders& orders, const ActionMemory& memory,
                               const ActionCosts* costs) {
  std::vector<double> peaks(memory.static_bytes.begin(), memory.static_bytes.end());
  const int64_t stages = orders.num_stages();
  const std::vector<double> paired =
      costs == nullptr ? std::vector<double>() : overlapped_pairs(orders, *costs);
  for (int64_t rank = 0; rank < orders.num_ranks(); ++rank) {
    double level = memory.static_bytes[rank], beside = 0.0;
    for (int64_t row = orders.rank_offsets[rank]; row < orders.rank_offsets[rank + 1]; ++row) {
      const auto& a = orders.actions[row];
      const double delta = memory.delta_bytes[a.kind * stages + a.stage];
      const double transient = memory.transient_bytes[a.kind * stages + a.stage];
      level += std::max(delta, 0.0);
      peaks[rank] = std::max(peaks[rank], level + beside + transient);
      level += std::min(delta, 0.0);
      beside = !paired.empty() && !std::isinf(paired[row]) ? transient : 0.0;
    }
  }
  return peaks;
}

}  // namespace trainwright
