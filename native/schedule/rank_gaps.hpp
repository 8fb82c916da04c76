// The rule by which actions move into earlier idle gaps of their rank, without delaying any other
// and without a higher memory level, or more activations, than the rank's limit.
//
// Actions are visited by start time. Each looks back over the actions before it, from the nearest
// on, for the earliest gap that begins after its inputs are there and is long enough; moving it
// from position i to q raises the memory level of positions q to i-1 by what it allocates, so that
// it looks no further back than the first of them that has no room for it. An action that finds no
// gap still starts earlier where its inputs now allow. Nothing that starts after all its inputs are
// there is among them, so that no move can deadlock.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "schedule/simulate.hpp"

namespace trainwright {

struct ReorderedOrders {
  std::vector<ActionRow> actions;  // offsets stay those of the given orders
  bool complete = true;            // false where the given orders deadlock
};

// By rank the limit, static bytes included, or the peak of these orders where there is none.
inline std::vector<double> standing_limits(const Orders& orders, const ActionMemory& memory) {
  std::vector<double> limits = peak_bytes(orders, memory);
  for (size_t r = 0; r < limits.size(); ++r)
    if (std::isfinite(memory.limit_bytes[r])) limits[r] = memory.limit_bytes[r];
  return limits;
}

// An action in its place, with the memory level of its rank before it starts, and the activations
// that the rank holds then.
struct PlacedAction {
  int32_t row;
  double start_s, duration_s;
  double delta_bytes, transient_bytes;
  double level_bytes;
  int64_t delta = 0, level = 0;

  double end_s() const { return start_s + duration_s; }
};

class RankGaps {
 public:
  // Limits in bytes are by rank, static bytes included.
  explicit RankGaps(std::vector<double> limit_bytes,
                    int64_t most_activations = std::numeric_limits<int64_t>::max())
      : limit_bytes_(std::move(limit_bytes)),
        most_activations_(most_activations),
        ranks_(limit_bytes_.size()),
        free_s_(limit_bytes_.size(), 0.0) {
    for (double& limit : limit_bytes_) limit *= 1 + kSumRounding;
  }

  void clear() {
    for (auto& order : ranks_) order.clear();
  }

  // Before these times [p] no rank begins.
  void begin_at(const std::vector<double>& free_s) { free_s_ = free_s; }

  // After all others of its rank; the level of the first is given, that of others follows.
  void append(int64_t rank, PlacedAction action) {
    auto& order = ranks_[rank];
    if (!order.empty()) {
      action.level_bytes = order.back().level_bytes + order.back().delta_bytes;
      action.level = order.back().level + order.back().delta;
    }
    order.push_back(action);
  }

  const std::vector<PlacedAction>& of(int64_t rank) const { return ranks_[rank]; }

  // Visits what starts at `from_s` or later, and returns how many actions passed another.
  //   ready_s(row)            when all inputs are there
  //   keeps_order(row, other) whether it may not pass the other
  //   placed(row, end_s)      hears of each that is visited
  //
  // By start time over all ranks, lowest rank first: a merge of the ranks' orders. A move only
  // touches what was visited, so a rank's next action stays where its cursor points.
  template <class Ready, class Keeps, class Hears>
  int64_t close(double from_s, const Ready& ready_s, const Keeps& keeps_order,
                const Hears& placed) {
    using Next = std::pair<double, int64_t>;
    std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
    std::vector<size_t> cursor(ranks_.size(), 0);
    latest_gap_end_s_.assign(ranks_.size(), 0.0);
    const auto queue = [&](int64_t r) {
      if (cursor[r] < ranks_[r].size()) next.emplace(ranks_[r][cursor[r]].start_s, r);
    };
    for (size_t r = 0; r < ranks_.size(); ++r) {
      while (cursor[r] < ranks_[r].size() && ranks_[r][cursor[r]].start_s < from_s)
        note_gap_before(r, cursor[r]++);
      queue(static_cast<int64_t>(r));
    }
    int64_t num_moves = 0;
    while (!next.empty()) {
      const int64_t r = next.top().second;
      next.pop();
      const size_t from = cursor[r]++;
      const int32_t row = ranks_[r][from].row;
      const auto keeps = [&](int32_t other) { return keeps_order(row, other); };
      const size_t to = move_earlier(r, from, ready_s(row), keeps);
      placed(row, ranks_[r][to].end_s());
      num_moves += to != from;
      queue(r);
    }
    return num_moves;
  }

 private:
  void note_gap_before(size_t r, size_t position) {
    const double before_s = position > 0 ? ranks_[r][position - 1].end_s() : free_s_[r];
    const double start_s = ranks_[r][position].start_s;
    if (before_s < start_s) latest_gap_end_s_[r] = start_s;
  }

  // Where the action then stands.
  template <class Keeps>
  size_t move_earlier(int64_t r, size_t from, double ready_s, const Keeps& keeps_order) {
    auto& order = ranks_[r];
    const double limit = limit_bytes_[r];
    const PlacedAction action = order[from];
    const double delta = action.delta_bytes;
    size_t best = from;
    note_gap_before(static_cast<size_t>(r), from);
    // Most actions of a dense schedule find no gap after their inputs.
    for (size_t q = latest_gap_end_s_[r] > ready_s ? from : 0; q-- > 0;) {
      const PlacedAction& later = order[q];
      if (later.start_s <= ready_s || keeps_order(later.row)) break;
      const double peak =
          later.level_bytes + std::max(later.delta_bytes, 0.0) + later.transient_bytes;
      if (delta > 0 && peak + delta > limit) break;
      const int64_t count = later.level + std::max<int64_t>(later.delta, 0);
      if (action.delta > 0 && count + action.delta > most_activations_) break;
      const double gap_start_s = std::max(q > 0 ? order[q - 1].end_s() : free_s_[r], ready_s);
      const bool fits = gap_start_s + action.duration_s <= later.start_s * (1 + kSumRounding);
      const bool has_room =
          later.level_bytes + std::max(delta, 0.0) + action.transient_bytes <= limit;
      if (fits && has_room) best = q;
    }
    const double start_s = std::max(best > 0 ? order[best - 1].end_s() : free_s_[r], ready_s);
    const double level_bytes = order[best].level_bytes;
    const int64_t level = order[best].level;
    const auto first = order.begin();
    std::rotate(first + static_cast<ptrdiff_t>(best), first + static_cast<ptrdiff_t>(from),
                first + static_cast<ptrdiff_t>(from) + 1);
    for (size_t q = best + 1; q <= from; ++q) {
      order[q].level_bytes += delta;
      order[q].level += action.delta;
    }
    order[best].level_bytes = level_bytes;
    order[best].level = level;
    order[best].start_s = start_s;
    return best;
  }

  std::vector<double> limit_bytes_;  // [p], a rounding above
  int64_t most_activations_;
  std::vector<std::vector<PlacedAction>> ranks_;  // in order
  std::vector<double> free_s_;                    // [p], when a rank can begin
  std::vector<double> latest_gap_end_s_;          // [p], up to its cursor
};

}  // namespace trainwright
