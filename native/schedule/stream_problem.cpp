#include "schedule/stream_problem.hpp"

#include <algorithm>
#include <cmath>

namespace trainwright {

namespace {

void add_need(Stream& stream, int32_t need) {
  for (auto& slot : stream.needs) {
    if (slot != kNoStream) continue;
    slot = need;
    return;
  }
}

// What comes from the neighbouring stage: within a rank a need like any other, else an input.
void connect(std::vector<Stream>& streams, int32_t producer, int32_t consumer, double transfer_s) {
  if (streams[producer].rank == streams[consumer].rank) {
    add_need(streams[consumer], producer);
    return;
  }
  streams[consumer].input = producer;
  streams[consumer].lag_s = transfer_s;
  streams[producer].consumer = consumer;
}

}  // namespace

StreamProblem::StreamProblem(std::span<const int32_t> rank_of_stage, int32_t ranks,
                             int32_t microbatches, const ActionCosts& costs,
                             std::span<const bool> fused, std::span<const bool> recomputed,
                             const std::vector<Resource>& resources, Objective aim)
    : num_ranks(ranks),
      num_stages(static_cast<int32_t>(rank_of_stage.size())),
      num_microbatches(microbatches),
      objective(aim),
      num_resources(static_cast<int>(resources.size())),
      streams_of_rank(ranks),
      streams_of_stage(num_stages) {
  auto& table = streams_of_stage;
  for (int32_t stage = 0; stage < num_stages; ++stage) {
    table[stage].fill(kNoStream);
    for (int32_t kind = 0; kind <= kRecompute; ++kind) {
      const bool split_only = kind == kInputGrad || kind == kWeightGrad;
      if (split_only && fused[stage]) continue;
      if (kind == kBackward && !fused[stage]) continue;
      if (kind == kRecompute && !recomputed[stage]) continue;
      const auto at = static_cast<size_t>(kind) * num_stages + stage;
      Stream stream{.kind = kind, .stage = stage, .rank = rank_of_stage[stage]};
      stream.duration_s = costs.duration_s[at];
      for (int r = 0; r < num_resources; ++r) {
        stream.alloc[r] = std::max(resources[r].delta[at], 0.0);
        stream.release[r] = std::max(-resources[r].delta[at], 0.0);
        stream.transient[r] = resources[r].transient[at];
      }
      table[stage][kind] = static_cast<int32_t>(streams.size());
      streams_of_rank[stream.rank].push_back(table[stage][kind]);
      streams.push_back(stream);
    }
  }
  const auto back = [&](int32_t stage) {
    return table[stage][fused[stage] ? kBackward : kInputGrad];
  };
  for (int32_t stage = 0; stage < num_stages; ++stage) {
    const auto& own = table[stage];
    add_need(streams[back(stage)], own[kForward]);
    if (recomputed[stage]) {
      add_need(streams[own[kRecompute]], own[kForward]);
      add_need(streams[back(stage)], own[kRecompute]);
    }
    if (!fused[stage]) add_need(streams[own[kWeightGrad]], own[kInputGrad]);
    if (stage + 1 == num_stages) continue;
    connect(streams, own[kForward], table[stage + 1][kForward], costs.forward_transfer_s[stage]);
    connect(streams, back(stage + 1), back(stage), costs.backward_transfer_s[stage]);
  }
  for (int32_t stage = 0; stage < num_stages; ++stage) path.push_back(table[stage][kForward]);
  for (int32_t stage = num_stages; stage-- > 0;) path.push_back(back(stage));

  for (const auto& resource : resources) {
    room.push_back(resource.room);
    for (double& units : room.back()) units += kSumRounding * std::max(1.0, std::abs(units));
  }
  std::vector<double> work_s(ranks, 0.0);
  double total_s = 0.0;
  for (const auto& stream : streams) {
    work_s[stream.rank] += stream.duration_s;
    total_s += stream.duration_s;
  }
  num_actions = static_cast<int64_t>(streams.size()) * microbatches;
  mean_action_s = total_s / static_cast<double>(streams.size());
  largest_work_s = *std::max_element(work_s.begin(), work_s.end());
}

Words words_of(const StreamProblem& problem, const Orders& orders) {
  Words words(problem.num_ranks);
  for (int32_t rank = 0; rank < problem.num_ranks; ++rank) {
    Word& word = words[rank];
    for (int64_t row = orders.rank_offsets[rank]; row < orders.rank_offsets[rank + 1]; ++row) {
      const ActionRow& action = orders.actions[row];
      const auto& own = problem.streams_of_stage[action.stage];
      const bool fused = own[kBackward] != kNoStream;
      switch (action.kind) {
        case kForward:
          word.push_back(own[kForward]);
          break;
        case kInputGrad:
        case kBackward:
          if (own[kRecompute] != kNoStream) word.push_back(own[kRecompute]);
          word.push_back(fused ? own[kBackward] : own[kInputGrad]);
          if (action.kind == kBackward && !fused) word.push_back(own[kWeightGrad]);
          break;
        case kWeightGrad:
          if (!fused) word.push_back(own[kWeightGrad]);
          break;
        default:  // a recompute moves to its backward
          break;
      }
    }
  }
  return words;
}

std::vector<ActionRow> rows_of(const StreamProblem& problem, const Words& words) {
  std::vector<ActionRow> rows;
  std::vector<int32_t> count(problem.streams.size(), 0);
  for (const Word& word : words)
    for (const int32_t id : word)
      rows.push_back({problem.streams[id].kind, problem.streams[id].stage, count[id]++});
  return rows;
}

}  // namespace trainwright
