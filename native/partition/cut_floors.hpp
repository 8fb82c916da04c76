// Lower bounds on a stage's communication and gradient time, in the units of the additive bounds.
//
// The bytes a stage D \ D' cuts are those of D's boundary and of D' 's, less the edges in both
// (from outside D into D'): one number per downset and a short list of layers per D'. As integers
// rounded down (and the correction up) they join the comparison of bound lanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "partition/additive_bounds.hpp"
#include "partition/downsets.hpp"
#include "partition/instance.hpp"
#include "partition/member_bits.hpp"
#include "partition/stage_test.hpp"

namespace trainwright {

class CutFloors {
  struct Degree {
    double scale = 0;                               // units per second
    std::vector<int32_t> in_units, out_units;       // of the boundary, per downset
    std::vector<int32_t> gradient;                  // per downset and d - 1
    std::vector<int32_t> in_group, gradient_group;  // the least of a group
  };

 public:
  CutFloors(const Instance& instance, const Downsets& sets, const StageTest& test);

  // Of stages in front of one downset, at one t.
  struct From {
    const Degree* own = nullptr;
    int64_t out_units = 0, gradient_below = 0;
    int64_t data_degree_less_1 = 0;
    struct Source {
      int32_t layer;
      int64_t units;  // of its edges into D'
    };
    std::vector<Source> sources;

    int32_t units(int64_t in_units, int64_t gradient, int64_t jumping) const {
      const int64_t cut = std::max<int64_t>(0, in_units + out_units - jumping);
      const int64_t synced = std::max<int64_t>(0, gradient - gradient_below) * data_degree_less_1;
      return static_cast<int32_t>(std::min<int64_t>(cut + synced, 1 << 29));
    }
    int32_t of_group(const MemberBits& bits, int32_t group) const {
      int64_t jumping = 0;
      for (const Source& source : sources)
        if (~bits.with(group, source.layer) != 0) jumping += source.units;
      return units(own->in_group[group], own->gradient_group[group], jumping);
    }
    int32_t of_member(const MemberBits& bits, int32_t group, int32_t member) const {
      int64_t jumping = 0;
      for (const Source& source : sources)
        if ((bits.with(group, source.layer) >> member & 1) == 0) jumping += source.units;
      const int64_t i = int64_t{group} * kMembers + member;
      return units(own->in_units[i], own->gradient[i], jumping);
    }
  };
  // At d = 1; the caller sets d.
  void start(const StageTest::Boundary& boundary, int32_t degree, From& from) const;

 private:
  const Instance* in_;
  std::vector<Degree> degrees_;
};

}  // namespace trainwright
