// How long each rank of a loop works at least, by how many blocks it holds.
//
// Rank r owns v chunks. With e more blocks than the least of them it takes
//
//   m · (k(e)·t + edges + sharing + R(e)) + idle(e) + what follows the last microbatch
//
// R is what memory makes it recompute at its fullest instants: a fractional knapsack over its
// chunks, extra blocks where fewest microbatches wait. Idle time is the longest of four paths
// through the order's graph, all other stages at their least. O(v·K·log) per rank, e and instant.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainwright {

// Blocks have K options on the lower hull of bytes and seconds, fastest first. Of the S = p·v
// stages number s lies on rank s mod p; `edge_*` [2] are what the first and the last hold beside
// blocks.
struct LoopRanks {
  int64_t num_ranks;
  int64_t num_microbatches;
  double block_forward_s;
  double block_static_bytes;
  double block_optimizer_s;
  double forward_all_s;  // of one microbatch through all layers
  double backward_all_s;
  double usable_bytes;
  double gathered_bytes;   // beside everything on every rank
  double transient_bytes;  // beside, while blocks run
  double under_backward;   // the share of recomputation that exchanges hide under
  std::span<const double> option_time_s;
  std::span<const double> option_kept_bytes;
  std::span<const int64_t> least;  // [S] blocks
  std::span<const int64_t> most;   // [S]
  std::span<const double> edge_forward_s;
  std::span<const double> edge_time_s;
  std::span<const double> edge_kept_bytes;
  std::span<const double> edge_static_bytes;
  std::span<const double> edge_optimizer_s;
  std::span<const double> transfer_s;  // [S - 1]
  // Of rank r with e extra blocks at extra_offset[r] + e: exchanges with replicas.
  std::span<const int64_t> extra_offset;  // [p + 1]
  std::span<const double> shared_forward_s;
  std::span<const double> shared_backward_s;
  std::span<const double> shared_tail_s;
  // Instants of rank r are rows instant_offset[r] .. instant_offset[r + 1], of v each.
  std::span<const int64_t> instant_offset;  // [p + 1]
  std::span<const double> held;
  std::span<const double> running;
  // Of the order, by rank: own forwards before the first backward and backwards after the last
  // forward by chunk [p, v]; stages of the first action, first backward, last forward, last action
  // [p, 4]; whether it waits in between.
  std::span<const double> warm;
  std::span<const double> drain;
  std::span<const int64_t> turns;
  std::span<const int64_t> waits_twice;
};

// Least seconds of each rank and number of extra blocks, as `extra_offset` says; infinite where
// these do not fit.
std::vector<double> loop_rank_times_s(const LoopRanks& loop);

}  // namespace trainwright
