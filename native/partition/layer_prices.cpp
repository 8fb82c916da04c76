#include "partition/layer_prices.hpp"

#include <limits>

namespace trainwright {

PricedLayer priced_layer(const Instance& in, int32_t layer, int32_t degree, double in_flight) {
  struct Point {
    double time_s, bytes;
  };
  std::vector<Point> hull;  // options come in ascending time
  const int64_t slot = in.slot(layer, degree);
  for (int64_t o = in.option_first[slot]; o < in.option_first[slot + 1]; ++o) {
    const Option& option = in.options[o];
    const Point point{option.time_s, option.saved_bytes * in_flight + option.static_bytes};
    if (!hull.empty() && point.bytes >= hull.back().bytes) continue;
    if (!hull.empty() && point.time_s <= hull.back().time_s) hull.pop_back();
    while (hull.size() > 1) {
      const Point &last = hull.back(), &before = hull[hull.size() - 2];
      if ((last.time_s - before.time_s) * (before.bytes - point.bytes) <
          (point.time_s - before.time_s) * (before.bytes - last.bytes))
        break;
      hull.pop_back();
    }
    hull.push_back(point);
  }
  if (hull.empty()) return {std::numeric_limits<double>::infinity(), 0, {}};
  PricedLayer result{hull[0].time_s, hull[0].bytes, {}};
  for (size_t i = 1; i < hull.size(); ++i) {
    const double extra = hull[i].time_s - hull[i - 1].time_s;
    const double saving = hull[i - 1].bytes - hull[i].bytes;
    result.steps.push_back({extra / saving, extra, saving, layer});
  }
  return result;
}

}  // namespace trainwright
