#include "chain/order_splits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "chain/order_graph.hpp"

namespace trainwright {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kHair = 1e-9;
constexpr int64_t kRounds = 200;  // of simulations
constexpr int64_t kPivots = 40;   // between two of them, and as many for each rank
// Of the way from the best split to the one that the program asks for: paths of splits between them
// take a fifth of the rounds (Ben-Ameur, Neto: Acceleration of Cutting-Plane and Column Generation
// Algorithms, Networks 49(1), 2007).
constexpr double kInward[] = {0.1, 1.0};
constexpr double kFar = 1e9;         // along a ray that proves that nothing fits
constexpr double kPerturbed = 1e-7;  // of times, against ties
constexpr double kSingular = 1e-7;   // of a pivot, where a basis begins anew

struct Path : OrderPath {
  double value_s = 0;  // for the x at hand
};

// In four sums, which a compiler may run side by side.
double dot(const double* a, const double* b, int64_t count) {
  double sums[4] = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (int64_t k = 0; k < 4; ++k) sums[k] += a[i + k] * b[i + k];
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The longest path to the end of each rank.
class Paths {
 public:
  Paths(const OrderSplits& splits, const Orders& orders)
      : x_(splits),
        orders_(orders),
        stages_(orders.num_stages()),
        graph_(orders),
        hop_s_(hops_s(splits.transfer_s)),
        cost_s_(static_cast<size_t>(2 * stages_)),
        end_s_(graph_.steps.size(), 0.0),
        before_(graph_.steps.size(), 0) {}

  // Those of the ranks, for so many blocks by stage and way; none of ranks that end by `short_s`.
  std::vector<Path> longest(const std::vector<double>& blocks, double short_s) {
    const int64_t k = x_.num_ways;
    std::copy(x_.forward_s.begin(), x_.forward_s.end(), cost_s_.begin());
    std::copy(x_.backward_s.begin(), x_.backward_s.end(), cost_s_.begin() + stages_);
    std::vector<double> after_s(x_.after_s.begin(), x_.after_s.end());
    for (int64_t s = 0; s < stages_; ++s) {
      for (int64_t i = s * k; i < (s + 1) * k; ++i) {
        cost_s_[s] += blocks[i] * x_.block_forward_s[i];
        cost_s_[stages_ + s] += blocks[i] * x_.block_backward_s[i];
        after_s[orders_.rank_of_stage[s]] += blocks[i] * x_.block_after_s[i];
      }
    }
    for (size_t i = 1; i < graph_.steps.size(); ++i) {
      const OrderStep& step = graph_.steps[i];
      const double own_s = end_s_[step.previous];
      const double arrives_s = end_s_[step.producer] + hop_s_[step.hop];
      before_[i] = arrives_s > own_s ? ~step.producer : step.previous;
      end_s_[i] = std::max(own_s, arrives_s) + cost_s_[step.cost];
    }
    reached_s_ = 0;
    std::vector<Trace> traces;
    for (int64_t r = 0; r < orders_.num_ranks(); ++r) {
      if (graph_.last[r] == 0) continue;
      const double value_s = end_s_[graph_.last[r]] + after_s[r];
      reached_s_ = std::max(reached_s_, value_s);
      if (value_s > short_s) traces.push_back({graph_.last[r], r, value_s});
    }
    const auto width = static_cast<size_t>(3 * stages_);  // forwards, backwards, transfers
    counts_.assign(width * traces.size(), 0);
    follow(traces, width);
    std::vector<Path> found;
    for (size_t i = 0; i < traces.size(); ++i)
      found.push_back(path_of(traces[i], &counts_[i * width]));
    return found;
  }

  // When the last rank was through.
  double reached_s() const { return reached_s_; }

 private:
  struct Trace {
    int32_t place;
    int64_t rank;
    double value_s;
  };

  // Back to the beginning, side by side: one waits for memory while another goes on.
  void follow(std::vector<Trace>& traces, size_t width) {
    std::vector<std::pair<int32_t, int32_t*>> running;
    for (size_t i = 0; i < traces.size(); ++i)
      running.emplace_back(traces[i].place, &counts_[i * width]);
    while (!running.empty()) {
      bool is_any_through = false;
      for (auto& [place, counts] : running) {
        const OrderStep& step = graph_.steps[place];
        const int32_t before = before_[place];
        const int32_t waits = before >> 31;  // all bits, or none
        ++counts[step.cost];
        ++counts[2 * stages_ + (step.hop & waits)];
        place = before ^ waits;
        is_any_through |= place == 0;
      }
      if (is_any_through) std::erase_if(running, [](const auto& each) { return each.first == 0; });
    }
  }

  Path path_of(const Trace& trace, const int32_t* counts) const {
    const int32_t *forwards = counts, *backwards = counts + stages_, *hops = counts + 2 * stages_;
    Path path;
    path.value_s = trace.value_s;
    path.fixed_s = x_.after_s[trace.rank];
    path.block_s.resize(x_.block_forward_s.size());
    for (int64_t s = 0; s < stages_; ++s) {
      path.fixed_s += forwards[s] * x_.forward_s[s] + backwards[s] * x_.backward_s[s];
      if (s > 0) path.fixed_s += hops[s] * hop_s_[s];
      const bool own = orders_.rank_of_stage[s] == trace.rank;
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
  OrderGraph graph_;
  std::vector<double> hop_s_, cost_s_, end_s_;
  std::vector<int32_t> before_;  // the place before on the longest path; its complement if it waits
  std::vector<int32_t> counts_;
  double reached_s_ = 0;
};

// The dual program. Row 0 says that the y add up to one, row 1 + i is of stage and way i. Seconds
// are counted in `scale_s`.
class Dual {
 public:
  Dual(const OrderSplits& splits, double scale_s)
      : x_(splits),
        ways_(splits.num_ways),
        stages_(static_cast<int64_t>(splits.least.size())),
        size_(stages_ * ways_),
        rows_(size_ + 1),
        instants_(static_cast<int64_t>(splits.room.size())),
        scale_s_(scale_s),
        basic_(static_cast<size_t>(rows_)),
        right_(static_cast<size_t>(rows_)),
        step_(static_cast<size_t>(rows_)),
        column_(static_cast<size_t>(rows_)) {
    uint32_t state = 12345;
    for (int64_t i = 0; i < rows_; ++i) {
      state = state * 1664525u + 1013904223u;
      const double more = kPerturbed * (1.0 + static_cast<double>(state >> 8) / (1 << 24));
      right_[i] = i == 0 ? 1.0 : more;
    }
  }

  void add(OrderPath path) {
    for (double& each : path.block_s) each /= scale_s_;
    path.fixed_s /= scale_s_;
    paths_.push_back(std::move(path));
  }

  // y of the last path is one, so slacks are what it counts of each stage and way.
  void begin() {
    clear();
    basic_[0] = {Of::path, static_cast<int64_t>(paths_.size()) - 1};
    solve_for(basic_[0]);
    pivot_on(0);
    finish();
  }

  // With the basis of another program, whose paths were added; false where that is none.
  bool begin(const std::vector<DualColumn>& basis) {
    clear();
    std::vector<char> is_left(static_cast<size_t>(rows_), 1);
    for (const DualColumn& each : basis)
      if (each.of == Of::slack) is_left[1 + each.index] = 0;
    for (const DualColumn& each : basis) {
      if (each.of == Of::slack) continue;
      solve_for(each);
      int64_t row = -1;
      for (int64_t i = 0; i < rows_; ++i)
        if (is_left[i] && (row < 0 || std::abs(step_[i]) > std::abs(step_[row]))) row = i;
      if (row < 0 || std::abs(step_[row]) < kSingular) return false;
      pivot_on(row);
      basic_[row] = each;
      is_left[row] = 0;
    }
    finish();
    return std::all_of(value_.begin(), value_.end(), [](double own) { return own > -kSingular; });
  }

  // Where it is: the basis, and the paths that it names in their order.
  void keep(LeastOfOrder& found) const {
    for (const DualColumn& each : basic_) {
      DualColumn own = each;
      if (own.of == Of::path) {
        own.index = static_cast<int64_t>(found.paths.size());
        OrderPath path = paths_[each.index];
        for (double& seconds : path.block_s) seconds *= scale_s_;
        path.fixed_s *= scale_s_;
        found.paths.push_back(std::move(path));
      }
      found.basis.push_back(own);
    }
  }

  // Pivots until no column gains; false where memory leaves room for no split.
  bool solve(int64_t most) {
    forget();
    price();
    is_solved_ = false;
    for (int64_t pivot = 0; pivot < most; ++pivot) {
      const auto [enters, gained] = best_column();
      is_solved_ = !(gained > 0);
      if (is_solved_) return true;
      solve_for(enters);
      int64_t leaves = -1;
      double least = kInfinite;
      for (int64_t i = 0; i < rows_; ++i) {
        if (step_[i] <= kHair) continue;
        const double ratio = std::max(0.0, value_[i]) / step_[i];
        if (ratio < least - kHair * 1e-3 ||
            (leaves >= 0 && ratio <= least && step_[i] > step_[leaves])) {
          least = ratio;
          leaves = i;
        }
      }
      if (leaves < 0) {
        ray_ = step_;
        ray_column_ = enters;
        return false;
      }
      for (int64_t i = 0; i < rows_; ++i) value_[i] -= step_[i] * least;
      value_[leaves] = least;
      pivot_on(leaves);
      basic_[leaves] = enters;
      for (int64_t j = 0; j < rows_; ++j) price_[j] += gained * inverse_[j * rows_ + leaves];
    }
    price();
    return true;
  }

  // Whether no column gained in the end.
  bool is_solved() const { return is_solved_; }

  // Blocks by stage and way: the prices of the rows.
  std::vector<double> blocks() const {
    std::vector<double> found(size_);
    double sum = 0;
    for (int64_t i = 0; i < size_; ++i) sum += found[i] = std::max(0.0, price_[i + 1]);
    if (sum > 0)
      for (double& each : found) each *= static_cast<double>(x_.num_blocks) / sum;
    return found;
  }

  // The bound that y and z prove, in seconds: what is perturbed, or the first column of the
  // inverse, which is the same without that.
  double proved_s() const {
    const std::vector<double> exact(inverse_.begin(), inverse_.begin() + rows_);
    return scale_s_ * std::max(proved(value_), proved(exact));
  }

  // Where memory leaves no room, the bound so far along the ray that `solve` met.
  double proved_along_s(double far) const {
    std::vector<double> counts(static_cast<size_t>(rows_));
    for (int64_t i = 0; i < rows_; ++i) counts[i] = value_[i] - far * ray_[i];
    return scale_s_ * proved(counts, far);
  }

 private:
  using Of = DualColumn::Of;

  // All slack, and nothing in row 0.
  void clear() {
    inverse_.assign(static_cast<size_t>(rows_ * rows_), 0.0);
    for (int64_t i = 0; i < rows_; ++i) {
      inverse_[i * rows_ + i] = 1.0;
      basic_[i] = {Of::slack, i - 1};
    }
  }

  void finish() {
    value_.assign(static_cast<size_t>(rows_), 0.0);
    for (int64_t j = 0; j < rows_; ++j)
      for (int64_t i = 0; i < rows_; ++i) value_[i] += right_[j] * inverse_[j * rows_ + i];
  }

  double proved(const std::vector<double>& counts, double along = 0) const {
    std::vector<double> cost(static_cast<size_t>(size_), 0.0);
    double sum = 0, fixed = 0;
    for (int64_t i = 0; i < rows_; ++i)
      if (basic_[i].of == Of::path) sum += std::max(0.0, counts[i]);
    if (along > 0 && ray_column_.of == Of::path) sum += along;
    if (!(sum > 0)) return 0;
    const auto count = [&](const DualColumn& column, double own) {
      if (!(own > 0)) return;
      if (column.of == Of::path) {
        const OrderPath& path = paths_[column.index];
        fixed += own / sum * path.fixed_s;
        for (int64_t j = 0; j < size_; ++j) cost[j] += own / sum * path.block_s[j];
      } else if (column.of == Of::instant) {
        fixed -= own * x_.room[column.index];
        for (int64_t j = 0; j < size_; ++j)
          cost[j] += own * x_.block_held[column.index * size_ + j];
      }
    };
    for (int64_t i = 0; i < rows_; ++i) count(basic_[i], counts[i]);
    if (along > 0) count(ray_column_, along);
    double least = kInfinite, left = static_cast<double>(x_.num_blocks);
    for (int64_t s = 0; s < stages_; ++s) {
      const auto first = cost.begin() + s * ways_;
      const double own = *std::min_element(first, first + ways_);
      const auto fewest = static_cast<double>(x_.least[s]);
      fixed += fewest * own;
      left -= fewest;
      least = std::min(least, own);
    }
    return left < 0 ? kInfinite : fixed + left * least;
  }

  double gain(const DualColumn& column) const {
    switch (column.of) {
      case Of::blocks:
        return static_cast<double>(x_.num_blocks);
      case Of::least:
        return static_cast<double>(x_.least[column.index]);
      case Of::instant:
        return -x_.room[column.index];
      case Of::path:
        return paths_[column.index].fixed_s;
      case Of::slack:
        break;
    }
    return 0.0;
  }

  void fill(const DualColumn& column) {
    std::fill(column_.begin(), column_.end(), 0.0);
    switch (column.of) {
      case Of::blocks:
        std::fill(column_.begin() + 1, column_.end(), 1.0);
        break;
      case Of::least: {
        const auto first = column_.begin() + 1 + column.index * ways_;
        std::fill(first, first + ways_, 1.0);
        break;
      }
      case Of::instant:
        for (int64_t j = 0; j < size_; ++j)
          column_[j + 1] = -x_.block_held[column.index * size_ + j];
        break;
      case Of::slack:
        column_[1 + column.index] = 1.0;
        break;
      case Of::path:
        column_[0] = 1.0;
        for (int64_t j = 0; j < size_; ++j) column_[j + 1] = -paths_[column.index].block_s[j];
    }
  }

  // `step_` is what the basis would have to give for one of the column.
  void solve_for(const DualColumn& column) {
    fill(column);
    std::fill(step_.begin(), step_.end(), 0.0);
    for (int64_t j = 0; j < rows_; ++j) {
      const double own = column_[j];
      if (own == 0) continue;
      const double* from = &inverse_[j * rows_];
      for (int64_t i = 0; i < rows_; ++i) step_[i] += own * from[i];
    }
  }

  // The inverse once the column of `step_` is in place of that of a row.
  void pivot_on(int64_t leaves) {
    for (int64_t j = 0; j < rows_; ++j) {
      double* column = &inverse_[j * rows_];
      if (column[leaves] == 0) continue;
      const double own = column[leaves] / step_[leaves];
      for (int64_t i = 0; i < rows_; ++i) column[i] -= own * step_[i];
      column[leaves] = own;
    }
  }

  void price() {
    std::vector<double> gains(static_cast<size_t>(rows_));
    for (int64_t i = 0; i < rows_; ++i) gains[i] = gain(basic_[i]);
    price_.resize(static_cast<size_t>(rows_));
    for (int64_t j = 0; j < rows_; ++j) price_[j] = dot(gains.data(), &inverse_[j * rows_], rows_);
  }

  double gained_by(const OrderPath& path) const {
    return path.fixed_s - price_[0] + dot(path.block_s.data(), &price_[1], size_);
  }

  // The column that gains most for each unit, and how much; nothing where none does.
  std::pair<DualColumn, double> best_column() const {
    const auto blocks = static_cast<double>(x_.num_blocks);
    std::pair<DualColumn, double> best{{}, 0.0};
    double most = kHair;
    const auto offer = [&](DualColumn column, double gained, double unit = 1.0) {
      if (gained / unit > most) {
        most = gained / unit;
        best = {column, gained};
      }
    };
    double all = 0;
    for (int64_t s = 0; s < stages_; ++s) {
      double own = 0;
      for (int64_t i = s * ways_; i < (s + 1) * ways_; ++i) {
        own += price_[i + 1];
        offer({Of::slack, i}, -price_[i + 1]);
      }
      offer({Of::least, s}, static_cast<double>(x_.least[s]) - own);
      all += own;
    }
    offer({Of::blocks, 0}, blocks - all, std::max(1.0, blocks));
    for (int64_t i = 0; i < instants_; ++i)
      offer({Of::instant, i}, dot(&x_.block_held[i * size_], &price_[1], size_) - x_.room[i]);
    for (size_t q = 0; q < paths_.size(); ++q)
      offer({Of::path, static_cast<int64_t>(q)}, gained_by(paths_[q]));
    return best;
  }

  // Paths that are far from being needed: simulation finds them again.
  void forget() {
    if (paths_.size() <= static_cast<size_t>(2 * rows_)) return;
    price();
    std::vector<char> is_basic(paths_.size(), 0);
    for (const DualColumn& each : basic_)
      if (each.of == Of::path) is_basic[each.index] = 1;
    std::vector<std::pair<double, size_t>> others;
    for (size_t q = 0; q < paths_.size(); ++q)
      if (!is_basic[q]) others.emplace_back(-gained_by(paths_[q]), q);
    std::sort(others.begin(), others.end());
    others.resize(std::min(others.size(), static_cast<size_t>(rows_) / 2));
    for (const auto& [less, q] : others) is_basic[q] = 1;
    std::vector<int64_t> number(paths_.size(), -1);
    std::vector<OrderPath> kept;
    for (size_t q = 0; q < paths_.size(); ++q) {
      if (!is_basic[q]) continue;
      number[q] = static_cast<int64_t>(kept.size());
      kept.push_back(std::move(paths_[q]));
    }
    paths_ = std::move(kept);
    for (DualColumn& each : basic_)
      if (each.of == Of::path) each.index = number[each.index];
  }

  const OrderSplits& x_;
  int64_t ways_, stages_, size_, rows_, instants_;
  double scale_s_;
  std::vector<DualColumn> basic_;
  std::vector<double> right_;    // of the rows
  std::vector<double> inverse_;  // by column
  std::vector<double> value_, price_, step_, column_, ray_;
  DualColumn ray_column_;
  bool is_solved_ = false;
  std::vector<OrderPath> paths_;
};

}  // namespace

LeastOfOrder least_of_order(const OrderSplits& splits, const Orders& orders,
                            const LeastOfOrder* start) {
  Paths paths(splits, orders);
  const auto size = splits.block_forward_s.size();
  std::vector<double> blocks(size,
                             static_cast<double>(splits.num_blocks) / static_cast<double>(size));
  std::vector<Path> found = paths.longest(blocks, 0.0);
  const auto longer = [](const Path& a, const Path& b) { return a.value_s > b.value_s; };
  const auto first = std::min_element(found.begin(), found.end(), longer);
  const double first_s = std::max(first->value_s, 1e-300);
  Dual dual(splits, first_s);
  if (start != nullptr)
    for (const OrderPath& path : start->paths) dual.add(path);
  if (start == nullptr || !dual.begin(start->basis)) {
    dual.add(std::move(*first));
    dual.begin();
  }
  LeastOfOrder least{.reached_s = kInfinite};
  const int64_t pivots = kPivots * (1 + orders.num_ranks());
  for (int64_t round = 0; round < kRounds; ++round) {
    const bool has_room = dual.solve(pivots);
    least.step_s = std::max(least.step_s, dual.proved_s() * (1 - kHair));
    if (!has_room) {
      if (dual.proved_along_s(kFar) > 1e3 * first_s) least.step_s = kInfinite;
      break;
    }
    const std::vector<double> asked = dual.blocks();
    const double enough_s = least.step_s * (1 + splits.near);
    const std::vector<double> best = least.blocks.empty() ? asked : least.blocks;
    bool is_cut = false;
    for (const double share : kInward) {
      for (size_t i = 0; i < size; ++i) blocks[i] = best[i] + share * (asked[i] - best[i]);
      found = paths.longest(blocks, share < 1 ? 0.0 : enough_s);
      if (paths.reached_s() < least.reached_s) {
        least.reached_s = paths.reached_s();
        least.blocks = blocks;
      }
      if (least.reached_s <= enough_s) break;  // no more can be proved
      for (Path& each : found) {
        const double own_s = each.fixed_s + dot(each.block_s.data(), asked.data(), size);
        if (own_s <= enough_s) continue;
        is_cut = true;
        dual.add(std::move(each));
      }
      if (is_cut) break;
    }
    if ((!is_cut && dual.is_solved()) || least.step_s >= splits.limit_s) break;
  }
  dual.keep(least);
  return least;
}

}  // namespace trainwright
