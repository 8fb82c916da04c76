// When each stage of a 1F1B pipeline ends: the longest path through its actions, stage by stage.
//
// With F and B the ends of a stage's forwards and backwards, each replica of stage i runs
//
//   F(j) = max(clock, F of all stages that feed i at j, + their transfers) + forward_s
//   B(j) = max(clock, B of all stages that i feeds at j, + their transfers) + backward_s
//
// in the 1F1B order: as many forwards as it may hold in flight, then backward and forward in turn.
// Stages are swept until nothing waits. Only what may still be read is kept: a forward until its
// own backward, a backward until those of the stages before it. O(stages × microbatches) time,
// O(stages × in flight) memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainwright {

// Stage i sends to feed_target[feed_offset[i] .. feed_offset[i + 1]), all later stages.
struct OneFOneBPipeline {
  std::span<const double> forward_s;
  std::span<const double> backward_s;
  std::span<const int64_t> in_flight;  // microbatches one replica may hold
  std::span<const int64_t> replicas;   // microbatch j runs on replica j mod replicas
  std::span<const int64_t> feed_offset;
  std::span<const int32_t> feed_target;
  std::span<const double> feed_s;
};

// End of each stage's last backward; `num_microbatches` counts those of the whole batch.
std::vector<double> one_f_one_b_ends_s(const OneFOneBPipeline& pipeline, int64_t num_microbatches);

}  // namespace trainwright
