#include "schedule/target_list.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trainwright {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

}  // namespace

TargetList::TargetList(const StreamProblem& problem)
    : problem_(problem),
      main_(problem.num_ranks),
      reserve_(problem.streams.size()),
      count_(problem.streams.size()),
      end_s_(problem.num_actions),
      free_s_(problem.num_ranks),
      level_(problem.num_ranks),
      chunk_level_(problem.streams.size()),
      forward_of_(problem.streams.size()),
      pending_(problem.num_ranks),
      next_pending_(problem.num_ranks),
      choice_(problem.num_ranks),
      words_(problem.num_ranks) {
  for (size_t id = 0; id < problem.streams.size(); ++id) {
    const Stream& stream = problem.streams[id];
    forward_of_[id] = problem.streams_of_stage[stream.stage][kForward];
    if (!stream.is_weight_grad()) main_[stream.rank].push_back(static_cast<int32_t>(id));
  }
}

void TargetList::begin() {
  std::fill(count_.begin(), count_.end(), 0);
  std::fill(free_s_.begin(), free_s_.end(), 0.0);
  std::fill(level_.begin(), level_.end(), std::array<double, kMaxResources>{});
  std::fill(chunk_level_.begin(), chunk_level_.end(), 0.0);
  std::fill(next_pending_.begin(), next_pending_.end(), 0);
  for (auto& pending : pending_) pending.clear();
  for (auto& word : words_) word.clear();
}

// How much of resource 0 a forward stream must leave free for the later chunks of its rank.
void TargetList::set_reserves(const std::vector<double>& life_share, Reserve reserve) {
  if (problem_.num_resources == 0) return;
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) {
    double later = 0.0, later_share = 0.0;
    const double room = problem_.room[0][rank];
    for (size_t i = main_[rank].size(); i-- > 0;) {
      const int32_t id = main_[rank][i];
      const Stream& stream = problem_.streams[id];
      if (stream.kind != kForward) continue;
      const double unit = stream.alloc[0],
                   half = std::floor(room / 2 / std::max(unit, 1e-300)) * unit;
      double wanted = later;
      if (later > 0.0 && unit > 0.0 && std::isfinite(room)) {
        switch (reserve) {
          case Reserve::one_each:
            break;
          case Reserve::by_rank:
            wanted = std::min((rank + 1) * unit, half);
            break;
          case Reserve::by_half:
            wanted = std::min(half, (rank + 1) * unit);
            wanted = room - std::max(std::ceil(room / 2 / unit - 1e-6) * unit, room - wanted);
            break;
          case Reserve::by_half_rank:
            wanted = room - std::max(std::ceil(room / 2 / unit - 1e-6) * unit,
                                     room - (rank + 2) / 2 * unit);
            break;
          case Reserve::by_lifespan:
            wanted = std::floor(later_share * room / unit) * unit;
            break;
        }
      }
      reserve_[id] = std::max(later, wanted);
      later += unit;
      later_share += life_share[id];
    }
  }
}

bool TargetList::run(const std::vector<double>& target_s, const std::vector<double>& life_share,
                     const ListRule& rule) {
  target_s_ = &target_s;
  rule_ = rule;
  begin();
  if (!rule.strict) set_reserves(life_share, rule.reserve);
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) choice_[rank] = choose(rank);
  for (int64_t left = problem_.num_actions; left > 0; --left) {
    int32_t first = 0;
    for (int32_t rank = 1; rank < problem_.num_ranks; ++rank)
      if (choice_[rank].start_s < choice_[first].start_s) first = rank;
    if (choice_[first].start_s == kInfinite) return false;
    commit(first);
  }
  measure();
  return true;
}

bool TargetList::is_enabled(int32_t id) const {
  const int32_t microbatch = count_[id];
  if (microbatch == problem_.num_microbatches) return false;
  for (const int32_t need : problem_.streams[id].needs) {
    if (need == kNoStream) break;
    if (count_[need] <= microbatch) return false;
  }
  return true;
}

bool TargetList::fits(const Stream& stream, int32_t id) const {
  const auto& level = level_[stream.rank];
  for (int r = 0; r < problem_.num_resources; ++r)
    if (level[r] + stream.alloc[r] + stream.transient[r] > problem_.room[r][stream.rank])
      return false;
  if (rule_.strict || stream.kind != kForward || problem_.num_resources == 0) return true;
  double live = stream.alloc[0];  // of this and the earlier chunks
  for (const int32_t other : main_[stream.rank]) {
    if (problem_.streams[other].kind == kForward) live += chunk_level_[other];
    if (other == id) break;
  }
  return live + reserve_[id] <= problem_.room[0][stream.rank];
}

double TargetList::start_of(int32_t id) const {
  const Stream& stream = problem_.streams[id];
  const double free_s = free_s_[stream.rank];
  if (stream.input == kNoStream) return free_s;
  const int32_t microbatch = count_[id];
  if (count_[stream.input] <= microbatch) return kInfinite;
  return std::max(free_s, end_s_[problem_.slot(stream.input, microbatch)] + stream.lag_s);
}

TargetList::Choice TargetList::filler(int32_t rank) const {
  if (next_pending_[rank] == pending_[rank].size()) return {kNoStream, kInfinite};
  const int32_t id = pending_[rank][next_pending_[rank]];
  if (!fits(problem_.streams[id], id)) return {kNoStream, kInfinite};
  return {id, free_s_[rank]};
}

TargetList::Choice TargetList::choose(int32_t rank) const {
  const Choice choice = rule_.strict ? strict_choice(rank) : greedy_choice(rank);
  const Choice w = filler(rank);
  if (w.stream == kNoStream) return choice;
  if (choice.stream == kNoStream) return w;
  const double idle_s = choice.start_s - free_s_[rank];
  return idle_s > 0.0 && idle_s >= rule_.w_gap * problem_.streams[w.stream].duration_s ? w : choice;
}

TargetList::Choice TargetList::strict_choice(int32_t rank) const {
  int32_t best = kNoStream;
  double best_target_s = kInfinite;
  bool full = false;
  for (const int32_t id : main_[rank]) {
    if (!is_enabled(id)) continue;
    const double target_s = (*target_s_)[problem_.slot(id, count_[id])];
    if (target_s >= best_target_s) continue;
    if (!fits(problem_.streams[id], id)) {
      full = true;
      continue;
    }
    best = id;
    best_target_s = target_s;
  }
  if (const Choice w = filler(rank); full && w.stream != kNoStream) {
    // Was the one that does not fit due earlier than the best that does?
    for (const int32_t id : main_[rank]) {
      if (!is_enabled(id) || fits(problem_.streams[id], id)) continue;
      if ((*target_s_)[problem_.slot(id, count_[id])] < best_target_s) return w;
    }
  }
  return best == kNoStream ? Choice{kNoStream, kInfinite} : Choice{best, start_of(best)};
}

TargetList::Choice TargetList::greedy_choice(int32_t rank) const {
  double earliest_s = kInfinite;
  std::array<Choice, 64> open;  // of more, the first: a rank has 2 or 3 streams per chunk
  size_t num_open = 0;
  for (const int32_t id : main_[rank]) {
    if (!is_enabled(id)) continue;
    const double start_s = start_of(id);
    if (start_s == kInfinite || num_open == open.size()) continue;
    open[num_open++] = {id, start_s};
  }
  const Choice w = filler(rank);
  while (num_open > 0) {
    earliest_s = kInfinite;
    for (size_t i = 0; i < num_open; ++i) earliest_s = std::min(earliest_s, open[i].start_s);
    size_t best = 0;
    double best_target_s = kInfinite;
    for (size_t i = 0; i < num_open; ++i) {
      const double target_s = (*target_s_)[problem_.slot(open[i].stream, count_[open[i].stream])];
      if (open[i].start_s > earliest_s + rule_.tolerance_s || target_s >= best_target_s) continue;
      best = i;
      best_target_s = target_s;
    }
    const int32_t id = open[best].stream;
    if (fits(problem_.streams[id], id)) return open[best];
    if (w.stream != kNoStream) return w;
    open[best] = open[--num_open];
  }
  return {kNoStream, kInfinite};
}

void TargetList::commit(int32_t rank) {
  const Choice choice = choice_[rank];
  const Stream& stream = problem_.streams[choice.stream];
  const double end_s = choice.start_s + stream.duration_s;
  end_s_[problem_.slot(choice.stream, count_[choice.stream]++)] = end_s;
  free_s_[rank] = end_s;
  words_[rank].push_back(choice.stream);
  for (int r = 0; r < problem_.num_resources; ++r)
    level_[rank][r] += stream.alloc[r] - stream.release[r];
  chunk_level_[forward_of_[choice.stream]] += stream.alloc[0] - stream.release[0];
  if (stream.is_weight_grad()) {
    ++next_pending_[rank];
  } else if (stream.kind == kInputGrad) {
    pending_[rank].push_back(problem_.streams_of_stage[stream.stage][kWeightGrad]);
  }
  choice_[rank] = choose(rank);
  if (stream.consumer != kNoStream) {
    const int32_t reader = problem_.streams[stream.consumer].rank;
    choice_[reader] = choose(reader);
  }
}

void TargetList::measure() {
  double first_s = kInfinite, last_s = 0.0, sum_s = 0.0;
  length_.span_s = 0.0;
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) {
    if (words_[rank].empty()) continue;
    const int32_t head = words_[rank].front();
    const double start_s = end_s_[problem_.slot(head, 0)] - problem_.streams[head].duration_s;
    first_s = std::min(first_s, start_s);
    last_s = std::max(last_s, free_s_[rank]);
    sum_s += free_s_[rank];
    length_.span_s = std::max(length_.span_s, free_s_[rank] - start_s);
  }
  length_.makespan_s = last_s - first_s;
  length_.mean_end_s = sum_s / problem_.num_ranks;
}

}  // namespace trainwright
