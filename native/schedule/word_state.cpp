#include "schedule/word_state.hpp"

#include <algorithm>
#include <limits>

namespace trainwright {

WordState::WordState(const StreamProblem& problem)
    : problem_(problem),
      items_(problem.num_ranks),
      levels_(problem.num_ranks),
      index_(problem.num_ranks),
      position_(problem.num_actions),
      end_s_(problem.num_actions + 1, 0.0),
      sequence_(problem.num_actions),
      tail_s_(problem.num_actions),
      origin_s_(problem.num_ranks, std::numeric_limits<double>::infinity()),
      marks_((problem.num_actions / kMarkEvery + 1) * problem.num_ranks),
      cursor_(problem.num_ranks),
      stretch_end_(problem.num_ranks),
      count_(problem.streams.size()),
      free_s_(problem.num_ranks) {
  for (const auto& stream : problem.streams) {
    const bool has_input = stream.input != kNoStream;
    timing_.push_back(
        {.duration_s = stream.duration_s,
         .lag_s = stream.lag_s,
         .input_slot = has_input ? problem.slot(stream.input, 0) : problem.num_actions,
         .input_stride = has_input ? 1 : 0});
  }
  for (int32_t rank = 0; rank < problem.num_ranks; ++rank) {
    const auto size = problem.streams_of_rank[rank].size() * problem.num_microbatches;
    items_[rank].resize(size, {kNoStream, 0});
    levels_[rank].resize(size);
    index_[rank].resize(size);
  }
}

bool WordState::load(const Words& words) {
  end_s_.back() = 0.0;
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) {
    if (words[rank].size() != items_[rank].size()) return false;
    for (const int32_t stream : problem_.streams_of_rank[rank]) count_[stream] = 0;
    for (size_t at = 0; at < words[rank].size(); ++at)
      items_[rank][at] = {words[rank][at], count_[words[rank][at]]++};
    for (const int32_t stream : problem_.streams_of_rank[rank])
      if (count_[stream] != problem_.num_microbatches) return false;
    if (!items_[rank].empty()) levels_[rank][0] = {};
    if (!word_is_legal(rank, 0, words[rank])) return false;
    write_window(rank, 0, words[rank]);
    levels_[rank] = new_levels_;
    cursor_[rank] = 0;
    free_s_[rank] = 0.0;
    stretch_end_[rank] = word_size(rank);
  }
  old_ends_.clear();
  stretch_.clear();
  low_ = 0;
  if (!simulate_stretch(0, problem_.num_actions - 1)) return false;
  measure();
  rank_ = first_ = 0;
  new_levels_.clear();
  accept();
  return true;
}

Words WordState::words() const {
  Words words(problem_.num_ranks);
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank)
    for (const Item& item : items_[rank]) words[rank].push_back(item.stream);
  return words;
}

// Needs and memory of the window. What the window does not hold stands where it stood, so only
// needs inside it can break; counts start at the first microbatch of each stream in it.
bool WordState::word_is_legal(int32_t rank, int32_t first, std::span<const int32_t> streams) {
  constexpr int32_t kAbsent = std::numeric_limits<int32_t>::max();
  for (const int32_t stream : problem_.streams_of_rank[rank]) count_[stream] = kAbsent;
  for (size_t i = streams.size(); i-- > 0;) {
    const Item& item = items_[rank][first + i];
    count_[item.stream] = item.microbatch;
  }
  new_items_.resize(streams.size());
  new_levels_.resize(streams.size());
  if (streams.empty()) return true;
  Levels level = levels_[rank][first];
  for (size_t i = 0; i < streams.size(); ++i) {
    const Stream& stream = problem_.streams[streams[i]];
    const int32_t microbatch = count_[streams[i]]++;
    for (const int32_t need : stream.needs) {
      if (need == kNoStream) break;
      if (count_[need] <= microbatch) return false;
    }
    new_items_[i] = {streams[i], microbatch};
    new_levels_[i] = level;
    for (int r = 0; r < problem_.num_resources; ++r) {
      if (level[r] + stream.alloc[r] + stream.transient[r] > problem_.room[r][rank]) return false;
      level[r] += stream.alloc[r] - stream.release[r];
    }
  }
  return true;
}

void WordState::write_window(int32_t rank, int32_t first, std::span<const int32_t> streams) {
  for (size_t i = 0; i < streams.size(); ++i) {
    const auto at = first + static_cast<int32_t>(i);
    items_[rank][at] = new_items_[i];
    position_[problem_.slot(new_items_[i].stream, new_items_[i].microbatch)] = at;
  }
}

bool WordState::try_window(int32_t rank, int32_t first, std::span<const int32_t> streams,
                           double longest_s) {
  if (!word_is_legal(rank, first, streams)) return false;
  const auto& items = items_[rank];
  items_before_.assign(items.begin() + first, items.begin() + first + streams.size());
  rank_ = rank;
  first_ = first;
  length_before_ = length_;
  old_ends_.clear();
  stretch_.clear();
  low_ = index_[rank][first];
  const int64_t high = index_[rank][first + streams.size() - 1];
  place_cursors(low_);
  free_ranks();
  work_ += 2 * problem_.num_ranks;  // what it takes to place them, about
  stretch_end_ = cursor_;
  for (int64_t at = low_; at <= high; ++at) ++stretch_end_[sequence_[at]];
  write_window(rank, first, streams);
  if (!simulate_stretch(low_, high) || is_longer(high, longest_s)) {
    undo_window();
    return false;
  }
  int64_t reach = -1;
  for (const OldEnd& old : old_ends_) {
    const auto stream = static_cast<int32_t>(old.slot / problem_.num_microbatches);
    const auto microbatch = static_cast<int32_t>(old.slot % problem_.num_microbatches);
    const int32_t owner = problem_.streams[stream].rank;
    reach = std::max(reach, last_reader({stream, microbatch}, owner, position_[old.slot] + 1));
  }
  // The last action of the window may differ although no single action ended at another time.
  if (cursor_[rank] < word_size(rank))
    reach = std::max<int64_t>(reach, index_[rank][cursor_[rank]]);
  simulate_rest(high + 1, reach);
  measure();
  return true;
}

// From the last mark on: a search in the index of every rank would take longer.
void WordState::place_cursors(int64_t at) {
  const int64_t mark = at / kMarkEvery;
  const auto marked = marks_.begin() + mark * problem_.num_ranks;
  std::copy(marked, marked + problem_.num_ranks, cursor_.begin());
  for (int64_t before = mark * kMarkEvery; before < at; ++before) ++cursor_[sequence_[before]];
}

void WordState::place_marks(int64_t from, int64_t until) {
  place_cursors(from);
  for (int64_t at = from; at < until; ++at) {
    ++cursor_[sequence_[at]];
    if ((at + 1) % kMarkEvery != 0) continue;
    std::copy(cursor_.begin(), cursor_.end(),
              marks_.begin() + (at + 1) / kMarkEvery * problem_.num_ranks);
  }
}

void WordState::free_ranks() {
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) {
    if (cursor_[rank] == 0) {
      free_s_[rank] = 0.0;
    } else {
      const Item& last = items_[rank][cursor_[rank] - 1];
      free_s_[rank] = end_s_[problem_.slot(last.stream, last.microbatch)];
    }
  }
}

void WordState::set_end(int64_t slot, double end_s) {
  if (end_s_[slot] == end_s) return;
  old_ends_.push_back({slot, end_s_[slot]});
  end_s_[slot] = end_s;
}

// Every rank advances while its inputs are known, until the stretch is through or all wait.
bool WordState::simulate_stretch(int64_t low, int64_t high) {
  int64_t left = high - low + 1;
  work_ += left;
  active_.clear();
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank)
    if (cursor_[rank] < stretch_end_[rank]) active_.push_back(rank);
  while (left > 0) {
    const int64_t before = left;
    size_t waiting = 0;
    for (const int32_t rank : active_) {
      while (cursor_[rank] < stretch_end_[rank]) {
        const Item& item = items_[rank][cursor_[rank]];
        const int32_t input = problem_.streams[item.stream].input;
        if (input != kNoStream && position_[problem_.slot(input, item.microbatch)] >=
                                      cursor_[problem_.streams[input].rank])
          break;
        const Timing& timing = timing_[item.stream];
        const double arrival_s =
            end_s_[timing.input_slot + timing.input_stride * item.microbatch] + timing.lag_s;
        free_s_[rank] = std::max(free_s_[rank], arrival_s) + timing.duration_s;
        set_end(problem_.slot(item.stream, item.microbatch), free_s_[rank]);
        stretch_.push_back(rank);
        ++cursor_[rank];
        --left;
      }
      if (cursor_[rank] < stretch_end_[rank]) active_[waiting++] = rank;
    }
    active_.resize(waiting);
    if (left == before) return false;
  }
  return true;
}

int64_t WordState::last_reader(const Item& item, int32_t rank, int32_t next_position) const {
  int64_t reach = -1;
  if (next_position < word_size(rank)) reach = index_[rank][next_position];
  const int32_t consumer = problem_.streams[item.stream].consumer;
  if (consumer != kNoStream) {
    const int32_t at = position_[problem_.slot(consumer, item.microbatch)];
    reach = std::max<int64_t>(reach, index_[problem_.streams[consumer].rank][at]);
  }
  return reach;
}

void WordState::simulate_rest(int64_t from, int64_t reach) {
  int64_t at = from;
  for (; at <= reach; ++at) {
    const int32_t rank = sequence_[at];
    const Item item = items_[rank][cursor_[rank]++];
    const Timing& timing = timing_[item.stream];
    const double arrival_s =
        end_s_[timing.input_slot + timing.input_stride * item.microbatch] + timing.lag_s;
    const double end_s = std::max(free_s_[rank], arrival_s) + timing.duration_s;
    free_s_[rank] = end_s;
    const int64_t slot = problem_.slot(item.stream, item.microbatch);
    if (end_s == end_s_[slot]) continue;
    old_ends_.push_back({slot, end_s_[slot]});
    end_s_[slot] = end_s;
    reach = std::max(reach, last_reader(item, rank, cursor_[rank]));
  }
  work_ += at - from;
}

// Whether an action after the stretch starts too late. While the first actions stand before the
// stretch, the clock starts when it did.
bool WordState::is_longer(int64_t high, double longest_s) const {
  if (low_ <= last_head_) return false;
  const auto too_late = [&](const Item& item, double start_s) {
    const int64_t slot = problem_.slot(item.stream, item.microbatch);
    return start_s + timing_[item.stream].duration_s + tail_s_[slot] > longest_s;
  };
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) {
    const bool ended = cursor_[rank] == word_size(rank);
    if (ended ? free_s_[rank] - origin_s_[rank] > longest_s
              : too_late(items_[rank][cursor_[rank]], free_s_[rank]))
      return true;
  }
  for (const OldEnd& old : old_ends_) {
    const auto stream = static_cast<int32_t>(old.slot / problem_.num_microbatches);
    const int32_t consumer = problem_.streams[stream].consumer;
    if (consumer == kNoStream) continue;
    const auto microbatch = static_cast<int32_t>(old.slot % problem_.num_microbatches);
    const int32_t rank = problem_.streams[consumer].rank;
    if (index_[rank][position_[problem_.slot(consumer, microbatch)]] <= high) continue;
    if (too_late({consumer, microbatch}, end_s_[old.slot] + timing_[consumer].lag_s)) return true;
  }
  return false;
}

// Whether any rank's clock now starts at another time; then no tail is known.
bool WordState::start_clocks() {
  const auto head_s = [&](int32_t rank) {
    const Item& head = items_[rank].front();
    return start_s(head.stream, head.microbatch);
  };
  double first_s = std::numeric_limits<double>::infinity();
  last_head_ = 0;
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) {
    if (items_[rank].empty()) continue;
    first_s = std::min(first_s, head_s(rank));
    last_head_ = std::max<int64_t>(last_head_, index_[rank].front());
  }
  bool moved = false;
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) {
    if (items_[rank].empty()) continue;
    const double origin_s = problem_.objective == Objective::span ? head_s(rank) : first_s;
    moved |= origin_s != origin_s_[rank];
    origin_s_[rank] = origin_s;
  }
  return moved;
}

double WordState::longest_tail_s(const Item& item, int32_t rank, int32_t next_position) const {
  double longest_s = -origin_s_[rank];
  const auto through = [&](const Item& next, double lag_s) {
    const double next_s = tail_s_[problem_.slot(next.stream, next.microbatch)];
    longest_s = std::max(longest_s, lag_s + timing_[next.stream].duration_s + next_s);
  };
  if (next_position < word_size(rank)) through(items_[rank][next_position], 0.0);
  const int32_t consumer = problem_.streams[item.stream].consumer;
  if (consumer != kNoStream) through({consumer, item.microbatch}, timing_[consumer].lag_s);
  return longest_s;
}

int64_t WordState::first_writer(const Item& item, int32_t rank, int32_t position) const {
  int64_t reach = std::numeric_limits<int64_t>::max();
  if (position > 0) reach = index_[rank][position - 1];
  const int32_t input = problem_.streams[item.stream].input;
  if (input != kNoStream) {
    const int32_t at = position_[problem_.slot(input, item.microbatch)];
    reach = std::min<int64_t>(reach, index_[problem_.streams[input].rank][at]);
  }
  return reach;
}

// Backwards through the sequence, from `from` to `reach` and on while a changed tail has a writer.
void WordState::measure_tails(int64_t from, int64_t reach) {
  place_cursors(from + 1);
  int64_t at = from;
  for (; at >= reach; --at) {
    const int32_t rank = sequence_[at];
    const int32_t position = --cursor_[rank];
    const Item item = items_[rank][position];
    const double tail_s = longest_tail_s(item, rank, position + 1);
    double& known_s = tail_s_[problem_.slot(item.stream, item.microbatch)];
    if (tail_s == known_s) continue;
    known_s = tail_s;
    reach = std::min(reach, first_writer(item, rank, position));
  }
  work_ += from - at;
}

void WordState::measure() {
  double first_s = std::numeric_limits<double>::infinity(), last_s = 0.0, sum_s = 0.0;
  length_.span_s = 0.0;
  for (const auto& items : items_) {
    if (items.empty()) continue;
    const Item &head = items.front(), &tail = items.back();
    const double start_s = this->start_s(head.stream, head.microbatch);
    const double end_s = end_s_[problem_.slot(tail.stream, tail.microbatch)];
    first_s = std::min(first_s, start_s);
    last_s = std::max(last_s, end_s);
    sum_s += end_s;
    length_.span_s = std::max(length_.span_s, end_s - start_s);
  }
  length_.makespan_s = last_s - first_s;
  length_.mean_end_s = sum_s / problem_.num_ranks;
}

void WordState::accept() {
  for (size_t i = 0; i < new_levels_.size(); ++i) levels_[rank_][first_ + i] = new_levels_[i];
  // Cursors back to the start of the stretch, then number its actions anew.
  for (const int32_t rank : stretch_) cursor_[rank] = -1;
  for (size_t i = 0; i < stretch_.size(); ++i) sequence_[low_ + i] = stretch_[i];
  for (size_t i = stretch_.size(); i-- > 0;) {
    const int32_t rank = stretch_[i];
    if (cursor_[rank] < 0) cursor_[rank] = stretch_end_[rank];
    index_[rank][--cursor_[rank]] = static_cast<int32_t>(low_ + i);
  }
  place_marks(low_, low_ + static_cast<int64_t>(stretch_.size()));
  if (start_clocks()) {
    measure_tails(problem_.num_actions - 1, 0);
  } else {
    const int64_t high = low_ + static_cast<int64_t>(stretch_.size()) - 1;
    measure_tails(high, first_ > 0 ? std::min<int64_t>(low_, index_[rank_][first_ - 1]) : low_);
  }
}

void WordState::reject() {
  undo_window();
  length_ = length_before_;
}

void WordState::undo_window() {
  for (size_t i = 0; i < items_before_.size(); ++i) {
    const auto at = first_ + static_cast<int32_t>(i);
    items_[rank_][at] = items_before_[i];
    position_[problem_.slot(items_before_[i].stream, items_before_[i].microbatch)] = at;
  }
  for (size_t i = old_ends_.size(); i-- > 0;) end_s_[old_ends_[i].slot] = old_ends_[i].end_s;
}

void WordState::trace_critical_path(std::vector<Place>& path) const {
  path.clear();
  Place place{0, -1};
  double longest_s = -1.0;
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) {
    if (items_[rank].empty()) continue;
    const Item &head = items_[rank].front(), &tail = items_[rank].back();
    const double end_s = end_s_[problem_.slot(tail.stream, tail.microbatch)];
    const double from_s =
        problem_.objective == Objective::span ? start_s(head.stream, head.microbatch) : 0.0;
    if (end_s - from_s <= longest_s) continue;
    longest_s = end_s - from_s;
    place = {rank, word_size(rank) - 1};
  }
  while (place.position >= 0) {
    path.push_back(place);
    const Item& item = items_[place.rank][place.position];
    const Timing& timing = timing_[item.stream];
    const double arrival_s =
        end_s_[timing.input_slot + timing.input_stride * item.microbatch] + timing.lag_s;
    double free_s = 0.0;
    if (place.position > 0) {
      const Item& before = items_[place.rank][place.position - 1];
      free_s = end_s_[problem_.slot(before.stream, before.microbatch)];
    }
    if (timing.input_stride != 0 && arrival_s >= free_s) {
      const int32_t input = problem_.streams[item.stream].input;
      place = {problem_.streams[input].rank, position_[problem_.slot(input, item.microbatch)]};
    } else {
      --place.position;
    }
  }
}

}  // namespace trainwright
