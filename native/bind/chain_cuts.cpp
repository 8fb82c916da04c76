// Binding of the cuts of a chain: one array per property in, the best cut out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bind/numpy_arrays.hpp"
#include "chain/chain_cuts.hpp"

namespace nb = nanobind;
using trainwright::numpy::Array;
using trainwright::numpy::span_of;
using trainwright::numpy::Table;
using trainwright::numpy::to_numpy;

void bind_chain_cuts(nb::module_& module) {
  module.def(
      "unbeaten_ways",
      [](Table<double> takes) { return to_numpy(trainwright::unbeaten_ways(span_of(takes))); },
      nb::arg("takes"));
  module.def(
      "fitting_times_s",
      [](int64_t num_ranks, Array<int64_t> level_offset, Array<double> level_bytes,
         Array<int64_t> way_offset, Table<double> ways, Array<double> room_bytes,
         Table<double> rows) {
        const trainwright::ChainMemory memory{num_ranks,
                                              static_cast<int64_t>(room_bytes.size()),
                                              span_of(level_offset),
                                              span_of(level_bytes),
                                              span_of(way_offset),
                                              span_of(ways),
                                              span_of(room_bytes),
                                              span_of(rows)};
        std::vector<double> times_s;
        {
          nb::gil_scoped_release release;
          times_s = trainwright::fitting_times_s(memory);
        }
        return to_numpy(std::move(times_s));
      },
      nb::kw_only(), nb::arg("num_ranks"), nb::arg("level_offset"), nb::arg("level_bytes"),
      nb::arg("way_offset"), nb::arg("ways"), nb::arg("room_bytes"), nb::arg("rows"));
  module.def(
      "least_chain_cut",
      [](int64_t num_microbatches, double tie, Table<int64_t> kind_of, Table<double> forward_s,
         Table<double> weight_grad_s, Table<double> time_s, Table<double> tail_s,
         Table<double> transfer_s, Table<int64_t> order) {
        const trainwright::ChainCuts chain{static_cast<int64_t>(time_s.shape(0)),
                                           static_cast<int64_t>(kind_of.shape(0)),
                                           static_cast<int64_t>(kind_of.shape(1)),
                                           static_cast<int64_t>(time_s.shape(1)),
                                           num_microbatches,
                                           tie,
                                           span_of(kind_of),
                                           span_of(forward_s),
                                           span_of(weight_grad_s),
                                           span_of(time_s),
                                           span_of(tail_s),
                                           span_of(transfer_s),
                                           span_of(order)};
        trainwright::ChainCut found;
        {
          nb::gil_scoped_release release;
          found = trainwright::least_chain_cut(chain);
        }
        return nb::make_tuple(found.finish_s, to_numpy(std::move(found.lengths)));
      },
      nb::kw_only(), nb::arg("num_microbatches"), nb::arg("tie"), nb::arg("kind_of"),
      nb::arg("forward_s"), nb::arg("weight_grad_s"), nb::arg("time_s"), nb::arg("tail_s"),
      nb::arg("transfer_s"), nb::arg("order"));
}
