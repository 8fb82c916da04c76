// The stages of a chain: layers in one order, one after another, cut between any two.
//
// A stage of layers i .. j - 1 runs forward with start(v) = max(end(v - 1), bytes / B of every edge
// that enters v from outside), backward likewise in reverse with the edges that leave, each from
// time 0: transfers into a stage come before its work, and sending is free. Running the forward
// again (without transfers, F in all) delays the backward to max(F + its work, backward above).
// Edges may skip layers. O(layers^2 + layers x edges).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/placement.hpp"

namespace trainwright {

enum class Recompute { never, always, per_stage };

// What a chain needs and sends, whatever its speed. Edge e leads from a lower to a higher layer.
struct ChainShape {
  std::span<const double> parameter_bytes;   // to synchronise
  std::span<const double> static_bytes;      // that stay for the whole step
  std::span<const double> activation_bytes;  // of a microbatch in flight
  std::span<const uint8_t> is_split;         // over tensor ranks
  std::span<const int32_t> edge_source;
  std::span<const int32_t> edge_target;
  std::span<const double> edge_bytes;
  double memory_bytes = 0;
  double bandwidth_bytes_per_s = 1;
  Recompute recompute = Recompute::never;
  int64_t most_in_flight = 1;
};

class ChainStages {
 public:
  explicit ChainStages(const ChainShape& shape);

  // The same stages for other times of the layers.
  const StageGraph& at(std::span<const double> forward_s, std::span<const double> backward_s);

  int64_t num_layers() const { return num_layers_; }

 private:
  struct Transfer {
    int32_t other;
    double bytes;
  };

  StageArc& arc(int64_t i, int64_t j) {
    return graph_.arcs[static_cast<size_t>(graph_.arc_offset[static_cast<size_t>(i)] + j - i - 1)];
  }

  int64_t num_layers_;
  double bandwidth_bytes_per_s_;
  StageGraph graph_;
  std::vector<std::vector<Transfer>> incoming_;
  std::vector<std::vector<Transfer>> outgoing_;
};

// Most microbatches in flight, at most `most`, of which all but the running one keep `kept_bytes`.
int64_t microbatches_that_fit(double base_bytes, double kept_bytes, double memory_bytes,
                              int64_t most);

}  // namespace trainwright
