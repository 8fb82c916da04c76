// Simulated annealing on words.
//
// A move shifts one action of one rank a few places, mostly one on the critical path; an eighth of
// the moves are coordinated: the same shift for one stream over a range of microbatches. Most are
// refused by the word test, before any time is computed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/random_source.hpp"
#include "schedule/stream_problem.hpp"
#include "schedule/word_state.hpp"

namespace trainwright {

// How hot annealing begins, in mean action times. Large instances must not be heated: their orders
// are good and single moves hardly mend them.
double first_temperature(int64_t num_actions);

struct AnnealingPlan {
  int64_t work = 0;
  double hot = 0.6, cold = 0.01;  // temperatures, in mean action times
};

class WordAnnealing {
 public:
  // Asked about every improvement; true stops the search.
  using Found = std::function<bool(const WordState&)>;

  // Asked now and then; true stops the search as well.
  using Pause = std::function<bool()>;

  WordAnnealing(const StreamProblem& problem, RandomSource& random, Found found, Pause pause);

  // From `start`, which must be legal; the best schedule goes to `found`.
  void run(const Words& start, const AnnealingPlan& plan);

  int64_t work() const { return work_; }
  bool stopped() const { return stopped_; }

 private:
  bool propose();  // fills rank_, first_, window_; false where nothing would change
  void take(int32_t low, int32_t high);
  void shift_range(int32_t stream, int32_t from, int32_t to, int32_t distance, bool earlier);
  int32_t random_distance();

  const StreamProblem& problem_;
  RandomSource& random_;
  Found found_;
  Pause pause_;
  WordState state_;
  std::vector<WordState::Place> critical_;
  int32_t rank_ = 0, first_ = 0;
  Word window_;
  int64_t work_ = 0;
  bool stopped_ = false;
};

}  // namespace trainwright
