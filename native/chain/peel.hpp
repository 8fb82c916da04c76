// The best cut of a chain for a pipeline in V: ranks peel layers off both of its ends.
//
// Rank r owns stages r and 2p-1-r. Once ranks 0 to r-1 have theirs, layers [a, b) are left, and the
// least over all splits of the longest rank is
//
//   V_r(a, b) = min over a', b' of max(rank_r(a, a', b', b), V_(r+1)(a', b')),    V_p(a, a) = 0
//
// What comes before and after is known from a and b alone, because only the backward of a layer
// depends on what it recomputes. A rank takes the fastest two points of its chunks' fronts that fit
// into memory together, and is bounded by its work and by the time it must wait with room for no
// more than so many activations (`scheduling.bounds`). A kind has a front for each level of
// transients, of all ways that need no more; beside all microbatches in flight lie the transients
// of one of both chunks. A slower way hides more of what replicas exchange at last, but by no more
// than it takes longer, so that no way off the fronts is better.
//
// Where the ends of a step are weighed, ranks that the last input gradients still pass exchange
// theirs, too, each as long as its own ways do, and what waits for its weight gradient alone keeps
// what its input gradient cannot have freed. Of few microbatches paths through a rank count, too:
// each kind of its actions waits for the first of them, and for the longest stage on its way. That
// holds for every order, but a split that is good for it may wait more in the middle; where splits
// are looked for they are not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainwright {

// Stages by kind, [K] each; the last four are bytes on a device.
struct PeelKinds {
  std::span<const double> forward_s;
  std::span<const double> input_grad_s;
  std::span<const double> weight_grad_s;
  std::span<const double> tail_s;
  std::span<const double> optimizer_s;
  std::span<const double> static_bytes;
  std::span<const double> weight_bytes;          // all weights, whole
  std::span<const double> largest_weight_bytes;  // of one layer, whole
  // The most that an input gradient frees of what a microbatch keeps, however the stage runs.
  std::span<const double> freed_bytes;
};

// How kinds can be run. A kind without levels cannot be. Its levels ascend, and the last has the
// fastest way and that which keeps least.
struct PeelFronts {
  std::span<const int64_t> level_offset;    // [K + 1] levels of each kind
  std::span<const double> transient_bytes;  // of a level: lies beside one microbatch
  std::span<const double> beside_bytes;     // of a level: lies beside all in flight in any case
  std::span<const int64_t> point_offset;    // points of each level
  std::span<const double> kept_bytes;       // of a point: ascending, of one microbatch
  std::span<const double> time_s;  // of a point: descending, forward and backward of one microbatch
  std::span<const double> tail_s;  // of a point: exchanged at last, no less than of its kind
};

struct PeelProblem {
  int64_t num_ranks = 0;
  int64_t num_microbatches = 0;
  int64_t max_activations = 0;
  double usable_bytes = 0;
  double gathered_share = 0;         // layers whose weights are gathered (common/zero.hpp)
  double floor_s = 0;                // no split is shorter, so that what is no longer is as good
  double limit_s = 0;                // longer ranks are of no interest
  bool weighs_ends = false;          // what is still held and exchanged at the end; see below
  std::span<const int64_t> kind_of;  // [L, L + 1] by first layer and the one after the last
  // [p] what to add to a kind for each rank: devices that are unlike have kinds of their own, and
  // the prefix sums below are then of the fastest at each layer. Where nothing is given all are
  // alike.
  std::span<const int64_t> kind_offset;
  std::span<const double> forward_before_s;     // [L + 1] of all layers before one
  std::span<const double> input_grad_before_s;  // [L + 1]
  // Of unlike ranks [p, L + 1] each: what layers take at least on the ranks before each, which have
  // all outside its own, and on those after it, which have all inside. Nothing where all are alike.
  std::span<const double> outer_forward_s;
  std::span<const double> outer_input_grad_s;
  std::span<const double> inner_forward_s;
  std::span<const double> inner_input_grad_s;
  std::span<const double> transfer_s;  // [p - 1] from each rank to the next
  // What ranks but the first may take for a microbatch, ascending, and the most of it forwards;
  // where nothing is given, how they keep a far chunk waiting is left out.
  std::span<const double> rank_time_s;
  std::span<const double> rank_forward_s;
  // At each of N instants: [N, p, L + 1] of stage r, and of 2p-1-r, by its first layer.
  std::span<const double> near_in_flight;
  std::span<const double> far_in_flight;
  PeelKinds kinds;
  PeelFronts fronts;

  int64_t num_layers() const { return static_cast<int64_t>(forward_before_s.size()) - 1; }
  int64_t offset_of(int64_t rank) const {
    return kind_offset.empty() ? 0 : kind_offset[static_cast<size_t>(rank)];
  }
};

// `cost` is infinite where no split stays within the limit. Else `near` and `far` [p] count the
// layers of both chunks, and the points [p], counted from the first of all kinds, say how they run;
// `rank_s` [p] is what each rank takes by itself in a step, `ends_s` [p] as in `PeelWeights`.
struct PeelResult {
  double cost = 0;
  std::vector<int64_t> near;
  std::vector<int64_t> far;
  std::vector<int64_t> near_point;
  std::vector<int64_t> far_point;
  std::vector<double> rank_s;
  std::vector<double> ends_s;
};

// The least step: `cost` is a lower bound on it in seconds.
PeelResult peel(const PeelProblem& problem);

// Whether that is within the limit, in less than half of the time.
bool peel_reaches(const PeelProblem& problem);

// Of the splits within the limit, that whose chunks are most nearly of `chunk_s` seconds each:
// `cost` is the sum of the squares of their relative differences.
PeelResult peel_evenly(const PeelProblem& problem, double chunk_s);

// How often times count in a sum: actions by stage [2p], an input gradient with what it recomputes;
// what each rank takes by itself [p], as in `peel`; what lies around the activations that it keeps
// [p], `ends_s` of its two kinds.
struct PeelWeights {
  std::span<const double> forwards;
  std::span<const double> input_grads;
  std::span<const double> weight_grads;
  std::span<const double> ranks;
  std::span<const double> ends;
};

// The least such sum of all splits of which no rank exceeds the limit: `cost` is in seconds.
//
// Ends: what follows the last weight gradient of a rank, and half of the time in which its places
// fill one forward after the other and are left one weight gradient after the other.
PeelResult peel_weighted(const PeelProblem& problem, const PeelWeights& weights);

}  // namespace trainwright
