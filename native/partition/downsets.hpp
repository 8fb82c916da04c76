// A family of downsets (sets of layers closed under successors) that contains {} and V.
//
// Members are sorted by the work of their layers, time and a little memory. A proper superset
// always has the larger index, and the 64 members of a group are worth nearly the same: the
// stages in front of a downset that a bound allows, and that are of use, lie in few groups. No
// superset matrix is kept, so memory stays linear in the number of downsets.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <vector>

#include "partition/instance.hpp"

namespace trainwright {

using Stop = std::function<bool()>;

// Links from a downset to the members with one layer more (or less), as a compressed table.
struct Links {
  std::vector<int32_t> offset, layer, target;
};

struct Downsets {
  static constexpr int32_t kGroup = 64;  // downsets per group

  int32_t num_layers = 0, num_words = 0, count = 0;
  bool complete = false;       // all downsets of the graph
  std::vector<uint64_t> bits;  // [count * num_words]
  std::vector<int64_t> work;   // [count], never less for a superset
  std::vector<int64_t> layer_work;
  Links up, down;
  std::vector<uint64_t> group_and;  // [groups * num_words]

  const uint64_t* row(int32_t i) const { return bits.data() + static_cast<int64_t>(i) * num_words; }
  bool contains(int32_t i, int32_t layer) const { return row(i)[layer >> 6] >> (layer & 63) & 1; }
  bool is_subset_of(int32_t inner, const uint64_t* outer) const {
    const uint64_t* a = row(inner);
    for (int32_t w = 0; w < num_words; ++w)
      if (a[w] & ~outer[w]) return false;
    return true;
  }
  bool is_subset(int32_t inner, int32_t outer) const { return is_subset_of(inner, row(outer)); }
  // The index of a member, -1 if it is none.
  int32_t find(const uint64_t* wanted) const;
  int32_t num_groups() const { return (count + kGroup - 1) / kGroup; }

  // Sum of per-layer integers (num_lanes each) over every member: out[i * num_lanes + lane].
  void add_up(const std::vector<int32_t>& per_layer, int32_t num_lanes,
              std::vector<int32_t>& out) const;
  void add_up(const std::vector<double>& per_layer, std::vector<double>& out) const;
};

// Calls visit(layer) for every layer of outer \ inner, ascending.
template <typename Visit>
void for_each_between(const Downsets& sets, int32_t inner, int32_t outer, Visit visit) {
  const uint64_t *a = sets.row(inner), *b = sets.row(outer);
  for (int32_t w = 0; w < sets.num_words; ++w)
    for (uint64_t rest = b[w] & ~a[w]; rest != 0; rest &= rest - 1)
      visit(w * 64 + std::countr_zero(rest));
}

// All downsets, or an empty family (count 0) when there are more than `limit` or `stop` says so.
Downsets enumerate_downsets(const Instance& instance, int64_t limit, const Stop& stop);

// The family of the given downsets (rows of num_words words, duplicates allowed) with {} and V.
Downsets family_of(const Instance& instance, const std::vector<uint64_t>& rows);

}  // namespace trainwright
