// The cut of a chain whose longest stage is shortest among those that fit into memory.
//
//   λ* = min over cuts of max_r w_r,    w_r the work of the stage of rank r
//
// Stages are filled one after the other with as many layers as memory and a limit on w_r allow. The
// limit is bisected; where a filling fails, the next limit is the least sum that would have let one
// layer more into some stage, so that only sums that occur are tried.
//
//   limit      rank 0       rank 1     rank 2
//   10      |-- 9 --|    |-- 10 --|    |-- 4 --|      fits, the longest is 10
//    7      |-- 6 --|    |-- 7 --|     |-- 5 -- ...   does not; one layer more made 8 of a stage
//    8      ...
//
// Filling from the front is the best there is where memory does not bind. A stage that fits stays
// within its limits when it loses a layer, but earlier ranks hold more microbatches: where the
// front fails, filling from the back moves layers to ranks that hold fewer only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace trainwright {

inline constexpr double kSameSum = 1e-12;  // sums of the same layers in another order

// A stage with as many layers as it can take, under one of its options.
struct FilledStage {
  size_t count = 0, option = 0;
  double work_s = 0;
  double next_s = std::numeric_limits<double>::infinity();  // with one layer more, where only the
                                                            // limit forbids it
};

struct Filling {
  bool fits = false;   // every layer is in some stage
  bool whole = false;  // and every stage has one
  double longest_s = 0;
  double next_s = std::numeric_limits<double>::infinity();  // the least sum that a higher limit
                                                            // would admit
  std::vector<int64_t> starts;  // first layer of each stage, in order of the chain
  std::vector<size_t> options;  // of each stage
};

enum class End { front, back };

// Ranks take layers in turn, from the first rank and layer on or from the last of both.
// `grow(rank, from, step, most)` fills one stage with at most so many layers.
template <typename Grow>
Filling fill_from(End end, size_t num_layers, int64_t num_ranks, const Grow& grow) {
  const bool back = end == End::back;
  Filling filling;
  size_t left = num_layers;
  for (int64_t k = 0; k < num_ranks && left > 0; ++k) {
    const size_t from = back ? left - 1 : num_layers - left;
    const FilledStage stage = grow(back ? num_ranks - 1 - k : k, from, back ? -1 : 1, left);
    filling.next_s = std::min(filling.next_s, stage.next_s);
    if (stage.count == 0) return filling;
    left -= stage.count;
    filling.starts.push_back(static_cast<int64_t>(back ? left : from));
    filling.options.push_back(stage.option);
    filling.longest_s = std::max(filling.longest_s, stage.work_s);
  }
  filling.fits = left == 0;
  filling.whole = filling.fits && static_cast<int64_t>(filling.starts.size()) == num_ranks;
  if (back) {
    std::reverse(filling.starts.begin(), filling.starts.end());
    std::reverse(filling.options.begin(), filling.options.end());
  }
  return filling;
}

// From the front; where that leaves a stage whose first layer does not fit, from the back.
template <typename Grow>
Filling fill_chain(size_t num_layers, int64_t num_ranks, const Grow& grow) {
  Filling front = fill_from(End::front, num_layers, num_ranks, grow);
  if (front.fits) return front;
  Filling back = fill_from(End::back, num_layers, num_ranks, grow);
  back.next_s = std::min(front.next_s, back.next_s);
  return back;
}

// Of `fill(limit_s)` the filling whose longest stage is shortest, none longer than `most_s`; it
// does not fit where there is none. No layer takes more than `heaviest_s`, so no limit is lower.
template <typename Fill>
Filling shortest_filling(double heaviest_s, double most_s, const Fill& fill) {
  Filling cut = fill(most_s);
  if (!cut.fits) return cut;
  double low_s = heaviest_s;
  while (low_s < cut.longest_s * (1 - kSameSum)) {
    Filling tighter = fill((low_s + cut.longest_s) / 2);
    if (tighter.fits) {
      cut = std::move(tighter);
      continue;
    }
    if (tighter.next_s >= cut.longest_s * (1 - kSameSum)) break;
    low_s = tighter.next_s;
    Filling exact = fill(low_s);
    if (!exact.fits) continue;
    cut = std::move(exact);
    break;
  }
  return cut;
}

}  // namespace trainwright
