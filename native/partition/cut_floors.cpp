#include "partition/cut_floors.hpp"

#include <algorithm>
#include <cmath>

namespace trainwright {
namespace {

constexpr double kMost = 0x1p28;          // larger values are not used
constexpr int32_t kUnknown = -(1 << 30);  // in place of those
constexpr double kHuge = 0x1p40;

int32_t rounded_down(double units) {  // not a number: infinite costs of no bytes
  return units < kMost ? static_cast<int32_t>(std::floor(std::max(units, -kMost))) : kUnknown;
}

std::vector<int32_t> least_of_groups(const std::vector<int32_t>& values, int32_t num_groups) {
  std::vector<int32_t> least(num_groups, static_cast<int32_t>(kMost));
  for (size_t i = 0; i < values.size(); ++i)
    least[i / kMembers] = std::min(least[i / kMembers], values[i]);
  return least;
}

}  // namespace

CutFloors::CutFloors(const Instance& instance, const Downsets& sets, const StageTest& test)
    : in_(&instance), degrees_(instance.num_degrees) {
  for (int32_t t = 0; t < instance.num_degrees; ++t) {
    Degree& own = degrees_[t];
    own.scale = BoundTable::cut_scale(instance, t);
    const double slack = 1 + test.rounding_s(t) * own.scale;
    const double per_byte = instance.cut_s_per_byte * own.scale;
    own.in_units.reserve(sets.count);
    own.out_units.reserve(sets.count);
    own.gradient.reserve(sets.count);
    for (int32_t i = 0; i < sets.count; ++i) {
      own.in_units.push_back(rounded_down(per_byte * test.in_bytes(i, t) - slack));
      own.out_units.push_back(rounded_down(per_byte * test.out_bytes(i, t) - slack));
      own.gradient.push_back(
          rounded_down(instance.sync_s_per_byte * own.scale * test.gradient_bytes(0, i, t)));
    }
    own.in_group = least_of_groups(own.in_units, sets.num_groups());
    own.gradient_group = least_of_groups(own.gradient, sets.num_groups());
  }
}

void CutFloors::start(const StageTest::Boundary& boundary, int32_t degree, From& from) const {
  const Degree& own = degrees_[degree];
  from.own = &own;
  from.out_units = own.out_units[boundary.below];
  from.gradient_below = int64_t{own.gradient[boundary.below]} + 2;  // both ends rounded
  from.sources.clear();
  const double per_byte = in_->cut_s_per_byte * own.scale;
  for (const StageTest::Source& source : boundary.sources) {
    const double units = std::ceil(per_byte * boundary.bytes[source.first + degree]);
    from.sources.push_back({source.layer, 1 + static_cast<int64_t>(units < kHuge ? units : kHuge)});
  }
}

}  // namespace trainwright
