// Binding of the V peel: one array per property of the kinds in, the best split out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "bind/numpy_arrays.hpp"
#include "chain/peel.hpp"

namespace nb = nanobind;
using trainwright::PeelProblem;
using trainwright::numpy::Array;
using trainwright::numpy::span_of;
using trainwright::numpy::Table;
using trainwright::numpy::to_numpy;

namespace {

template <typename... Aim, typename Search>
auto bound(Search search) {
  return [search](int64_t num_ranks, int64_t num_microbatches, int64_t max_activations,
                  double usable_bytes, double gathered_share, double floor_s, double limit_s,
                  Table<int64_t> kind_of, Array<double> forward_s, Array<double> input_grad_s,
                  Array<double> weight_grad_s, Array<double> tail_s, Array<double> optimizer_s,
                  Array<double> static_bytes, Array<double> weight_bytes,
                  Array<double> largest_weight_bytes, Array<int64_t> level_offset,
                  Array<double> transient_bytes, Array<double> beside_bytes,
                  Array<int64_t> front_offset, Array<double> front_bytes,
                  Array<double> front_time_s, Array<double> forward_before_s,
                  Array<double> input_grad_before_s, Array<double> transfer_s,
                  Table<double> near_in_flight, Table<double> far_in_flight, Aim... aim) {
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
      found = search(problem, aim...);
    }
    return nb::make_tuple(found.cost, to_numpy(std::move(found.near)),
                          to_numpy(std::move(found.far)), to_numpy(std::move(found.near_point)),
                          to_numpy(std::move(found.far_point)), to_numpy(std::move(found.rank_s)),
                          to_numpy(std::move(found.ends_s)));
  };
}

}  // namespace

void bind_peel(nb::module_& module) {
  const auto define = [&](const char* name, auto search, auto... more) {
    module.def(name, search, nb::kw_only(), nb::arg("num_ranks"), nb::arg("num_microbatches"),
               nb::arg("max_activations"), nb::arg("usable_bytes"), nb::arg("gathered_share"),
               nb::arg("floor_s"), nb::arg("limit_s"), nb::arg("kind_of"), nb::arg("forward_s"),
               nb::arg("input_grad_s"), nb::arg("weight_grad_s"), nb::arg("tail_s"),
               nb::arg("optimizer_s"), nb::arg("static_bytes"), nb::arg("weight_bytes"),
               nb::arg("largest_weight_bytes"), nb::arg("level_offset"), nb::arg("transient_bytes"),
               nb::arg("beside_bytes"), nb::arg("front_offset"), nb::arg("front_bytes"),
               nb::arg("front_time_s"), nb::arg("forward_before_s"), nb::arg("input_grad_before_s"),
               nb::arg("transfer_s"), nb::arg("near_in_flight"), nb::arg("far_in_flight"), more...);
  };
  define("peel", bound<>(trainwright::peel));
  define("peel_evenly", bound<double>(trainwright::peel_evenly), nb::arg("chunk_s"));
  using Weights = Array<double>;
  const auto weighted = [](const PeelProblem& problem, const Weights& forwards,
                           const Weights& input_grads, const Weights& weight_grads,
                           const Weights& ranks, const Weights& ends) {
    const auto p = static_cast<size_t>(problem.num_ranks);
    if (forwards.size() != 2 * p || input_grads.size() != 2 * p || weight_grads.size() != 2 * p ||
        ranks.size() != p || ends.size() != p)
      throw std::invalid_argument("weights must be given for every stage and rank");
    return trainwright::peel_weighted(
        problem, {span_of(forwards), span_of(input_grads), span_of(weight_grads), span_of(ranks),
                  span_of(ends)});
  };
  define("peel_weighted", bound<Weights, Weights, Weights, Weights, Weights>(weighted),
         nb::arg("forwards"), nb::arg("input_grads"), nb::arg("weight_grads"), nb::arg("ranks"),
         nb::arg("ends"));
}
