// Python's door to the core: flat arrays in, flat arrays out, the GIL released while it computes.
#include <nanobind/nanobind.h>

NB_MODULE(_core, module) { module.doc() = "The native core of trainwright."; }
