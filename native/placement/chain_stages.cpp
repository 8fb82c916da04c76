#include "placement/chain_stages.hpp"

#include <algorithm>
#include <cmath>

namespace trainwright {

namespace {

constexpr double kMemoryTolerance = 1e-12;

}  // namespace

int64_t microbatches_that_fit(double base_bytes, double kept_bytes, double memory_bytes,
                              int64_t most) {
  const double limit_bytes = memory_bytes * (1 + kMemoryTolerance);
  if (base_bytes > limit_bytes) return 0;
  if (base_bytes + static_cast<double>(most - 1) * kept_bytes <= limit_bytes) return most;
  auto fits = 1 + static_cast<int64_t>(std::floor((limit_bytes - base_bytes) / kept_bytes));
  fits = std::clamp<int64_t>(fits, 1, most);
  while (fits > 1 && base_bytes + static_cast<double>(fits - 1) * kept_bytes > limit_bytes) --fits;
  return fits;
}

ChainStages::ChainStages(const ChainShape& shape)
    : num_layers_(static_cast<int64_t>(shape.parameter_bytes.size())),
      bandwidth_bytes_per_s_(shape.bandwidth_bytes_per_s),
      incoming_(static_cast<size_t>(num_layers_)),
      outgoing_(static_cast<size_t>(num_layers_)) {
  for (size_t e = 0; e < shape.edge_source.size(); ++e) {
    const int32_t u = shape.edge_source[e], v = shape.edge_target[e];
    incoming_[static_cast<size_t>(v)].push_back({u, shape.edge_bytes[e]});
    outgoing_[static_cast<size_t>(u)].push_back({v, shape.edge_bytes[e]});
  }
  graph_.arc_offset.push_back(0);
  for (int64_t i = 0; i < num_layers_; ++i) {
    double static_bytes = 0, activation_bytes = 0, entering_bytes = 0;
    StageArc arc;
    arc.narrow = true;
    for (int64_t v = i; v < num_layers_; ++v) {
      const auto at = static_cast<size_t>(v);
      arc.target = static_cast<int32_t>(v + 1);
      arc.parameter_bytes += shape.parameter_bytes[at];
      arc.narrow = arc.narrow && shape.is_split[at] == 0;
      static_bytes += shape.static_bytes[at];
      activation_bytes += shape.activation_bytes[at];
      for (const Transfer& edge : incoming_[at]) {
        if (edge.other < i) entering_bytes += edge.bytes;
      }
      const double base_bytes = static_bytes + activation_bytes;
      const auto fits = [&](double kept_bytes) {
        return microbatches_that_fit(base_bytes, kept_bytes, shape.memory_bytes,
                                     shape.most_in_flight);
      };
      arc.plain_until = fits(activation_bytes);
      if (shape.recompute != Recompute::never) arc.recomputed_until = fits(entering_bytes);
      if (shape.recompute == Recompute::always) {
        arc.plain_until = std::min<int64_t>(arc.plain_until, 1);
      }
      graph_.arcs.push_back(arc);
    }
    graph_.arc_offset.push_back(static_cast<int64_t>(graph_.arcs.size()));
  }
  graph_.arc_offset.push_back(static_cast<int64_t>(graph_.arcs.size()));
}

const StageGraph& ChainStages::at(std::span<const double> forward_s,
                                  std::span<const double> backward_s) {
  for (int64_t j = 1; j <= num_layers_; ++j) {
    double backward_end_s = 0;
    for (int64_t v = j - 1; v >= 0; --v) {
      for (const Transfer& edge : outgoing_[static_cast<size_t>(v)]) {
        if (edge.other >= j) {
          backward_end_s = std::max(backward_end_s, edge.bytes / bandwidth_bytes_per_s_);
        }
      }
      backward_end_s += backward_s[static_cast<size_t>(v)];
      arc(v, j).plain_s = backward_end_s;
    }
  }
  for (int64_t i = 0; i < num_layers_; ++i) {
    double forward_end_s = 0, forward_work_s = 0, backward_work_s = 0;
    for (int64_t v = i; v < num_layers_; ++v) {
      for (const Transfer& edge : incoming_[static_cast<size_t>(v)]) {
        if (edge.other < i) {
          forward_end_s = std::max(forward_end_s, edge.bytes / bandwidth_bytes_per_s_);
        }
      }
      forward_end_s += forward_s[static_cast<size_t>(v)];
      forward_work_s += forward_s[static_cast<size_t>(v)];
      backward_work_s += backward_s[static_cast<size_t>(v)];
      StageArc& stage = arc(i, v + 1);
      const double backward_end_s = stage.plain_s;
      stage.plain_s = forward_end_s + backward_end_s;
      stage.recomputed_s =
          forward_end_s + std::max(forward_work_s + backward_work_s, backward_end_s);
    }
  }
  return graph_;
}

}  // namespace trainwright
