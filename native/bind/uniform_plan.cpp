// Binding of uniform plans: one chain, many designs; columns in, plans out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "bind/fields.hpp"
#include "bind/numpy_arrays.hpp"
#include "bind/schedule.hpp"
#include "chain/family_plan.hpp"
#include "chain/uniform_plan.hpp"

namespace nb = nanobind;
using namespace trainwright;
using trainwright::numpy::Array;
using trainwright::numpy::Fields;
using trainwright::numpy::Given;
using trainwright::numpy::OrderArrays;
using trainwright::numpy::span_of;
using trainwright::numpy::Table;
using trainwright::numpy::to_numpy;

namespace {

std::vector<UniformPlan> solve(const UniformProblem& problem, const Table<double>& forward_s,
                               const Table<double>& backward_s, const Table<double>& update_s,
                               const Array<double>& cutoff_s) {
  const size_t classes = problem.num_classes(), options = problem.num_options();
  std::vector<UniformPlan> plans;
  for (size_t n = 0; n < cutoff_s.size(); ++n)
    plans.push_back(
        fastest_uniform_plan(problem,
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
  Fields<zero::Sharing>()
      .table("layer_bytes", &zero::Sharing::layer_bytes)
      .array("beside_bytes", &zero::Sharing::beside_bytes)
      .array("gradients_start_s", &zero::Sharing::gradients_start_s)
      .array("gradients_byte_s", &zero::Sharing::gradients_byte_s)
      .array("parameters_start_s", &zero::Sharing::parameters_start_s)
      .array("parameters_byte_s", &zero::Sharing::parameters_byte_s)
      .array("beside_s", &zero::Sharing::beside_s)
      .array("update_parts", &zero::Sharing::update_parts)
      .number("gradients_under", &zero::Sharing::gradients_under)
      .number("parameters_under", &zero::Sharing::parameters_under)
      .bind(module, "Sharing");
  Fields<UniformProblem>()
      .array("layer_class", &UniformProblem::layer_class)
      .array("transfer_s", &UniformProblem::transfer_s)
      .table("saved_bytes", &UniformProblem::saved_bytes)
      .table("transient_bytes", &UniformProblem::transient_bytes)
      .array("sync_bytes", &UniformProblem::sync_bytes)
      .array("data_degrees", &UniformProblem::data_degrees)
      .part("sharing", &UniformProblem::sharing)
      .number("memory_bytes", &UniformProblem::memory_bytes)
      .number("tensor_degree", &UniformProblem::tensor_degree)
      .number("num_devices", &UniformProblem::num_devices)
      .number("num_microbatches", &UniformProblem::num_microbatches)
      .bind(module, "UniformProblem");
  module.def(
      "fastest_uniform_plans",
      [](const Given<UniformProblem>& problem, Table<double> forward_s, Table<double> backward_s,
         Table<double> update_s, Array<double> cutoff_s) {
        std::vector<UniformPlan> plans;
        {
          nb::gil_scoped_release release;
          plans = solve(problem.value, forward_s, backward_s, update_s, cutoff_s);
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
      [](const Given<UniformProblem>& given, const OwnedOrder& order, Table<double> forward_s,
         Table<double> backward_s, Table<double> weight_grad_s, Table<double> update_s,
         Array<double> pending_bytes, Array<double> restored_bytes, Array<double> cutoff_s,
         size_t option, size_t degree) {
        const UniformProblem& problem = given.value;
        std::vector<FamilyPlan> plans;
        {
          nb::gil_scoped_release release;
          const size_t classes = problem.num_classes(), options = problem.num_options();
          for (size_t n = 0; n < cutoff_s.size(); ++n)
            plans.push_back(
                fastest_family_plan(problem,
                                    {{forward_s.data() + n * classes, classes},
                                     {backward_s.data() + n * classes * options, classes * options},
                                     {update_s.data() + n * classes, classes}},
                                    {{weight_grad_s.data() + n * classes, classes},
                                     span_of(pending_bytes),
                                     span_of(restored_bytes)},
                                    order.view(), option, degree, cutoff_s.data()[n]));
        }
        std::vector<std::vector<int64_t>> starts;
        for (const FamilyPlan& plan : plans) starts.push_back(plan.starts);
        return nb::make_tuple(column<double>(plans, [](const FamilyPlan& x) { return x.step_s; }),
                              starts);
      },
      nb::arg("problem"), nb::arg("order"), nb::kw_only(), nb::arg("forward_s"),
      nb::arg("backward_s"), nb::arg("weight_grad_s"), nb::arg("update_s"),
      nb::arg("pending_bytes"), nb::arg("restored_bytes"), nb::arg("cutoff_s"), nb::arg("option"),
      nb::arg("degree"));
}
