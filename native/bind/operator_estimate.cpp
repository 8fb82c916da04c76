// Binding of the operator estimates: a table of machines and one of products in, columns out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "bind/numpy_arrays.hpp"
#include "chip/operator_estimate.hpp"

namespace nb = nanobind;
using namespace trainwright;
using trainwright::numpy::Table;
using trainwright::numpy::to_numpy;

namespace {

static_assert(sizeof(TiledMachine) == 13 * sizeof(double));
static_assert(sizeof(Product) == 5 * sizeof(double));

// A table whose rows are values of T, all of whose fields are doubles.
template <typename T>
std::span<const T> rows_of(const Table<double>& table) {
  if (table.shape(1) * sizeof(double) != sizeof(T))
    throw std::invalid_argument("a table has the wrong number of columns");
  return {reinterpret_cast<const T*>(table.data()), table.shape(0)};
}

template <typename Get>
auto column(const std::vector<ProductEstimate>& estimates, Get get) {
  std::vector<double> values;
  values.reserve(estimates.size());
  for (const ProductEstimate& estimate : estimates) values.push_back(get(estimate));
  return to_numpy(std::move(values));
}

nb::tuple chosen(const std::vector<ProductEstimate>& estimates) {
  const auto of = [&](auto get) {
    return column(estimates, [&](const ProductEstimate& x) { return double(get(x.tiles)); });
  };
  return nb::make_tuple(
      of([](const TileChoice& t) { return int64_t(t.dataflow); }),
      of([](const TileChoice& t) { return int64_t(t.order); }),
      of([](const TileChoice& t) { return t.m_t; }), of([](const TileChoice& t) { return t.n_t; }),
      of([](const TileChoice& t) { return t.k_t; }), of([](const TileChoice& t) { return t.m_g; }),
      of([](const TileChoice& t) { return t.n_g; }), of([](const TileChoice& t) { return t.k_g; }),
      of([](const TileChoice& t) { return t.split; }));
}

}  // namespace

void bind_operator_estimate(nb::module_& module) {
  module.def(
      "estimate_products",
      [](Table<double> machines, Table<double> products) {
        std::vector<ProductEstimate> found;
        const auto machine_rows = rows_of<TiledMachine>(machines);
        const auto product_rows = rows_of<Product>(products);
        {
          nb::gil_scoped_release release;
          found = estimate_products(machine_rows, product_rows);
        }
        return nb::make_tuple(column(found, [](const ProductEstimate& x) { return x.seconds; }),
                              column(found, [](const ProductEstimate& x) { return x.compute_s; }),
                              column(found, [](const ProductEstimate& x) { return x.dram_bytes; }),
                              column(found, [](const ProductEstimate& x) { return x.glb_bytes; }),
                              column(found, [](const ProductEstimate& x) { return x.core_bytes; }),
                              chosen(found));
      },
      nb::arg("machines"), nb::arg("products"));
  module.def(
      "output_stationary_cycles",
      [](double rows, double columns, double m, double n, double k) {
        TiledMachine machine{};
        machine.rows = rows;
        machine.columns = columns;
        return output_stationary_cycles(machine, m, n, k);
      },
      nb::kw_only(), nb::arg("rows"), nb::arg("columns"), nb::arg("m"), nb::arg("n"), nb::arg("k"));
}
