// One microbatch's path through a V, repeated every P seconds, with the times that stages have.
//
// A rank runs six actions in each period, here in the order F0 F1 I1 I0 W1 W0 of its near (0) and
// far (1) chunk. Modulo P they must not overlap: they lie one after another in some cyclic order,
// with the rank's slack between them. With S the starts of rank r, S' those of rank r + 1 and x the
// transfers, a microbatch waits between the two
//
//     F0: S'[F0] - S[F0] - F0 - x      F1: S[F1] - S'[F1] - F1' - x      each modulo P,
//     I1: S'[I1] - S[I1] - I1 - x      I0: S[I0] - S'[I0] - I0' - x
//
// as much as phases differ: what a chain of ranks waits is a sum over neighbours, and a beam over
// ranks from the first to the last looks for little of it. Each rank tries every cyclic order,
// begun with an action that waits for nothing, in a few ways to place the slack. A rank holds an
// activation from the start of F to the end of W, so long waits hold many; the least period that
// keeps to the limits is looked for by halving what is between the work of the busiest rank and a
// period that is no longer of use.
//
// This is modulo scheduling (Lam, PLDI 1988) of a loop over microbatches, where registers are
// activations. 480 orders of 1 to 6 placements for each rank, state, period and way to look.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace trainwright {

struct CyclicProblem {
  std::span<const double> duration_s{};           // [p, 6], in the order above
  std::span<const double> forward_transfer_s{};   // [2p - 1] between stages, on one rank 0
  std::span<const double> backward_transfer_s{};  // [2p - 1]
  std::span<const double> delta_bytes{};          // [p, 6] in the order above: what each action
                                                  // takes as it starts, or leaves as it ends, < 0
  std::span<const double> transient_bytes{};      // [p, 6] while it runs
  std::span<const double> room_bytes{};           // [p]
  double longest_period_s = 0;                    // a longer one is of no use
  int64_t width = 0;                              // states of the beam
  int64_t rounds = 0;                             // periods that are tried at most
  bool exact = false;                             // by shortest paths instead (cyclic_path.hpp)

  int64_t num_ranks() const { return static_cast<int64_t>(room_bytes.size()); }
};

struct CyclicV {
  double period_s = 0;          // 0 where none keeps to the limits
  std::vector<double> start_s;  // [p, 6] of one microbatch whose first F0 starts at 0
};

CyclicV cyclic_v(const CyclicProblem& problem);

constexpr int64_t kCyclicActions = 6;
enum Letter : int64_t { kF0, kF1, kI1, kI0, kW1, kW0 };
using CyclicStarts = std::array<double, kCyclicActions>;

// The rest of a time by the period; what rounding puts just before a multiple of it counts as none.
double cyclic_modulo(double time_s, double period_s);

// One microbatch along its path from a time on, each action when `start_of` says: [p, 6].
std::vector<double> path_starts(
    const CyclicProblem& problem, double from_s,
    const std::function<double(int64_t rank, Letter action, double ready_s)>& start_of);

// The same with each action at the phase that its rank has for it, the first at 0.
std::vector<double> cyclic_starts(const CyclicProblem& problem, double period_s,
                                  const std::vector<CyclicStarts>& phases);

// By how much each rank ever holds more than it may where starts repeat, [p]; 0 or less where it
// does not.
std::vector<double> bytes_beyond(const CyclicProblem& problem, double period_s,
                                 const std::vector<double>& starts);

}  // namespace trainwright
