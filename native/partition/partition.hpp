// Exact pipeline partitioning of a layer graph with measured costs (Piper's problem).
//
// A plan is a chain of downsets (sets closed under successors) {} = D_{m+1} < D_m < ... < D_1 = V;
// stage i is D_i \ D_{i+1} with a data degree d, a tensor degree t and one option per layer.
// With s' the data degrees of the stages behind it, a stage keeps y = 1 + ceil(s'/d) microbatches:
//
//     sum(a y + b) <= M        T d = sum p + 2 X / B + 4 (d - 1) sum w / (N B)
//
// and the plan's time is max T. For a threshold lambda the solver computes, per downset, the
// Pareto-minimal pairs (s, k) = (sum of data degrees, devices) of plans with max T <= lambda:
//
//     labels(D) = min over D' < D, (s', k') in labels(D'), t, d | N, stage fits lambda
//                 of (s' + d, k' + d t),      labels({}) = {(0, 0)}
//
// in ascending s (level_sweep.hpp), and searches the least lambda with a label at V.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace trainwright {

struct PartitionProblem {
  int32_t num_layers = 0;
  // Merged edges (source, target): unique pairs without a cycle.
  std::vector<int32_t> edge_source, edge_target;
  std::vector<double> edge_bytes;
  std::vector<int32_t> tensor_degrees;  // distinct, ascending [T]
  // Options of layer v at degree slot j are rows option_offset[v*T+j] .. option_offset[v*T+j+1].
  std::vector<int64_t> option_offset;
  std::vector<double> option_time_s;          // p
  std::vector<double> option_gradient_bytes;  // w
  std::vector<double> option_saved_bytes;     // a
  std::vector<double> option_static_bytes;    // b
  // Per option: a sync value for each in-edge of its layer, then for each out-edge, both in
  // ascending edge index; option r owns option_boundary_offset[r] .. [r+1].
  std::vector<int64_t> option_boundary_offset;
  std::vector<double> option_boundary_bytes;
  double memory_bytes = 0;            // M
  double bandwidth_bytes_per_s = 0;   // B
  int64_t num_devices = 0;            // K
  int64_t num_microbatches = 0;       // N
  std::vector<int64_t> data_degrees;  // allowed d, ascending, each a divisor of N
};

struct PartitionProgress {
  double elapsed_s = 0;
  double time_per_sample_s = std::numeric_limits<double>::infinity();
  double lower_bound_s = 0;
  int64_t num_downsets = 0;
  int64_t num_passes = 0;
};

struct PartitionLimits {
  double time_limit_s = std::numeric_limits<double>::infinity();
  int64_t max_downsets = 400'000;         // beyond it: a restricted family of cuts, status gap
  int64_t max_knapsack_states = 200'000;  // beyond it a stage is unknown, never infeasible
  int64_t max_pairs = 2'000'000;  // pairs of downsets x degrees to keep cursors for; 0: scan
  int64_t max_table_bytes = 384'000'000;  // tables of additive bounds
  // With several tensor degrees and K and N above this there are many labels per downset: passes
  // near the best plan go first, and the completion bound follows the stages.
  int64_t priced_from = 64;
  int64_t audit_sample = 0;  // rejected stages to keep (reservoir sample)
  uint64_t audit_seed = 0;
  std::function<bool(const PartitionProgress&)> poll;  // at most every ~50 ms; true = stop
};

struct PartitionStage {
  std::vector<int32_t> layers;  // ascending
  int64_t data_degree = 0;
  int32_t tensor_degree = 0;
  std::vector<int64_t> option_rows;  // one per layer, in the order of `layers`
};

// A stage that some pass rejected: no choice of options brings it to `threshold_s` in memory M.
struct RejectedStage {
  std::vector<int32_t> layers;
  int64_t data_degree = 0;
  int32_t tensor_degree = 0;
  int64_t num_in_flight = 0;  // y
  double threshold_s = 0;
};

enum class PartitionStatus { optimal, gap, infeasible, unknown };

struct PartitionCounters {
  int64_t downsets = 0, passes = 0;
  int64_t labels = 0, starts = 0;  // Pareto-minimal pairs made, and extended
  int64_t candidates = 0, relaxations = 0, knapsacks = 0;  // stages by the dearest test they met
  int64_t dead_ends = 0;  // labels found not to lead to a plan, after a pass
  int64_t capped_knapsacks = 0, bound_tables = 0, peak_label_bytes = 0;
};

struct PartitionResult {
  PartitionStatus status = PartitionStatus::unknown;
  double time_per_sample_s = std::numeric_limits<double>::infinity();
  double lower_bound_s = 0;
  std::vector<PartitionStage> stages;  // pipeline order
  PartitionCounters counters;
  std::vector<RejectedStage> audit;
  double solver_s = 0;  // CPU seconds of this thread
  bool interrupted = false, time_limited = false, restricted = false;
};

// Throws std::invalid_argument when the arrays contradict each other.
PartitionResult solve_partition(const PartitionProblem& problem, const PartitionLimits& limits);

struct PlanEvaluation {
  bool valid = false;  // memory, K, N and the order of stages
  double time_per_sample_s = std::numeric_limits<double>::infinity();
};

// Prices stages by the formulas above with compensated sums; memory fits up to M (1 + 1e-12).
PlanEvaluation evaluate_plan(const PartitionProblem& problem,
                             const std::vector<PartitionStage>& stages);

}  // namespace trainwright
