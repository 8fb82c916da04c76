// The fastest uniform 1F1B plan of a chain of layers: one tensor degree, d replicas, p stages.
//
// For every recompute option (or the quickest that fits, stage by stage), data degree and depth the
// cut is the one whose longest stage is shortest among those that fit,
//
//   λ* = min over cuts of max_i w_i,   w_i = Σ (forward + backward) of stage i,
//   state + min(p − i, m) Σ saved + max transient <= memory,
//
// found by filling stages within a limit that is bisected (fill.hpp). The plan is then run action
// by action (pipeline_ends), and each stage exchanges with its replicas what does not hide
// (common/zero.hpp) and updates its weights at its own end. Passed over are plans that cannot beat
// the best:
//
//   time >= W / (1 − (1 − 1/m)^p)        W the work of one microbatch on all stages
//   time >= Σ_{j<i} (w_j + 2 x_j) + m w_i + waits_i   for every stage i
//
// where a stage that holds k microbatches waits for the way q through later stages and back, once
// max(0, q − (k − 1) forward_i) and, where k < m, once max(0, q − (k − 1) backward_i).
//
// About 0.1 ms for a hundred layers on a thousand devices, 1.5 ms where little fits the memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/zero.hpp"

namespace trainwright {

// Arrays over layer classes; `saved` and `transient` option by option.
struct UniformProblem {
  std::span<const int32_t> layer_class;
  std::span<const double> transfer_s;  // after each layer but the last
  std::span<const double> saved_bytes;
  std::span<const double> transient_bytes;
  std::span<const double> sync_bytes;
  std::span<const int64_t> data_degrees;  // in order of preference
  zero::Sharing sharing;                  // of each of these
  double memory_bytes = 0;
  int64_t tensor_degree = 1;
  int64_t num_devices = 1;
  int64_t num_microbatches = 1;  // of all replicas

  size_t num_classes() const { return sync_bytes.size(); }
  size_t num_options() const { return saved_bytes.size() / num_classes(); }
  zero::Replicas replicas(size_t degree) const { return {sharing, degree, num_classes()}; }
};

// Seconds of one design by class; `backward` option by option, with what it recomputes.
struct ChainTimes {
  std::span<const double> forward_s;
  std::span<const double> backward_s;
  std::span<const double> update_s;
};

struct UniformPlan {
  double step_s = 0;  // infinite: nothing fits, or nothing beats the cutoff
  int64_t data_degree = 0;
  std::vector<int64_t> starts;   // first layer of each stage
  std::vector<int64_t> options;  // of each stage
};

// The fastest plan below `cutoff_s`: one option for all stages, or the quickest that fits each. The
// first of equals by option (single ones first), degree, then the deepest.
UniformPlan fastest_uniform_plan(const UniformProblem& problem, const ChainTimes& times,
                                 double cutoff_s);

}  // namespace trainwright
