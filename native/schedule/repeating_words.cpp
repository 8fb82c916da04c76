#include "schedule/repeating_words.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace trainwright {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;
constexpr double kOnCriticalCycle = 0.8;
constexpr double kFurther = 0.45;  // chance of one place more
// Of the time from a microbatch's first forward to its last input gradient, in the guide: of two
// orders with one period the shorter way leaves more room, and ends earlier.
constexpr double kLatencyShare = 0.2;
constexpr int kMostRounds = 40;
constexpr int64_t kProposalWork = 10;
constexpr int64_t kWorkBetweenPauses = 10'000'000;

int32_t floor_div(int32_t a, int32_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

}  // namespace

RepeatingWords::RepeatingWords(const StreamProblem& problem, RandomSource& random, int32_t turn,
                               Pause pause)
    : problem_(problem),
      random_(random),
      turn_(turn),
      num_nodes_(static_cast<int32_t>(problem.streams.size()) * turn),
      pause_(std::move(pause)),
      before_(num_nodes_),
      height_(num_nodes_),
      input_(num_nodes_, kNoStream),
      after_(num_nodes_),
      reader_(num_nodes_, kNoStream),
      is_open_(num_nodes_, 0),
      tried_s_(num_nodes_),
      duration_s_(num_nodes_),
      lag_s_(num_nodes_, 0.0),
      count_(problem.streams.size()),
      mark_(num_nodes_),
      child_(num_nodes_),
      sibling_(num_nodes_) {
  latency_share_ = kLatencyShare / problem.num_microbatches;
  for (size_t step = 1; step < problem.path.size(); ++step)
    least_latency_s_ += latency_share_ * (problem.streams[problem.path[step - 1]].duration_s +
                                          problem.streams[problem.path[step]].lag_s);
  least_latency_s_ *= 1 - kRounding;
  for (size_t id = 0; id < problem.streams.size(); ++id) {
    const Stream& stream = problem.streams[id];
    for (int32_t c = 0; c < turn_; ++c) {
      const auto node = static_cast<int32_t>(id) * turn_ + c;
      duration_s_[node] = stream.duration_s;
      if (stream.input == kNoStream) continue;
      input_[node] = stream.input * turn_ + c;
      reader_[input_[node]] = node;
      lag_s_[node] = stream.lag_s;
    }
  }
}

void RepeatingWords::begin_alone() {
  now_.words.assign(problem_.num_ranks, {});
  now_.first.assign(problem_.streams.size(), 0);
  now_.start_s.assign(num_nodes_, 0.0);
  for (int32_t c = 0; c < turn_; ++c)
    for (const int32_t id : problem_.path) {
      const Stream& stream = problem_.streams[id];
      const auto& own = problem_.streams_of_stage[stream.stage];
      Word& word = now_.words[stream.rank];
      if (stream.kind != kForward && own[kRecompute] != kNoStream) word.push_back(own[kRecompute]);
      word.push_back(id);
      if (stream.kind == kInputGrad) word.push_back(own[kWeightGrad]);
    }
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) link(rank);
  now_.policy = before_;
  for (int32_t node = 0; node < num_nodes_; ++node)
    if (input_[node] != kNoStream) now_.policy[node] = input_[node];
  measure(kInfinite);
}

bool RepeatingWords::begin_like(const WordState& state, int32_t microbatch) {
  begin_alone();
  std::vector<double> start_s(num_nodes_);
  double sum_s = 0.0;
  const auto num_streams = static_cast<int32_t>(problem_.streams.size());
  for (int32_t id = 0; id < num_streams; ++id) {
    for (int32_t c = 0; c < turn_; ++c) start_s[id * turn_ + c] = state.start_s(id, microbatch + c);
    sum_s += state.start_s(id, microbatch + turn_) - state.start_s(id, microbatch);
  }
  if (!(sum_s > 0) || !place(start_s, sum_s / num_streams)) return false;
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) link(rank);
  return measure(kInfinite);
}

// Words in the order of start times modulo a period; whether all ranks can hold them.
bool RepeatingWords::place(const std::vector<double>& start_s, double period_s) {
  std::vector<std::pair<double, int32_t>> letters;
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) {
    letters.clear();
    for (const int32_t id : problem_.streams_of_rank[rank]) {
      now_.first[id] = std::numeric_limits<int32_t>::max();
      for (int32_t c = 0; c < turn_; ++c) {
        const double at_s = start_s[id * turn_ + c], turns = std::floor(at_s / period_s);
        now_.first[id] = std::min(now_.first[id], c - turn_ * static_cast<int32_t>(turns));
        letters.emplace_back(at_s - turns * period_s, id);
      }
    }
    std::ranges::sort(letters);
    std::ranges::transform(letters, now_.words[rank].begin(),
                           [](const auto& letter) { return letter.second; });
    if (!is_legal(rank)) return false;
  }
  return true;
}

// Needs and memory in one turn, with all that earlier turns have begun.
bool RepeatingWords::is_legal(int32_t rank) {
  std::array<double, kMaxResources> level{};
  for (const int32_t id : problem_.streams_of_rank[rank]) {
    const Stream& stream = problem_.streams[id];
    count_[id] = now_.first[id];
    for (int r = 0; r < problem_.num_resources; ++r)
      level[r] += (stream.alloc[r] - stream.release[r]) * now_.first[id];
  }
  for (const int32_t id : now_.words[rank]) {
    const Stream& stream = problem_.streams[id];
    for (const int32_t need : stream.needs) {
      if (need == kNoStream) break;
      if (count_[need] <= count_[id]) return false;
    }
    ++count_[id];
    for (int r = 0; r < problem_.num_resources; ++r) {
      if (level[r] + stream.alloc[r] + stream.transient[r] > problem_.room[r][rank]) return false;
      level[r] += stream.alloc[r] - stream.release[r];
    }
  }
  return true;
}

void RepeatingWords::link(int32_t rank) {
  for (const int32_t id : problem_.streams_of_rank[rank]) count_[id] = now_.first[id];
  relinked_.clear();
  const auto wait = [&](int32_t node, int32_t before, int32_t height) {
    if (before_[node] != before || height_[node] != height) relinked_.push_back(node);
    before_[node] = before;
    height_[node] = height;
    after_[before] = node;
  };
  int32_t before = kNoStream, turn_before = 0, head = kNoStream, head_turn = 0;
  for (const int32_t id : now_.words[rank]) {
    const int32_t microbatch = count_[id]++, own_turn = floor_div(microbatch, turn_);
    const int32_t node = id * turn_ + (microbatch - own_turn * turn_);
    if (before == kNoStream) {
      head = node;
      head_turn = own_turn;
    } else {
      wait(node, before, own_turn - turn_before);
    }
    before = node;
    turn_before = own_turn;
  }
  if (head != kNoStream) wait(head, before, head_turn + 1 - turn_before);
}

// Whether a turn can take so long, no less than before the move.
bool RepeatingWords::can_take(double period_s) {
  work_ += num_nodes_ / 32;
  if (!(now_.period_s > 0)) return true;
  const double turns_per_s = 1.0 / now_.period_s;
  for (int32_t node = 0; node < num_nodes_; ++node) {
    const double turns = std::floor(now_.start_s[node] * turns_per_s);
    tried_s_[node] = now_.start_s[node] + turns * (period_s - now_.period_s);
  }
  for (const int32_t node : relinked_) is_open_[node] = 1;
  bool possible = true;
  for (const int32_t node : relinked_) {
    is_open_[node] = 0;
    if (possible) possible = !reaches_itself(node, period_s);
  }
  return possible;
}

// Whether what waits for a node, once it waits for its rank, makes it wait for itself.
bool RepeatingWords::reaches_itself(int32_t node, double period_s) {
  const double rounding_s = 1e2 * kRounding * period_s;
  const auto on_rank_s = [&](int32_t at) {
    const int32_t before = before_[at];
    return tried_s_[before] + duration_s_[before] - period_s * height_[at];
  };
  const double from_s = on_rank_s(node);
  if (from_s <= tried_s_[node] + rounding_s) return false;
  tried_s_[node] = from_s;
  order_.assign(1, node);
  bool again = before_[node] == node;
  const auto delay = [&](int32_t at, double until_s) {
    if (until_s <= tried_s_[at] + rounding_s) return;
    tried_s_[at] = until_s;
    again |= at == node;
    order_.push_back(at);
  };
  for (size_t i = 0; i < order_.size() && !again; ++i) {
    const int32_t at = order_[i], after = after_[at], reader = reader_[at];
    if (!is_open_[after]) delay(after, on_rank_s(after));
    if (reader != kNoStream) delay(reader, tried_s_[at] + duration_s_[at] + lag_s_[reader]);
  }
  work_ += static_cast<int64_t>(order_.size()) / 2;
  return again;
}

// Policy iteration from the policy at hand: false where a microbatch takes longer than `most_s`, or
// some cycle takes no turn, a deadlock. Cycles of any policy are cycles of the waits, so that the
// period only grows.
bool RepeatingWords::measure(double most_s) {
  for (int32_t node = 0; node < num_nodes_; ++node)
    if (now_.policy[node] != input_[node]) now_.policy[node] = before_[node];
  for (int round = 0; round < kMostRounds; ++round) {
    work_ += num_nodes_ / 2;
    const Cycle longest = longest_cycle();
    if (longest.is_deadlock || longest.period_s > (most_s - least_latency_s_) * turn_) return false;
    start_from(longest.node, longest.period_s);
    if (improve_policy(longest.period_s)) continue;
    const int32_t first = problem_.path.front() * turn_, last = problem_.path.back() * turn_;
    const double latency_s = now_.start_s[last] - now_.start_s[first];
    now_.period_s = longest.period_s;
    now_.guide_s = now_.period_s / turn_ + latency_s * latency_share_;
    return now_.guide_s <= most_s;
  }
  return false;
}

RepeatingWords::Cycle RepeatingWords::longest_cycle() {
  Cycle longest;
  std::ranges::fill(mark_, kNoStream);
  for (int32_t from = 0; from < num_nodes_; ++from) {
    int32_t node = from;
    for (; mark_[node] == kNoStream; node = now_.policy[node]) mark_[node] = from;
    if (mark_[node] != from) continue;
    double cycle_s = 0.0;
    int32_t turns = 0, at = node;
    do {
      cycle_s += wait_s(at);
      turns += height(at);
      at = now_.policy[at];
    } while (at != node);
    if (turns <= 0) return {.is_deadlock = true};
    if (cycle_s / turns > longest.period_s) longest = {.period_s = cycle_s / turns, .node = node};
  }
  return longest;
}

// Starts of all that waits for the root along the policy; others keep theirs.
void RepeatingWords::start_from(int32_t root, double period_s) {
  std::ranges::fill(child_, kNoStream);
  for (int32_t node = 0; node < num_nodes_; ++node) {
    sibling_[node] = child_[now_.policy[node]];
    child_[now_.policy[node]] = node;
  }
  order_.assign(1, root);
  for (size_t i = 0; i < order_.size(); ++i)
    for (int32_t node = child_[order_[i]]; node != kNoStream; node = sibling_[node]) {
      if (node == root) continue;
      now_.start_s[node] = now_.start_s[order_[i]] + wait_s(node) - period_s * height(node);
      order_.push_back(node);
    }
}

bool RepeatingWords::improve_policy(double period_s) {
  bool improved = false;
  const auto wait_for = [&](int32_t node, int32_t other, double until_s) {
    if (until_s <= now_.start_s[node] + kRounding * period_s) return;
    now_.start_s[node] = until_s;
    now_.policy[node] = other;
    improved = true;
  };
  for (int32_t node = 0; node < num_nodes_; ++node) {
    const int32_t before = before_[node], input = input_[node];
    wait_for(node, before, now_.start_s[before] + duration_s_[before] - period_s * height_[node]);
    if (input != kNoStream)
      wait_for(node, input, now_.start_s[input] + duration_s_[input] + lag_s_[node]);
  }
  return improved;
}

// The nodes of the longest cycle.
void RepeatingWords::trace() {
  critical_.clear();
  const int32_t node = longest_cycle().node;
  for (int32_t at = node; critical_.empty() || at != node; at = now_.policy[at])
    critical_.push_back(at);
}

// Moves an action along its rank; false where nothing changes.
bool RepeatingWords::propose() {
  int32_t at = 0;
  if (random_.chance(kOnCriticalCycle)) {
    const int32_t node = critical_[random_.below(static_cast<int64_t>(critical_.size()))];
    const int32_t stream = node / turn_;
    rank_ = problem_.streams[stream].rank;
    int32_t microbatch = now_.first[stream];
    for (const Word& word = now_.words[rank_];; ++at) {
      if (word[at] != stream) continue;
      if ((microbatch - node) % turn_ == 0) break;
      ++microbatch;
    }
  } else {
    rank_ = random_.below(problem_.num_ranks);
    if (now_.words[rank_].empty()) return false;
    at = random_.below(static_cast<int64_t>(now_.words[rank_].size()));
  }
  Word& word = now_.words[rank_];
  const auto size = static_cast<int32_t>(word.size());
  const bool earlier = random_.chance(0.5);
  int32_t distance = 1;
  while (distance < size && random_.chance(kFurther)) ++distance;
  bool changed = false;
  for (; distance > 0; --distance) {
    const int32_t next = (earlier ? at + size - 1 : at + 1) % size;
    if (word[next] == word[at]) break;
    // Across the end of the word one goes to the next turn, and the other comes from it.
    if (earlier ? at == 0 : next == 0) {
      ++now_.first[word[earlier ? at : next]];
      --now_.first[word[earlier ? next : at]];
    }
    std::swap(word[at], word[next]);
    at = next;
    changed = true;
  }
  return changed;
}

// Whether the move is legal and good enough; if not, all is as it was.
bool RepeatingWords::try_rank(const State& kept, double most_s) {
  const bool legal = is_legal(rank_);
  if (legal) {
    link(rank_);
    if (can_take((most_s - least_latency_s_) * turn_) && measure(most_s)) return true;
    now_.policy = kept.policy;
    now_.start_s = kept.start_s;
    now_.period_s = kept.period_s;
    now_.guide_s = kept.guide_s;
  }
  now_.words[rank_] = kept.words[rank_];
  for (const int32_t id : problem_.streams_of_rank[rank_]) now_.first[id] = kept.first[id];
  if (legal) link(rank_);
  return false;
}

void RepeatingWords::anneal(const RepeatingPlan& plan) {
  const int64_t begin = work_;
  if (now_.guide_s < best_.guide_s) best_ = now_;
  State kept = now_;
  trace();
  while (!stopped_ && work_ < begin + plan.work) {
    const double done = static_cast<double>(work_ - begin) / static_cast<double>(plan.work);
    const double temperature_s =
        problem_.mean_action_s * plan.hot * std::pow(plan.cold / plan.hot, done);
    if (work_ >= next_pause_) {
      next_pause_ = work_ + kWorkBetweenPauses;
      if (pause_()) stopped_ = true;
    }
    work_ += kProposalWork;
    if (!propose()) continue;
    if (!try_rank(kept, kept.guide_s + temperature_s * random_.exponential())) continue;
    kept.words[rank_] = now_.words[rank_];
    for (const int32_t id : problem_.streams_of_rank[rank_]) kept.first[id] = now_.first[id];
    kept.policy = now_.policy;
    kept.start_s = now_.start_s;
    kept.period_s = now_.period_s;
    kept.guide_s = now_.guide_s;
    trace();
    if (kept.guide_s < best_.guide_s) best_ = kept;
  }
}

Words RepeatingWords::unrolled() const {
  const int32_t m = problem_.num_microbatches;
  Words words(problem_.num_ranks);
  std::vector<int32_t> count(problem_.streams.size());
  for (int32_t rank = 0; rank < problem_.num_ranks; ++rank) {
    int32_t low = std::numeric_limits<int32_t>::max(), high = std::numeric_limits<int32_t>::min();
    for (const int32_t id : problem_.streams_of_rank[rank]) {
      low = std::min(low, best_.first[id]);
      high = std::max(high, best_.first[id]);
    }
    if (low > high) continue;
    // From the turn before which no stream has run to that after which all have.
    const int32_t begin = floor_div(-high, turn_) - 1, end = floor_div(m - low, turn_) + 1;
    for (const int32_t id : problem_.streams_of_rank[rank])
      count[id] = best_.first[id] + begin * turn_;
    for (int32_t t = begin; t <= end; ++t)
      for (const int32_t id : best_.words[rank]) {
        const int32_t microbatch = count[id]++;
        if (microbatch >= 0 && microbatch < m) words[rank].push_back(id);
      }
  }
  return words;
}

}  // namespace trainwright
