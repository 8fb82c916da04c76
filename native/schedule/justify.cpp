#include "schedule/justify.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <queue>
#include <stdexcept>
#include <utility>

namespace trainwright {

namespace {

constexpr double kRounding = 1e-9;
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
};

class Justifier {
 public:
  Justifier(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory)
      : orders_(orders), limit_bytes_(peak_bytes(orders, memory)) {
    const auto n = orders.actions.size();
    const int64_t stages = orders.num_stages();
    rank_.resize(n);
    duration_s_.resize(n);
    transient_bytes_.resize(n);
    forwards_.delta_bytes.resize(n);
    backwards_.delta_bytes.resize(n);
    rows_.resize(static_cast<size_t>(orders.num_ranks()));
    for (int64_t r = 0; r < orders.num_ranks(); ++r) {
      if (std::isfinite(memory.limit_bytes[r])) limit_bytes_[r] = memory.limit_bytes[r];
      limit_bytes_[r] *= 1 + kRounding;
      double level_bytes = memory.static_bytes[r];
      forwards_.first_bytes.push_back(level_bytes);
      for (int64_t row = orders.rank_offsets[r]; row < orders.rank_offsets[r + 1]; ++row) {
        const ActionRow& a = orders.actions[row];
        const int64_t at = a.kind * stages + a.stage;
        rows_[r].push_back(static_cast<int32_t>(row));
        rank_[row] = r;
        duration_s_[row] = costs.of(a, stages);
        transient_bytes_[row] = memory.transient_bytes[at];
        forwards_.delta_bytes[row] = memory.delta_bytes[at];
        backwards_.delta_bytes[row] = -memory.delta_bytes[at];
        level_bytes += memory.delta_bytes[at];
      }
      backwards_.first_bytes.push_back(level_bytes);
    }
    link(Transfers(orders, costs));
  }

  JustifiedOrders run(int64_t rounds) {
    double least_s = squeeze(forwards_);
    if (!(least_s >= 0)) return {.complete = false};
    std::vector<std::vector<int32_t>> best = rows_;
    for (int64_t round = 0; round < rounds; ++round) {
      for (const Direction* direction : {&backwards_, &forwards_}) {
        for (auto& own : rows_) std::ranges::reverse(own);
        squeeze(*direction);
        move_all(*direction);
      }
      const double found_s = squeeze(forwards_);
      if (!(found_s < least_s * (1 - kRounding))) break;
      least_s = found_s;
      best = rows_;
    }
    JustifiedOrders result;
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

  // Earliest starts in the orders as they are, and the last end; negative if they deadlock.
  double squeeze(const Direction& time) {
    const auto n = rank_.size();
    start_s_.assign(n, 0.0);
    end_s_.assign(n, 0.0);
    std::vector<double> ready_s(n, 0.0), free_s(rows_.size(), 0.0);
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
    return *std::ranges::max_element(free_s);
  }

  // By start time over all ranks, lowest rank first: a merge of their orders.
  void move_all(const Direction& time) {
    using Next = std::pair<double, int64_t>;
    std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
    std::vector<size_t> cursor(rows_.size(), 0);
    last_gap_end_s_.assign(rows_.size(), 0.0);
    level_bytes_.resize(rows_.size());
    for (size_t r = 0; r < rows_.size(); ++r) {
      double level_bytes = time.first_bytes[r];
      level_bytes_[r].clear();
      for (const int32_t row : rows_[r]) {
        level_bytes_[r].push_back(level_bytes);
        level_bytes += time.delta_bytes[row];
      }
      if (!rows_[r].empty()) next.emplace(start_s_[rows_[r][0]], static_cast<int64_t>(r));
    }
    while (!next.empty()) {
      const int64_t r = next.top().second;
      next.pop();
      move_earlier(time, r, cursor[r]);
      if (++cursor[r] < rows_[r].size()) next.emplace(start_s_[rows_[r][cursor[r]]], r);
    }
  }

  bool is_same_stream(int32_t one, int32_t other) const {
    const ActionRow &a = orders_.actions[one], &b = orders_.actions[other];
    return a.kind == b.kind && a.stage == b.stage;
  }

  // Nothing that starts after all inputs are there is among them, so that no move can deadlock.
  // Microbatches of a kind and stage keep their order, on which runtimes rely.
  void move_earlier(const Direction& time, int64_t r, size_t from) {
    auto& own = rows_[r];
    auto& level = level_bytes_[r];
    const int32_t row = own[from];
    double ready_s = 0.0;
    for (const Link& input : time.inputs[row])
      if (input.row != kNone) ready_s = std::max(ready_s, end_s_[input.row] + input.transfer_s);
    const double delta = time.delta_bytes[row];
    const double before_s = from > 0 ? end_s_[own[from - 1]] : 0.0;
    if (before_s < start_s_[row]) last_gap_end_s_[r] = start_s_[row];
    size_t best = from;
    for (size_t q = last_gap_end_s_[r] > ready_s ? from : 0; q-- > 0;) {
      const int32_t later = own[q];
      if (start_s_[later] <= ready_s || is_same_stream(row, later)) break;
      const double peak =
          level[q] + std::max(time.delta_bytes[later], 0.0) + transient_bytes_[later];
      if (delta > 0 && peak + delta > limit_bytes_[r]) break;
      const double gap_start_s = std::max(q > 0 ? end_s_[own[q - 1]] : 0.0, ready_s);
      const bool fits = gap_start_s + duration_s_[row] <= start_s_[later] * (1 + kRounding);
      const bool has_room =
          level[q] + std::max(delta, 0.0) + transient_bytes_[row] <= limit_bytes_[r];
      if (fits && has_room) best = q;
    }
    const auto shift = [&](auto& all) {
      const auto first = all.begin();
      std::rotate(first + static_cast<ptrdiff_t>(best), first + static_cast<ptrdiff_t>(from),
                  first + static_cast<ptrdiff_t>(from) + 1);
    };
    shift(own);
    const double level_bytes = level[best];
    shift(level);
    level[best] = level_bytes;
    for (size_t q = best + 1; q <= from; ++q) level[q] += delta;
    start_s_[row] = std::max(best > 0 ? end_s_[own[best - 1]] : 0.0, ready_s);
    end_s_[row] = start_s_[row] + duration_s_[row];
  }

  const Orders& orders_;
  Direction forwards_, backwards_;
  std::vector<double> limit_bytes_;  // [p]
  std::vector<int64_t> rank_;        // [n], as all by row of the given orders
  std::vector<double> duration_s_, transient_bytes_;
  std::vector<double> start_s_, end_s_;           // of the pass
  std::vector<std::vector<int32_t>> rows_;        // of each rank, in order of the pass
  std::vector<std::vector<double>> level_bytes_;  // before each of them
  std::vector<double> last_gap_end_s_;            // [p], up to its cursor
};

}  // namespace

bool can_justify(const Orders& orders, const ActionCosts& costs) {
  return orders.is_plain() && orders.pairs.empty() && costs.slice_s.empty() &&
         costs.model == TransferModel::free;
}

JustifiedOrders justify(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
                        int64_t rounds) {
  return Justifier(orders, costs, memory).run(rounds);
}

}  // namespace trainwright
