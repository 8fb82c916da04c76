#include "schedule/improve_weight_grads.hpp"

#include <algorithm>
#include <limits>

namespace trainwright {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// How many W the count before an action may change at once, either way: the shortest path over
// counts takes 25 states for each action in place of one for each microbatch. What lies farther is
// reached over several sweeps.
constexpr int64_t kReach = 12;
// The least lateness is halved towards 0 so often: to a 32nd of what is known, since the first try
// is 0 itself. Ranks take turns at most so often for one target; `budget` bounds the whole.
constexpr int kHalvings = 6;
constexpr int64_t kMaxSweeps = 20;

using Word = std::vector<ActionRow>;

// One rank as the recurrence sees it: actions other than W, with when each may and must start.
struct Problem {
  struct Token {
    ActionRow action;
    double duration_s, arrival_s, due_s;
    int64_t least, greatest;  // weight gradients done before it
    int64_t now;              // in the current word
  };
  std::vector<Token> tokens{};
  Word weight_grads{};                  // in the order their I run
  std::vector<double> work_before_s{};  // of the first c weight gradients
  double deadline_s = 0.0;
};

class RankSolver {
 public:
  explicit RankSolver(const Problem& problem) : problem_(problem) {
    const size_t tokens = problem.tokens.size();
    columns_.reserve(tokens);
    for (const auto& token : problem.tokens)
      columns_.push_back({std::max(token.least, token.now - kReach),
                          std::min(token.greatest, token.now + kReach)});
    end_s_.resize(tokens * kWidth);
    taken_.resize(tokens * kWidth);
  }

  // The word with the least lateness, or an empty one if not even `lateness_s` has a way through.
  Word solve(double lateness_s) {
    if (!pass(lateness_s)) return {};
    Word best = word();
    double lowest = 0.0, highest = lateness_s;
    for (int halving = 0; halving < kHalvings && highest > lowest; ++halving) {
      const double tried = halving == 0 ? 0.0 : (lowest + highest) / 2;
      if (pass(tried)) {
        best = word();
        highest = tried;
      } else {
        lowest = tried;
      }
    }
    return best;
  }

 private:
  // Counts of weight gradients before a token. Of each there is the token's end, and how many of
  // these came right before it: `kWidth` of them per token, the first at `first`.
  struct Column {
    int64_t first, last;
  };

  size_t at(size_t i, int64_t count) const { return i * kWidth + (count - columns_[i].first); }

  bool pass(double lateness_s) {
    for (size_t i = 0; i < problem_.tokens.size(); ++i)
      if (!extend(i, lateness_s)) return false;
    return finish(lateness_s);
  }

  double work_s(int64_t from, int64_t to) const {
    return problem_.work_before_s[to] - problem_.work_before_s[from];
  }

  // The end of the token before, after so many weight gradients; the first begins after none.
  double previous_s(size_t i, int64_t count) const {
    if (i == 0) return count == 0 ? 0.0 : kNever;
    const auto& before = columns_[i - 1];
    return count >= before.first && count <= before.last ? end_s_[at(i - 1, count)] : kNever;
  }

  bool extend(size_t i, double lateness_s) {
    const auto& token = problem_.tokens[i];
    const auto [low, high] = columns_[i];
    const double due_s = token.due_s + lateness_s;
    // Running minimum over fewer weight gradients before the previous token.
    double free_s = kNever;
    int64_t from = 0;
    bool any = false;
    const int64_t start = i == 0 ? 0 : columns_[i - 1].first;
    for (int64_t count = std::min(start, low); count <= high; ++count) {
      if (free_s < kNever) free_s += work_s(count - 1, count);
      const double own_s = previous_s(i, count);
      if (own_s <= free_s) {
        free_s = own_s;
        from = count;
      }
      if (count < low) continue;
      const double start_s = std::max(free_s, token.arrival_s);
      const bool in_time = free_s < kNever && start_s <= due_s;
      end_s_[at(i, count)] = in_time ? start_s + token.duration_s : kNever;
      taken_[at(i, count)] = count - from;
      any = any || in_time;
    }
    return any;
  }

  bool finish(double lateness_s) {
    const auto total = static_cast<int64_t>(problem_.weight_grads.size());
    double best_s = kNever;
    const size_t i = columns_.size() - 1;
    for (int64_t count = columns_[i].first; count <= columns_[i].last; ++count) {
      const double end_s = end_s_[at(i, count)] + work_s(count, total);
      if (end_s < best_s) {
        best_s = end_s;
        final_count_ = count;
      }
    }
    return best_s <= problem_.deadline_s + lateness_s;
  }

  Word word() const {
    Word reversed(problem_.weight_grads.rbegin(), problem_.weight_grads.rend() - final_count_);
    int64_t count = final_count_;
    for (size_t i = problem_.tokens.size(); i-- > 0;) {
      reversed.push_back(problem_.tokens[i].action);
      const int64_t before = count - taken_[at(i, count)];
      while (count > before) reversed.push_back(problem_.weight_grads[--count]);
    }
    return {reversed.rbegin(), reversed.rend()};
  }

  static constexpr int64_t kWidth = 2 * kReach + 1;
  const Problem& problem_;
  std::vector<Column> columns_;
  std::vector<double> end_s_;
  std::vector<int64_t> taken_;
  int64_t final_count_ = 0;
};

class Improver {
 public:
  Improver(const Orders& orders, const ActionCosts& costs, const ActionMemory& memory,
           Objective objective, int64_t budget)
      : orders_(orders),
        costs_(costs),
        memory_(memory),
        objective_(objective),
        budget_(budget),
        stages_(orders.num_stages()),
        microbatches_(orders.num_microbatches),
        transfers_(orders, costs) {}

  FilledOrders run() {
    best_.actions.assign(orders_.actions.begin(), orders_.actions.end());
    current_ = best_.actions;
    time_current();
    keep_current();
    double lowest_s = busiest_work_s();
    double share = 0.25;
    while (budget_ > 0 &&
           best_value_s_ - lowest_s > kSumRounding * best_value_s_ + 1e-4 * lowest_s) {
      const double target_s = best_value_s_ - share * (best_value_s_ - lowest_s);
      share = 0.5;
      current_ = best_.actions;
      time_current();
      if (!sweep_until(target_s)) lowest_s = target_s;
    }
    return finish();
  }

 private:
  int64_t at(const ActionRow& a) const { return a.kind * stages_ + a.stage; }
  int64_t key(const ActionRow& a) const { return a.stage * microbatches_ + a.microbatch; }

  Orders view() const {
    return {.actions = current_,
            .rank_offsets = orders_.rank_offsets,
            .rank_of_stage = orders_.rank_of_stage,
            .pairs = {},
            .num_microbatches = microbatches_};
  }

  void time_current() {
    sequence_.clear();
    simulation_ = simulate(view(), costs_, &sequence_);
    const std::vector<double>& starts_s = simulation_.start_s;
    if (!starts_s.empty()) first_start_s_ = *std::min_element(starts_s.begin(), starts_s.end());
    deadline_s_.clear();
    budget_ -= static_cast<int64_t>(current_.size());
  }

  bool is_empty(int64_t r) const { return orders_.rank_offsets[r] == orders_.rank_offsets[r + 1]; }

  // When rank r counts from: its own first start for span, the first of all for makespan.
  double origin_s(int64_t r) const {
    if (objective_ == Objective::span) return simulation_.start_s[orders_.rank_offsets[r]];
    return first_start_s_;
  }

  double value_s() const {
    double value = 0.0;
    for (int64_t r = 0; r < orders_.num_ranks(); ++r)
      if (!is_empty(r))
        value = std::max(value, simulation_.end_s[orders_.rank_offsets[r + 1] - 1] - origin_s(r));
    return value;
  }

  bool keep_current() {
    const double value = value_s();
    if (value >= best_value_s_ * (1 - kSumRounding)) return false;
    best_value_s_ = value;
    best_.actions = current_;
    return true;
  }

  double busiest_work_s() const {
    double busiest = 0.0;
    for (int64_t r = 0; r < orders_.num_ranks(); ++r) {
      double work = 0.0;
      for (int64_t row = orders_.rank_offsets[r]; row < orders_.rank_offsets[r + 1]; ++row)
        work += costs_.duration_s[at(orders_.actions[row])];
      busiest = std::max(busiest, work);
    }
    return busiest;
  }

  bool sweep_until(double target_s) {
    for (int64_t sweep = 0; sweep < kMaxSweeps && budget_ > 0; ++sweep) {
      bool changed = false;
      for (int64_t turn = 0; turn < orders_.num_ranks() && budget_ > 0; ++turn) {
        const int64_t r = sweep % 2 == 0 ? turn : orders_.num_ranks() - 1 - turn;
        changed = take_turn(r, target_s) || changed;
        keep_current();
        if (best_value_s_ <= target_s * (1 + kSumRounding)) return true;
      }
      if (!changed) return false;
    }
    return false;
  }

  // Places the weight gradients of one rank anew; true if that changed its order.
  bool take_turn(int64_t r, double target_s) {
    if (is_empty(r)) return false;
    const Problem problem = problem_of(r, target_s);
    if (problem.weight_grads.empty()) return false;
    const Word placed = RankSolver(problem).solve(lateness_of(r, problem));
    const auto first = current_.begin() + orders_.rank_offsets[r];
    if (placed.empty() || std::equal(placed.begin(), placed.end(), first, same_action))
      return false;
    // The recurrence knows what other actions need, not what a W needs while it runs.
    const double allowed = std::max(memory_.limit_bytes[r], peak_bytes(r, &*first, placed.size()));
    if (peak_bytes(r, placed.data(), placed.size()) > allowed * (1 + kSumRounding)) return false;
    std::copy(placed.begin(), placed.end(), first);
    time_current();
    return true;
  }

  double peak_bytes(int64_t r, const ActionRow* word, size_t size) const {
    double level = memory_.static_bytes[r], peak = level;
    for (size_t i = 0; i < size; ++i) {
      const double delta = memory_.delta_bytes[at(word[i])];
      peak = std::max(peak, level + std::max(delta, 0.0) + memory_.transient_bytes[at(word[i])]);
      level += delta;
    }
    return peak;
  }

  static bool same_action(const ActionRow& a, const ActionRow& b) {
    return a.kind == b.kind && a.stage == b.stage && a.microbatch == b.microbatch;
  }

  Problem problem_of(int64_t r, double target_s) {
    std::vector<double> deadline_s(orders_.num_ranks());
    for (int64_t q = 0; q < orders_.num_ranks(); ++q)
      deadline_s[q] = is_empty(q) ? 0.0 : origin_s(q) + target_s;
    if (deadline_s != deadline_s_) {  // else neither the orders nor what is asked have changed
      latest_ = latest_handovers(view(), costs_, deadline_s, simulation_, sequence_);
      deadline_s_ = deadline_s;
    }
    budget_ -= static_cast<int64_t>(current_.size());

    Problem problem{.deadline_s = deadline_s[r]};
    double level_bytes = memory_.static_bytes[r];
    std::vector<double> released_bytes{0.0};  // by the first c weight gradients
    problem.work_before_s.push_back(0.0);
    int64_t done = 0;
    for (int64_t row = orders_.rank_offsets[r]; row < orders_.rank_offsets[r + 1]; ++row) {
      const auto& a = current_[row];
      if (a.kind == kWeightGrad) {
        ++done;
        continue;
      }
      const double allocated = std::max(memory_.delta_bytes[at(a)], 0.0);
      problem.tokens.push_back(
          {.action = a,
           .duration_s = costs_.duration_s[at(a)],
           .arrival_s = arrival_of(r, a),
           .due_s = due_of(r, a),
           .least =
               least_done(released_bytes, level_bytes + allocated + memory_.transient_bytes[at(a)] -
                                              memory_.most_bytes(r)),
           .greatest = static_cast<int64_t>(problem.weight_grads.size()),
           .now = done});
      level_bytes += memory_.delta_bytes[at(a)];
      if (a.kind != kInputGrad) continue;
      const ActionRow weight_grad{kWeightGrad, a.stage, a.microbatch};
      problem.weight_grads.push_back(weight_grad);
      problem.work_before_s.push_back(problem.work_before_s.back() +
                                      costs_.duration_s[at(weight_grad)]);
      released_bytes.push_back(released_bytes.back() - memory_.delta_bytes[at(weight_grad)]);
    }
    return problem;
  }

  static int64_t least_done(const std::vector<double>& released_bytes, double excess_bytes) {
    if (excess_bytes <= 0) return 0;
    return std::lower_bound(released_bytes.begin(), released_bytes.end(), excess_bytes) -
           released_bytes.begin();
  }

  bool elsewhere(int64_t r, int64_t stage) const { return orders_.rank_of_stage[stage] != r; }

  // Inputs from this very rank come earlier in its order, whatever the times.
  double arrival_of(int64_t r, const ActionRow& a) const {
    if (a.kind == kForward && a.stage > 0 && elsewhere(r, a.stage - 1))
      return simulation_.forward_arrival_s[key(a) - microbatches_];
    const bool backward = a.kind == kInputGrad || a.kind == kBackward;
    if (backward && a.stage + 1 < stages_ && elsewhere(r, a.stage + 1))
      return simulation_.backward_arrival_s[key(a) + microbatches_];
    return 0.0;
  }

  double due_of(int64_t r, const ActionRow& a) const {
    const double duration_s = costs_.duration_s[at(a)];
    if (a.kind == kForward && a.stage + 1 < stages_ && elsewhere(r, a.stage + 1))
      return latest_.forward_s[key(a) + microbatches_] - transfers_.forward_s[a.stage] - duration_s;
    const bool backward = a.kind == kInputGrad || a.kind == kBackward;
    if (backward && a.stage > 0 && elsewhere(r, a.stage - 1))
      return latest_.backward_s[key(a) - microbatches_] - transfers_.backward_s[a.stage] -
             duration_s;
    return kNever;
  }

  // How late the current word is: with that much, it is itself a way through.
  double lateness_of(int64_t r, const Problem& problem) const {
    double lateness = simulation_.end_s[orders_.rank_offsets[r + 1] - 1] - problem.deadline_s;
    size_t i = 0;
    for (int64_t row = orders_.rank_offsets[r]; row < orders_.rank_offsets[r + 1]; ++row)
      if (current_[row].kind != kWeightGrad)
        lateness = std::max(lateness, simulation_.start_s[row] - problem.tokens[i++].due_s);
    return std::max(lateness, 0.0) + kSumRounding * problem.deadline_s;
  }

  FilledOrders finish() {
    current_ = best_.actions;
    time_current();
    best_.rank_offsets.assign(orders_.rank_offsets.begin(), orders_.rank_offsets.end());
    best_.complete = simulation_.complete;
    best_.makespan_s =
        *std::max_element(simulation_.end_s.begin(), simulation_.end_s.end()) - first_start_s_;
    for (int64_t r = 0; r < orders_.num_ranks(); ++r)
      if (!is_empty(r))
        best_.span_s = std::max(best_.span_s, simulation_.end_s[orders_.rank_offsets[r + 1] - 1] -
                                                  simulation_.start_s[orders_.rank_offsets[r]]);
    return std::move(best_);
  }

  const Orders& orders_;
  const ActionCosts& costs_;
  const ActionMemory& memory_;
  const Objective objective_;
  int64_t budget_;
  const int64_t stages_, microbatches_;
  const Transfers transfers_;
  Word current_;
  Simulation simulation_;
  double first_start_s_ = 0.0;      // of the simulation
  std::vector<int64_t> sequence_;   // of it, too
  std::vector<double> deadline_s_;  // that the latest starts are for; empty: not those of now
  LatestHandovers latest_;
  double best_value_s_ = kNever;
  FilledOrders best_;
};

}  // namespace

FilledOrders improve_weight_grads(const Orders& orders, const ActionCosts& costs,
                                  const ActionMemory& memory, Objective objective, int64_t budget) {
  return Improver(orders, costs, memory, objective, budget).run();
}

}  // namespace trainwright
