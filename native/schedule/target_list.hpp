// List scheduling by target times.
//
// Every forward and backward has a target; targets give priorities, not times. Repeatedly the rank
// whose chosen action can start first commits it. Strict: a rank runs its actions exactly in the
// order of their targets. Greedy: among those that can start within a tolerance of the earliest,
// the one with the lowest target. Weight gradients are filler: the oldest goes in when the rank
// would otherwise idle at least `w_gap` of its duration, or when memory is full.
//
// Greedy order keeps room for the later chunks of a rank (`Reserve`): with streams in microbatch
// order and a place left for the last chunk, the oldest microbatch always gets through.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/stream_problem.hpp"

namespace trainwright {

enum class Reserve { one_each, by_rank, by_half, by_half_rank, by_lifespan };
inline constexpr int kNumReserves = 5;

struct ListRule {
  bool strict = true;
  Reserve reserve = Reserve::one_each;
  double w_gap = 0.5;        // of the duration of W
  double tolerance_s = 0.0;  // greedy only
};

class TargetList {
 public:
  explicit TargetList(const StreamProblem& problem);

  // Orders for `target_s` [slot]; false where no rank can go on. `life_share` [stream] is the part
  // of its rank's memory that a forward stream fills, read by Reserve::by_lifespan only.
  bool run(const std::vector<double>& target_s, const std::vector<double>& life_share,
           const ListRule& rule);

  const Words& words() const { return words_; }
  const Length& length() const { return length_; }

 private:
  struct Choice {
    int32_t stream = kNoStream;
    double start_s = 0.0;
  };

  void begin();
  void set_reserves(const std::vector<double>& life_share, Reserve reserve);
  Choice choose(int32_t rank) const;
  Choice strict_choice(int32_t rank) const;
  Choice greedy_choice(int32_t rank) const;
  Choice filler(int32_t rank) const;
  bool is_enabled(int32_t stream) const;
  bool fits(const Stream& stream, int32_t id) const;
  double start_of(int32_t stream) const;  // infinite while the input is unknown
  void commit(int32_t rank);
  void measure();

  const StreamProblem& problem_;
  std::vector<std::vector<int32_t>> main_;  // per rank: all but W, forwards in stage order
  const std::vector<double>* target_s_ = nullptr;
  ListRule rule_;
  std::vector<double> reserve_;  // [stream]: of resource 0, for later chunks
  std::vector<int32_t> count_;   // [stream]
  std::vector<double> end_s_;    // [slot]
  std::vector<double> free_s_;   // [rank]
  std::vector<std::array<double, kMaxResources>> level_;  // [rank]
  std::vector<double> chunk_level_;            // [stream]: live of resource 0, forward streams
  std::vector<int32_t> forward_of_;            // [stream] -> forward stream of its stage
  std::vector<std::vector<int32_t>> pending_;  // per rank W in the order they became ready
  std::vector<size_t> next_pending_;
  std::vector<Choice> choice_;  // [rank]
  Words words_;
  Length length_;
};

}  // namespace trainwright
