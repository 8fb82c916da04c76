#include "pair_cursors.hpp"

#include <algorithm>
#include <limits>

namespace trainwright {

PairCursors::PairCursors(const Instance& instance, const Downsets& sets, StageTest& test)
    : in_(&instance), test_(&test), pairs_(sets.count) {
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
                            in_->sync_s_per_byte * test.gradient_bytes(below, above, t), -1, -1});
      }
    }
  }
}

void PairCursors::restart(double threshold_s) {
  threshold_s_ = threshold_s;
  for (Cursor& cursor : cursors_) cursor.at = cursor.fits_to = -1;
}

void PairCursors::advance(Cursor& cursor, int32_t degree) const {
  const auto& degrees = in_->data_degrees;
  const double rounding = 2 * test_->rounding_s(degree);
  const double threshold = threshold_s_ * (1 + 1e-11);
  cursor.fits_to = -1;
  const double gain = threshold - cursor.per_degree_s;
  if (cursor.first_s == std::numeric_limits<double>::infinity()) {
    cursor.at = static_cast<int32_t>(degrees.size());
    return;
  }
  if (cursor.at < 0 && gain > 0) {  // time falls with d: jump
    const double least = (cursor.first_s - cursor.per_degree_s - rounding) / gain;
    cursor.at = static_cast<int32_t>(
        std::lower_bound(degrees.begin(), degrees.end(), least * (1 - 1e-11),
                         [](int64_t d, double x) { return static_cast<double>(d) < x; }) -
        degrees.begin());
    return;
  }
  const auto in_time = [&](int32_t i) {
    const double d = static_cast<double>(degrees[i]);
    return cursor.first_s + cursor.per_degree_s * (d - 1) <= threshold * d + rounding;
  };
  ++cursor.at;
  while (cursor.at < static_cast<int32_t>(degrees.size()) && !in_time(cursor.at)) ++cursor.at;
}

}  // namespace trainwright
