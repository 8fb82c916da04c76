#include "schedule/move_annealing.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/random_source.hpp"
#include "schedule/word_annealing.hpp"

namespace trainwright {

namespace {

constexpr int32_t kNone = -1;
// Shares of moves, as of words: of rows on the critical path, and of a range of microbatches, which
// cost a simulation of all that runs meanwhile.
constexpr double kOnCriticalPath = 0.7, kCoordinated = 0.03;
// From the given order, hotter, and from the best: runs end up to 1 % apart, and an order whose
// copies a rule has made can be far from a good one.
constexpr int kRuns = 3;
constexpr double kHotter = 8.0;
constexpr double kRoundedUp = 1.0 + 1e-12;  // sums in another order
constexpr int64_t kTrialWork = 16;          // a refused trial is cheap, not free
constexpr int64_t kWorkBetweenPauses = 10'000'000;

class MoveAnnealing {
 public:
  MoveAnnealing(const Orders& orders, const ActionCosts& costs,
                const std::vector<Resource>& resources, Objective objective, const MovePlan& plan)
      : given_(orders),
        resources_(resources),
        objective_(objective),
        plan_(plan),
        random_(plan.seed),
        num_ranks_(orders.num_ranks()),
        rows_(orders.actions.size()),
        times_(orders.actions.size()),
        position_(orders.actions.size()),
        place_(orders.actions.size()),
        done_(orders.actions.size(), 0),
        waiter_(orders.actions.size(), kNone),
        id_of_(kNumActionKinds * orders.num_stages() * orders.num_microbatches, kNone),
        order_(num_ranks_),
        level_(num_ranks_),
        cursor_(num_ranks_),
        stop_(num_ranks_),
        tail_s_(orders.actions.size(), 0.0),
        origin_s_(num_ranks_, 0.0) {
    read_rows(costs);
  }

  MovedOrders run() {
    MovedOrders result;
    const std::vector<std::vector<int32_t>> given = order_;
    result.complete = start();
    if (!result.complete) return result;
    measure();
    best_s_ = value_s_;
    best_ = order_;
    for (int run = 0; run < kRuns && !interrupted_ && !is_shortest(); ++run) {
      if (run > 0) {
        order_ = run + 1 < kRuns ? given : best_;
        start();
      }
      anneal((plan_.work - work_) / (kRuns - run), run == 1 ? kHotter : 1.0);
    }
    for (const auto& order : best_)
      for (const int32_t id : order) result.actions.push_back(given_.actions[id]);
    result.value_s = best_s_;
    result.work = work_;
    result.interrupted = interrupted_;
    return result;
  }

 private:
  struct Row {
    int32_t rank = 0;
    int32_t input = kNone;   // whose result it takes, which arrives after lag_s
    int32_t copy = kNone;    // a copy that it waits for: L, or O of a drop
    int32_t reader = kNone;  // row of another rank whose input it is
    std::array<int32_t, 2> copied{kNone, kNone};  // rows that wait for this copy
    bool on_link = false;
    double duration_s = 0.0, lag_s = 0.0;
  };
  // Of a row, and of its rank and link after it.
  struct Time {
    double end_s = 0.0, free_s = 0.0, link_s = 0.0;
    int32_t cause = kNone;  // the row that it waited for last
    int32_t last = kNone, last_on_link = kNone;

    bool operator==(const Time&) const = default;
    // Whether the next row of the rank starts alike.
    bool leaves_as(const Time& other) const {
      return free_s == other.free_s && link_s == other.link_s && last == other.last &&
             last_on_link == other.last_on_link;
    }
  };

  bool is_shortest() const { return best_s_ <= plan_.stop_at_s * kRoundedUp; }

  // From where it stands; the best is kept.
  void anneal(int64_t work, double heat) {
    double guide_s = measure();
    trace();
    // It falls to none.
    const double hot_s = heat * mean_action_s() * first_temperature(std::ssize(rows_));
    const int64_t begin = work_;
    while (work_ < begin + work && !is_shortest()) {
      if (work_ >= next_pause_) {
        next_pause_ = work_ + kWorkBetweenPauses;
        if (plan_.poll && plan_.poll(best_s_)) {
          interrupted_ = true;
          return;
        }
      }
      work_ += kTrialWork;
      if (!propose() || !fits()) continue;
      const double done = static_cast<double>(work_ - begin) / static_cast<double>(work);
      const double allowed_s = hot_s * std::max(0.0, 1.0 - done) * random_.exponential();
      const double before_s = value_s_;
      const double longest_s = before_s * kRoundedUp + allowed_s;
      const double next_s = simulate_window(longest_s) ? measure() : HUGE_VAL;
      if (next_s > guide_s + allowed_s) {
        reject();
        value_s_ = before_s;
        continue;
      }
      accept();
      guide_s = next_s;
      trace();
      if (value_s_ >= best_s_) continue;
      best_s_ = value_s_;
      best_ = order_;
    }
  }

  double mean_action_s() const {
    double sum_s = 0.0;
    for (const Row& row : rows_) sum_s += row.duration_s;
    return sum_s / static_cast<double>(rows_.size());
  }

  int64_t key(int32_t kind, int64_t stage, int64_t microbatch) const {
    return (kind * given_.num_stages() + stage) * given_.num_microbatches + microbatch;
  }
  int32_t id_of(int32_t kind, int64_t stage, int64_t microbatch) const {
    return id_of_[key(kind, stage, microbatch)];
  }
  int32_t back_of(int64_t stage, int64_t microbatch) const {
    const int32_t whole = id_of(kBackward, stage, microbatch);
    return whole != kNone ? whole : id_of(kInputGrad, stage, microbatch);
  }

  void read_rows(const ActionCosts& costs) {
    const Transfers transfers(given_, costs);
    const int64_t stages = given_.num_stages();
    for (size_t id = 0; id < rows_.size(); ++id) {
      const ActionRow& a = given_.actions[id];
      id_of_[key(a.kind, a.stage, a.microbatch)] = static_cast<int32_t>(id);
    }
    for (int64_t rank = 0; rank < num_ranks_; ++rank) {
      for (int64_t id = given_.rank_offsets[rank]; id < given_.rank_offsets[rank + 1]; ++id) {
        const ActionRow& a = given_.actions[id];
        Row& row = rows_[id];
        row.rank = static_cast<int32_t>(rank);
        row.duration_s = costs.of(a, stages);
        row.on_link = on_host_link(a.kind);
        order_[rank].push_back(static_cast<int32_t>(id));
        if (a.kind == kForward && a.stage > 0) {
          row.input = id_of(kForward, a.stage - 1, a.microbatch);
          row.lag_s = transfers.forward_s[a.stage - 1];
        }
        const bool is_back = a.kind == kInputGrad || a.kind == kBackward;
        if (is_back && a.stage + 1 < stages) {
          row.input = back_of(a.stage + 1, a.microbatch);
          row.lag_s = transfers.backward_s[a.stage + 1];
        }
        if (is_back || a.kind == kRecompute) row.copy = id_of(kReload, a.stage, a.microbatch);
        if (a.kind == kDrop) row.copy = id_of(kOffload, a.stage, a.microbatch);
      }
    }
    for (size_t id = 0; id < rows_.size(); ++id) {
      const Row& row = rows_[id];
      const auto own = static_cast<int32_t>(id);
      if (row.input != kNone && rows_[row.input].rank != row.rank) rows_[row.input].reader = own;
      if (row.copy == kNone) continue;
      auto& copied = rows_[row.copy].copied;
      copied[copied[0] == kNone ? 0 : 1] = own;
    }
  }

  bool start() {
    sequence_.resize(rows_.size());
    std::iota(sequence_.begin(), sequence_.end(), 0);
    std::ranges::fill(done_, 0);
    stretch_.clear();
    saved_.clear();
    low_ = 0;
    high_ = std::ssize(rows_) - 1;
    for (int64_t rank = 0; rank < num_ranks_; ++rank) {
      cursor_[rank] = 0;
      stop_[rank] = std::ssize(order_[rank]);
      number(rank, 0, order_[rank].size());
      first_ = 0;
      rank_ = static_cast<int32_t>(rank);
      window_ = order_[rank];
      level_[rank].assign(order_[rank].size() * resources_.size(), 0.0);
      fits();
      keep_levels();
    }
    window_.clear();
    stretch_.clear();
    if (!simulate_stretch()) return false;
    accept();
    return true;
  }

  void number(int64_t rank, size_t from, size_t to) {
    for (size_t at = from; at < to; ++at) position_[order_[rank][at]] = static_cast<int32_t>(at);
  }

  // Fills rank_, first_ and window_, the rows from there on after the move.
  bool propose() {
    int32_t id;
    if (!critical_.empty() && random_.chance(kOnCriticalPath)) {
      id = critical_[random_.below(static_cast<int64_t>(critical_.size()))];
    } else {
      id = random_.below(static_cast<int64_t>(rows_.size()));
    }
    rank_ = rows_[id].rank;
    const ActionRow& a = given_.actions[id];
    int64_t from = a.microbatch, to = a.microbatch;
    if (random_.chance(kCoordinated)) {
      from = random_.below(a.microbatch + 1);
      to = a.microbatch + random_.below(given_.num_microbatches - a.microbatch);
    }
    const bool earlier = random_.chance(0.5);
    int32_t distance = 1;
    while (distance < 12 && random_.chance(0.5)) ++distance;
    int32_t low = INT32_MAX, high = kNone;
    moving_.clear();
    for (int64_t j = from; j <= to; ++j) {
      const int32_t moved = id_of(a.kind, a.stage, j);
      if (moved == kNone) continue;
      moving_.push_back(position_[moved]);
      low = std::min(low, position_[moved]);
      high = std::max(high, position_[moved]);
    }
    const auto& order = order_[rank_];
    const auto size = static_cast<int32_t>(order.size());
    first_ = earlier ? std::max(0, low - distance) : low;
    const int32_t end = earlier ? high + 1 : std::min(size, high + distance + 1);
    window_.assign(order.begin() + first_, order.begin() + end);
    std::sort(moving_.begin(), moving_.end());
    if (!earlier) std::reverse(moving_.begin(), moving_.end());
    for (const int32_t position : moving_) shift(position - first_, earlier ? -distance : distance);
    size_t same = 0;
    while (same < window_.size() && window_[same] == order[first_ + same]) ++same;
    window_.erase(window_.begin(), window_.begin() + static_cast<int64_t>(same));
    first_ += static_cast<int32_t>(same);
    while (!window_.empty() && window_.back() == order[first_ + window_.size() - 1])
      window_.pop_back();
    return !window_.empty();
  }

  // A row of the window by `distance` places, or up to one of its stage and microbatch.
  void shift(int32_t at, int32_t distance) {
    const int32_t step = distance < 0 ? -1 : 1;
    const ActionRow& a = given_.actions[window_[at]];
    for (; distance != 0; distance -= step, at += step) {
      const int32_t next = at + step;
      if (next < 0 || next >= static_cast<int32_t>(window_.size())) return;
      const ActionRow& b = given_.actions[window_[next]];
      if (a.stage == b.stage && a.microbatch == b.microbatch) return;
      std::swap(window_[at], window_[next]);
    }
  }

  // Whether the window keeps to all limits; levels before its rows go to new_level_.
  bool fits() {
    const size_t num = resources_.size();
    const int64_t stages = given_.num_stages();
    new_level_.resize(window_.size() * num);
    for (size_t r = 0; r < num; ++r) {
      const Resource& resource = resources_[r];
      const double room = resource.room[rank_] * (1.0 + 1e-12);
      double level = level_[rank_][first_ * num + r];
      for (size_t i = 0; i < window_.size(); ++i) {
        const ActionRow& a = given_.actions[window_[i]];
        const int64_t at = a.kind * stages + a.stage;
        new_level_[i * num + r] = level;
        if (level + std::max(resource.delta[at], 0.0) + resource.transient[at] > room) return false;
        level += resource.delta[at];
      }
    }
    return true;
  }

  void keep_levels() {
    std::copy(new_level_.begin(), new_level_.end(),
              level_[rank_].begin() + static_cast<int64_t>(first_ * resources_.size()));
  }

  // The stretch of the sequence that the window spans anew, then what follows as far as it changes.
  // False where it deadlocks, or is seen to be longer than `longest_s`.
  bool simulate_window(double longest_s) {
    const auto& order = order_[rank_];
    before_.assign(order.begin() + first_, order.begin() + first_ + window_.size());
    low_ = place_[before_.front()];
    high_ = place_[before_.back()];
    saved_.clear();
    changed_.clear();
    for (int64_t at = low_; at <= high_; ++at) {
      saved_.push_back(times_[sequence_[at]]);
      done_[sequence_[at]] = 0;
    }
    for (int64_t rank = 0; rank < num_ranks_; ++rank) {
      const auto& rows = order_[rank];
      const auto first_at = [&](int64_t place) {
        const auto is_before = [&](int32_t id) { return place_[id] < place; };
        return std::partition_point(rows.begin(), rows.end(), is_before) - rows.begin();
      };
      cursor_[rank] = first_at(low_);
      stop_[rank] = first_at(high_ + 1);
    }
    std::copy(window_.begin(), window_.end(), order_[rank_].begin() + first_);
    stretch_.clear();
    if (!simulate_stretch() || is_longer(longest_s)) return false;
    simulate_rest();
    return true;
  }

  // Whether what follows the stretch ends too late. While first rows stand in it, no tail is known.
  bool is_longer(double longest_s) const {
    if (low_ <= last_head_) return false;
    const auto too_late = [&](int32_t id, double start_s) {
      return start_s + rows_[id].duration_s + tail_s_[id] > longest_s;
    };
    for (int64_t rank = 0; rank < num_ranks_; ++rank) {
      const auto& order = order_[rank];
      if (stop_[rank] == 0) continue;
      const Time& state = times_[order[stop_[rank] - 1]];
      if (std::max(state.free_s, state.link_s) - origin_s_[rank] > longest_s) return true;
      for (int64_t at = stop_[rank]; at < std::ssize(order); ++at) {
        if (too_late(order[at], state.free_s)) return true;
        if (!rows_[order[at]].on_link) break;
      }
    }
    for (const int32_t id : stretch_) {
      const Row& row = rows_[id];
      const double end_s = times_[id].end_s;
      if (end_s == saved_of(id).end_s || row.reader == kNone || place_[row.reader] <= high_)
        continue;
      if (too_late(row.reader, end_s + rows_[row.reader].lag_s)) return true;
    }
    return false;
  }

  // Clocks of the objective start with the first row of a rank, or at 0. True where one moved.
  bool start_clocks() {
    bool moved = false;
    last_head_ = 0;
    for (int64_t rank = 0; rank < num_ranks_; ++rank) {
      if (order_[rank].empty()) continue;
      const int32_t head = order_[rank].front();
      last_head_ = std::max(last_head_, place_[head]);
      const double from_s =
          objective_ == Objective::span ? times_[head].end_s - rows_[head].duration_s : 0.0;
      moved |= from_s != origin_s_[rank];
      origin_s_[rank] = from_s;
    }
    return moved;
  }

  // From the end of a row to the objective's end, by all that waits for it.
  double longest_tail_s(int32_t id) const {
    const Row& row = rows_[id];
    double longest_s = -origin_s_[row.rank];
    const auto through = [&](int32_t next, double lag_s) {
      longest_s = std::max(longest_s, lag_s + rows_[next].duration_s + tail_s_[next]);
    };
    const auto& order = order_[row.rank];
    for (size_t at = static_cast<size_t>(position_[id]) + 1; at < order.size(); ++at) {
      const bool on_link = rows_[order[at]].on_link;
      if (on_link || !row.on_link) through(order[at], 0.0);
      if (on_link == row.on_link) break;
    }
    if (row.reader != kNone) through(row.reader, rows_[row.reader].lag_s);
    for (const int32_t reader : row.copied)
      if (reader != kNone) through(reader, 0.0);
    return longest_s;
  }

  // Backwards through the sequence, from `from` to `reach` and on while a changed tail has a
  // writer.
  void measure_tails(int64_t from, int64_t reach) {
    int64_t at = from;
    for (; at >= reach; --at) {
      const int32_t id = sequence_[at];
      const double tail_s = longest_tail_s(id);
      if (tail_s == tail_s_[id]) continue;
      tail_s_[id] = tail_s;
      reach = std::min({reach, first_writer(id), place_of(rows_[id].input, reach),
                        place_of(rows_[id].copy, reach)});
    }
    work_ += from - at;
  }

  // Place of the first of the last computation and the last copy before a row of its rank.
  int64_t first_writer(int32_t id) const {
    if (position_[id] == 0) return place_[id];
    const Time& before = times_[order_[rows_[id].rank][position_[id] - 1]];
    return std::min(place_of(before.last, place_[id]), place_of(before.last_on_link, place_[id]));
  }

  int64_t place_of(int32_t id, int64_t otherwise) const {
    return id == kNone ? otherwise : place_[id];
  }

  bool simulate_stretch() {
    ready_.clear();
    for (int64_t rank = num_ranks_; rank-- > 0;)
      if (cursor_[rank] < stop_[rank]) ready_.push_back(static_cast<int32_t>(rank));
    while (!ready_.empty()) {
      const int32_t rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
    work_ += std::ssize(stretch_);
    for (const int32_t id : blocked_) waiter_[id] = kNone;
    blocked_.clear();
    return std::ssize(stretch_) == high_ - low_ + 1;
  }

  void advance(int32_t rank) {
    const auto& order = order_[rank];
    int64_t at = cursor_[rank];
    Time state;
    if (at > 0) state = times_[order[at - 1]];
    for (; at < stop_[rank]; ++at) {
      const int32_t id = order[at];
      const Row& row = rows_[id];
      if (row.input != kNone && !done_[row.input]) {
        if (rows_[row.input].rank == rank) break;  // it waits for itself
        waiter_[row.input] = rank;
        blocked_.push_back(row.input);
        break;
      }
      state = times_[id] = after(state, id);
      done_[id] = 1;
      stretch_.push_back(id);
      if (row.reader != kNone && waiter_[id] != kNone) {
        ready_.push_back(waiter_[id]);
        waiter_[id] = kNone;
      }
    }
    cursor_[rank] = at;
  }

  // Times of a row that its rank runs next.
  Time after(Time state, int32_t id) const {
    const Row& row = rows_[id];
    double start_s = state.free_s;
    state.cause = state.last;
    const auto wait_for = [&](double until_s, int32_t cause) {
      if (until_s <= start_s) return;
      start_s = until_s;
      state.cause = cause;
    };
    if (row.input != kNone) wait_for(times_[row.input].end_s + row.lag_s, row.input);
    if (row.copy != kNone) wait_for(times_[row.copy].end_s, row.copy);
    if (row.on_link) {
      wait_for(state.link_s, state.last_on_link);
      state.end_s = state.link_s = start_s + row.duration_s;
      state.last_on_link = id;
    } else {
      state.end_s = state.free_s = start_s + row.duration_s;
      state.last = id;
    }
    return state;
  }

  // Rows behind the stretch keep their sequence; behind the last that reads a change none changes.
  void simulate_rest() {
    int64_t reach = high_;
    const size_t next = first_ + window_.size();
    if (next < order_[rank_].size()) reach = place_[order_[rank_][next]];
    for (const int32_t id : stretch_) reach = std::max(reach, last_reader(id, saved_of(id)));
    int64_t at = high_ + 1;
    for (; at <= reach; ++at) {
      const int32_t id = sequence_[at];
      const auto& order = order_[rows_[id].rank];
      const int32_t position = position_[id];
      const Time before = times_[id];
      times_[id] = after(position > 0 ? times_[order[position - 1]] : Time{}, id);
      if (times_[id] == before) continue;
      changed_.emplace_back(id, before);
      reach = std::max(reach, last_reader(id, before));
    }
    work_ += at - high_ - 1;
  }

  const Time& saved_of(int32_t id) const { return saved_[place_[id] - low_]; }

  // Place of the last row that reads what of a row's times is other than before, -1 without any.
  int64_t last_reader(int32_t id, const Time& before) const {
    const Row& row = rows_[id];
    int64_t reach = -1;
    const auto& order = order_[row.rank];
    const auto next = static_cast<size_t>(position_[id]) + 1;
    if (next < order.size() && !times_[id].leaves_as(before)) reach = place_[order[next]];
    if (times_[id].end_s == before.end_s) return reach;
    for (const int32_t reader : {row.reader, row.copied[0], row.copied[1]})
      if (reader != kNone) reach = std::max(reach, place_[reader]);
    return reach;
  }

  // Sets value_s_; what the search descends on adds its companions, as for words.
  double measure() {
    double makespan_s = 0.0, span_s = 0.0, sum_s = 0.0;
    for (const auto& order : order_) {
      if (order.empty()) continue;
      const Time& last = times_[order.back()];
      const double end_s = std::max(last.free_s, last.link_s);
      const double start_s = times_[order.front()].end_s - rows_[order.front()].duration_s;
      makespan_s = std::max(makespan_s, end_s);
      span_s = std::max(span_s, end_s - start_s);
      sum_s += end_s;
    }
    const Length length{.span_s = span_s,
                        .makespan_s = makespan_s,
                        .mean_end_s = sum_s / static_cast<double>(num_ranks_)};
    value_s_ = length.value(objective_);
    return length.guide(objective_);
  }

  void accept() {
    for (size_t i = 0; i < stretch_.size(); ++i) {
      sequence_[low_ + i] = stretch_[i];
      place_[stretch_[i]] = low_ + static_cast<int64_t>(i);
    }
    if (!window_.empty()) {
      number(rank_, first_, first_ + window_.size());
      keep_levels();
    }
    if (start_clocks() || window_.empty())
      measure_tails(std::ssize(sequence_) - 1, 0);
    else
      measure_tails(high_, std::min(low_, first_writer(order_[rank_][first_])));
  }

  void reject() {
    std::copy(before_.begin(), before_.end(), order_[rank_].begin() + first_);
    for (size_t i = 0; i < saved_.size(); ++i) {
      times_[sequence_[low_ + i]] = saved_[i];
      done_[sequence_[low_ + i]] = 1;
    }
    for (const auto& [id, time] : changed_) times_[id] = time;
  }

  // The chain of rows that makes the order as long as it is.
  void trace() {
    int32_t id = kNone;
    double longest_s = -1.0;
    for (const auto& order : order_) {
      if (order.empty()) continue;
      const Time& last = times_[order.back()];
      double end_s = std::max(last.free_s, last.link_s);
      if (objective_ == Objective::span)
        end_s -= times_[order.front()].end_s - rows_[order.front()].duration_s;
      if (end_s <= longest_s) continue;
      longest_s = end_s;
      id = last.free_s >= last.link_s ? last.last : last.last_on_link;
    }
    critical_.clear();
    for (; id != kNone; id = times_[id].cause) critical_.push_back(id);
    work_ += static_cast<int64_t>(critical_.size());
  }

  const Orders& given_;
  const std::vector<Resource>& resources_;
  const Objective objective_;
  const MovePlan& plan_;
  RandomSource random_;
  const int64_t num_ranks_;
  std::vector<Row> rows_;                    // [id], the row of the given orders
  std::vector<Time> times_, saved_;          // [id]; of the sequence from low_ on, before a trial
  std::vector<int32_t> position_;            // [id]: on its rank
  std::vector<int64_t> place_;               // [id]: in the sequence
  std::vector<char> done_;                   // [id]
  std::vector<int32_t> waiter_;              // [id]: the rank that waits for it
  std::vector<int32_t> id_of_;               // [kind, stage, microbatch]
  std::vector<std::vector<int32_t>> order_;  // [rank]
  std::vector<std::vector<double>> level_;   // [rank][position, resource]: before the row
  std::vector<int64_t> cursor_, stop_;       // [rank]: in and behind the stretch
  std::vector<int32_t> sequence_, stretch_, ready_, blocked_, critical_, moving_;
  std::vector<int32_t> window_, before_;
  std::vector<double> new_level_;
  int32_t rank_ = 0, first_ = 0;
  std::vector<double> tail_s_;                     // [id]: end_s + tail_s <= objective
  std::vector<double> origin_s_;                   // [rank]: when the objective's clock starts
  int64_t last_head_ = 0;                          // place of the last first row
  std::vector<std::pair<int32_t, Time>> changed_;  // behind the stretch: times before the trial
  int64_t low_ = 0, high_ = 0, work_ = 0;          // the stretch of the sequence
  double value_s_ = 0.0, best_s_ = 0.0;
  std::vector<std::vector<int32_t>> best_;  // [rank]
  int64_t next_pause_ = kWorkBetweenPauses;
  bool interrupted_ = false;
};

}  // namespace

MovedOrders anneal_moves(const Orders& orders, const ActionCosts& costs,
                         const std::vector<Resource>& resources, Objective objective,
                         const MovePlan& plan) {
  return MoveAnnealing(orders, costs, resources, objective, plan).run();
}

}  // namespace trainwright
