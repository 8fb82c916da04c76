#include "partition/rejection_audit.hpp"

#include <algorithm>

namespace trainwright {

uint64_t RejectionAudit::draw(uint64_t end) {  // splitmix64
  uint64_t x = state_ += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return (x ^ (x >> 31)) % end;
}

void RejectionAudit::offer(const Downsets& sets, const StageKey& stage, double threshold_s) {
  const uint64_t place = draw(static_cast<uint64_t>(++num_offered_));
  if (place >= static_cast<uint64_t>(most_)) return;
  RejectedStage rejected;
  for_each_between(sets, stage.below, stage.above,
                   [&](int32_t v) { rejected.layers.push_back(in_->layer_at[v]); });
  std::sort(rejected.layers.begin(), rejected.layers.end());
  rejected.data_degree = stage.data_degree;
  rejected.tensor_degree = in_->problem->tensor_degrees[stage.degree];
  rejected.num_in_flight = stage.in_flight;
  rejected.threshold_s = threshold_s;
  if (num_offered_ <= most_) {
    sample_.push_back(std::move(rejected));
  } else {
    sample_[place] = std::move(rejected);
  }
}

void RejectionAudit::offer_group(const Downsets& sets, StageKey stage, int32_t begin, int32_t end,
                                 double threshold_s) {
  stage.above = begin + static_cast<int32_t>(draw(static_cast<uint64_t>(end - begin)));
  if (stage.above > stage.below && sets.is_subset(stage.below, stage.above))
    offer(sets, stage, threshold_s);
}

}  // namespace trainwright
