// Binding of the ranks of a loop: structs of arrays in, the least times of all ranks out.
#include "chain/loop_ranks.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bind/fields.hpp"
#include "bind/numpy_arrays.hpp"

namespace nb = nanobind;
using namespace trainwright;
using trainwright::numpy::Fields;
using trainwright::numpy::Given;
using trainwright::numpy::to_numpy;

void bind_loop_ranks(nb::module_& module) {
  Fields<LoopBlocks>()
      .number("forward_s", &LoopBlocks::forward_s)
      .number("static_bytes", &LoopBlocks::static_bytes)
      .number("optimizer_s", &LoopBlocks::optimizer_s)
      .number("transient_bytes", &LoopBlocks::transient_bytes)
      .array("time_s", &LoopBlocks::time_s)
      .array("kept_bytes", &LoopBlocks::kept_bytes)
      .bind(module, "LoopBlocks");
  Fields<LoopEdges>()
      .array("forward_s", &LoopEdges::forward_s)
      .array("time_s", &LoopEdges::time_s)
      .array("kept_bytes", &LoopEdges::kept_bytes)
      .array("static_bytes", &LoopEdges::static_bytes)
      .array("optimizer_s", &LoopEdges::optimizer_s)
      .bind(module, "LoopEdges");
  Fields<LoopSharing>()
      .number("under_backward", &LoopSharing::under_backward)
      .array("offset", &LoopSharing::offset)
      .array("forward_s", &LoopSharing::forward_s)
      .array("backward_s", &LoopSharing::backward_s)
      .array("tail_s", &LoopSharing::tail_s)
      .bind(module, "LoopSharing");
  Fields<LoopOrder>()
      .array("instant_offset", &LoopOrder::instant_offset)
      .table("held", &LoopOrder::held)
      .table("running", &LoopOrder::running)
      .table("warm", &LoopOrder::warm)
      .table("drain", &LoopOrder::drain)
      .table("turns", &LoopOrder::turns)
      .array("waits_twice", &LoopOrder::waits_twice)
      .bind(module, "LoopOrder");
  Fields<LoopRanks>()
      .number("num_ranks", &LoopRanks::num_ranks)
      .number("num_microbatches", &LoopRanks::num_microbatches)
      .number("forward_all_s", &LoopRanks::forward_all_s)
      .number("backward_all_s", &LoopRanks::backward_all_s)
      .array("forward_s", &LoopRanks::forward_s)
      .array("backward_s", &LoopRanks::backward_s)
      .number("usable_bytes", &LoopRanks::usable_bytes)
      .number("gathered_bytes", &LoopRanks::gathered_bytes)
      .array("least", &LoopRanks::least)
      .array("most", &LoopRanks::most)
      .array("again_s", &LoopRanks::again_s)
      .array("spared_bytes", &LoopRanks::spared_bytes)
      .array("transfer_s", &LoopRanks::transfer_s)
      .part("blocks", &LoopRanks::blocks)
      .part("edges", &LoopRanks::edges)
      .part("sharing", &LoopRanks::sharing)
      .part("order", &LoopRanks::order)
      .bind(module, "LoopRanks");
  module.def(
      "loop_rank_times_s",
      [](const Given<LoopRanks>& loop) {
        std::vector<double> times_s;
        {
          nb::gil_scoped_release release;
          times_s = loop_rank_times_s(loop.value);
        }
        return to_numpy(std::move(times_s));
      },
      nb::arg("loop"));
}
