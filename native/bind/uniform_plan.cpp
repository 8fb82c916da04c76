// Binding of uniform plans: one chain, many designs; columns in, plans out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "bind/numpy_arrays.hpp"
#include "bind/schedule.hpp"
#include "chain/family_plan.hpp"
#include "chain/uniform_plan.hpp"

namespace nb = nanobind;
using namespace trainwright;
using trainwright::numpy::Array;
using trainwright::numpy::OrderArrays;
using trainwright::numpy::span_of;
using trainwright::numpy::Table;
using trainwright::numpy::to_numpy;

namespace {

template <typename T>
std::vector<T> copy_of(const Array<T>& array) {
  return {array.data(), array.data() + array.size()};
}

// A problem that owns its arrays.
struct OwnedProblem {
  std::vector<int32_t> layer_class;
  std::vector<double> transfer_s, saved, transient, fixed, sharded, sync;
  std::vector<int64_t> degrees;
  UniformProblem view;
};

std::vector<UniformPlan> solve(const OwnedProblem& problem, const Table<double>& forward_s,
                               const Table<double>& backward_s, const Table<double>& update_s,
                               const Array<double>& cutoff_s) {
  const size_t classes = problem.view.num_classes(), options = problem.view.num_options;
  std::vector<UniformPlan> plans;
  for (size_t n = 0; n < cutoff_s.size(); ++n)
    plans.push_back(
        fastest_uniform_plan(problem.view,
                             {{forward_s.data() + n * classes, classes},
                              {backward_s.data() + n * classes * options, classes * options},
                              {update_s.data() + n * classes, classes}},
                             cutoff_s.data()[n]));
  return plans;
}

// Orders of a family with what its ranks can hold at once.
struct OwnedOrder {
  OrderArrays orders;
  Table<int32_t> counts;
  Array<int64_t> count_offset;

  FamilyOrder view() const {
    return {.orders = orders.view(),
            .num_chunks = static_cast<int64_t>(counts.shape(1)) / 3,
            .counts = span_of(counts),
            .count_offset = span_of(count_offset)};
  }
};

template <typename T, typename Plan, typename Get>
auto column(const std::vector<Plan>& plans, Get get) {
  std::vector<T> values;
  for (const Plan& plan : plans) values.push_back(get(plan));
  return to_numpy(std::move(values));
}

}  // namespace

void bind_uniform_plan(nb::module_& module) {
  nb::class_<OwnedProblem>(module, "UniformProblem")
      .def(
          "__init__",
          [](OwnedProblem* self, Array<int32_t> layer_class, Array<double> transfer_s,
             Array<double> saved_bytes, Array<double> transient_bytes, Array<double> static_bytes,
             Array<double> sharded_bytes, Array<double> sync_bytes, Array<int64_t> data_degrees,
             double memory_bytes, double link_byte_s, double link_latency_s, double sync_overlap,
             bool update_shards, int64_t tensor_degree, int64_t num_devices,
             int64_t num_microbatches) {
            new (self) OwnedProblem{
                copy_of(layer_class),     copy_of(transfer_s),   copy_of(saved_bytes),
                copy_of(transient_bytes), copy_of(static_bytes), copy_of(sharded_bytes),
                copy_of(sync_bytes),      copy_of(data_degrees), {}};
            self->view = {self->layer_class,
                          self->transfer_s,
                          self->saved,
                          self->transient,
                          self->fixed,
                          self->sharded,
                          self->sync,
                          self->degrees,
                          memory_bytes,
                          link_byte_s,
                          link_latency_s,
                          sync_overlap,
                          update_shards ? 1.0 : 0.0,
                          tensor_degree,
                          num_devices,
                          num_microbatches,
                          self->saved.size() / self->fixed.size()};
          },
          nb::kw_only(), nb::arg("layer_class"), nb::arg("transfer_s"), nb::arg("saved_bytes"),
          nb::arg("transient_bytes"), nb::arg("static_bytes"), nb::arg("sharded_bytes"),
          nb::arg("sync_bytes"), nb::arg("data_degrees"), nb::arg("memory_bytes"),
          nb::arg("link_byte_s"), nb::arg("link_latency_s"), nb::arg("sync_overlap") = 0.0,
          nb::arg("update_shards"), nb::arg("tensor_degree"), nb::arg("num_devices"),
          nb::arg("num_microbatches"));
  module.def(
      "fastest_uniform_plans",
      [](const OwnedProblem& problem, Table<double> forward_s, Table<double> backward_s,
         Table<double> update_s, Array<double> cutoff_s) {
        std::vector<UniformPlan> plans;
        {
          nb::gil_scoped_release release;
          plans = solve(problem, forward_s, backward_s, update_s, cutoff_s);
        }
        std::vector<std::vector<int64_t>> starts, options;
        for (const UniformPlan& plan : plans) {
          starts.push_back(plan.starts);
          options.push_back(plan.options);
        }
        return nb::make_tuple(
            column<double>(plans, [](const UniformPlan& x) { return x.step_s; }),
            column<int64_t>(plans, [](const UniformPlan& x) { return x.data_degree; }), starts,
            options);
      },
      nb::arg("problem"), nb::kw_only(), nb::arg("forward_s"), nb::arg("backward_s"),
      nb::arg("update_s"), nb::arg("cutoff_s"));

  nb::class_<OwnedOrder>(module, "FamilyOrder")
      .def(nb::new_(
               [](const OrderArrays& orders, Table<int32_t> counts, Array<int64_t> count_offset) {
                 return OwnedOrder{orders, counts, count_offset};
               }),
           nb::kw_only(), nb::arg("orders"), nb::arg("counts"), nb::arg("count_offset"));
  module.def(
      "fastest_family_plans",
      [](const OwnedProblem& problem, const OwnedOrder& order, Table<double> forward_s,
         Table<double> backward_s, Table<double> weight_grad_s, Table<double> update_s,
         Array<double> pending_bytes, Array<double> restored_bytes, Array<double> cutoff_s,
         size_t option, int64_t data_degree) {
        std::vector<FamilyPlan> plans;
        {
          nb::gil_scoped_release release;
          const size_t classes = problem.view.num_classes(), options = problem.view.num_options;
          for (size_t n = 0; n < cutoff_s.size(); ++n)
            plans.push_back(
                fastest_family_plan(problem.view,
                                    {{forward_s.data() + n * classes, classes},
                                     {backward_s.data() + n * classes * options, classes * options},
                                     {update_s.data() + n * classes, classes}},
                                    {{weight_grad_s.data() + n * classes, classes},
                                     span_of(pending_bytes),
                                     span_of(restored_bytes)},
                                    order.view(), option, data_degree, cutoff_s.data()[n]));
        }
        std::vector<std::vector<int64_t>> starts;
        for (const FamilyPlan& plan : plans) starts.push_back(plan.starts);
        return nb::make_tuple(column<double>(plans, [](const FamilyPlan& x) { return x.step_s; }),
                              starts);
      },
      nb::arg("problem"), nb::arg("order"), nb::kw_only(), nb::arg("forward_s"),
      nb::arg("backward_s"), nb::arg("weight_grad_s"), nb::arg("update_s"),
      nb::arg("pending_bytes"), nb::arg("restored_bytes"), nb::arg("cutoff_s"), nb::arg("option"),
      nb::arg("data_degree"));
}
