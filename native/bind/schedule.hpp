// Orders, costs and memory as Python hands them over; each keeps alive the arrays its view looks
// at.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "bind/numpy_arrays.hpp"
#include "schedule/simulate.hpp"

namespace trainwright::numpy {

static_assert(sizeof(ActionRow) == 3 * sizeof(int32_t));

struct OrderArrays {
  Table<int32_t> actions;  // [n, 3]
  Array<int64_t> rank_offsets;
  Array<int32_t> rank_of_stage;
  Array<int64_t> pairs;
  int64_t num_microbatches, num_pipelines, head_barriers;

  Orders view() const {
    return {.actions = {reinterpret_cast<const ActionRow*>(actions.data()), actions.shape(0)},
            .rank_offsets = span_of(rank_offsets),
            .rank_of_stage = span_of(rank_of_stage),
            .pairs = span_of(pairs),
            .num_microbatches = num_microbatches,
            .num_pipelines = num_pipelines,
            .head_barriers = head_barriers};
  }
};

inline TransferModel model_named(const std::string& name) {
  if (name == "free") return TransferModel::free;
  if (name == "link") return TransferModel::link;
  if (name == "blocking") return TransferModel::blocking;
  throw std::invalid_argument("unknown transfer model " + name);
}

struct CostArrays {
  Table<double> duration_s;
  Array<double> forward_transfer_s, backward_transfer_s, pair_s, network_s, slice_s;
  double barrier_s;
  TransferModel model;
  double blocking_fraction;

  ActionCosts view() const {
    return {.duration_s = span_of(duration_s),
            .forward_transfer_s = span_of(forward_transfer_s),
            .backward_transfer_s = span_of(backward_transfer_s),
            .pair_s = span_of(pair_s),
            .network_s = span_of(network_s),
            .slice_s = span_of(slice_s),
            .barrier_s = barrier_s,
            .model = model,
            .blocking_fraction = blocking_fraction};
  }
};

struct MemoryArrays {
  Table<double> delta_bytes, transient_bytes;
  Array<double> static_bytes, limit_bytes;

  ActionMemory view() const {
    return {.delta_bytes = span_of(delta_bytes),
            .transient_bytes = span_of(transient_bytes),
            .static_bytes = span_of(static_bytes),
            .limit_bytes = span_of(limit_bytes)};
  }
};

}  // namespace trainwright::numpy
