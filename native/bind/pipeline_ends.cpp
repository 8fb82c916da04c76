// Binding of the 1F1B recurrence: one array per property of the stages in, their ends out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "bind/numpy_arrays.hpp"
#include "chain/pipeline_ends.hpp"

namespace nb = nanobind;
using trainwright::numpy::Array;
using trainwright::numpy::span_of;
using trainwright::numpy::to_numpy;

void bind_pipeline_ends(nb::module_& module) {
  module.def(
      "one_f_one_b_ends_s",
      [](Array<double> forward_s, Array<double> backward_s, Array<int64_t> in_flight,
         Array<int64_t> replicas, Array<int64_t> feed_offset, Array<int32_t> feed_target,
         Array<double> feed_s, int64_t num_microbatches) {
        std::vector<double> ends_s;
        {
          nb::gil_scoped_release release;
          ends_s = trainwright::one_f_one_b_ends_s(
              {span_of(forward_s), span_of(backward_s), span_of(in_flight), span_of(replicas),
               span_of(feed_offset), span_of(feed_target), span_of(feed_s)},
              num_microbatches);
        }
        return to_numpy(std::move(ends_s));
      },
      nb::kw_only(), nb::arg("forward_s"), nb::arg("backward_s"), nb::arg("in_flight"),
      nb::arg("replicas"), nb::arg("feed_offset"), nb::arg("feed_target"), nb::arg("feed_s"),
      nb::arg("num_microbatches"));
}
