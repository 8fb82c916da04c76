// Binding of the exact partitioner: NumPy arrays to PartitionProblem, and the result back.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bind/numpy_arrays.hpp"
#include "partition/partition.hpp"

namespace nb = nanobind;
using trainwright::PartitionLimits;
using trainwright::PartitionProblem;
using trainwright::PartitionProgress;
using trainwright::PartitionResult;
using trainwright::PartitionStage;
using trainwright::PartitionStatus;
using trainwright::RejectedStage;
using trainwright::numpy::Array;

namespace {

template <typename T>
std::vector<T> copy(const Array<T>& array) {
  return std::vector<T>(array.data(), array.data() + array.size());
}

PartitionProblem partition_problem(
    const Array<int32_t>& edge_source, const Array<int32_t>& edge_target,
    const Array<double>& edge_bytes, const Array<int32_t>& tensor_degrees,
    const Array<int64_t>& option_offset, const Array<double>& option_time_s,
    const Array<double>& option_gradient_bytes, const Array<double>& option_saved_bytes,
    const Array<double>& option_static_bytes, const Array<int64_t>& option_boundary_offset,
    const Array<double>& option_boundary_bytes, int32_t num_layers, double memory_bytes,
    double bandwidth_bytes_per_s, int64_t num_devices, int64_t num_microbatches,
    const Array<int64_t>& data_degrees) {
  PartitionProblem problem;
  problem.num_layers = num_layers;
  problem.edge_source = copy(edge_source);
  problem.edge_target = copy(edge_target);
  problem.edge_bytes = copy(edge_bytes);
  problem.tensor_degrees = copy(tensor_degrees);
  problem.option_offset = copy(option_offset);
  problem.option_time_s = copy(option_time_s);
  problem.option_gradient_bytes = copy(option_gradient_bytes);
  problem.option_saved_bytes = copy(option_saved_bytes);
  problem.option_static_bytes = copy(option_static_bytes);
  problem.option_boundary_offset = copy(option_boundary_offset);
  problem.option_boundary_bytes = copy(option_boundary_bytes);
  problem.memory_bytes = memory_bytes;
  problem.bandwidth_bytes_per_s = bandwidth_bytes_per_s;
  problem.num_devices = num_devices;
  problem.num_microbatches = num_microbatches;
  problem.data_degrees = copy(data_degrees);
  return problem;
}

// `poll` runs Python, and so also its signal handlers. An exception stops the search and is raised
// again once the core has returned.
PartitionResult solve(const PartitionProblem& problem, PartitionLimits limits, nb::object poll) {
  std::exception_ptr raised;
  if (!poll.is_none()) {
    limits.poll = [&](const PartitionProgress& progress) {
      nb::gil_scoped_acquire gil;
      try {
        return nb::cast<bool>(
            poll(progress.elapsed_s, progress.time_per_sample_s, progress.lower_bound_s));
      } catch (...) {
        raised = std::current_exception();
        return true;
      }
    };
  }
  PartitionResult result;
  {
    nb::gil_scoped_release release;
    result = trainwright::solve_partition(problem, limits);
  }
  if (raised) std::rethrow_exception(raised);
  return result;
}

const char* status_name(const PartitionResult& result) {
  switch (result.status) {
    case PartitionStatus::optimal:
      return "optimal";
    case PartitionStatus::gap:
      return "gap";
    case PartitionStatus::infeasible:
      return "infeasible";
    case PartitionStatus::unknown:
      return "unknown";
  }
  return "unknown";
}

std::map<std::string, int64_t> counters_of(const PartitionResult& result) {
  const auto& counters = result.counters;
  return {{"downsets", counters.downsets},
          {"passes", counters.passes},
          {"labels", counters.labels},
          {"dead_ends", counters.dead_ends},
          {"candidates", counters.candidates},
          {"relaxations", counters.relaxations},
          {"knapsacks", counters.knapsacks},
          {"capped_knapsacks", counters.capped_knapsacks},
          {"bound_tables", counters.bound_tables},
          {"peak_label_bytes", counters.peak_label_bytes}};
}

}  // namespace

void bind_partition(nb::module_& module) {
  nb::class_<PartitionProblem>(module, "PartitionProblem")
      .def(nb::new_(&partition_problem), nb::kw_only(), nb::arg("edge_source"),
           nb::arg("edge_target"), nb::arg("edge_bytes"), nb::arg("tensor_degrees"),
           nb::arg("option_offset"), nb::arg("option_time_s"), nb::arg("option_gradient_bytes"),
           nb::arg("option_saved_bytes"), nb::arg("option_static_bytes"),
           nb::arg("option_boundary_offset"), nb::arg("option_boundary_bytes"),
           nb::arg("num_layers"), nb::arg("memory_bytes"), nb::arg("bandwidth_bytes_per_s"),
           nb::arg("num_devices"), nb::arg("num_microbatches"), nb::arg("data_degrees"));

  nb::class_<PartitionStage>(module, "PartitionStage")
      .def_ro("layers", &PartitionStage::layers)
      .def_ro("data_degree", &PartitionStage::data_degree)
      .def_ro("tensor_degree", &PartitionStage::tensor_degree)
      .def_ro("option_rows", &PartitionStage::option_rows);

  nb::class_<RejectedStage>(module, "RejectedStage")
      .def_ro("layers", &RejectedStage::layers)
      .def_ro("data_degree", &RejectedStage::data_degree)
      .def_ro("tensor_degree", &RejectedStage::tensor_degree)
      .def_ro("num_in_flight", &RejectedStage::num_in_flight)
      .def_ro("threshold_s", &RejectedStage::threshold_s);

  nb::class_<PartitionResult>(module, "PartitionResult")
      .def_prop_ro("status", &status_name)
      .def_ro("time_per_sample_s", &PartitionResult::time_per_sample_s)
      .def_ro("lower_bound_s", &PartitionResult::lower_bound_s)
      .def_ro("stages", &PartitionResult::stages)
      .def_ro("audit", &PartitionResult::audit)
      .def_prop_ro("counters", &counters_of)
      .def_ro("solver_s", &PartitionResult::solver_s)
      .def_ro("interrupted", &PartitionResult::interrupted)
      .def_ro("time_limited", &PartitionResult::time_limited)
      .def_ro("restricted", &PartitionResult::restricted);

  module.def(
      "solve_partition",
      [](const PartitionProblem& problem, double time_limit_s, nb::object poll,
         std::optional<int64_t> max_downsets, std::optional<int64_t> max_pairs,
         std::optional<int64_t> priced_from, int64_t audit_sample, uint64_t audit_seed) {
        PartitionLimits limits;
        limits.time_limit_s = time_limit_s;
        limits.audit_sample = audit_sample;
        limits.audit_seed = audit_seed;
        if (max_downsets) limits.max_downsets = *max_downsets;
        if (max_pairs) limits.max_pairs = *max_pairs;
        if (priced_from) limits.priced_from = *priced_from;
        return solve(problem, limits, std::move(poll));
      },
      nb::arg("problem"), nb::kw_only(), nb::arg("time_limit_s"), nb::arg("poll").none(),
      nb::arg("max_downsets") = nb::none(), nb::arg("max_pairs") = nb::none(),
      nb::arg("priced_from") = nb::none(), nb::arg("audit_sample") = 0, nb::arg("audit_seed") = 0);
}
