// A PartitionProblem rearranged for the solver: layers renumbered from the sinks, options sorted
// by time, and the smallest value of everything that may differ between a layer's options.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/partition.hpp"

namespace trainwright {

struct Option {
  double time_s, gradient_bytes, saved_bytes, static_bytes;
  int64_t row;  // in the PartitionProblem
};

struct Edge {
  int32_t source, target;  // positions
  double bytes;
};

struct Instance {
  explicit Instance(const PartitionProblem& problem);

  const PartitionProblem* problem;
  int32_t num_layers, num_degrees, num_words;
  // Position 0 is a sink; a branch is followed before its neighbour, so that similar downsets
  // share words.
  std::vector<int32_t> layer_at;
  std::vector<Edge> edges;
  std::vector<std::vector<int32_t>> in_edges, out_edges;  // per position, ascending edge index
  std::vector<int64_t> option_first;                      // [n*T+1]
  std::vector<Option> options;                            // per (position, degree), ascending time
  std::vector<double> least_gradient_bytes;               // [n*T]
  std::vector<uint8_t> is_plain;  // [n*T] options differ in time and memory only
  // Smallest bytes a cut edge costs its target's stage (in) and its source's stage (out) [T*E].
  std::vector<double> cut_in_bytes, cut_out_bytes;
  std::vector<uint8_t> is_good;       // [n] leaving a stage never costs that stage time
  std::vector<int64_t> data_degrees;  // those at most min(K, N)
  int64_t max_devices, max_sum;       // K and N, clamped to what can be used
  bool is_clamped;                    // plans beyond those counts are not looked at
  double memory_bytes;                // M with the tolerance of the evaluator
  double cut_s_per_byte;              // 2 / B
  double sync_s_per_byte;             // 4 / (N B), times d - 1

  int64_t slot(int32_t position, int32_t degree) const {
    return static_cast<int64_t>(position) * num_degrees + degree;
  }
  bool offers(int32_t position, int32_t degree) const {
    return option_first[slot(position, degree)] < option_first[slot(position, degree) + 1];
  }
  double fastest_s(int32_t position, int32_t degree) const {
    return options[option_first[slot(position, degree)]].time_s;
  }
};

}  // namespace trainwright
