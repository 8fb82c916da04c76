// The price of a plan, straight from the formulas in partition.hpp, with compensated sums.
#include <algorithm>
#include <cmath>

#include "partition/partition.hpp"

namespace trainwright {
namespace {

// Neumaier's sum: the error does not grow with the number of terms.
class Sum {
 public:
  void add(double x) {
    const double next = sum_ + x;
    lost_ += std::abs(sum_) >= std::abs(x) ? (sum_ - next) + x : (x - next) + sum_;
    sum_ = next;
  }
  double value() const { return sum_ + lost_; }

 private:
  double sum_ = 0, lost_ = 0;
};

struct Sides {  // edges of each layer, ascending index, as the boundary rows expect
  std::vector<std::vector<int32_t>> in, out;
};

Sides sides_of(const PartitionProblem& p) {
  Sides sides{std::vector<std::vector<int32_t>>(p.num_layers),
              std::vector<std::vector<int32_t>>(p.num_layers)};
  for (size_t e = 0; e < p.edge_source.size(); ++e) {
    sides.in[p.edge_target[e]].push_back(static_cast<int32_t>(e));
    sides.out[p.edge_source[e]].push_back(static_cast<int32_t>(e));
  }
  return sides;
}

double cut_bytes(const PartitionProblem& p, const Sides& sides,
                 const std::vector<int32_t>& stage_of, int32_t layer, int64_t row) {
  const double* sync = p.option_boundary_bytes.data() + p.option_boundary_offset[row];
  Sum bytes;
  for (int32_t e : sides.in[layer]) {
    if (stage_of[p.edge_source[e]] != stage_of[layer]) bytes.add(p.edge_bytes[e] + *sync);
    ++sync;
  }
  for (int32_t e : sides.out[layer]) {
    if (stage_of[p.edge_target[e]] != stage_of[layer]) bytes.add(p.edge_bytes[e] + *sync);
    ++sync;
  }
  return bytes.value();
}

}  // namespace

PlanEvaluation evaluate_plan(const PartitionProblem& p, const std::vector<PartitionStage>& stages) {
  PlanEvaluation result;
  std::vector<int32_t> stage_of(p.num_layers, -1);
  int64_t sum = 0, devices = 0, placed = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    sum += stages[i].data_degree;
    devices += stages[i].data_degree * stages[i].tensor_degree;
    for (int32_t v : stages[i].layers) {
      if (stage_of[v] >= 0) return result;
      stage_of[v] = static_cast<int32_t>(i);
      ++placed;
    }
  }
  if (placed != p.num_layers || sum > p.num_microbatches || devices > p.num_devices) return result;
  for (size_t e = 0; e < p.edge_source.size(); ++e)
    if (stage_of[p.edge_source[e]] > stage_of[p.edge_target[e]]) return result;
  const Sides sides = sides_of(p);
  double slowest = 0;
  for (const PartitionStage& stage : stages) {
    const int64_t d = stage.data_degree;
    const double y = static_cast<double>((sum + d - 1) / d);
    Sum time, bytes, gradient, memory;
    for (size_t i = 0; i < stage.layers.size(); ++i) {
      const int64_t row = stage.option_rows[i];
      time.add(p.option_time_s[row]);
      gradient.add(p.option_gradient_bytes[row]);
      memory.add(p.option_saved_bytes[row] * y);
      memory.add(p.option_static_bytes[row]);
      bytes.add(cut_bytes(p, sides, stage_of, stage.layers[i], row));
    }
    if (memory.value() > p.memory_bytes * (1 + 1e-12)) return result;
    const double degree = static_cast<double>(d), bandwidth = p.bandwidth_bytes_per_s;
    slowest = std::max(slowest, time.value() / degree + 2 * bytes.value() / (degree * bandwidth) +
                                    4 * (degree - 1) / degree * gradient.value() /
                                        (static_cast<double>(p.num_microbatches) * bandwidth));
    sum -= d;
  }
  result.valid = true;
  result.time_per_sample_s = slowest;
  return result;
}

}  // namespace trainwright
