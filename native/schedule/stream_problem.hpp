// A pipeline schedule as words over streams.
//
// A stream is one kind of action of one stage: F, I (or the fused B), W, R. Relabelling
// microbatches per stream in time order never hurts, so every stream runs microbatches 0, 1, ...
// and a schedule is, for each rank, a word over its streams; the microbatch of a letter is its
// running count. Memory and the needs between streams of one rank are then properties of the word
// alone, and only what comes from another rank has to be simulated.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "schedule/objective.hpp"
#include "schedule/simulate.hpp"

namespace trainwright {

inline constexpr int kMaxResources = 2;  // bytes, and a number of activations
inline constexpr int32_t kNoStream = -1;

struct Stream {
  int32_t kind, stage, rank;
  double duration_s = 0.0;
  int32_t input = kNoStream;     // on another rank, arrives after lag_s
  double lag_s = 0.0;            //
  int32_t consumer = kNoStream;  // whose input this is
  std::array<int32_t, 3> needs{kNoStream, kNoStream, kNoStream};  // on the same rank
  std::array<double, kMaxResources> alloc{}, release{}, transient{};

  bool is_weight_grad() const { return kind == kWeightGrad; }
};

// What a rank may hold: `delta` and `transient` have shape [10, S], `room` [p].
struct Resource {
  std::vector<double> delta, transient, room;
};

struct StreamProblem {
  int32_t num_ranks = 0, num_stages = 0, num_microbatches = 0;
  Objective objective = Objective::makespan;
  int num_resources = 0;
  std::vector<Stream> streams;
  std::vector<std::vector<int32_t>> streams_of_rank;
  std::vector<std::array<int32_t, kNumActionKinds>> streams_of_stage;  // kNoStream: has none
  std::vector<std::vector<double>> room;  // [resource][rank], rounding allowed for
  std::vector<int32_t> path;              // F of stage 0 .. S-1, then I or B of S-1 .. 0
  int64_t num_actions = 0;
  double mean_action_s = 0.0, largest_work_s = 0.0;  // work: of one microbatch on one rank

  // Which stages run a fused backward, and which recompute: shape [S] each.
  StreamProblem(std::span<const int32_t> rank_of_stage, int32_t num_ranks, int32_t num_microbatches,
                const ActionCosts& costs, std::span<const bool> fused,
                std::span<const bool> recomputed, const std::vector<Resource>& resources,
                Objective objective);

  int64_t slot(int32_t stream, int32_t microbatch) const {
    return static_cast<int64_t>(stream) * num_microbatches + microbatch;
  }
};

using Word = std::vector<int32_t>;  // streams
using Words = std::vector<Word>;    // one per rank

// Orders as words: microbatches are dropped, a fused backward of a split stage becomes I and W, the
// two of a fused stage one at the place of I, and a missing recompute goes before its backward.
Words words_of(const StreamProblem& problem, const Orders& orders);

// Words as actions, rank after rank.
std::vector<ActionRow> rows_of(const StreamProblem& problem, const Words& words);

// How long a schedule is. `guide` is what a local search descends on: the objective alone is a
// plateau, its companions are not.
struct Length {
  double span_s = 0.0, makespan_s = 0.0, mean_end_s = 0.0;

  double value(Objective objective) const {
    return objective == Objective::span ? span_s : makespan_s;
  }
  double guide(Objective objective) const {
    const double other_s = objective == Objective::span ? makespan_s : span_s;
    return value(objective) + 0.05 * other_s + 0.05 * mean_end_s;
  }
};

}  // namespace trainwright
