// Smallest feasible data degree of every pair of downsets, as the sweep advances.
//
// For a pair D' < D and a degree t, the smallest feasible d can only grow with s' (more
// microbatches in flight), and a pass meets s' in ascending order: a cursor into the data degrees
// never moves back. Between moves a stage costs one comparison. Needs memory for every pair, so
// only families of a few hundred downsets use it.
#pragma once

#include <cstdint>
#include <vector>

#include "stage_test.hpp"

namespace trainwright {

class PairCursors {
 public:
  static bool affordable(const Downsets& sets, int32_t num_degrees) {
    return int64_t{sets.count} * sets.count * num_degrees <= 2'000'000;
  }
  PairCursors(const Instance& instance, const Downsets& sets, StageTest& test);

  void restart(double threshold_s);  // a new pass

  struct Cursor {
    double first_s, per_degree_s;  // stage time * d = first + per_degree (d - 1), fastest options
    int32_t at;                    // index into the data degrees; -1 before the first use
    int32_t fits_to;               // largest s' known to fit at `at`
  };
  struct Pair {
    int32_t above;
    int64_t cursors;  // of degree slot 0
  };
  const std::vector<Pair>& pairs_above(int32_t below) const { return pairs_[below]; }
  Cursor& cursor(const Pair& pair, int32_t degree) { return cursors_[pair.cursors + degree]; }

  // Moves the cursor to the next data degree whose time fits, first use included.
  void advance(Cursor& cursor, int32_t degree) const;

 private:
  const Instance* in_;
  const StageTest* test_;
  double threshold_s_ = 0;
  std::vector<std::vector<Pair>> pairs_;  // per D', D from large to small
  std::vector<Cursor> cursors_;
};

}  // namespace trainwright
