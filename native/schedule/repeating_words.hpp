// Orders that repeat: annealing of one turn of words over streams.
//
// Where memory is short, ranks wait in every period, and what a pipeline takes is mostly what its
// periods take. Here each rank has a cyclic word in which every stream of its stands n times, and
// every stream has a first microbatch in it, so that memory and the needs of a rank are properties
// of one turn of its word. Start times repeat every P seconds, n microbatches later. An action
// waits for the one before it on its rank and for its input,
//
//   start(x) >= end(y) - h P + transfer,
//
// h the turns between both microbatches, 0 for an input. The least P is the largest ratio of time
// to turns of all cycles of such waits, found by policy iteration (Howard, 1960; A. Dasdan, ACM
// TODAES 9(4), 2004). A move takes an action a few places along its rank, mostly one of the cycle
// that is that long; across the end of the word it changes its turn. Most moves close a cycle that
// is longer than wanted: starts of the order before the move, stretched to that period, satisfy
// every wait but the few new ones, and of these one by one it is told whether what they delay comes
// back to them (Cotton and Maler, SAT 2006). So most trials touch few actions.
//
// Unrolled for m microbatches, an order takes about m/n P and one latency.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "common/random_source.hpp"
#include "schedule/stream_problem.hpp"
#include "schedule/word_state.hpp"

namespace trainwright {

struct RepeatingPlan {
  int64_t work = 0;
  double hot = 0.0, cold = 0.0;  // temperatures of a microbatch's period, in mean action times
};

class RepeatingWords {
 public:
  // Asked now and then; true stops the search.
  using Pause = std::function<bool()>;

  // Words that repeat every `turn` microbatches.
  RepeatingWords(const StreamProblem& problem, RandomSource& random, int32_t turn, Pause pause);

  // Begins with one microbatch at a time, which must fit.
  void begin_alone();
  // Begins as an order runs its microbatches from `microbatch` on, in order of their starts modulo
  // the time that a turn takes there. False where that does not fit or run.
  bool begin_like(const WordState& state, int32_t microbatch);

  // From where it began; the best is kept.
  void anneal(const RepeatingPlan& plan);

  // Per microbatch, where it is now.
  double period_s() const { return now_.period_s / turn_; }
  // The best order, for all microbatches of the problem.
  Words unrolled() const;
  int64_t work() const { return work_; }
  bool stopped() const { return stopped_; }

 private:
  struct State {
    std::vector<Word> words;      // [rank]: one turn
    std::vector<int32_t> first;   // [stream]: microbatch of its first letter in the turn
    std::vector<int32_t> policy;  // [node]: the node it waits for
    std::vector<double> start_s;  // [node]
    double period_s = 0.0, guide_s = std::numeric_limits<double>::infinity();
  };
  // What the policy makes a cycle of: seconds per turn, and one of its nodes.
  struct Cycle {
    double period_s = -1.0;
    int32_t node = kNoStream;
    bool is_deadlock = false;
  };

  int32_t height(int32_t node) const {
    return now_.policy[node] == input_[node] ? 0 : height_[node];
  }
  double wait_s(int32_t node) const {
    return duration_s_[now_.policy[node]] + (now_.policy[node] == input_[node] ? lag_s_[node] : 0);
  }

  bool place(const std::vector<double>& start_s, double period_s);
  bool is_legal(int32_t rank);
  void link(int32_t rank);
  bool can_take(double period_s);
  bool reaches_itself(int32_t node, double period_s);
  bool measure(double most_s);
  Cycle longest_cycle();
  void start_from(int32_t root, double period_s);
  bool improve_policy(double period_s);
  void trace();
  bool propose();
  bool try_rank(const State& kept, double most_s);

  const StreamProblem& problem_;
  RandomSource& random_;
  int32_t turn_, num_nodes_;  // a node: a stream and a microbatch modulo `turn`
  Pause pause_;
  State now_, best_;
  // Of every node: what stands before it on its rank, so many turns earlier, and its input.
  std::vector<int32_t> before_, height_, input_;
  std::vector<int32_t> after_, reader_;  // and what waits for it
  std::vector<int32_t> relinked_;        // nodes that stand behind another one since a move
  std::vector<char> is_open_;            // [node] whether its wait for its rank does not count yet
  std::vector<double> tried_s_;          // [node] starts of a trial
  std::vector<double> duration_s_, lag_s_;
  double latency_share_ = 0.0, least_latency_s_ = 0.0;  // of the guide
  std::vector<int32_t> critical_;                       // nodes
  std::vector<int32_t> count_, mark_, order_, child_, sibling_;
  int32_t rank_ = 0;  // of the move on trial
  int64_t work_ = 0, next_pause_ = 0;
  bool stopped_ = false;
};

}  // namespace trainwright
