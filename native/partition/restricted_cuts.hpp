// Small families of cuts for graphs with too many downsets, and for a first plan.
//
// The prefixes of a linear order are n + 1 downsets; the downsets a few layers away from the cuts
// of a known plan let the next search move each cut. Any family gives valid plans; only the
// complete one gives lower bounds.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/downsets.hpp"
#include "partition/instance.hpp"

namespace trainwright {

// Prefixes of the first few of four linear orders: depth first, its mirror image, and by distance
// to the sinks in time and in layers.
std::vector<uint64_t> linear_cuts(const Instance& instance, size_t num_orders);

// Up to `per_cut` downsets near each of the given ones, nearest first.
std::vector<uint64_t> cuts_near(const Instance& instance, const std::vector<uint64_t>& rows,
                                int64_t per_cut);

// The cuts of a plan in pipeline order, as rows.
std::vector<uint64_t> cuts_of(const Instance& instance, const std::vector<PartitionStage>& stages);

}  // namespace trainwright
