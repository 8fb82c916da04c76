#include "schedule/cyclic_path.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace trainwright {

namespace {

constexpr int64_t kOrders = 120;
constexpr int64_t kWaits = 4;         // of F0, F1, I1 and I0, and as many shifts
constexpr int64_t kMostTables = 32;   // a megabyte and a few milliseconds each
constexpr double kStep = 0.35;        // by which prices follow what is over, in activations
constexpr double kSlower = 0.05;      // and how much less with every round
constexpr double kLeastPrice = 1e-3;  // of the highest
constexpr double kHopeless = 1e-6;    // activations, for rounding
using Order = std::array<int64_t, kCyclicActions>;
using Table = std::array<std::array<std::vector<float>, kWaits>, kWaits>;  // by shift and wait

std::vector<Order> all_orders() {
  std::vector<Order> orders;
  Order order{kF0, kF1, kI1, kI0, kW1, kW0};
  do {
    orders.push_back(order);
  } while (std::next_permutation(order.begin() + 1, order.end()));
  return orders;
}

// What a second more costs, by rank.
struct Prices {
  std::vector<double> outer;      // F0 or I0 between a rank and the next
  std::vector<double> inner;      // F1 or I1 there
  std::vector<double> near, far;  // a weight gradient
  double turn = 0.0, loss = 0.0;  // between F0 and F1, or I1 and I0, of the last rank; at the loss
};

class Path {
 public:
  Path(const CyclicProblem& problem, double period_s)
      : x_(problem), period_s_(period_s), p_(problem.num_ranks()) {}

  std::vector<double> run(int64_t rounds) {
    if (!may_fit() || !prepare()) return {};
    std::vector<double> price(static_cast<size_t>(p_), 1.0);
    for (int64_t round = 0; round < rounds; ++round) {
      std::vector<double> starts = least(prices(price));
      const std::vector<double> over = bytes_beyond(x_, period_s_, starts);
      if (std::ranges::all_of(over, [](double bytes) { return bytes <= 0; })) return starts;
      // For what is held in the mean, which is less than at most: above 0 no such path fits.
      double paid = 0;
      std::vector<double> mean(static_cast<size_t>(p_));
      for (int64_t r = 0; r < p_; ++r) {
        mean[r] = mean_beyond(r, starts.data() + r * kCyclicActions);
        paid += price[r] * mean[r] / size(r);
      }
      if (paid > kHopeless) return {};
      const double pace = kStep / (1.0 + kSlower * static_cast<double>(round));
      for (int64_t r = 0; r < p_; ++r) {
        const double both = (over[r] + mean[r]) / 2;
        price[r] *= std::exp(std::clamp(pace * both / size(r), -1.0, 1.0));
      }
      const double highest = std::ranges::max(price);
      for (double& one : price) one = std::max(one / highest, kLeastPrice);
    }
    return {};
  }

 private:
  // Whether every rank has room for what it would hold if nothing ever waited.
  bool may_fit() const {
    const auto at_once = [](int64_t, Letter, double ready_s) { return ready_s; };
    const std::vector<double> starts = path_starts(x_, 0.0, at_once);
    for (int64_t r = 0; r < p_; ++r)
      if (mean_beyond(r, starts.data() + r * kCyclicActions) > kHopeless * size(r)) return false;
    return true;
  }

  // Tables of all pairs of neighbours that differ; not where they would be too many.
  bool prepare() {
    static const std::vector<Order> orders = all_orders();
    std::vector<int64_t> ranks, pairs;  // the first of each
    for (int64_t r = 0; r < p_; ++r) {
      const auto known = std::ranges::find_if(ranks, [&](int64_t other) {
        return std::equal(own_s(r), own_s(r) + kCyclicActions, own_s(other));
      });
      alike_.push_back(known == ranks.end() ? r : *known);
      if (known == ranks.end()) ranks.push_back(r);
      if (std::ssize(ranks) > kMostTables) return false;
    }
    for (int64_t r = 0; r + 1 < p_; ++r) {
      const auto known =
          std::ranges::find_if(pairs, [&](int64_t other) { return same_pair(other, r); });
      table_of_.push_back(known - pairs.begin());
      if (known == pairs.end()) pairs.push_back(r);
      if (std::ssize(pairs) > kMostTables) return false;
    }
    phases_.resize(static_cast<size_t>(p_));
    for (const int64_t r : ranks) phases_[r] = placed(r, orders);
    for (const int64_t r : pairs) tables_.push_back(table(r));
    return true;
  }

  const double* own_s(int64_t r) const { return x_.duration_s.data() + r * kCyclicActions; }
  const double* delta(int64_t r) const { return x_.delta_bytes.data() + r * kCyclicActions; }
  const std::vector<CyclicStarts>& phases(int64_t r) const { return phases_[alike_[r]]; }
  double wait_s(double wait_s) const { return cyclic_modulo(wait_s, period_s_); }

  double size(int64_t r) const {  // of both activations of a rank
    return std::max(delta(r)[kF0] + delta(r)[kF1], std::numeric_limits<double>::min());
  }

  // Orders with the time that is left shared out.
  std::vector<CyclicStarts> placed(int64_t r, const std::vector<Order>& orders) const {
    const double* d = own_s(r);
    const double work_s = std::accumulate(d, d + kCyclicActions, 0.0);
    const double stretch = std::max(1.0, work_s > 0 ? period_s_ / work_s : 1.0);
    std::vector<CyclicStarts> found;
    for (const Order& order : orders) {
      double at_s = 0;
      CyclicStarts& one = found.emplace_back();
      for (const int64_t action : order) {
        one[action] = at_s;
        at_s += stretch * d[action];
      }
    }
    return found;
  }

  bool same_pair(int64_t one, int64_t other) const {
    const int64_t far = 2 * p_ - 2;
    return alike_[one] == alike_[other] && alike_[one + 1] == alike_[other + 1] &&
           x_.forward_transfer_s[one] == x_.forward_transfer_s[other] &&
           x_.backward_transfer_s[one] == x_.backward_transfer_s[other] &&
           x_.forward_transfer_s[far - one] == x_.forward_transfer_s[far - other] &&
           x_.backward_transfer_s[far - one] == x_.backward_transfer_s[far - other];
  }

  // From when on, or until when, the four actions of rank r let those of the next one run.
  std::array<double, kWaits> ahead(int64_t r, const CyclicStarts& at) const {
    const double* d = own_s(r);
    const int64_t far = 2 * p_ - 2 - r;
    return {at[kF0] + d[kF0] + x_.forward_transfer_s[r], at[kF1] - x_.forward_transfer_s[far],
            at[kI1] + d[kI1] + x_.backward_transfer_s[far], at[kI0] - x_.backward_transfer_s[r]};
  }

  // Their waits where the next rank is shifted so that one of them is none.
  std::array<double, kWaits> waits(int64_t r, const CyclicStarts& at, const CyclicStarts& next,
                                   int64_t none, double* shift_s = nullptr) const {
    const double* e = own_s(r + 1);
    const std::array<double, kWaits> own = ahead(r, at);
    const std::array<double, kWaits> other{next[kF0], next[kF1] + e[kF1], next[kI1],
                                           next[kI0] + e[kI0]};
    const double by_s = own[none] - other[none];
    if (shift_s != nullptr) *shift_s = by_s;
    return {wait_s(other[0] + by_s - own[0]), wait_s(own[1] - other[1] - by_s),
            wait_s(other[2] + by_s - own[2]), wait_s(own[3] - other[3] - by_s)};
  }

  Table table(int64_t r) const {
    Table made;
    for (auto& shift : made)
      for (auto& wait : shift) wait.resize(kOrders * kOrders);
    for (int64_t a = 0; a < kOrders; ++a) {
      for (int64_t b = 0; b < kOrders; ++b) {
        for (int64_t none = 0; none < kWaits; ++none) {
          const auto found = waits(r, phases(r)[a], phases(r + 1)[b], none);
          for (int64_t w = 0; w < kWaits; ++w)
            made[none][w][a * kOrders + b] = static_cast<float>(found[w]);
        }
      }
    }
    return made;
  }

  Prices prices(const std::vector<double>& price) const {
    Prices found;
    double far_beyond = 0;
    for (int64_t r = 0; r < p_; ++r) {
      found.near.push_back(price[r] * delta(r)[kF0] / size(r));
      found.far.push_back(price[r] * delta(r)[kF1] / size(r));
      found.turn += found.near.back();
      far_beyond += found.far.back();
    }
    found.loss = found.turn + far_beyond;
    double before = 0;
    for (int64_t r = 0; r + 1 < p_; ++r) {
      before += found.near[r];
      far_beyond -= found.far[r];
      found.outer.push_back(before);
      found.inner.push_back(found.turn + far_beyond);
    }
    for (int64_t r = 0; r < p_; ++r) {  // what input gradients release does not wait
      const auto late = [&](Letter forward, Letter weight_grad) {
        const double bytes = delta(r)[forward];
        return bytes > 0 ? std::clamp(-delta(r)[weight_grad] / bytes, 0.0, 1.0) : 0.0;
      };
      found.near[r] *= late(kF0, kW0);
      found.far[r] *= late(kF1, kW1);
    }
    return found;
  }

  double own_cost(int64_t r, const CyclicStarts& at, const Prices& prices) const {
    const double* d = own_s(r);
    double cost = prices.far[r] * wait_s(at[kW1] - at[kI1] - d[kI1]) +
                  prices.near[r] * wait_s(at[kW0] - at[kI0] - d[kI0]);
    if (r == 0) cost += prices.loss * wait_s(at[kI1] - at[kF1] - d[kF1]);
    if (r == p_ - 1) {
      cost +=
          prices.turn * (wait_s(at[kF1] - at[kF0] - d[kF0]) + wait_s(at[kI0] - at[kI1] - d[kI1]));
    }
    return cost;
  }

  std::vector<double> least(const Prices& prices) const {
    std::array<float, kOrders> cost{};
    for (int64_t a = 0; a < kOrders; ++a)
      cost[a] = static_cast<float>(own_cost(0, phases(0)[a], prices));
    std::vector<std::array<int32_t, kOrders>> from;
    for (int64_t r = 0; r + 1 < p_; ++r) {
      const Table& waits = tables_[table_of_[r]];
      const float outer = static_cast<float>(prices.outer[r]);
      const float inner = static_cast<float>(prices.inner[r]);
      std::array<float, kOrders> best;
      best.fill(std::numeric_limits<float>::infinity());
      auto& came = from.emplace_back();
      came.fill(0);
      for (int64_t a = 0; a < kOrders; ++a) {
        std::array<float, kOrders> to;
        to.fill(std::numeric_limits<float>::infinity());
        for (const auto& shift : waits) {
          const float* w0 = shift[0].data() + a * kOrders;
          const float* w1 = shift[1].data() + a * kOrders;
          const float* w2 = shift[2].data() + a * kOrders;
          const float* w3 = shift[3].data() + a * kOrders;
          for (int64_t b = 0; b < kOrders; ++b) {
            const float way = outer * (w0[b] + w3[b]) + inner * (w1[b] + w2[b]);
            to[b] = way < to[b] ? way : to[b];
          }
        }
        for (int64_t b = 0; b < kOrders; ++b) {
          const float whole = cost[a] + to[b];
          const bool less = whole < best[b];
          best[b] = less ? whole : best[b];
          came[b] = less ? static_cast<int32_t>(a) : came[b];
        }
      }
      for (int64_t b = 0; b < kOrders; ++b)
        cost[b] = best[b] + static_cast<float>(own_cost(r + 1, phases(r + 1)[b], prices));
    }
    int64_t at = std::min_element(cost.begin(), cost.end()) - cost.begin();
    std::vector<int64_t> order(static_cast<size_t>(p_));
    for (int64_t r = p_ - 1; r >= 0; --r) {
      order[r] = at;
      if (r > 0) at = from[r - 1][at];
    }
    return unrolled(order, prices);
  }

  std::vector<double> unrolled(const std::vector<int64_t>& order, const Prices& prices) const {
    std::vector<CyclicStarts> at{phases(0)[order[0]]};
    double shift_s = 0;
    for (int64_t r = 0; r + 1 < p_; ++r) {
      const CyclicStarts& next = phases(r + 1)[order[r + 1]];
      double least = std::numeric_limits<double>::infinity(), best_s = 0;
      for (int64_t none = 0; none < kWaits; ++none) {
        double by_s = 0;
        const auto found = waits(r, phases(r)[order[r]], next, none, &by_s);
        const double cost =
            prices.outer[r] * (found[0] + found[3]) + prices.inner[r] * (found[1] + found[2]);
        if (cost < least) least = cost, best_s = by_s;
      }
      shift_s += best_s;
      at.push_back(next);
      for (double& start_s : at.back()) start_s += shift_s;
    }
    return cyclic_starts(x_, period_s_, at);
  }

  // By how much a rank holds more than it has room for, in the mean of a period.
  double mean_beyond(int64_t r, const double* at) const {
    double held = 0;
    for (int64_t action = 0; action < kCyclicActions; ++action) {
      const double bytes = delta(r)[action];
      held -= bytes * (at[action] + (bytes < 0 ? own_s(r)[action] : 0.0));
    }
    return held / period_s_ - x_.room_bytes[r];
  }

  const CyclicProblem& x_;
  double period_s_;
  int64_t p_;
  std::vector<int64_t> alike_, table_of_;
  std::vector<std::vector<CyclicStarts>> phases_;
  std::vector<Table> tables_;
};

}  // namespace

std::vector<double> cyclic_path(const CyclicProblem& problem, double period_s, int64_t rounds) {
  return Path(problem, period_s).run(rounds);
}

}  // namespace trainwright
