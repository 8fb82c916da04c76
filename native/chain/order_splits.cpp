#include "chain/order_splits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

namespace trainwright {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kHair = 1e-9;
constexpr int64_t kRounds = 80;      // of simulations
constexpr int64_t kPivots = 40;      // between two of them, and as many for each rank
constexpr size_t kColumns = 8;       // paths that are added at once
constexpr double kFar = 1e9;         // along a ray that proves that nothing fits
constexpr double kPerturbed = 1e-7;  // of times, against ties

struct Path : OrderPath {
  double value_s = 0;  // for the x at hand
};

// The longest path to the end of each rank.
class Paths {
 public:
  Paths(const OrderSplits& splits, const Orders& orders)
      : x_(splits),
        orders_(orders),
        stages_(orders.num_stages()),
        end_s_(orders.actions.size()),
        before_(orders.actions.size()) {
    const std::vector<double> unit(static_cast<size_t>(kNumActionKinds * stages_), 1.0);
    const std::vector<double> none(static_cast<size_t>(std::max<int64_t>(stages_ - 1, 0)), 0.0);
    const std::vector<double> never(static_cast<size_t>(stages_), kInfinite);
    std::vector<int64_t> sequence;
    const ActionCosts costs{unit, none, none, never};
    if (!simulate(orders, costs, &sequence).complete)
      throw std::invalid_argument("orders must run without deadlock");
    const int64_t m = orders.num_microbatches;
    std::vector<int64_t> row_of(static_cast<size_t>(2 * stages_ * m), -1);
    const auto at = [&](bool back, int64_t stage, int64_t microbatch) {
      return static_cast<size_t>(((back ? stages_ : 0) + stage) * m + microbatch);
    };
    for (size_t row = 0; row < orders.actions.size(); ++row) {
      const ActionRow& a = orders.actions[row];
      row_of[at(a.kind != kForward, a.stage, a.microbatch)] = static_cast<int64_t>(row);
    }
    std::vector<char> is_first(orders.actions.size(), 0);
    for (int64_t r = 0; r < orders.num_ranks(); ++r)
      if (orders.rank_offsets[r] < orders.rank_offsets[r + 1]) is_first[orders.rank_offsets[r]] = 1;
    for (const int64_t row : sequence) {
      const ActionRow& a = orders.actions[row];
      Step step{row, a.stage, a.kind != kForward, is_first[row] ? -1 : row - 1, -1, 0.0};
      const int64_t other = step.back ? a.stage + 1 : a.stage - 1;
      if (other >= 0 && other < stages_) {
        step.producer = row_of[at(step.back, other, a.microbatch)];
        if (orders.rank_of_stage[a.stage] != orders.rank_of_stage[other])
          step.transfer_s = x_.transfer_s[std::min<int64_t>(a.stage, other)];
      }
      steps_.push_back(step);
    }
  }

  // Those of the ranks, for so many blocks by stage and way.
  std::vector<Path> longest(const std::vector<double>& blocks) {
    const int64_t k = x_.num_ways;
    forward_s_.assign(x_.forward_s.begin(), x_.forward_s.end());
    backward_s_.assign(x_.backward_s.begin(), x_.backward_s.end());
    std::vector<double> after_s(x_.after_s.begin(), x_.after_s.end());
    for (int64_t s = 0; s < stages_; ++s) {
      for (int64_t i = s * k; i < (s + 1) * k; ++i) {
        forward_s_[s] += blocks[i] * x_.block_forward_s[i];
        backward_s_[s] += blocks[i] * x_.block_backward_s[i];
        after_s[orders_.rank_of_stage[s]] += blocks[i] * x_.block_after_s[i];
      }
    }
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      const double own_s = step.previous < 0 ? 0.0 : end_s_[step.previous];
      const double arrives_s = step.producer < 0 ? 0.0 : end_s_[step.producer] + step.transfer_s;
      before_[step.row] = {static_cast<int32_t>(i), arrives_s > own_s};
      end_s_[step.row] =
          std::max(own_s, arrives_s) + (step.back ? backward_s_ : forward_s_)[step.stage];
    }
    std::vector<Path> found;
    for (int64_t r = 0; r < orders_.num_ranks(); ++r)
      if (orders_.rank_offsets[r] < orders_.rank_offsets[r + 1]) found.push_back(trace(r, after_s));
    return found;
  }

 private:
  struct Step {
    int64_t row;
    int64_t stage;
    bool back;
    int64_t previous;  // row, or -1
    int64_t producer;  // row, or -1
    double transfer_s;
  };
  struct Before {
    int32_t step;
    bool waits;  // for the producer
  };

  Path trace(int64_t rank, const std::vector<double>& after_s) const {
    std::vector<double> forwards(stages_), backwards(stages_);
    Path path;
    int64_t row = orders_.rank_offsets[rank + 1] - 1;
    path.value_s = end_s_[row] + after_s[rank];
    path.fixed_s = x_.after_s[rank];
    while (row >= 0) {
      const Before& before = before_[row];
      const Step& step = steps_[before.step];
      (step.back ? backwards : forwards)[step.stage] += 1;
      if (before.waits) path.fixed_s += step.transfer_s;
      row = before.waits ? step.producer : step.previous;
    }
    path.block_s.resize(x_.block_forward_s.size());
    for (int64_t s = 0; s < stages_; ++s) {
      path.fixed_s += forwards[s] * x_.forward_s[s] + backwards[s] * x_.backward_s[s];
      const bool own = orders_.rank_of_stage[s] == rank;
      for (int64_t i = s * x_.num_ways; i < (s + 1) * x_.num_ways; ++i) {
        path.block_s[i] =
            forwards[s] * x_.block_forward_s[i] + backwards[s] * x_.block_backward_s[i];
        if (own) path.block_s[i] += x_.block_after_s[i];
      }
    }
    return path;
  }

  const OrderSplits& x_;
  const Orders& orders_;
  int64_t stages_;
  std::vector<Step> steps_;
  std::vector<double> end_s_, forward_s_, backward_s_;
  std::vector<Before> before_;
};

// The dual program. Row 0 says that the y add up to one, row 1 + i is of stage and way i. Columns
// are λ, the μ, the z, the slacks, then the y as they come.
class Dual {
 public:
  Dual(const OrderSplits& splits, const OrderPath& first, double scale_s)
      : x_(splits),
        ways_(splits.num_ways),
        stages_(static_cast<int64_t>(splits.least.size())),
        size_(stages_ * ways_),
        rows_(size_ + 1),
        instants_(static_cast<int64_t>(splits.room.size())),
        scale_s_(scale_s),
        inverse_(static_cast<size_t>(rows_ * rows_), 0.0),
        value_(static_cast<size_t>(rows_)),
        basic_(static_cast<size_t>(rows_)) {
    paths_.push_back(first);
    // y of the first path is one, so slacks are what it counts of each stage and way.
    uint32_t state = 12345;
    for (int64_t i = 0; i < rows_; ++i) {
      inverse_[i * rows_ + i] = 1.0;
      if (i > 0) inverse_[i * rows_] = first.block_s[i - 1] / scale_s_;
      state = state * 1664525u + 1013904223u;
      const double more = kPerturbed * (1.0 + static_cast<double>(state >> 8) / (1 << 24));
      value_[i] = i == 0 ? 1.0 : more + first.block_s[i - 1] / scale_s_;
      basic_[i] = i == 0 ? path_at(0) : slack_at(i - 1);
    }
  }

  void add(OrderPath path) { paths_.push_back(std::move(path)); }

  // The paths that y counts.
  std::vector<OrderPath> counted() const {
    std::vector<OrderPath> found;
    for (int64_t i = 0; i < rows_; ++i)
      if (basic_[i] >= path_at(0) && value_[i] > kHair)
        found.push_back(paths_[basic_[i] - path_at(0)]);
    return found;
  }

  // Pivots until no column gains; false where memory leaves room for no split.
  bool solve(int64_t most) {
    std::vector<double> column(rows_), step(rows_);
    for (int64_t pivot = 0; pivot < most; ++pivot) {
      price();
      const int64_t enters = best_column();
      if (enters < 0) return true;
      fill(enters, column);
      for (int64_t i = 0; i < rows_; ++i) {
        double sum = 0;
        const double* row = &inverse_[i * rows_];
        for (int64_t j = 0; j < rows_; ++j) sum += row[j] * column[j];
        step[i] = sum;
      }
      int64_t leaves = -1;
      double least = kInfinite;
      for (int64_t i = 0; i < rows_; ++i) {
        if (step[i] <= kHair) continue;
        const double ratio = std::max(0.0, value_[i]) / step[i];
        if (ratio < least - kHair * 1e-3 ||
            (leaves >= 0 && ratio <= least && step[i] > step[leaves])) {
          least = ratio;
          leaves = i;
        }
      }
      if (leaves < 0) {
        ray_ = step;
        ray_column_ = enters;
        return false;
      }
      pivot_on(leaves, step, least);
      basic_[leaves] = enters;
    }
    price();
    return true;
  }

  // Blocks by stage and way: the prices of the rows.
  std::vector<double> blocks() const {
    std::vector<double> found(size_);
    double sum = 0;
    for (int64_t i = 0; i < size_; ++i) sum += found[i] = std::max(0.0, price_[i + 1]);
    if (sum > 0)
      for (double& each : found) each *= static_cast<double>(x_.num_blocks) / sum;
    return found;
  }

  // The bound that y and z prove, in seconds; where memory leaves no room, that so far along the
  // ray that `solve` met.
  double proved_s(double along = 0) const {
    std::vector<double> cost(size_, 0.0);
    std::vector<std::pair<int64_t, double>> counts;
    for (int64_t i = 0; i < rows_; ++i)
      counts.emplace_back(basic_[i], along > 0 ? value_[i] - along * ray_[i] : value_[i]);
    if (along > 0) counts.emplace_back(ray_column_, along);
    double sum = 0, fixed = 0;
    for (const auto& [column, count] : counts)
      if (column >= path_at(0)) sum += std::max(0.0, count);
    if (!(sum > 0)) return 0;
    for (const auto& [column, count] : counts) {
      const double own = std::max(0.0, count);
      if (column >= path_at(0)) {
        const OrderPath& path = paths_[column - path_at(0)];
        fixed += own / sum * path.fixed_s;
        for (int64_t j = 0; j < size_; ++j) cost[j] += own / sum * path.block_s[j];
      } else if (column >= instant_at(0) && column < slack_at(0)) {
        const int64_t instant = column - instant_at(0);
        fixed -= own * scale_s_ * x_.room[instant];
        for (int64_t j = 0; j < size_; ++j)
          cost[j] += own * scale_s_ * x_.block_held[instant * size_ + j];
      }
    }
    double least = kInfinite, left = static_cast<double>(x_.num_blocks);
    for (int64_t s = 0; s < stages_; ++s) {
      const auto first = cost.begin() + s * ways_;
      const double own = *std::min_element(first, first + ways_);
      const auto count = static_cast<double>(x_.least[s]);
      fixed += count * own;
      left -= count;
      least = std::min(least, own);
    }
    return left < 0 ? kInfinite : fixed + left * least;
  }

 private:
  int64_t instant_at(int64_t i) const { return 1 + stages_ + i; }
  int64_t slack_at(int64_t i) const { return 1 + stages_ + instants_ + i; }
  int64_t path_at(int64_t i) const { return 1 + stages_ + instants_ + size_ + i; }

  double gain(int64_t column) const {
    if (column == 0) return static_cast<double>(x_.num_blocks);
    if (column < instant_at(0)) return static_cast<double>(x_.least[column - 1]);
    if (column < slack_at(0)) return -x_.room[column - instant_at(0)];
    if (column < path_at(0)) return 0.0;
    return paths_[column - path_at(0)].fixed_s / scale_s_;
  }

  void fill(int64_t column, std::vector<double>& to) const {
    std::fill(to.begin(), to.end(), 0.0);
    if (column == 0) {
      std::fill(to.begin() + 1, to.end(), 1.0);
    } else if (column < instant_at(0)) {
      const auto first = to.begin() + 1 + (column - 1) * ways_;
      std::fill(first, first + ways_, 1.0);
    } else if (column < slack_at(0)) {
      const int64_t instant = column - instant_at(0);
      for (int64_t j = 0; j < size_; ++j) to[j + 1] = -x_.block_held[instant * size_ + j];
    } else if (column < path_at(0)) {
      to[1 + column - slack_at(0)] = 1.0;
    } else {
      const OrderPath& path = paths_[column - path_at(0)];
      to[0] = 1.0;
      for (int64_t j = 0; j < size_; ++j) to[j + 1] = -path.block_s[j] / scale_s_;
    }
  }

  void price() {
    price_.assign(rows_, 0.0);
    for (int64_t i = 0; i < rows_; ++i) {
      const double own = gain(basic_[i]);
      if (own == 0) continue;
      const double* row = &inverse_[i * rows_];
      for (int64_t j = 0; j < rows_; ++j) price_[j] += own * row[j];
    }
  }

  // The column that gains most for each unit, or -1.
  int64_t best_column() const {
    const double blocks = static_cast<double>(x_.num_blocks);
    int64_t best = -1;
    double most = kHair;
    const auto offer = [&](int64_t column, double gained) {
      if (gained > most) {
        most = gained;
        best = column;
      }
    };
    double all = 0;
    for (int64_t s = 0; s < stages_; ++s) {
      double own = 0;
      for (int64_t i = s * ways_; i < (s + 1) * ways_; ++i) {
        own += price_[i + 1];
        offer(slack_at(i), -price_[i + 1]);
      }
      offer(1 + s, static_cast<double>(x_.least[s]) - own);
      all += own;
    }
    offer(0, (blocks - all) / std::max(1.0, blocks));
    for (int64_t i = 0; i < instants_; ++i) {
      double held = -x_.room[i];
      for (int64_t j = 0; j < size_; ++j) held += x_.block_held[i * size_ + j] * price_[j + 1];
      offer(instant_at(i), held);
    }
    for (size_t q = 0; q < paths_.size(); ++q) {
      double longer = paths_[q].fixed_s / scale_s_ - price_[0];
      for (int64_t j = 0; j < size_; ++j) longer += paths_[q].block_s[j] / scale_s_ * price_[j + 1];
      offer(path_at(static_cast<int64_t>(q)), longer);
    }
    return best;
  }

  void pivot_on(int64_t leaves, const std::vector<double>& step, double ratio) {
    double* own = &inverse_[leaves * rows_];
    for (int64_t j = 0; j < rows_; ++j) own[j] /= step[leaves];
    for (int64_t i = 0; i < rows_; ++i) {
      if (i == leaves || step[i] == 0) continue;
      double* row = &inverse_[i * rows_];
      for (int64_t j = 0; j < rows_; ++j) row[j] -= step[i] * own[j];
      value_[i] -= step[i] * ratio;
    }
    value_[leaves] = ratio;
  }

  const OrderSplits& x_;
  int64_t ways_, stages_, size_, rows_, instants_;
  double scale_s_;
  std::vector<double> inverse_, value_, price_, ray_;
  int64_t ray_column_ = -1;
  std::vector<int64_t> basic_;
  std::vector<OrderPath> paths_;
};

}  // namespace

LeastOfOrder least_of_order(const OrderSplits& splits, const Orders& orders,
                            const LeastOfOrder* start) {
  Paths paths(splits, orders);
  const auto size = splits.block_forward_s.size();
  std::vector<double> blocks(size,
                             static_cast<double>(splits.num_blocks) / static_cast<double>(size));
  std::vector<Path> found = paths.longest(blocks);
  const auto longer = [](const Path& a, const Path& b) { return a.value_s > b.value_s; };
  const auto first = std::min_element(found.begin(), found.end(), longer);
  const double first_s = std::max(first->value_s, 1e-300);
  Dual dual(splits, *first, first_s);
  if (start != nullptr)
    for (const OrderPath& path : start->paths) dual.add(path);
  LeastOfOrder least{.reached_s = kInfinite};
  const int64_t pivots = kPivots * (1 + orders.num_ranks());
  for (int64_t round = 0; round < kRounds; ++round) {
    const bool has_room = dual.solve(pivots);
    least.step_s = std::max(least.step_s, dual.proved_s() * (1 - kHair));
    if (!has_room) {
      if (dual.proved_s(kFar) > 1e3 * first_s) least.step_s = kInfinite;
      break;
    }
    blocks = dual.blocks();
    found = paths.longest(blocks);
    std::sort(found.begin(), found.end(), longer);
    const double reached_s = found.front().value_s;
    if (reached_s < least.reached_s) {
      least.reached_s = reached_s;
      least.blocks = blocks;
    }
    if (reached_s <= least.step_s * (1 + splits.near) || least.step_s >= splits.limit_s) break;
    for (size_t i = 0; i < std::min(kColumns, found.size()); ++i)
      if (found[i].value_s > least.step_s * (1 + splits.near)) dual.add(std::move(found[i]));
  }
  least.paths = dual.counted();
  return least;
}

}  // namespace trainwright
