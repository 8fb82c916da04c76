#include "schedule/justify.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

namespace trainwright {

namespace {

constexpr int32_t kNone = -1;

// What an action waits for, or what waits for it: a row and the time of what is sent between.
struct Link {
  int32_t row = kNone;
  double transfer_s = 0;
};
constexpr size_t kMostLinks = 3;  // an input gradient: its forward, its R, the next stage's
using Links = std::array<Link, kMostLinks>;

void add_link(Links& links, int32_t row, double transfer_s) {
  if (row == kNone) return;
  for (Link& link : links) {
    if (link.row != kNone) continue;
    link = {row, transfer_s};
    return;
  }
  throw std::logic_error("an action has at most three inputs and three outputs");
}

// Time runs forwards or backwards: what actions wait for, and what they take of memory.
struct Direction {
  std::vector<Links> inputs, outputs;  // [n]
  std::vector<double> delta_bytes;     // [n]
  std::vector<double> first_bytes;     // [p] before the first action
  std::vector<double> free_s;          // [p] before which it cannot start
  int64_t sign = 1;                    // of what actions take of activations
};

class Justifier {
 public:
  Justifier(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
            const JustifyLimits& limits)
      : orders_(orders), gaps_(standing_limits(orders, memory), limits.most_activations) {
    forwards_.free_s.assign(static_cast<size_t>(orders.num_ranks()), 0.0);
    backwards_.free_s.assign(limits.after_s.begin(), limits.after_s.end());
    const auto n = orders.actions.size();
    const int64_t stages = orders.num_stages();
    rank_.resize(n);
    duration_s_.resize(n);
    transient_bytes_.resize(n);
    count_.resize(n);
    backwards_.sign = -1;
    forwards_.delta_bytes.resize(n);
    backwards_.delta_bytes.resize(n);
    rows_.resize(static_cast<size_t>(orders.num_ranks()));
    for (int64_t r = 0; r < orders.num_ranks(); ++r) {
      double level_bytes = memory.static_bytes[r];
      forwards_.first_bytes.push_back(level_bytes);
      for (int64_t row = orders.rank_offsets[r]; row < orders.rank_offsets[r + 1]; ++row) {
        const ActionRow& a = orders.actions[row];
        const int64_t at = a.kind * stages + a.stage;
        rows_[r].push_back(static_cast<int32_t>(row));
        rank_[row] = r;
        duration_s_[row] = costs.of(a, stages);
        transient_bytes_[row] = memory.transient_bytes[at];
        count_[row] = (a.kind == kForward) - (a.kind == kWeightGrad || a.kind == kBackward);
        forwards_.delta_bytes[row] = memory.delta_bytes[at];
        backwards_.delta_bytes[row] = -memory.delta_bytes[at];
        level_bytes += memory.delta_bytes[at];
      }
      backwards_.first_bytes.push_back(level_bytes);
    }
    link(Transfers(orders, costs));
  }

  ReorderedOrders run(int64_t rounds) {
    double least_s = squeeze(forwards_, backwards_);
    if (!(least_s >= 0)) return {.complete = false};
    std::vector<std::vector<int32_t>> best = rows_;
    for (int64_t round = 0; round < rounds; ++round) {
      for (const Direction* direction : {&backwards_, &forwards_}) {
        for (auto& own : rows_) std::ranges::reverse(own);
        squeeze(*direction, direction == &forwards_ ? backwards_ : forwards_);
        move_all(*direction);
      }
      const double found_s = squeeze(forwards_, backwards_);
      if (!(found_s < least_s * (1 - kSumRounding))) break;
      least_s = found_s;
      best = rows_;
    }
    ReorderedOrders result;
    result.actions.reserve(rank_.size());
    for (const auto& own : best)
      for (const int32_t row : own) result.actions.push_back(orders_.actions[row]);
    return result;
  }

 private:
  void link(const Transfers& transfers) {
    const auto n = rank_.size();
    const int64_t stages = orders_.num_stages(), count = orders_.num_microbatches;
    const auto place = [&](int64_t stage, int64_t microbatch) {
      return static_cast<size_t>(stage * count + microbatch);
    };
    const auto size = static_cast<size_t>(stages * count);
    std::vector<int32_t> forward(size, kNone), backward(size, kNone), recompute(size, kNone);
    for (size_t row = 0; row < n; ++row) {
      const ActionRow& a = orders_.actions[row];
      const size_t at = place(a.stage, a.microbatch);
      if (a.kind == kForward) forward[at] = static_cast<int32_t>(row);
      if (a.kind == kInputGrad || a.kind == kBackward) backward[at] = static_cast<int32_t>(row);
      if (a.kind == kRecompute) recompute[at] = static_cast<int32_t>(row);
    }
    forwards_.inputs.resize(n);
    forwards_.outputs.resize(n);
    for (size_t row = 0; row < n; ++row) {
      const ActionRow& a = orders_.actions[row];
      const size_t own = place(a.stage, a.microbatch);
      Links& inputs = forwards_.inputs[row];
      if (a.kind == kForward) {
        if (a.stage > 0)
          add_link(inputs, forward[place(a.stage - 1, a.microbatch)],
                   transfers.forward_s[a.stage - 1]);
      } else if (a.kind == kInputGrad || a.kind == kBackward) {
        add_link(inputs, forward[own], 0.0);
        add_link(inputs, recompute[own], 0.0);
        if (a.stage + 1 < stages)
          add_link(inputs, backward[place(a.stage + 1, a.microbatch)],
                   transfers.backward_s[a.stage + 1]);
      } else {
        add_link(inputs, a.kind == kWeightGrad ? backward[own] : forward[own], 0.0);
      }
      for (const Link& input : inputs)
        if (input.row != kNone)
          add_link(forwards_.outputs[input.row], static_cast<int32_t>(row), input.transfer_s);
    }
    backwards_.inputs = forwards_.outputs;
    backwards_.outputs = forwards_.inputs;
  }

  // Earliest starts in the orders as they are, and the last end with what follows it on its rank,
  // which is what ranks wait for in the other direction; negative if they deadlock.
  double squeeze(const Direction& time, const Direction& other) {
    const auto n = rank_.size();
    start_s_.assign(n, 0.0);
    end_s_.assign(n, 0.0);
    std::vector<double> ready_s(n, 0.0), free_s = time.free_s;
    std::vector<int32_t> missing(n, 0);
    for (size_t row = 0; row < n; ++row)
      for (const Link& input : time.inputs[row]) missing[row] += input.row != kNone;
    std::vector<size_t> cursor(rows_.size(), 0);
    std::vector<int64_t> waiting(rows_.size());
    for (size_t r = 0; r < rows_.size(); ++r) waiting[r] = static_cast<int64_t>(r);
    size_t done = 0;
    while (!waiting.empty()) {
      const int64_t r = waiting.back();
      waiting.pop_back();
      const auto& own = rows_[r];
      for (; cursor[r] < own.size() && missing[own[cursor[r]]] == 0; ++cursor[r], ++done) {
        const int32_t row = own[cursor[r]];
        start_s_[row] = std::max(free_s[r], ready_s[row]);
        end_s_[row] = free_s[r] = start_s_[row] + duration_s_[row];
        for (const Link& output : time.outputs[row]) {
          if (output.row == kNone) continue;
          ready_s[output.row] = std::max(ready_s[output.row], end_s_[row] + output.transfer_s);
          if (--missing[output.row] == 0) waiting.push_back(rank_[output.row]);
        }
      }
    }
    if (done < n) return -1.0;
    double last_s = 0;
    for (size_t r = 0; r < free_s.size(); ++r)
      last_s = std::max(last_s, free_s[r] + other.free_s[r]);
    return last_s;
  }

  void move_all(const Direction& time) {
    gaps_.clear();
    gaps_.begin_at(time.free_s);
    for (size_t r = 0; r < rows_.size(); ++r)
      for (const int32_t row : rows_[r])
        gaps_.append(static_cast<int64_t>(r), {.row = row,
                                               .start_s = start_s_[row],
                                               .duration_s = duration_s_[row],
                                               .delta_bytes = time.delta_bytes[row],
                                               .transient_bytes = transient_bytes_[row],
                                               .level_bytes = time.first_bytes[r],
                                               .delta = time.sign * count_[row]});
    gaps_.close(
        0.0, [&](int32_t row) { return ready_s(time, row); },
        [&](int32_t row, int32_t other) { return is_same_stream(row, other); },
        [&](int32_t row, double end_s) { end_s_[row] = end_s; });
    for (size_t r = 0; r < rows_.size(); ++r)
      std::ranges::transform(gaps_.of(static_cast<int64_t>(r)), rows_[r].begin(),
                             &PlacedAction::row);
  }

  double ready_s(const Direction& time, int32_t row) const {
    double found_s = 0.0;
    for (const Link& input : time.inputs[row])
      if (input.row != kNone) found_s = std::max(found_s, end_s_[input.row] + input.transfer_s);
    return found_s;
  }

  // Microbatches of a kind and stage keep their order, on which runtimes rely.
  bool is_same_stream(int32_t one, int32_t other) const {
    const ActionRow &a = orders_.actions[one], &b = orders_.actions[other];
    return a.kind == b.kind && a.stage == b.stage;
  }

  const Orders& orders_;
  Direction forwards_, backwards_;
  RankGaps gaps_;
  std::vector<int64_t> rank_;  // [n], as all by row of the given orders
  std::vector<double> duration_s_, transient_bytes_;
  std::vector<int64_t> count_;              // activations begun, or ended if below 0
  std::vector<double> start_s_, end_s_;     // of the pass
  std::vector<std::vector<int32_t>> rows_;  // of each rank, in order of the pass
};

}  // namespace

bool can_justify(const Orders& orders, const ActionCosts& costs) {
  return orders.is_plain() && orders.pairs.empty() && costs.slice_s.empty() &&
         costs.model == TransferModel::free;
}

ReorderedOrders justify(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
                        const JustifyLimits& limits, int64_t rounds) {
  return Justifier(orders, costs, memory, limits).run(rounds);
}

}  // namespace trainwright
