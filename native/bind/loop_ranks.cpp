// Binding of the ranks of a loop: one array per property in, the least times of all ranks out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bind/numpy_arrays.hpp"
#include "chain/loop_ranks.hpp"

namespace nb = nanobind;
using trainwright::numpy::Array;
using trainwright::numpy::span_of;
using trainwright::numpy::Table;
using trainwright::numpy::to_numpy;

void bind_loop_ranks(nb::module_& module) {
  module.def(
      "loop_rank_times_s",
      [](int64_t num_ranks, int64_t num_microbatches, double block_forward_s,
         double block_static_bytes, double block_optimizer_s, double forward_all_s,
         double backward_all_s, double usable_bytes, double gathered_bytes, double transient_bytes,
         double under_backward, Array<double> option_time_s, Array<double> option_kept_bytes,
         Array<int64_t> least, Array<int64_t> most, Array<double> edge_forward_s,
         Array<double> edge_time_s, Array<double> edge_kept_bytes, Array<double> edge_static_bytes,
         Array<double> edge_optimizer_s, Array<double> transfer_s, Array<int64_t> extra_offset,
         Array<double> shared_forward_s, Array<double> shared_backward_s,
         Array<double> shared_tail_s, Array<int64_t> instant_offset, Table<double> held,
         Table<double> running, Table<double> warm, Table<double> drain, Table<int64_t> turns,
         Array<int64_t> waits_twice) {
        const trainwright::LoopRanks loop{num_ranks,
                                          num_microbatches,
                                          block_forward_s,
                                          block_static_bytes,
                                          block_optimizer_s,
                                          forward_all_s,
                                          backward_all_s,
                                          usable_bytes,
                                          gathered_bytes,
                                          transient_bytes,
                                          under_backward,
                                          span_of(option_time_s),
                                          span_of(option_kept_bytes),
                                          span_of(least),
                                          span_of(most),
                                          span_of(edge_forward_s),
                                          span_of(edge_time_s),
                                          span_of(edge_kept_bytes),
                                          span_of(edge_static_bytes),
                                          span_of(edge_optimizer_s),
                                          span_of(transfer_s),
                                          span_of(extra_offset),
                                          span_of(shared_forward_s),
                                          span_of(shared_backward_s),
                                          span_of(shared_tail_s),
                                          span_of(instant_offset),
                                          span_of(held),
                                          span_of(running),
                                          span_of(warm),
                                          span_of(drain),
                                          span_of(turns),
                                          span_of(waits_twice)};
        std::vector<double> times_s;
        {
          nb::gil_scoped_release release;
          times_s = trainwright::loop_rank_times_s(loop);
        }
        return to_numpy(std::move(times_s));
      },
      nb::kw_only(), nb::arg("num_ranks"), nb::arg("num_microbatches"), nb::arg("block_forward_s"),
      nb::arg("block_static_bytes"), nb::arg("block_optimizer_s"), nb::arg("forward_all_s"),
      nb::arg("backward_all_s"), nb::arg("usable_bytes"), nb::arg("gathered_bytes"),
      nb::arg("transient_bytes"), nb::arg("under_backward"), nb::arg("option_time_s"),
      nb::arg("option_kept_bytes"), nb::arg("least"), nb::arg("most"), nb::arg("edge_forward_s"),
      nb::arg("edge_time_s"), nb::arg("edge_kept_bytes"), nb::arg("edge_static_bytes"),
      nb::arg("edge_optimizer_s"), nb::arg("transfer_s"), nb::arg("extra_offset"),
      nb::arg("shared_forward_s"), nb::arg("shared_backward_s"), nb::arg("shared_tail_s"),
      nb::arg("instant_offset"), nb::arg("held"), nb::arg("running"), nb::arg("warm"),
      nb::arg("drain"), nb::arg("turns"), nb::arg("waits_twice"));
}
