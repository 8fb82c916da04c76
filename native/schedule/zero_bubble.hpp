// The zero-bubble heuristic for one stage per rank (Qi et al., ICLR 2024, appendix).
//
// Forwards of one microbatch on every rank, then as many more as memory allows and as fit before
// the first input gradient can arrive, fewer on each rank than on the one before. Then one round
// per microbatch: each rank may run a forward, first to last, and runs an input gradient, last to
// first. Weight gradients fill: before an action that needs memory, into waits they fit in, and one
// into a wait that is too short. Three choices are open; all eight combinations are worth trying.
#pragma once

#include "schedule/fill_weight_grads.hpp"
#include "schedule/simulate.hpp"

namespace trainwright {

struct ZeroBubbleRule {
  bool late_warm_up = false;  // the last warm-up forward need only start before the gradient comes
  bool prefer_backward = false;  // skip a forward that can wait where a gradient comes earlier
  bool tolerant = false;         // leave a short wait if another rank was idle for longer
};

// Times and memory per stage; needs stage r on rank r. `complete` is false where memory does not
// hold even one microbatch per rank.
FilledOrders zero_bubble_orders(int64_t num_microbatches, const ActionCosts& costs,
                                const ActionMemory& memory, const ZeroBubbleRule& rule);

}  // namespace trainwright
