// What a stage pays for each of its layers: the fastest option, and the steps from it along the
// lower convex hull of (memory, time).
#pragma once

#include <cstdint>
#include <vector>

#include "partition/instance.hpp"
#include "partition/lower_hull.hpp"

namespace trainwright {

// What a stage of one degree and y holds of a layer.
struct PricedLayer {
  double fastest_s, fastest_bytes;
  std::vector<HullStep> steps;
};

PricedLayer priced_layer(const Instance& instance, int32_t layer, int32_t degree, double in_flight);

}  // namespace trainwright
