// Python's door to the core: flat arrays in, flat arrays out, the GIL released while it computes.
// One file per kernel (bind/*.cpp) keeps this list short.
#include <nanobind/nanobind.h>

void bind_chain_cuts(nanobind::module_& module);
void bind_loop_ranks(nanobind::module_& module);
void bind_operator_estimate(nanobind::module_& module);
void bind_order_splits(nanobind::module_& module);
void bind_partition(nanobind::module_& module);
void bind_peel(nanobind::module_& module);
void bind_pipeline_ends(nanobind::module_& module);
void bind_placement(nanobind::module_& module);
void bind_schedule_passes(nanobind::module_& module);
void bind_schedule_search(nanobind::module_& module);
void bind_simulate(nanobind::module_& module);
void bind_uniform_plan(nanobind::module_& module);

NB_MODULE(_core, module) {
  module.doc() = "The native core of trainwright.";
  // Results that a script's own globals still hold when Python ends are no leak.
  nanobind::set_leak_warnings(false);
  bind_chain_cuts(module);
  bind_loop_ranks(module);
  bind_operator_estimate(module);
  bind_order_splits(module);
  bind_partition(module);
  bind_peel(module);
  bind_pipeline_ends(module);
  bind_placement(module);
  bind_schedule_search(module);
  bind_simulate(module);
  bind_schedule_passes(module);
  bind_uniform_plan(module);
}
