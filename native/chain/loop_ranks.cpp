#include "chain/loop_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "chain/freed.hpp"
#include "common/zero.hpp"

namespace trainwright {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

class Rank {
 public:
  Rank(const LoopRanks& loop, int64_t rank)
      : x_(loop),
        rank_(rank),
        p_(loop.num_ranks),
        size_(static_cast<int64_t>(loop.least.size())),
        v_(size_ / loop.num_ranks),
        first_(loop.order.instant_offset[rank]),
        after_(loop.order.instant_offset[rank + 1]) {
    for (int64_t chunk = 0; chunk < v_; ++chunk) {
      least_.push_back(x_.least[chunk * p_ + rank]);
      spare_.push_back(x_.most[chunk * p_ + rank] - least_.back());
      spared_.push_back(x_.spared_bytes[chunk * p_ + rank]);
      again_s_ += x_.again_s[chunk * p_ + rank];
    }
    if (rank == 0) edges_.push_back({0, 0});
    if (rank == p_ - 1) edges_.push_back({1, v_ - 1});
    for (int64_t i = first_; i < after_; ++i)
      by_held_.push_back(ordered(instant(x_.order.held, i), 1));
    by_warm_ = ordered(row(x_.order.warm), -1);
    by_drain_ = ordered(row(x_.order.drain), -1);
    sum_paths();
  }

  void fill(std::span<double> times_s) const {
    for (size_t extra = 0; extra < times_s.size(); ++extra) {
      times_s[extra] = time_s(static_cast<int64_t>(extra));
    }
  }

 private:
  struct Edge {
    int64_t end;
    int64_t chunk;
  };

  std::span<const double> instant(std::span<const double> rows, int64_t i) const {
    return rows.subspan(static_cast<size_t>(i * v_), static_cast<size_t>(v_));
  }
  std::span<const double> row(std::span<const double> rows) const { return instant(rows, rank_); }

  // Chunks by count, ascending or descending, the first of equals first.
  std::vector<int64_t> ordered(std::span<const double> counts, double sign) const {
    std::vector<int64_t> order(static_cast<size_t>(v_));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return sign * counts[a] < sign * counts[b]; });
    return order;
  }

  // Blocks of each chunk, extra ones in the order given.
  void deal(int64_t extra, const std::vector<int64_t>& order, std::vector<int64_t>& blocks) const {
    blocks = least_;
    for (const int64_t chunk : order) {
      const int64_t own = std::min(extra, spare_[chunk]);
      blocks[chunk] += own;
      extra -= own;
    }
  }

  double time_s(int64_t extra) const {
    const int64_t count = std::accumulate(least_.begin(), least_.end(), extra);
    double held = count * x_.blocks.static_bytes, edge_s = 0,
           after_s = count * x_.blocks.optimizer_s;
    for (const Edge& edge : edges_) {
      held += x_.edges.static_bytes[edge.end];
      edge_s += x_.edges.time_s[edge.end];
      after_s += x_.edges.optimizer_s[edge.end];
    }
    const double recomputed_s = recompute_s(extra, held);
    if (!std::isfinite(recomputed_s)) return kInfinite;
    const size_t at = static_cast<size_t>(x_.sharing.offset[rank_] + extra);
    const double exposed_s =
        zero::beyond_s(x_.sharing.backward_s[at], x_.sharing.under_backward * recomputed_s);
    const double forward_s = x_.sharing.forward_s[at], backward_s = recomputed_s + exposed_s;
    const double work_s = count * x_.blocks.time_s[0] + edge_s + forward_s + backward_s;
    const Idle idle = idle_s(extra, forward_s, backward_s);
    // A rank exchanges after its own last action, while others may still drain, and the first one
    // after them.
    return x_.num_microbatches * work_s + after_s +
           std::max(idle.whole_s + first_exchanges_s_, idle.before_s + x_.sharing.tail_s[at]);
  }

  // Seconds per microbatch; infinite where the leanest options do not fit.
  double recompute_s(int64_t extra, double held_bytes) const {
    double worst_s = again_s_;
    std::vector<int64_t> blocks;
    std::vector<FreeingWay> ways;
    for (int64_t i = first_; i < after_; ++i) {
      const auto counts = instant(x_.order.held, i), runs = instant(x_.order.running, i);
      double room = x_.usable_bytes - x_.gathered_bytes - held_bytes;
      for (const Edge& edge : edges_) room -= counts[edge.chunk] * x_.edges.kept_bytes[edge.end];
      for (int64_t chunk = 0; chunk < v_; ++chunk) {
        if (runs[chunk] > 0 && least_[chunk] > 0) {
          room -= x_.blocks.transient_bytes;
          break;
        }
      }
      if (room < 0) return kInfinite;
      deal(extra, by_held_[i - first_], blocks);
      const std::span<const int64_t> own(blocks);
      const auto freeing_s = [&](double in_bytes) {
        return freed_s(counts, own, x_.blocks.time_s, x_.blocks.kept_bytes, in_bytes, ways);
      };
      const double freed = freeing_s(room);
      worst_s = std::max(worst_s, freed);
      if (again_s_ > 0 && freed > 0)
        worst_s =
            std::max(worst_s, again_s_ + freeing_s(std::inner_product(counts.begin(), counts.end(),
                                                                      spared_.begin(), room)));
      if (!std::isfinite(worst_s)) return kInfinite;
    }
    return worst_s;
  }

  void sum_paths() {
    double before_forward = 0, before_backward = 0, behind = 0, ahead = 0, across = 0;
    double beyond_end = 0;
    const auto turns = x_.order.turns.subspan(static_cast<size_t>(4 * rank_), 4);
    double across_begins = 0, across_turns = 0, across_leaves = 0, across_ends = 0;
    for (int64_t s = 0; s < size_; ++s) {
      if (s > 0) across += x_.transfer_s[s - 1];
      const double forward_s = x_.forward_s[s], backward_s = x_.backward_s[s];
      if (s < turns[0]) before_forward += forward_s;
      (s < turns[3] ? before_backward : beyond_end) += backward_s;
      if (s > turns[1]) behind += backward_s;
      if (s > turns[2]) ahead += forward_s;
      if (s == turns[0]) across_begins = across;
      if (s == turns[1]) across_turns = across;
      if (s == turns[2]) across_leaves = across;
      if (s == turns[3]) across_ends = across;
    }
    head_s_ = before_forward + across_begins;
    tail_s_ = before_backward + across_ends;
    start_s_ = x_.forward_all_s + across + behind + across - across_turns;
    end_s_ = x_.backward_all_s + across + ahead + across - across_leaves;
    own_end_s_ = beyond_end + across - across_ends + ahead + across - across_leaves;
    passes_all_ = turns[3] < p_;
    const auto first = x_.sharing.tail_s.subspan(0, static_cast<size_t>(x_.sharing.offset[1]));
    first_exchanges_s_ = *std::min_element(first.begin(), first.end());
  }

  // Before the own last action at the latest, and until the first stage is through.
  struct Idle {
    double before_s;
    double whole_s;
  };

  // The longest of four; own work that a path does not pass is at most as given here.
  Idle idle_s(int64_t extra, double added_forward_s, double added_backward_s) const {
    const auto warm = row(x_.order.warm), drain = row(x_.order.drain);
    const double block_backward_s = x_.blocks.time_s[0] - x_.blocks.forward_s;
    double warm_s = weighed(warm, by_warm_, extra) * x_.blocks.forward_s +
                    *std::max_element(warm.begin(), warm.end()) * added_forward_s;
    double drain_s = weighed(drain, by_drain_, extra) * block_backward_s +
                     *std::max_element(drain.begin(), drain.end()) * added_backward_s;
    for (const Edge& edge : edges_) {
      const double forward_s = x_.edges.forward_s[edge.end];
      warm_s += warm[edge.chunk] * forward_s;
      drain_s += drain[edge.chunk] * (x_.edges.time_s[edge.end] - forward_s);
    }
    const double start_s = start_s_ - warm_s, end_s = end_s_ - drain_s;
    const double own_end_s = own_end_s_ + (passes_all_ ? extra * block_backward_s : 0) - drain_s;
    const double begun_s = std::max(head_s_, start_s);
    const double late_s = x_.order.waits_twice[rank_] ? begun_s : head_s_;
    return {std::max(begun_s, late_s + own_end_s), std::max(begun_s + tail_s_, late_s + end_s)};
  }

  double weighed(std::span<const double> counts, const std::vector<int64_t>& order,
                 int64_t extra) const {
    std::vector<int64_t> blocks;
    deal(extra, order, blocks);
    double sum = 0;
    for (int64_t chunk = 0; chunk < v_; ++chunk) sum += counts[chunk] * blocks[chunk];
    return sum;
  }

  const LoopRanks& x_;
  int64_t rank_, p_, size_, v_, first_, after_;
  std::vector<int64_t> least_, spare_, by_warm_, by_drain_;
  std::vector<double> spared_;
  double again_s_ = 0;
  std::vector<std::vector<int64_t>> by_held_;  // chunks of each instant, fewest microbatches first
  std::vector<Edge> edges_;
  double head_s_ = 0, tail_s_ = 0, start_s_ = 0, end_s_ = 0, own_end_s_ = 0;
  double first_exchanges_s_ = 0;
  bool passes_all_ = false;  // whether the way back to the own last action passes all own chunks
};

}  // namespace

std::vector<double> loop_rank_times_s(const LoopRanks& loop) {
  std::vector<double> times_s(static_cast<size_t>(loop.sharing.offset[loop.num_ranks]));
  for (int64_t rank = 0; rank < loop.num_ranks; ++rank) {
    const int64_t first = loop.sharing.offset[rank], after = loop.sharing.offset[rank + 1];
    Rank(loop, rank).fill(std::span(times_s).subspan(first, after - first));
  }
  return times_s;
}

}  // namespace trainwright
