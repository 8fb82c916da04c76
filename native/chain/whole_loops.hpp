// The least step of a fixed order over all ways to deal whole blocks to its stages: a search.
//
// An order that does not look at times ends no sooner when a stage has more blocks. So the step of
// the fewest blocks that stages may have bounds all splits, and what a rank may hold is known long
// before all stages are: a rank's blocks are dealt to its v chunks in few ways, and of these only
// such are left as leave it, with the fewest blocks in all other stages, within the limit:
//
//   longest over i ≤ j of    head_i + Σ_i..j d(a, blocks) + tail_j
//
// along the rank's own actions, where heads and tails are longest paths to and from other ranks.
// What is left raises the fewest blocks of its stages, and so on; then one rank after the other is
// given one of its ways, that of fewest ways first (forward checking, on a depth-first tree).
//
// What a rank holds at its fullest instants follows from its way, too. Blocks run fastest, and what
// that leaves of no room is freed by recomputing, at least R seconds for one backward of each chunk
// (a fractional knapsack over chunks). A path along the rank that passes at least k backwards of
// each chunk so takes k·R more, in any way to recompute:
//
//     any start to the last action;   any start before the first backward to any action
//
// The search is through when no way is left: then no split has a shorter step than what was found,
// or than the limit.
//
// Reference: R. M. Haralick, G. L. Elliott. *Increasing Tree Search Efficiency for Constraint
// Satisfaction Problems.* Artificial Intelligence 14(3), 1980.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/simulate.hpp"

namespace trainwright {

// Of S stages with `least` blocks, one more, ... up to W - 1 more: tables [S, W] never fall with
// blocks and are infinite where a stage has no more.
struct WholeLoop {
  int64_t num_blocks = 0;
  double limit_s = 0;                  // steps that are no shorter are not looked for
  int64_t most_actions = 0;            // that are looked at, over all
  std::span<const int64_t> least;      // [S] blocks
  std::span<const double> forward_s;   // [S, W] of one microbatch
  std::span<const double> backward_s;  // [S, W]
  // [S, W, W] after the last action of its rank, by blocks of the chunk before it, if any, and own:
  // what a stage exchanges hides under that chunk, too, so that it may fall with those.
  std::span<const double> after_s;
  std::span<const double> rank_after_s;   // [p] beside that
  std::span<const double> transfer_s;     // [S - 1]
  std::span<const int64_t> most_of_rank;  // [p] blocks
  // Of K options of a block on the lower hull of bytes and seconds, fastest first. Of every instant
  // of rank r, rows instant_offset[r] .. instant_offset[r + 1]: microbatches that its chunks keep
  // [N, v], and bytes that are left for blocks [N]. None of these where all have room.
  double static_bytes = 0;                  // of one block
  double under_backward = 0;                // the share of recomputation that exchanges hide under
  std::span<const double> block_time_s;     // [K]
  std::span<const double> block_bytes;      // [K]
  std::span<const int64_t> instant_offset;  // [p + 1]
  std::span<const double> held;             // [N, v]
  std::span<const double> room_bytes;       // [N]
  std::span<const double> exchanged_s;      // [S, W] of a backward, in `backward_s`
};

// No split has a shorter step than `step_s`: the least that was found, else the limit; 0 where
// that took too many actions to tell. `blocks` [S] of the shortest split that was found, if any.
struct LeastOfWhole {
  double step_s = 0;
  std::vector<int64_t> blocks{};
  int64_t actions = 0;  // that were looked at
};

// Of actions only forwards and whole backwards count.
LeastOfWhole least_of_whole(const WholeLoop& loop, const Orders& orders);

}  // namespace trainwright
