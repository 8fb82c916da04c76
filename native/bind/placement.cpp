// Binding of device placement: one chain at many speeds, or one layer graph that branches.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "bind/numpy_arrays.hpp"
#include "bind/poll.hpp"
#include "placement/chain_stages.hpp"
#include "placement/dag_stages.hpp"
#include "placement/placement.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using trainwright::ChainShape;
using trainwright::PlacementRules;
using trainwright::Recompute;
using trainwright::numpy::Array;
using trainwright::numpy::asking;
using trainwright::numpy::Poll;
using trainwright::numpy::span_of;
using trainwright::numpy::Table;
using trainwright::numpy::to_numpy;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Arrays of layers and edges, checked, and kept alive by the caller's references.
struct LayerArrays {
  Array<double> parameter_bytes, static_bytes, activation_bytes;
  Array<uint8_t> is_split;
  Array<int32_t> edge_source, edge_target;
  Array<double> edge_bytes;
};

Recompute recompute_named(const std::string& name) {
  if (name == "never") return Recompute::never;
  if (name == "always") return Recompute::always;
  if (name == "per_stage") return Recompute::per_stage;
  throw std::invalid_argument("recompute must be never, always or per_stage");
}

ChainShape shape_of(const LayerArrays& layers, double memory_bytes, const std::string& recompute,
                    const PlacementRules& rules) {
  const size_t n = layers.parameter_bytes.size(), e = layers.edge_source.size();
  const bool alike = layers.static_bytes.size() == n && layers.activation_bytes.size() == n &&
                     layers.is_split.size() == n && layers.edge_target.size() == e &&
                     layers.edge_bytes.size() == e;
  if (!alike) throw std::invalid_argument("arrays of layers and of edges must be of one length");
  for (size_t i = 0; i < e; ++i) {
    const int32_t u = layers.edge_source(i), v = layers.edge_target(i);
    if (!(0 <= u && u < v && v < static_cast<int32_t>(n))) {
      throw std::invalid_argument("edges must lead from lower to higher layers");
    }
  }
  return {span_of(layers.parameter_bytes),
          span_of(layers.static_bytes),
          span_of(layers.activation_bytes),
          span_of(layers.is_split),
          span_of(layers.edge_source),
          span_of(layers.edge_target),
          span_of(layers.edge_bytes),
          memory_bytes,
          rules.bandwidth_bytes_per_s,
          recompute_named(recompute),
          rules.num_devices};
}

// What follows from the layers: a plan has at most as many narrow stages as there are such layers.
PlacementRules for_layers(PlacementRules rules, const LayerArrays& layers) {
  const auto n = static_cast<int64_t>(layers.is_split.size());
  const std::span<const uint8_t> split = span_of(layers.is_split);
  const auto whole = static_cast<int64_t>(std::count(split.begin(), split.end(), 0));
  if (whole == n) rules.tensor_parallel = 1;
  rules.max_stages = std::min(rules.num_devices, n);
  rules.max_narrow = rules.tensor_parallel > 1 ? std::min(whole, rules.max_stages) : 0;
  rules.max_data_parallel =
      std::min({rules.max_data_parallel, rules.num_devices, rules.num_microbatches});
  return rules;
}

nb::dict place_chain(Table<double> forward_s, Table<double> backward_s, Array<double> cutoff_s,
                     const LayerArrays& layers, double memory_bytes, const std::string& recompute,
                     const PlacementRules& given, const Poll& poll) {
  const size_t designs = forward_s.shape(0), n = layers.parameter_bytes.size();
  if (forward_s.shape(1) != n || backward_s.shape(0) != designs || backward_s.shape(1) != n ||
      cutoff_s.size() != designs || n == 0) {
    throw std::invalid_argument("times must be of shape [designs, layers]");
  }
  std::vector<double> time_s;
  std::vector<int64_t> data_parallel, stage_offset{0};
  std::vector<int32_t> stage_end;
  bool stopped = false;
  const std::function<bool()> ask = asking(poll);
  const PlacementRules rules = for_layers(given, layers);
  const ChainShape shape = shape_of(layers, memory_bytes, recompute, rules);
  {
    nb::gil_scoped_release release;
    trainwright::ChainStages stages(shape);
    for (size_t a = 0; a < designs; ++a) {
      const auto& graph = stages.at({forward_s.data() + a * n, n}, {backward_s.data() + a * n, n});
      trainwright::PlacedStages placed;
      placed.stopped = stopped;
      if (!stopped) placed = trainwright::place(graph, rules, cutoff_s(a), ask);
      stopped = placed.stopped || (a % 256 == 255 && ask && ask());
      time_s.push_back(placed.time_s);
      data_parallel.push_back(placed.data_parallel);
      for (const int64_t arc : placed.arcs) {
        stage_end.push_back(graph.arcs[static_cast<size_t>(arc)].target);
      }
      stage_offset.push_back(static_cast<int64_t>(stage_end.size()));
    }
  }
  nb::dict found;
  found["time_s"] = to_numpy(std::move(time_s));
  found["data_parallel"] = to_numpy(std::move(data_parallel));
  found["stage_offset"] = to_numpy(std::move(stage_offset));
  found["stage_end"] = to_numpy(std::move(stage_end));
  found["stopped"] = stopped;
  return found;
}

nb::dict place_graph(Array<double> forward_s, Array<double> backward_s, int64_t max_stage_sets,
                     const LayerArrays& layers, double memory_bytes, const std::string& recompute,
                     const PlacementRules& given, const Poll& poll) {
  const size_t n = layers.parameter_bytes.size();
  if (forward_s.size() != n || backward_s.size() != n || n == 0) {
    throw std::invalid_argument("times must be of shape [layers]");
  }
  const PlacementRules rules = for_layers(given, layers);
  const ChainShape shape = shape_of(layers, memory_bytes, recompute, rules);
  trainwright::PlacedStages placed;
  std::vector<int32_t> order;
  std::vector<int64_t> stage_offset{0};
  bool complete = false;
  const std::function<bool()> ask = asking(poll);
  {
    nb::gil_scoped_release release;
    const trainwright::DagStages stages(shape, span_of(forward_s), span_of(backward_s),
                                        max_stage_sets, ask);
    complete = stages.complete();
    if (complete) placed = trainwright::place(stages.graph(), rules, kInfinity, ask);
    const auto num_stages = static_cast<int64_t>(placed.arcs.size());
    for (int64_t k = 0; k < num_stages; ++k) {
      const int64_t arc = placed.arcs[static_cast<size_t>(k)];
      int64_t held = num_stages - k;
      if (rules.cap_in_flight) {
        const int64_t d = placed.data_parallel;
        held = std::min(held, (rules.num_microbatches + d - 1) / d);
      }
      const bool plain = held <= stages.graph().arcs[static_cast<size_t>(arc)].plain_until;
      for (const int32_t v : stages.order_of(arc, !plain)) order.push_back(v);
      stage_offset.push_back(static_cast<int64_t>(order.size()));
    }
  }
  nb::dict found;
  found["complete"] = complete;
  found["stopped"] = placed.stopped;
  found["time_s"] = placed.time_s;
  found["data_parallel"] = placed.data_parallel;
  found["stage_offset"] = to_numpy(std::move(stage_offset));
  found["layers"] = to_numpy(std::move(order));
  return found;
}

}  // namespace

void bind_placement(nb::module_& module) {
  nb::class_<LayerArrays>(module, "PlacementLayers")
      .def(
          "__init__",
          [](LayerArrays* made, Array<double> parameter_bytes, Array<double> static_bytes,
             Array<double> activation_bytes, Array<uint8_t> is_split, Array<int32_t> edge_source,
             Array<int32_t> edge_target, Array<double> edge_bytes) {
            new (made) LayerArrays{parameter_bytes, static_bytes, activation_bytes, is_split,
                                   edge_source,     edge_target,  edge_bytes};
          },
          nb::kw_only(), "parameter_bytes"_a, "static_bytes"_a, "activation_bytes"_a, "is_split"_a,
          "edge_source"_a, "edge_target"_a, "edge_bytes"_a);
  nb::class_<PlacementRules>(module, "PlacementRules")
      .def(
          "__init__",
          [](PlacementRules* made, int64_t tensor_parallel, int64_t num_devices,
             int64_t num_microbatches, int64_t max_data_parallel, double bandwidth_bytes_per_s,
             double sync_factor, bool sync_first_stage, bool cap_in_flight) {
            new (made) PlacementRules();
            made->tensor_parallel = tensor_parallel;
            made->num_devices = num_devices;
            made->num_microbatches = num_microbatches;
            made->max_data_parallel = max_data_parallel;
            made->bandwidth_bytes_per_s = bandwidth_bytes_per_s;
            made->sync_factor = sync_factor;
            made->sync_first_stage = sync_first_stage;
            made->cap_in_flight = cap_in_flight;
          },
          nb::kw_only(), "tensor_parallel"_a, "num_devices"_a, "num_microbatches"_a,
          "max_data_parallel"_a, "bandwidth_bytes_per_s"_a, "sync_factor"_a, "sync_first_stage"_a,
          "cap_in_flight"_a);
  module.def("place_chain", &place_chain, nb::kw_only(), "forward_s"_a, "backward_s"_a,
             "cutoff_s"_a, "layers"_a, "memory_bytes"_a, "recompute"_a, "rules"_a, "poll"_a.none());
  module.def("place_graph", &place_graph, nb::kw_only(), "forward_s"_a, "backward_s"_a,
             "max_stage_sets"_a, "layers"_a, "memory_bytes"_a, "recompute"_a, "rules"_a,
             "poll"_a.none());
}
