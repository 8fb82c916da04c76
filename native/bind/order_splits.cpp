// Bindings of the bounds on splits of a fixed order: structs of arrays in, seconds out.
#include "chain/order_splits.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bind/fields.hpp"
#include "bind/numpy_arrays.hpp"
#include "bind/schedule.hpp"
#include "chain/whole_loops.hpp"

namespace nb = nanobind;
using namespace trainwright;
using trainwright::numpy::column;
using trainwright::numpy::Fields;
using trainwright::numpy::Given;
using trainwright::numpy::OrderArrays;

void bind_order_splits(nb::module_& module) {
  Fields<OrderSplits>()
      .number("num_ways", &OrderSplits::num_ways)
      .number("num_blocks", &OrderSplits::num_blocks)
      .number("limit_s", &OrderSplits::limit_s)
      .number("near", &OrderSplits::near)
      .array("least", &OrderSplits::least)
      .array("forward_s", &OrderSplits::forward_s)
      .array("backward_s", &OrderSplits::backward_s)
      .table("block_forward_s", &OrderSplits::block_forward_s)
      .table("block_backward_s", &OrderSplits::block_backward_s)
      .array("after_s", &OrderSplits::after_s)
      .table("block_after_s", &OrderSplits::block_after_s)
      .array("transfer_s", &OrderSplits::transfer_s)
      .table("block_held", &OrderSplits::block_held)
      .array("room", &OrderSplits::room)
      .bind(module, "OrderSplits");
  nb::class_<LeastOfOrder>(module, "LeastOfOrder")
      .def_ro("step_s", &LeastOfOrder::step_s)
      .def_ro("reached_s", &LeastOfOrder::reached_s)
      .def_prop_ro("blocks", &column<&LeastOfOrder::blocks>, nb::rv_policy::reference_internal);
  module.def(
      "least_of_order",
      [](const Given<OrderSplits>& splits, const OrderArrays& orders, const LeastOfOrder* start) {
        nb::gil_scoped_release release;
        return least_of_order(splits.value, orders.view(), start);
      },
      nb::arg("splits"), nb::arg("orders"), nb::arg("start").none() = nb::none());
  Fields<WholeLoop>()
      .number("num_blocks", &WholeLoop::num_blocks)
      .number("limit_s", &WholeLoop::limit_s)
      .number("most_actions", &WholeLoop::most_actions)
      .array("least", &WholeLoop::least)
      .table("forward_s", &WholeLoop::forward_s)
      .table("backward_s", &WholeLoop::backward_s)
      .table("after_s", &WholeLoop::after_s)
      .array("rank_after_s", &WholeLoop::rank_after_s)
      .array("transfer_s", &WholeLoop::transfer_s)
      .array("most_of_rank", &WholeLoop::most_of_rank)
      .number("static_bytes", &WholeLoop::static_bytes)
      .number("under_backward", &WholeLoop::under_backward)
      .array("block_time_s", &WholeLoop::block_time_s)
      .array("block_bytes", &WholeLoop::block_bytes)
      .array("instant_offset", &WholeLoop::instant_offset)
      .table("held", &WholeLoop::held)
      .array("room_bytes", &WholeLoop::room_bytes)
      .table("exchanged_s", &WholeLoop::exchanged_s)
      .bind(module, "WholeLoop");
  nb::class_<LeastOfWhole>(module, "LeastOfWhole")
      .def_ro("step_s", &LeastOfWhole::step_s)
      .def_ro("actions", &LeastOfWhole::actions)
      .def_prop_ro("blocks", &column<&LeastOfWhole::blocks>, nb::rv_policy::reference_internal);
  module.def(
      "least_of_whole",
      [](const Given<WholeLoop>& loop, const OrderArrays& orders) {
        nb::gil_scoped_release release;
        return least_of_whole(loop.value, orders.view());
      },
      nb::arg("loop"), nb::arg("orders"));
}
