// The best cut of a chain into one stage per rank, under an order that ignores times.
//
// With F, I and W of rank r's stage per microbatch, x a transfer, q the way of one microbatch from
// the end of its forward through all later ranks and back, and the counts of the order (w forwards
// before the first backward, i input gradients and j weight gradients between the last forward and
// the last input gradient, k weight gradients after that), the last input gradient ends at
//
//   E_r >= F + I + 2·x + E_(r+1)
//   E_r >= m·(F + I) + (m - k)·W + max(0, q - (w - 1)·F) + max(0, q - i·I - j·W)
//   E_r >= rounds of w microbatches, each no shorter than F + I + q
//
// after its rank's start. The least of all cuts follows from the last rank backwards.
// O(p·L·N), N the longest stage.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainwright {

// What a stage of one kind may keep on a rank: the ways to run it at levels of transients, and the
// instants that can be the fullest.
struct ChainMemory {
  int64_t num_ranks;
  int64_t num_kinds;
  // Of kind k the levels are level_offset[k] .. level_offset[k + 1], each with its transients and
  // its ways way_offset[level] .. way_offset[level + 1].
  std::span<const int64_t> level_offset;
  std::span<const double> level_bytes;
  std::span<const int64_t> way_offset;
  std::span<const double> ways;        // [.., 3] bytes until I, until W, and seconds, slowest first
  std::span<const double> room_bytes;  // [K] beside the state of a kind
  // Of rank r the instants are rows[r], [N, 3]: microbatches until I, until W, transients.
  std::span<const double> rows;
};

// Which of N ways, takes [N, 3] as those above, no other beats in everything, slowest first; of
// equals the first stays. In the order of their times a way is beaten where one before it keeps as
// little of both. Of those before it the ones that matter form a staircase: the more of the first,
// the less of the second. O(N log N).
std::vector<int64_t> unbeaten_ways(std::span<const double> takes);

// Seconds of a microbatch at the fastest way that fits, [p, K]; infinite where none does.
std::vector<double> fitting_times_s(const ChainMemory& memory);

// Kinds are those in use; `kind_of` [L, N] by first layer and length, -1 where no stage can be.
struct ChainCuts {
  int64_t num_ranks;
  int64_t num_layers;
  int64_t longest;
  int64_t num_kinds;
  int64_t num_microbatches;
  double tie;  // how much a shorter stage counts among cuts that the bound does not tell apart
  std::span<const int64_t> kind_of;
  std::span<const double> forward_s;      // [p, K]
  std::span<const double> weight_grad_s;  // [p, K], 0 where backwards are fused
  std::span<const double> time_s;         // [p, K]
  std::span<const double> tail_s;         // [p, K]
  std::span<const double> transfer_s;     // [p, L + 1] by the layer that the next rank begins with
  // w, i, j and k of each rank, [p, 4].
  std::span<const int64_t> order;
};

// The least end of a step, infinite where nothing fits, and the lengths of its stages.
struct ChainCut {
  double finish_s;
  std::vector<int64_t> lengths;
};

ChainCut least_chain_cut(const ChainCuts& chain);

}  // namespace trainwright
