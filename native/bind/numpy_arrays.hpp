// NumPy arrays at the core's door: checked views on the way in, no copies on the way out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace trainwright::numpy {

template <typename T>
using Array =
    nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T>
using Table =
    nanobind::ndarray<const T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
std::span<const T> span_of(const Array<T>& array) {
  return {array.data(), array.size()};
}

template <typename T>
std::span<const T> span_of(const Table<T>& table) {
  return {table.data(), table.size()};
}

template <typename Member>
struct OwnerOf;
template <typename Owner, typename Value>
struct OwnerOf<Value Owner::*> {
  using type = Owner;
};

// A read-only view of a vector inside a bound object, which must outlive it.
template <auto member>
auto column(const typename OwnerOf<decltype(member)>::type& owner) {
  const auto& values = owner.*member;
  using Value = typename std::decay_t<decltype(values)>::value_type;
  return nanobind::ndarray<nanobind::numpy, const Value, nanobind::ndim<1>>(values.data(),
                                                                            {values.size()});
}

// A read-only array that owns `values`.
template <typename T>
nanobind::ndarray<nanobind::numpy, const T, nanobind::ndim<1>> to_numpy(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  nanobind::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return {owned->data(), {owned->size()}, owner};
}

}  // namespace trainwright::numpy
