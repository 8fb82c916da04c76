// How long each rank of a loop works at least, by how many blocks it holds.
//
// Rank r owns v chunks. With e more blocks than the least of them it takes
//
//   m · (k(e)·t + edges + sharing + R(e))
//     + max(idle(e) + exchange of the first rank, before(e) + exchange) + optimizer
//
// R is what memory makes it recompute at its fullest instants: a fractional knapsack over its
// chunks, extra blocks where fewest microbatches wait. Blocks that recompute in any way are as
// many of it, and what they free the others need not. Idle time is the longest of four paths
// through the order's graph to the end of the first stage, all other stages at their least; the
// first rank exchanges after that, as little as with any of its blocks. `before` is the longest to
// the own last action: a rank exchanges while others may still drain.
// O(v·K·log) per rank, e and instant.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainwright {

// One block. It has K options on the lower hull of bytes and seconds, fastest first.
struct LoopBlocks {
  double forward_s = 0;
  double static_bytes = 0;
  double optimizer_s = 0;
  double transient_bytes = 0;          // beside everything while blocks run
  std::span<const double> time_s;      // [K] forward and backward
  std::span<const double> kept_bytes;  // [K]
};

// What the first and the last stage hold beside blocks, [2] each.
struct LoopEdges {
  std::span<const double> forward_s;
  std::span<const double> time_s;
  std::span<const double> kept_bytes;
  std::span<const double> static_bytes;
  std::span<const double> optimizer_s;
};

// Exchanges with replicas: of rank r with e extra blocks at offset[r] + e.
struct LoopSharing {
  double under_backward = 0;        // the share of recomputation that they hide under
  std::span<const int64_t> offset;  // [p + 1]
  std::span<const double> forward_s;
  std::span<const double> backward_s;
  std::span<const double> tail_s;
};

// What an order says of each rank. Its fullest instants are rows instant_offset[r] ..
// instant_offset[r + 1], of v each.
struct LoopOrder {
  std::span<const int64_t> instant_offset;  // [p + 1]
  std::span<const double> held;             // microbatches that are kept
  std::span<const double> running;          // and those whose transients lie beside
  std::span<const double> warm;          // [p, v] own forwards before the first backward, by chunk
  std::span<const double> drain;         // [p, v] own backwards after the last forward
  std::span<const int64_t> turns;        // [p, 4] stages of the first action, first backward, last
                                         // forward and last action
  std::span<const int64_t> waits_twice;  // [p] whether it waits in between
};

// Of the S = p·v stages number s lies on rank s mod p.
struct LoopRanks {
  int64_t num_ranks = 0;
  int64_t num_microbatches = 0;
  double forward_all_s = 0;  // of one microbatch through all layers
  double backward_all_s = 0;
  std::span<const double> forward_s;   // [S] of one microbatch, each stage with its least blocks
  std::span<const double> backward_s;  // [S]
  double usable_bytes = 0;
  double gathered_bytes = 0;       // beside everything on every rank
  std::span<const int64_t> least;  // [S] blocks
  std::span<const int64_t> most;   // [S]
  // What a block that recomputes in any way to run a stage takes longer, and spares per microbatch.
  std::span<const double> again_s;       // [S]
  std::span<const double> spared_bytes;  // [S]
  std::span<const double> transfer_s;    // [S - 1]
  LoopBlocks blocks;
  LoopEdges edges;
  LoopSharing sharing;
  LoopOrder order;
};

// Least seconds of each rank and number of extra blocks, as `LoopSharing::offset` says; infinite
// where these do not fit.
std::vector<double> loop_rank_times_s(const LoopRanks& loop);

}  // namespace trainwright
