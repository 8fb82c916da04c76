// The least step of a fixed order over all ways to deal blocks to its stages: a linear program.
//
// An order that does not look at times ends when the longest path through its actions does, and
// each path is a sum of times of stages. With x_sk blocks of stage s that run in way k,
//
//   least T    with    T ≥ a_q + Σ A_q,sk · x_sk              for every path q
//                      Σ_sk x_sk = n,   Σ_k x_sk ≥ least_s,   x ≥ 0
//                      Σ_sk G_i,sk · x_sk ≤ U_i               for every instant i that memory
//                      limits
//
// bounds the step of every split, for blocks may be dealt in parts and no path is left out that
// matters: those that are longest for the x at hand are added until none is longer than T
// (Kelley's cutting planes). The dual of this is what is solved, by the primal simplex method with
// paths as columns,
//
//   most Σ a_q·y_q - Σ U_i·z_i + Σ least_s·μ_s + n·λ    with    Σ y_q = 1,
//        λ + μ_s ≤ Σ_q A_q,sk·y_q + Σ_i G_i,sk·z_i,      y, z, μ, λ ≥ 0
//
// so that it may end at any time. What is returned is worked out anew from y and z alone, whose
// best λ and μ are minima of the right-hand sides; so rounding in the method weakens the bound and
// never breaks it.
//
// References: J. E. Kelley. *The Cutting-Plane Method for Solving Convex Programs.* J. SIAM 8(4),
// 1960. G. B. Dantzig, P. Wolfe. *Decomposition Principle for Linear Programs.* 1960.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/simulate.hpp"

namespace trainwright {

// Of S stages and K ways to run a block; tables [S, K] are of one more block in a stage.
struct OrderSplits {
  int64_t num_ways = 0;
  int64_t num_blocks = 0;
  double limit_s = 0;                       // a bound beyond is cut down to it
  double near = 0;                          // share of the step by which the bound may be short
  std::span<const int64_t> least;           // [S] blocks
  std::span<const double> forward_s;        // [S] without blocks, of one microbatch
  std::span<const double> backward_s;       // [S]
  std::span<const double> block_forward_s;  // [S, K]
  std::span<const double> block_backward_s;
  std::span<const double> after_s;        // [p] after the last action of a rank
  std::span<const double> block_after_s;  // [S, K]
  std::span<const double> transfer_s;     // [S - 1]
  std::span<const double> block_held;     // [I, S, K] shares of a device, at instants
  std::span<const double> room;           // [I] what there is for them
};

// A path through the actions: its seconds without blocks, and of one more block [S, K].
struct OrderPath {
  double fixed_s = 0;
  std::vector<double> block_s;
};

// A column of the dual: λ, the μ of a stage, the z of an instant, the slack of a stage and way, or
// the y of a path.
struct DualColumn {
  enum class Of : int8_t { blocks, least, instant, slack, path } of = Of::blocks;
  int64_t index = 0;
};

// `step_s` until the last rank is through; infinite where no split has room. `blocks` [S, K] of the
// shortest split that was simulated, in parts, with its `reached_s`. `basis` is where the method
// ended, `paths` those that it names.
struct LeastOfOrder {
  double step_s = 0;
  double reached_s = 0;
  std::vector<double> blocks{};
  std::vector<DualColumn> basis{};
  std::vector<OrderPath> paths{};
};

// Of actions only forwards and whole backwards count. A `start` was found of the same stages,
// orders and instants, but for instants at the end of these.
LeastOfOrder least_of_order(const OrderSplits& splits, const Orders& orders,
                            const LeastOfOrder* start = nullptr);

}  // namespace trainwright
