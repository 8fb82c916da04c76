#include "partition/pair_cursors.hpp"

#include <algorithm>
#include <limits>

namespace trainwright {

PairCursors::PairCursors(const Instance& instance, const Downsets& sets, StageTest& test,
                         AdditiveBounds& bounds)
    : in_(&instance), test_(&test), bounds_(&bounds), pairs_(sets.count) {
  for (int32_t below = 0; below < sets.count; ++below) {
    test.start_at(below);
    for (int32_t above = sets.count - 1; above > below; --above) {
      if (!sets.is_subset(below, above)) continue;
      pairs_[below].push_back({above, static_cast<int64_t>(cursors_.size())});
      for (int32_t t = 0; t < in_->num_degrees; ++t) {
        const double fixed = in_->cut_s_per_byte * test.cut_bytes(above, t);
        const bool offers = test.offers(below, above, t);
        cursors_.push_back({offers ? test.fastest_s(below, above, t) + fixed
                                   : std::numeric_limits<double>::infinity(),
                            in_->sync_s_per_byte * test.gradient_bytes(below, above, t), -1, -1,
                            -1});
      }
    }
  }
}

void PairCursors::restart(double threshold_s) {
  threshold_s_ = threshold_s;
  for (Cursor& cursor : cursors_) cursor.at = cursor.fits_to = -1;
}

// To the first data degree that is not smaller than `least`.
void PairCursors::jump(Cursor& cursor, double least) const {
  const auto& degrees = in_->data_degrees;
  const auto to = std::lower_bound(degrees.begin() + cursor.at, degrees.end(), least,
                                   [](int64_t d, double x) { return static_cast<double>(d) < x; });
  cursor.at = static_cast<int32_t>(to - degrees.begin());
}

void PairCursors::find_in_time(Cursor& cursor, int32_t degree) const {
  const auto& degrees = in_->data_degrees;
  const double threshold = threshold_s_ * (1 + 1e-11), rounding = 2 * test_->rounding_s(degree);
  cursor.fits_to = -1;
  for (; cursor.at < static_cast<int32_t>(degrees.size()); ++cursor.at) {
    const double d = static_cast<double>(degrees[cursor.at]);
    if (cursor.first_s + cursor.per_degree_s * (d - 1) <= threshold * d + rounding) return;
  }
}

void PairCursors::begin(Cursor& cursor, int32_t degree) const {
  cursor.at = 0;
  if (cursor.first_s == std::numeric_limits<double>::infinity()) {  // degree not offered
    cursor.at = static_cast<int32_t>(in_->data_degrees.size());
    return;
  }
  const double gain = threshold_s_ * (1 + 1e-11) - cursor.per_degree_s;
  if (gain > 0)  // time falls with d
    jump(cursor, (cursor.first_s - cursor.per_degree_s - 2 * test_->rounding_s(degree)) / gain *
                     (1 - 1e-11));
  find_in_time(cursor, degree);
}

void PairCursors::advance(Cursor& cursor, int32_t degree) const {
  ++cursor.at;
  find_in_time(cursor, degree);
}

bool PairCursors::skip_memory(Cursor& cursor, const Pair& pair, int32_t below, int32_t degree,
                              int32_t sum) {
  if (cursor.most_in_flight < 0)
    cursor.most_in_flight =
        static_cast<int32_t>(bounds_->most_in_flight(below, pair.above, degree));
  // 1 + ceil(s'/d) <= most in flight
  const int32_t behind = cursor.most_in_flight - 1, before = cursor.at;
  if (behind < 0 || (behind == 0 && sum > 0)) {
    cursor.at = static_cast<int32_t>(in_->data_degrees.size());
    return true;
  }
  if (behind == 0 || in_->data_degrees[cursor.at] * behind >= sum) return false;
  jump(cursor, (sum + behind - 1) / behind);
  find_in_time(cursor, degree);
  return cursor.at != before;
}

}  // namespace trainwright
