#include "partition/instance.hpp"

#include <algorithm>
#include <stdexcept>

namespace trainwright {
namespace {

constexpr int64_t kMaxCount = int64_t{1} << 30;  // labels hold s and k in 32 bits

// Sinks first; last in, first out, so that one branch is finished before the next begins.
std::vector<int32_t> order_from_sinks(const PartitionProblem& problem) {
  const int32_t n = problem.num_layers;
  std::vector<std::vector<int32_t>> predecessors(n);
  std::vector<int32_t> open_successors(n, 0), ready, order;
  for (size_t e = 0; e < problem.edge_source.size(); ++e) {
    predecessors[problem.edge_target[e]].push_back(problem.edge_source[e]);
    ++open_successors[problem.edge_source[e]];
  }
  for (int32_t v = 0; v < n; ++v)
    if (open_successors[v] == 0) ready.push_back(v);
  while (!ready.empty()) {
    const int32_t v = ready.back();
    ready.pop_back();
    order.push_back(v);
    for (int32_t u : predecessors[v])
      if (--open_successors[u] == 0) ready.push_back(u);
  }
  if (static_cast<int32_t>(order.size()) != n)
    throw std::invalid_argument("edges: must be acyclic");
  return order;
}

void check_shapes(const PartitionProblem& p) {
  const size_t num_edges = p.edge_source.size(),
               num_slots = static_cast<size_t>(p.num_layers) * p.tensor_degrees.size();
  const size_t rows = p.option_time_s.size();
  const bool consistent =
      p.num_layers >= 1 && !p.tensor_degrees.empty() && p.edge_target.size() == num_edges &&
      p.edge_bytes.size() == num_edges && p.option_offset.size() == num_slots + 1 &&
      p.option_offset.back() == static_cast<int64_t>(rows) &&
      p.option_gradient_bytes.size() == rows && p.option_saved_bytes.size() == rows &&
      p.option_static_bytes.size() == rows && p.option_boundary_offset.size() == rows + 1 &&
      p.option_boundary_offset.back() == static_cast<int64_t>(p.option_boundary_bytes.size()) &&
      p.num_devices >= 1 && p.num_microbatches >= 1 && !p.data_degrees.empty();
  if (!consistent) throw std::invalid_argument("partition problem: array sizes disagree");
  for (size_t e = 0; e < num_edges; ++e)
    if (std::min(p.edge_source[e], p.edge_target[e]) < 0 ||
        std::max(p.edge_source[e], p.edge_target[e]) >= p.num_layers)
      throw std::invalid_argument("partition problem: edge end out of range");
}

void copy_options(Instance& in) {
  const PartitionProblem& problem = *in.problem;
  in.option_first.push_back(0);
  for (int32_t v = 0; v < in.num_layers; ++v) {
    for (int32_t t = 0; t < in.num_degrees; ++t) {
      const int64_t from = static_cast<int64_t>(in.layer_at[v]) * in.num_degrees + t;
      const size_t begin = in.options.size();
      for (int64_t r = problem.option_offset[from]; r < problem.option_offset[from + 1]; ++r)
        in.options.push_back({problem.option_time_s[r], problem.option_gradient_bytes[r],
                              problem.option_saved_bytes[r], problem.option_static_bytes[r], r});
      std::stable_sort(in.options.begin() + begin, in.options.end(),
                       [](const Option& x, const Option& y) { return x.time_s < y.time_s; });
      in.option_first.push_back(static_cast<int64_t>(in.options.size()));
    }
  }
}

// Least gradient and sync bytes per (layer, degree), and whether all its options agree on them.
void find_common_costs(Instance& in) {
  const PartitionProblem& problem = *in.problem;
  const int64_t num_edges = static_cast<int64_t>(in.edges.size());
  in.cut_in_bytes.assign(num_edges * in.num_degrees, 0);
  in.cut_out_bytes.assign(num_edges * in.num_degrees, 0);
  for (int32_t v = 0; v < in.num_layers; ++v) {
    const size_t num_in = in.in_edges[v].size(), num_ends = num_in + in.out_edges[v].size();
    for (int32_t t = 0; t < in.num_degrees; ++t) {
      const int64_t slot = in.slot(v, t);
      if (!in.offers(v, t)) continue;
      const Option& first = in.options[in.option_first[slot]];
      double least = first.gradient_bytes;
      bool plain = true;
      std::vector<double> sync(num_ends, 0);
      for (int64_t o = in.option_first[slot]; o < in.option_first[slot + 1]; ++o) {
        const double* own = problem.option_boundary_bytes.data() +
                            problem.option_boundary_offset[in.options[o].row];
        plain = plain && in.options[o].gradient_bytes == first.gradient_bytes;
        least = std::min(least, in.options[o].gradient_bytes);
        for (size_t i = 0; i < num_ends; ++i) {
          const bool is_first = o == in.option_first[slot];
          plain = plain && (is_first || own[i] == sync[i]);
          sync[i] = is_first ? own[i] : std::min(sync[i], own[i]);
        }
      }
      in.least_gradient_bytes[slot] = least;
      in.is_plain[slot] = plain;
      for (size_t i = 0; i < num_ends; ++i) {
        const int32_t e = i < num_in ? in.in_edges[v][i] : in.out_edges[v][i - num_in];
        auto& side = i < num_in ? in.cut_in_bytes : in.cut_out_bytes;
        side[t * num_edges + e] = in.edges[e].bytes + sync[i];
      }
    }
  }
}

// v is good when the edges that become cut at its predecessors, at their dearest, cost no more
// than the time the stage saves by giving v away (partitioning.md, section 6, dominance).
void find_good_layers(Instance& in) {
  const PartitionProblem& problem = *in.problem;
  std::vector<double> dearest(in.num_layers, 0);
  for (int32_t u = 0; u < in.num_layers; ++u) {
    const size_t num_in = in.in_edges[u].size();
    for (size_t i = 0; i < in.out_edges[u].size(); ++i) {
      const Edge& edge = in.edges[in.out_edges[u][i]];
      double sync = 0;
      for (int64_t o = in.option_first[in.slot(u, 0)]; o < in.option_first[in.slot(u + 1, 0)]; ++o)
        sync = std::max(
            sync, problem.option_boundary_bytes[problem.option_boundary_offset[in.options[o].row] +
                                                num_in + i]);
      dearest[edge.target] += edge.bytes + sync;
    }
  }
  for (int32_t v = 0; v < in.num_layers; ++v) {
    in.is_good[v] = 1;
    for (int32_t t = 0; t < in.num_degrees; ++t)
      if (in.offers(v, t) && in.cut_s_per_byte * dearest[v] > in.fastest_s(v, t)) in.is_good[v] = 0;
  }
}

}  // namespace

Instance::Instance(const PartitionProblem& p)
    : problem(&p),
      num_layers(p.num_layers),
      num_degrees(static_cast<int32_t>(p.tensor_degrees.size())),
      num_words((p.num_layers + 63) / 64) {
  check_shapes(p);
  layer_at = order_from_sinks(p);
  std::vector<int32_t> position(num_layers);
  for (int32_t v = 0; v < num_layers; ++v) position[layer_at[v]] = v;
  in_edges.resize(num_layers);
  out_edges.resize(num_layers);
  for (size_t e = 0; e < p.edge_source.size(); ++e) {
    edges.push_back({position[p.edge_source[e]], position[p.edge_target[e]], p.edge_bytes[e]});
    in_edges[edges[e].target].push_back(static_cast<int32_t>(e));
    out_edges[edges[e].source].push_back(static_cast<int32_t>(e));
  }
  copy_options(*this);
  least_gradient_bytes.assign(option_first.size() - 1, 0);
  is_plain.assign(option_first.size() - 1, 1);
  is_good.assign(num_layers, 0);
  const double bandwidth = p.bandwidth_bytes_per_s;
  cut_s_per_byte = 2 / bandwidth;
  sync_s_per_byte = 4 / (static_cast<double>(p.num_microbatches) * bandwidth);
  memory_bytes = p.memory_bytes * (1 + 0.9e-12);
  max_sum = std::min({p.num_microbatches, p.num_devices / p.tensor_degrees.front(), kMaxCount});
  max_devices = std::min(p.num_devices, kMaxCount);
  is_clamped = p.num_devices > kMaxCount;
  for (int64_t d : p.data_degrees)
    if (d >= 1 && d <= max_sum) data_degrees.push_back(d);
  find_common_costs(*this);
  find_good_layers(*this);
}

}  // namespace trainwright
