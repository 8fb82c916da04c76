// What blocks of the chunks of a rank recompute at the least, so that one instant fits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace trainwright {

struct FreeingWay {
  double rate;  // bytes freed per second
  double gain;
};

// Seconds for one microbatch of each chunk. Chunk c keeps counts[c] microbatches of blocks[c]
// blocks, which have options on the lower hull of `time_s` and `kept_bytes`, fastest first, and
// beside which there is `room` bytes. Parts of blocks may recompute: a fractional knapsack.
// Infinite where the leanest options do not fit. `ways` is scratch space.
template <typename Count>
double freed_s(std::span<const double> counts, std::span<const Count> blocks,
               std::span<const double> time_s, std::span<const double> kept_bytes, double room,
               std::vector<FreeingWay>& ways) {
  constexpr double kLeast = 1e-300;  // seconds, so that what frees bytes for nothing comes first
  double over = -room;
  for (size_t c = 0; c < counts.size(); ++c) over += counts[c] * blocks[c] * kept_bytes[0];
  if (over <= 0) return 0;
  ways.clear();
  for (size_t c = 0; c < counts.size(); ++c) {
    for (size_t k = 1; k < time_s.size(); ++k) {
      const double gain = counts[c] * blocks[c] * (kept_bytes[k - 1] - kept_bytes[k]);
      const double cost_s = blocks[c] * (time_s[k] - time_s[k - 1]);
      if (gain > 0) ways.push_back({gain / std::max(cost_s, kLeast), gain});
    }
  }
  std::sort(ways.begin(), ways.end(),
            [](const FreeingWay& a, const FreeingWay& b) { return a.rate > b.rate; });
  double spent_s = 0;
  for (const FreeingWay& way : ways) {
    spent_s += std::min(over, way.gain) / way.rate;
    over -= way.gain;
    if (over <= 0) return spent_s;
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace trainwright
