// A lower bound on the time of every plan, listed or not, from all positions of a pipeline at once.
//
// Count the replicas of a plan from its end: a stage of d replicas with s' behind it has the
// positions s'+1 .. s'+d, and at position j keeps y >= j/d microbatches. Put each of its layers on
// one of them at random, all alike. Then position j of t devices is expected to hold
//
//     sum of p t + (2 / B) times the edges cut  <=  lambda t        sum of (a j + b) t  <=  M t
//
// and layers lie in order. So for any multipliers w, m >= 0 the cheapest labelling of layers by
// positions, at w_j per second and m_j per byte, costs no more than the sum of t (w_j lambda + m_j
// M) over the positions there are. The labelling is bounded by message passing
// (ordered_labels.hpp), the multipliers follow its loads. Beyond kMostPlaces positions, neighbours
// are taken together at the depth of the first.
#pragma once

#include "partition/downsets.hpp"
#include "partition/instance.hpp"

namespace trainwright {

// Seconds per microbatch that no plan undercuts; 0 where nothing is known. `upper_s` is the time of
// some plan.
double position_bound(const Instance& instance, double upper_s, const Stop& stop);

}  // namespace trainwright
