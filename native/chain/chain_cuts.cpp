#include "chain/chain_cuts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

namespace trainwright {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The least of all cuts of the ranks from one on, by its first layer: the way of a microbatch
// through all and back; from the rank's start the last input gradient's end, and the step's.
struct Later {
  std::vector<double> way_s, end_s, finish_s;

  explicit Later(int64_t num_layers, double last)
      : way_s(num_layers + 1, kInfinite),
        end_s(num_layers + 1, kInfinite),
        finish_s(num_layers + 1, kInfinite) {
    way_s.back() = end_s.back() = finish_s.back() = last;
  }
};

struct Stage {
  double forward_s, weight_grad_s, time_s, tail_s, transfer_s;
};

struct Order {
  int64_t warm_up, drained, drained_weight_grads, left_weight_grads;
};

// How long a rank runs at least until its last input gradient.
double alone_s(const Stage& own, const Order& order, double away_s, int64_t m) {
  const double handed_on_s = own.time_s - own.weight_grad_s;
  const double input_grad_s = handed_on_s - own.forward_s;
  const int64_t w = order.warm_up;
  double idle_s = std::max(0.0, away_s - (w - 1) * own.forward_s);
  if (m > w) {
    const double drained_s =
        order.drained * input_grad_s + order.drained_weight_grads * own.weight_grad_s;
    idle_s += std::max(0.0, away_s - drained_s);
  }
  double end_s = m * own.time_s - order.left_weight_grads * own.weight_grad_s + idle_s;
  const double late_s = away_s - (w - 1) * handed_on_s;
  if (m > w && late_s > 0) {
    end_s = std::max(end_s, m * handed_on_s + away_s + late_s + (m - w - 1) / w * late_s);
  }
  return end_s;
}

class Cutter {
 public:
  explicit Cutter(const ChainCuts& chain)
      : x_(chain), later_(chain.num_layers, 0.0), best_(chain.num_layers, kInfinite) {}

  ChainCut run() {
    picks_.assign(static_cast<size_t>(x_.num_ranks * x_.num_layers), 1);
    for (int64_t rank = x_.num_ranks - 1; rank >= 0; --rank) {
      for (int64_t first = 0; first < x_.num_layers; ++first) fill(rank, first);
      std::swap(later_, best_);
      later_.way_s.back() = later_.end_s.back() = later_.finish_s.back() = kInfinite;
    }
    ChainCut found{later_.finish_s[0], {}};
    if (!std::isfinite(found.finish_s)) return found;
    for (int64_t rank = 0, first = 0; rank < x_.num_ranks; ++rank) {
      found.lengths.push_back(picks_[rank * x_.num_layers + first]);
      first += found.lengths.back();
    }
    return found;
  }

 private:
  void fill(int64_t rank, int64_t first) {
    const Order order{x_.order[4 * rank], x_.order[4 * rank + 1], x_.order[4 * rank + 2],
                      x_.order[4 * rank + 3]};
    double way_s = kInfinite, end_s = kInfinite, finish_s = kInfinite, least = kInfinite;
    const int64_t most = std::min(x_.longest, x_.num_layers - first);
    for (int64_t length = 1; length <= most; ++length) {
      const int64_t kind = x_.kind_of[first * x_.longest + length - 1], after = first + length;
      if (kind < 0 || !std::isfinite(later_.way_s[after])) continue;
      const size_t at = static_cast<size_t>(rank * x_.num_kinds + kind);
      if (!std::isfinite(x_.time_s[at])) continue;
      const Stage own{x_.forward_s[at], x_.weight_grad_s[at], x_.time_s[at], x_.tail_s[at],
                      x_.transfer_s[rank * (x_.num_layers + 1) + after]};
      const double handed_on_s = own.time_s - own.weight_grad_s;
      const double away_s = 2 * own.transfer_s + later_.way_s[after];
      const double own_end_s = std::max(alone_s(own, order, away_s, x_.num_microbatches),
                                        handed_on_s + 2 * own.transfer_s + later_.end_s[after]);
      const double left_s = order.left_weight_grads * own.weight_grad_s;
      const double own_finish_s = std::max(own_end_s + left_s + own.tail_s,
                                           own.forward_s + own.transfer_s + later_.finish_s[after]);
      way_s = std::min(way_s, handed_on_s + away_s);
      end_s = std::min(end_s, own_end_s);
      finish_s = std::min(finish_s, own_finish_s);
      const double shortness = own_finish_s + x_.tie * x_.num_microbatches * own.time_s;
      if (shortness < least) {
        least = shortness;
        picks_[rank * x_.num_layers + first] = length;
      }
    }
    best_.way_s[first] = way_s;
    best_.end_s[first] = end_s;
    best_.finish_s[first] = finish_s;
  }

  const ChainCuts& x_;
  Later later_, best_;
  std::vector<int64_t> picks_;
};

bool fits(const double* way, std::span<const double> rows, double level_bytes, double room) {
  for (size_t row = 0; row < rows.size(); row += 3) {
    if (rows[row] * way[0] + rows[row + 1] * way[1] > room - rows[row + 2] * level_bytes) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<int64_t> unbeaten_ways(std::span<const double> takes) {
  std::vector<int64_t> order(takes.size() / 3), kept;
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double *x = &takes[3 * a], *y = &takes[3 * b];
    return std::tie(x[2], x[0], x[1], a) < std::tie(y[2], y[0], y[1], b);
  });
  std::map<double, double> stairs;
  for (const int64_t way : order) {
    const double first = takes[3 * way], second = takes[3 * way + 1];
    auto after = stairs.upper_bound(first);
    if (after != stairs.begin() && std::prev(after)->second <= second) continue;
    while (after != stairs.end() && after->second >= second) after = stairs.erase(after);
    stairs.insert_or_assign(first, second);
    kept.push_back(way);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

std::vector<double> fitting_times_s(const ChainMemory& memory) {
  const int64_t p = memory.num_ranks, kinds = memory.num_kinds;
  std::vector<double> times_s(static_cast<size_t>(p * kinds), kInfinite);
  const size_t own = memory.rows.size() / static_cast<size_t>(p);
  for (int64_t rank = 0; rank < p; ++rank) {
    const auto rows = memory.rows.subspan(static_cast<size_t>(rank) * own, own);
    for (int64_t kind = 0; kind < kinds; ++kind) {
      double& least_s = times_s[rank * kinds + kind];
      for (int64_t l = memory.level_offset[kind]; l < memory.level_offset[kind + 1]; ++l) {
        for (int64_t i = memory.way_offset[l + 1] - 1; i >= memory.way_offset[l]; --i) {
          const double* way = memory.ways.data() + 3 * i;
          if (way[2] >= least_s) break;
          if (fits(way, rows, memory.level_bytes[l], memory.room_bytes[kind])) {
            least_s = way[2];
            break;
          }
        }
      }
    }
  }
  return times_s;
}

ChainCut least_chain_cut(const ChainCuts& chain) { return Cutter(chain).run(); }

}  // namespace trainwright
