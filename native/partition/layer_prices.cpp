#include "partition/layer_prices.hpp"

#include <limits>

namespace trainwright {

PricedLayer priced_layer(const Instance& in, int32_t layer, int32_t degree, double in_flight) {
  struct Point {
    double time_s, memory_bytes;
  };
  std::vector<Point> front;  // options come in ascending time
  const int64_t slot = in.slot(layer, degree);
  for (int64_t o = in.option_first[slot]; o < in.option_first[slot + 1]; ++o) {
    const Option& option = in.options[o];
    const Point point{option.time_s, option.saved_bytes * in_flight + option.static_bytes};
    if (!front.empty() && point.memory_bytes >= front.back().memory_bytes) continue;
    if (!front.empty() && point.time_s <= front.back().time_s) front.pop_back();
    front.push_back(point);
  }
  if (front.empty()) return {std::numeric_limits<double>::infinity(), 0, {}};
  PricedLayer result{front[0].time_s, front[0].memory_bytes, {}};
  append_hull_steps<Point>(front, layer, result.steps);
  return result;
}

}  // namespace trainwright
