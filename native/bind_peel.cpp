// Binding of the V peel: one array per property of the kinds in, the best split out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "numpy_arrays.hpp"
#include "peel.hpp"

namespace nb = nanobind;
using trainwright::numpy::Array;
using trainwright::numpy::span_of;
using trainwright::numpy::Table;
using trainwright::numpy::to_numpy;

namespace {

template <typename Search>
auto bound(Search search) {
  return
      [search](int64_t num_ranks, int64_t num_microbatches, int64_t max_activations,
               double usable_bytes, double gathered_share, double floor_s, double limit_s,
               Table<int64_t> kind_of, Array<double> forward_s, Array<double> input_grad_s,
               Array<double> weight_grad_s, Array<double> tail_s, Array<double> optimizer_s,
               Array<double> static_bytes, Array<double> weight_bytes,
               Array<double> largest_weight_bytes, Array<int64_t> level_offset, Array<double> transient_bytes,
               Array<double> beside_bytes, Array<int64_t> front_offset, Array<double> front_bytes,
               Array<double> front_time_s, Array<double> forward_before_s,
               Array<double> input_grad_before_s, Array<double> transfer_s,
               Table<double> near_in_flight, Table<double> far_in_flight, double chunk_s) {
        const trainwright::PeelProblem problem{num_ranks,
                                               static_cast<int64_t>(kind_of.shape(0)),
                                               num_microbatches,
                                               max_activations,
                                               usable_bytes,
                                               gathered_share,
                                               floor_s,
                                               limit_s,
                                               span_of(kind_of),
                                               span_of(forward_s),
                                               span_of(input_grad_s),
                                               span_of(weight_grad_s),
                                               span_of(tail_s),
                                               span_of(optimizer_s),
                                               span_of(static_bytes),
                                               span_of(weight_bytes),
                                               span_of(largest_weight_bytes),
                                               span_of(level_offset),
                                               span_of(transient_bytes),
                                               span_of(beside_bytes),
                                               span_of(front_offset),
                                               span_of(front_bytes),
                                               span_of(front_time_s),
                                               span_of(forward_before_s),
                                               span_of(input_grad_before_s),
                                               span_of(transfer_s),
                                               span_of(near_in_flight),
                                               span_of(far_in_flight)};
        trainwright::PeelResult found;
        {
          nb::gil_scoped_release release;
          found = search(problem, chunk_s);
        }
        return nb::make_tuple(found.cost, to_numpy(std::move(found.near)),
                              to_numpy(std::move(found.far)), to_numpy(std::move(found.near_point)),
                              to_numpy(std::move(found.far_point)));
      };
}

}  // namespace

void bind_peel(nb::module_& module) {
  const auto define = [&](const char* name, auto search) {
    module.def(name, bound(search), nb::kw_only(), nb::arg("num_ranks"),
               nb::arg("num_microbatches"), nb::arg("max_activations"), nb::arg("usable_bytes"),
               nb::arg("gathered_share"), nb::arg("floor_s"), nb::arg("limit_s"),
               nb::arg("kind_of"), nb::arg("forward_s"), nb::arg("input_grad_s"),
               nb::arg("weight_grad_s"), nb::arg("tail_s"), nb::arg("optimizer_s"),
               nb::arg("static_bytes"), nb::arg("weight_bytes"), nb::arg("largest_weight_bytes"),
               nb::arg("level_offset"), nb::arg("transient_bytes"), nb::arg("beside_bytes"), nb::arg("front_offset"),
               nb::arg("front_bytes"), nb::arg("front_time_s"), nb::arg("forward_before_s"),
               nb::arg("input_grad_before_s"), nb::arg("transfer_s"), nb::arg("near_in_flight"),
               nb::arg("far_in_flight"), nb::arg("chunk_s") = 0.0);
  };
  define("peel", [](const trainwright::PeelProblem& problem, double) {
    return trainwright::peel(problem);
  });
  define("peel_evenly", [](const trainwright::PeelProblem& problem, double chunk_s) {
    return trainwright::peel_evenly(problem, chunk_s);
  });
}
