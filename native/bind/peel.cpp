// Binding of the V peel: structs of arrays in, the best split out.
#include "chain/peel.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "bind/fields.hpp"
#include "bind/numpy_arrays.hpp"

namespace nb = nanobind;
using namespace trainwright;
using trainwright::numpy::column;
using trainwright::numpy::Fields;
using trainwright::numpy::Given;

namespace {

// Every stage and rank has a weight.
void check(const PeelWeights& weights, int64_t num_ranks) {
  const auto p = static_cast<size_t>(num_ranks);
  if (weights.forwards.size() != 2 * p || weights.input_grads.size() != 2 * p ||
      weights.weight_grads.size() != 2 * p || weights.ranks.size() != p || weights.ends.size() != p)
    throw std::invalid_argument("weights must be given for every stage and rank");
}

}  // namespace

void bind_peel(nb::module_& module) {
  Fields<PeelKinds>()
      .array("forward_s", &PeelKinds::forward_s)
      .array("input_grad_s", &PeelKinds::input_grad_s)
      .array("weight_grad_s", &PeelKinds::weight_grad_s)
      .array("tail_s", &PeelKinds::tail_s)
      .array("optimizer_s", &PeelKinds::optimizer_s)
      .array("static_bytes", &PeelKinds::static_bytes)
      .array("weight_bytes", &PeelKinds::weight_bytes)
      .array("largest_weight_bytes", &PeelKinds::largest_weight_bytes)
      .array("freed_bytes", &PeelKinds::freed_bytes)
      .bind(module, "PeelKinds");
  Fields<PeelFronts>()
      .array("level_offset", &PeelFronts::level_offset)
      .array("transient_bytes", &PeelFronts::transient_bytes)
      .array("beside_bytes", &PeelFronts::beside_bytes)
      .array("point_offset", &PeelFronts::point_offset)
      .array("kept_bytes", &PeelFronts::kept_bytes)
      .array("time_s", &PeelFronts::time_s)
      .array("tail_s", &PeelFronts::tail_s)
      .bind(module, "PeelFronts");
  Fields<PeelProblem>()
      .number("num_ranks", &PeelProblem::num_ranks)
      .number("num_microbatches", &PeelProblem::num_microbatches)
      .number("max_activations", &PeelProblem::max_activations)
      .number("usable_bytes", &PeelProblem::usable_bytes)
      .number("gathered_share", &PeelProblem::gathered_share)
      .number("floor_s", &PeelProblem::floor_s)
      .number("limit_s", &PeelProblem::limit_s)
      .number("weighs_ends", &PeelProblem::weighs_ends)
      .table("kind_of", &PeelProblem::kind_of)
      .array("kind_offset", &PeelProblem::kind_offset)
      .array("forward_before_s", &PeelProblem::forward_before_s)
      .array("input_grad_before_s", &PeelProblem::input_grad_before_s)
      .table("outer_forward_s", &PeelProblem::outer_forward_s)
      .table("outer_input_grad_s", &PeelProblem::outer_input_grad_s)
      .table("inner_forward_s", &PeelProblem::inner_forward_s)
      .table("inner_input_grad_s", &PeelProblem::inner_input_grad_s)
      .array("transfer_s", &PeelProblem::transfer_s)
      .array("rank_time_s", &PeelProblem::rank_time_s)
      .array("rank_forward_s", &PeelProblem::rank_forward_s)
      .table("near_in_flight", &PeelProblem::near_in_flight)
      .table("far_in_flight", &PeelProblem::far_in_flight)
      .part("kinds", &PeelProblem::kinds)
      .part("fronts", &PeelProblem::fronts)
      .bind(module, "PeelProblem");
  Fields<PeelWeights>()
      .array("forwards", &PeelWeights::forwards)
      .array("input_grads", &PeelWeights::input_grads)
      .array("weight_grads", &PeelWeights::weight_grads)
      .array("ranks", &PeelWeights::ranks)
      .array("ends", &PeelWeights::ends)
      .bind(module, "PeelWeights");

  const auto own = nb::rv_policy::reference_internal;
  nb::class_<PeelResult>(module, "PeelResult")
      .def_ro("cost", &PeelResult::cost)
      .def_prop_ro("near", &column<&PeelResult::near>, own)
      .def_prop_ro("far", &column<&PeelResult::far>, own)
      .def_prop_ro("near_point", &column<&PeelResult::near_point>, own)
      .def_prop_ro("far_point", &column<&PeelResult::far_point>, own)
      .def_prop_ro("rank_s", &column<&PeelResult::rank_s>, own)
      .def_prop_ro("ends_s", &column<&PeelResult::ends_s>, own);

  module.def(
      "peel",
      [](const Given<PeelProblem>& problem) {
        nb::gil_scoped_release release;
        return peel(problem.value);
      },
      nb::arg("problem"));
  module.def(
      "peel_reaches",
      [](const Given<PeelProblem>& problem) {
        nb::gil_scoped_release release;
        return peel_reaches(problem.value);
      },
      nb::arg("problem"));
  module.def(
      "peel_evenly",
      [](const Given<PeelProblem>& problem, double chunk_s) {
        nb::gil_scoped_release release;
        return peel_evenly(problem.value, chunk_s);
      },
      nb::arg("problem"), nb::kw_only(), nb::arg("chunk_s"));
  module.def(
      "peel_weighted",
      [](const Given<PeelProblem>& problem, const Given<PeelWeights>& weights) {
        check(weights.value, problem.value.num_ranks);
        nb::gil_scoped_release release;
        return peel_weighted(problem.value, weights.value);
      },
      nb::arg("problem"), nb::arg("weights"));
}
