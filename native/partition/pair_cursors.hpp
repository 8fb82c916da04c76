// Smallest feasible data degree of every pair of downsets, as the sweep advances.
//
// For a pair D' < D and a degree t, the smallest feasible d can only grow with s' (more
// microbatches in flight), and a pass meets s' in ascending order: a cursor into the data degrees
// never moves back. Between moves a stage costs one comparison. Needs memory for every pair, so
// only families of a few hundred downsets use it.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/stage_test.hpp"

namespace trainwright {

class PairCursors {
 public:
  static bool affordable(const Downsets& sets, int32_t num_degrees, int64_t max_pairs) {
    return int64_t{sets.count} * sets.count * num_degrees <= max_pairs;
  }
  PairCursors(const Instance& instance, const Downsets& sets, StageTest& test,
              AdditiveBounds& bounds);

  void restart(double threshold_s);  // a new pass

  struct Cursor {
    double first_s, per_degree_s;  // stage time * d = first + per_degree (d - 1), fastest options
    int32_t at;                    // index into the data degrees; -1 before the first use
    int32_t fits_to;               // largest s' known to fit at `at`
    int32_t most_in_flight;        // largest y at which the least memory fits; -1 not known yet
  };
  struct Pair {
    int32_t above;
    int64_t cursors;  // of degree slot 0
  };
  // Pairs by descending D.
  const std::vector<Pair>& pairs_above(int32_t below) const { return pairs_[below]; }
  Cursor& cursor(const Pair& pair, int32_t degree) { return cursors_[pair.cursors + degree]; }

  // The first data degree whose time may fit; then the next one each time.
  void begin(Cursor& cursor, int32_t degree) const;
  void advance(Cursor& cursor, int32_t degree) const;
  // Skips data degrees at which the least memory behind `sum` cannot fit. True if it moved.
  bool skip_memory(Cursor& cursor, const Pair& pair, int32_t below, int32_t degree, int32_t sum);

 private:
  void find_in_time(Cursor& cursor, int32_t degree) const;
  void jump(Cursor& cursor, double least) const;

  const Instance* in_;
  const StageTest* test_;
  AdditiveBounds* bounds_;
  double threshold_s_ = 0;
  std::vector<std::vector<Pair>> pairs_;  // per D', D from large to small
  std::vector<Cursor> cursors_;
};

}  // namespace trainwright
