// The lower convex hull of a layer's options, as steps from its fastest one.
//
//   bytes
//     o                    Along the hull a step saves its bytes at a price in seconds per byte
//     that
//      \   x               ascends from step to step. So the steps of all layers, sorted by price,
//       o                  solve the linear relaxation of the choice: take them until enough bytes
//         ` - . _  x       are saved, the last one in part.
//                 ` o
//                          x: above the hull, in no solution of the relaxation
//             seconds
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trainwright {

// To a slower option that needs less memory.
struct HullStep {
  double ratio, extra_s, saving_bytes;
  int32_t layer, choice;  // `choice` counts the layer's options
};

// Appends the steps of one layer. Its options, with `time_s` and `memory_bytes`, ascend in time and
// descend in bytes, both strictly; of three on one line the one in the middle is left out.
template <typename Option>
void append_hull_steps(std::span<const Option> options, int32_t layer,
                       std::vector<HullStep>& steps) {
  const size_t own = steps.size();
  for (size_t i = 1; i < options.size(); ++i) {
    while (true) {
      const Option& from = options[steps.size() > own ? steps.back().choice : 0];
      const double extra_s = options[i].time_s - from.time_s;
      const double saving_bytes = from.memory_bytes - options[i].memory_bytes;
      const double ratio = extra_s / saving_bytes;
      if (steps.size() == own || ratio > steps.back().ratio) {
        steps.push_back({ratio, extra_s, saving_bytes, layer, static_cast<int32_t>(i)});
        break;
      }
      steps.pop_back();
    }
  }
}

}  // namespace trainwright
