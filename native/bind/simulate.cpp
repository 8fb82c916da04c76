// Binding of the schedule simulator: NumPy arrays in, NumPy arrays out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bind/numpy_arrays.hpp"
#include "bind/schedule.hpp"
#include "schedule/fixed_order.hpp"
#include "schedule/peak_rows.hpp"
#include "schedule/simulate.hpp"

namespace nb = nanobind;
using trainwright::FixedOrder;
using trainwright::Simulation;
using trainwright::numpy::Array;
using trainwright::numpy::column;
using trainwright::numpy::CostArrays;
using trainwright::numpy::MemoryArrays;
using trainwright::numpy::OrderArrays;
using trainwright::numpy::span_of;
using trainwright::numpy::Table;
using trainwright::numpy::to_numpy;

void bind_simulate(nb::module_& module) {
  nb::class_<OrderArrays>(module, "Orders")
      .def(nb::new_([](Table<int32_t> actions, Array<int64_t> rank_offsets,
                       Array<int32_t> rank_of_stage, Array<int64_t> pairs, int64_t num_microbatches,
                       int64_t num_pipelines, int64_t head_barriers) {
             return OrderArrays{actions,          rank_offsets,  rank_of_stage, pairs,
                                num_microbatches, num_pipelines, head_barriers};
           }),
           nb::kw_only(), nb::arg("actions"), nb::arg("rank_offsets"), nb::arg("rank_of_stage"),
           nb::arg("pairs"), nb::arg("num_microbatches"), nb::arg("num_pipelines") = 1,
           nb::arg("head_barriers") = 0);

  nb::class_<CostArrays>(module, "ActionCosts")
      .def(nb::new_([](Table<double> duration_s, Array<double> forward_transfer_s,
                       Array<double> backward_transfer_s, Array<double> pair_s,
                       Array<double> network_s, Array<double> slice_s, double barrier_s,
                       const std::string& model, double blocking_fraction) {
             return CostArrays{duration_s,          forward_transfer_s,
                               backward_transfer_s, pair_s,
                               network_s,           slice_s,
                               barrier_s,           trainwright::numpy::model_named(model),
                               blocking_fraction};
           }),
           nb::kw_only(), nb::arg("duration_s"), nb::arg("forward_transfer_s"),
           nb::arg("backward_transfer_s"), nb::arg("pair_s"), nb::arg("network_s"),
           nb::arg("slice_s"), nb::arg("barrier_s"), nb::arg("model"),
           nb::arg("blocking_fraction"));

  nb::class_<Simulation>(module, "Simulation")
      .def_ro("complete", &Simulation::complete)
      .def_prop_ro("start_s", &column<&Simulation::start_s>, nb::rv_policy::reference_internal)
      .def_prop_ro("end_s", &column<&Simulation::end_s>, nb::rv_policy::reference_internal)
      .def_prop_ro("forward_arrival_s", &column<&Simulation::forward_arrival_s>,
                   nb::rv_policy::reference_internal)
      .def_prop_ro("backward_arrival_s", &column<&Simulation::backward_arrival_s>,
                   nb::rv_policy::reference_internal)
      .def_prop_ro("blocked_rows", &column<&Simulation::blocked_rows>,
                   nb::rv_policy::reference_internal);

  module.def(
      "simulate",
      [](const OrderArrays& orders, const CostArrays& costs) {
        nb::gil_scoped_release release;
        return trainwright::simulate(orders.view(), costs.view());
      },
      nb::arg("orders"), nb::arg("costs"));

  module.def(
      "latest_starts",
      [](const OrderArrays& orders, const CostArrays& costs, Array<double> deadline_s) {
        std::vector<double> starts;
        {
          nb::gil_scoped_release release;
          starts = trainwright::latest_starts(orders.view(), costs.view(), span_of(deadline_s));
        }
        return to_numpy(std::move(starts));
      },
      nb::arg("orders"), nb::arg("costs"), nb::arg("deadline_s"));

  nb::class_<FixedOrder>(module, "FixedOrder")
      .def(nb::new_([](const OrderArrays& orders) { return FixedOrder(orders.view()); }),
           nb::arg("orders"))
      .def(
          "ends_s",
          [](const FixedOrder& order, Table<double> duration_s, Array<double> forward_transfer_s,
             Array<double> backward_transfer_s) {
            const auto stages = static_cast<size_t>(order.num_stages());
            if (duration_s.size() != trainwright::kNumActionKinds * stages ||
                forward_transfer_s.size() + 1 != stages || backward_transfer_s.size() + 1 != stages)
              throw std::invalid_argument("tables must have the stages of the orders");
            std::vector<double> ends_s;
            {
              nb::gil_scoped_release release;
              ends_s = order.ends_s(span_of(duration_s), span_of(forward_transfer_s),
                                    span_of(backward_transfer_s));
            }
            return to_numpy(std::move(ends_s));
          },
          nb::arg("duration_s"), nb::arg("forward_transfer_s"), nb::arg("backward_transfer_s"));

  nb::class_<MemoryArrays>(module, "ActionMemory")
      .def(nb::new_([](Table<double> delta_bytes, Table<double> transient_bytes,
                       Array<double> static_bytes, Array<double> limit_bytes) {
             return MemoryArrays{delta_bytes, transient_bytes, static_bytes, limit_bytes};
           }),
           nb::kw_only(), nb::arg("delta_bytes"), nb::arg("transient_bytes"),
           nb::arg("static_bytes"), nb::arg("limit_bytes"));

  module.def(
      "peak_bytes",
      [](const OrderArrays& orders, const MemoryArrays& memory, const CostArrays* costs) {
        if (costs == nullptr)
          return to_numpy(trainwright::peak_bytes(orders.view(), memory.view()));
        const trainwright::ActionCosts times = costs->view();
        return to_numpy(trainwright::peak_bytes(orders.view(), memory.view(), &times));
      },
      nb::arg("orders"), nb::arg("memory"), nb::arg("costs").none() = nb::none());
  module.def(
      "undominated_rows",
      [](Table<int64_t> rows) {
        return to_numpy(
            trainwright::undominated_rows(span_of(rows), static_cast<int64_t>(rows.shape(1))));
      },
      nb::arg("rows"));
  module.def(
      "fullest_rows",
      [](Table<int32_t> actions, Array<int64_t> owned, Table<int64_t> kinds) {
        const auto row = [&](size_t number) {
          return span_of(kinds).subspan(number * kinds.shape(1), kinds.shape(1));
        };
        if (actions.shape(1) != 3 || kinds.shape(0) != 4) throw nb::value_error("wrong shapes");
        return to_numpy(trainwright::fullest_rows(span_of(actions), span_of(owned),
                                                  {row(0), row(1), row(2), row(3)}));
      },
      nb::arg("actions"), nb::arg("owned"), nb::arg("kinds"));
}
