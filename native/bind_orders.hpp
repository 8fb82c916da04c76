// Per-rank orders as Python hands them over.
#pragma once

#include <cstdint>

#include "numpy_arrays.hpp"
#include "simulate.hpp"

namespace trainwright::numpy {

static_assert(sizeof(ActionRow) == 3 * sizeof(int32_t));

// Keeps the arrays alive that `view` looks at.
struct OrderArrays {
  Table<int32_t> actions;  // [n, 3]
  Array<int64_t> rank_offsets;
  Array<int32_t> rank_of_stage;
  Array<int64_t> pairs;
  int64_t num_microbatches;

  Orders view() const {
    return {.actions = {reinterpret_cast<const ActionRow*>(actions.data()), actions.shape(0)},
            .rank_offsets = span_of(rank_offsets),
            .rank_of_stage = span_of(rank_of_stage),
            .pairs = span_of(pairs),
            .num_microbatches = num_microbatches};
  }
};

}  // namespace trainwright::numpy
