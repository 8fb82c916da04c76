#include "partition/exchanged_cuts.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "partition/exchange_layers.hpp"
#include "partition/restricted_cuts.hpp"

namespace trainwright {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Steps of a slow anneal: 150 for each pair of layers, up to some seconds. With five times the time
// a plan of 800 operators came out 0.03% faster.
constexpr double kSteps = 150;
constexpr double kMostSteps = 2e7;
// Downsets around each cut of the best plan, as many as in the first round of moved cuts.
constexpr int64_t kNear = 40;

// The layers of the stages from `first` to `last` as stages of the given data degrees, which share
// the work in proportion; positions order the layers from the end of the pipeline.
void regroup(const Instance& in, const std::vector<PartitionStage>& stages, size_t first,
             size_t last, const std::vector<int64_t>& data_degrees,
             std::vector<PartitionStage>& out) {
  std::vector<bool> is_member(in.num_layers, false);
  for (size_t i = first; i <= last; ++i)
    for (int32_t layer : stages[i].layers) is_member[layer] = true;
  const auto& degrees = in.problem->tensor_degrees;
  const auto slot = static_cast<int32_t>(
      std::find(degrees.begin(), degrees.end(), stages[first].tensor_degree) - degrees.begin());
  std::vector<int32_t> members;  // from the front
  double work = 0, done = 0, goal = 0, sum = 0;
  for (int32_t v = in.num_layers; v-- > 0;) {
    if (!is_member[in.layer_at[v]]) continue;
    members.push_back(v);
    work += in.fastest_s(v, slot);
  }
  for (int64_t d : data_degrees) sum += static_cast<double>(d);
  size_t next = 0;
  for (size_t i = 0; i < data_degrees.size(); ++i) {
    PartitionStage stage;
    stage.data_degree = data_degrees[i];
    stage.tensor_degree = stages[first].tensor_degree;
    goal += work * static_cast<double>(data_degrees[i]) / sum;
    while (next < members.size() && (done < goal || i + 1 == data_degrees.size())) {
      done += in.fastest_s(members[next], slot);
      stage.layers.push_back(in.layer_at[members[next++]]);
    }
    std::sort(stage.layers.begin(), stage.layers.end());
    if (!stage.layers.empty()) out.push_back(std::move(stage));
  }
}

// Other data degrees to begin with: stages halved, or joined in pairs, everywhere, in the front
// half and in the back half.
std::vector<std::vector<PartitionStage>> regrouped(const Instance& in,
                                                   const std::vector<PartitionStage>& stages) {
  const size_t count = stages.size();
  const auto allowed = [&](int64_t d) {
    return std::binary_search(in.data_degrees.begin(), in.data_degrees.end(), d);
  };
  std::vector<std::vector<PartitionStage>> result;
  const auto halve = [&](size_t first, size_t last) {
    std::vector<PartitionStage> plan;
    for (size_t i = 0; i < count; ++i) {
      const int64_t d = stages[i].data_degree;
      std::vector<int64_t> parts{d};
      if (i >= first && i < last && d > 1 && allowed(d / 2) && allowed(d - d / 2))
        parts = {d / 2, d - d / 2};
      regroup(in, stages, i, i, parts, plan);
    }
    if (plan.size() > count) result.push_back(std::move(plan));
  };
  const auto join = [&](size_t first, size_t last) {
    std::vector<PartitionStage> plan;
    for (size_t i = 0; i < count; ++i) {
      size_t end = i;
      int64_t sum = stages[i].data_degree;
      if (i >= first && i + 1 < last && stages[i].tensor_degree == stages[i + 1].tensor_degree &&
          allowed(sum + stages[i + 1].data_degree))
        sum += stages[++end].data_degree;
      regroup(in, stages, i, end, {sum}, plan);
      i = end;
    }
    if (plan.size() < count) result.push_back(std::move(plan));
  };
  const std::pair<size_t, size_t> ranges[] = {{0, count}, {0, count / 2}, {count / 2, count}};
  for (const auto& [first, last] : ranges) {
    halve(first, last);
    join(first, last);
  }
  return result;
}

std::vector<int64_t> data_degrees_of(const std::vector<PartitionStage>& stages) {
  std::vector<int64_t> degrees;
  for (const PartitionStage& stage : stages) degrees.push_back(stage.data_degree);
  return degrees;
}

int64_t steps_of(const Instance& in, double share) {
  const double layers = in.num_layers;
  return static_cast<int64_t>(share * std::min(kMostSteps, kSteps * layers * layers));
}

void append(const std::vector<uint64_t>& more, std::vector<uint64_t>& rows) {
  rows.insert(rows.end(), more.begin(), more.end());
}

}  // namespace

std::vector<uint64_t> regrouped_cuts(const Instance& in, const std::vector<PartitionStage>& stages,
                                     const Stop& stop) {
  ExchangedCuts best{kInfinity, {}};
  std::vector<uint64_t> rows;
  std::set<std::vector<int64_t>> tried{data_degrees_of(stages)};
  const auto anneal = [&](const std::vector<PartitionStage>& from) {
    ExchangedCuts found =
        exchange_layers(in, from, steps_of(in, kShortAnneal), in.num_layers, best.time_s, stop);
    append(cuts_of(in, found.stages), rows);
    const bool is_better = found.time_s < best.time_s;
    if (is_better) best = std::move(found);
    return is_better;
  };
  for (bool is_better = anneal(stages); is_better && !stop();) {
    is_better = false;
    for (const auto& other : regrouped(in, best.stages))
      if (tried.insert(data_degrees_of(other)).second) is_better |= anneal(other);
  }
  append(cuts_near(in, cuts_of(in, best.stages), kNear), rows);
  return rows;
}

std::vector<uint64_t> exchanged_cuts(const Instance& in, const std::vector<PartitionStage>& stages,
                                     double share, const Stop& stop) {
  const ExchangedCuts found =
      exchange_layers(in, stages, steps_of(in, share), in.num_layers, kInfinity, stop);
  return cuts_near(in, cuts_of(in, found.stages), kNear);
}

}  // namespace trainwright
