#include "operator_estimate.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace trainwright {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestSplit = 64;

// Whole numbers below 2^63, without a call into the mathematical library.
double down(double x) {
  const auto whole = static_cast<double>(static_cast<int64_t>(x));
  return whole > x ? whole - 1 : whole;
}
double up(double x) {
  const auto whole = static_cast<double>(static_cast<int64_t>(x));
  return whole < x ? whole + 1 : whole;
}

struct Traffic {
  double bytes = kInfinity;
  Stationary order = Stationary::kOutput;
  double m_g = 0, n_g = 0, k_g = 0;
};

// Doubling from `first` to `last`, which is always the final one.
template <typename Visit>
void doubling(double first, double last, Visit visit) {
  for (double value = first; value < last; value *= 2) visit(value);
  visit(last);
}

// The largest third extent that fits beside the two given ones: a buffer holds
// 2 (outer + third) · shared · e for operands that share `shared`, or the mirror of it.
double room(double buffer, double fixed_bytes, double bytes_per_unit) {
  return down((buffer - fixed_bytes) / bytes_per_unit);
}

class Search {
 public:
  Search(const TiledMachine& machine, const Product& product) : a_(machine), p_(product) {
    best_.seconds = kInfinity;
    const double e = a_.element_bytes;
    compulsory_s_ =
        p_.streams != 0 ? dram_s(p_.batch * e * (p_.m * p_.k + p_.k * p_.n + p_.m * p_.n)) : 0.0;
  }

  ProductEstimate run() {
    for (double split = 1; split <= kLargestSplit && split <= p_.k; split *= 2) {
      output_stationary(split);
      held_operand(split, Stationary::kWeight);
      held_operand(split, Stationary::kInput);
    }
    return best_;
  }

 private:
  double dram_s(double bytes) const {
    return (bytes + a_.memory_half_bytes) / a_.memory_bytes_per_s;
  }

  void output_stationary(double split) {
    const double e = a_.element_bytes, k = up(p_.k / split);
    doubling(std::min(a_.rows, p_.m), p_.m, [&](double m_t) {
      doubling(std::min(a_.columns, p_.n), p_.n, [&](double n_t) {
        const double slab =
            room(a_.core_buffer_bytes, m_t * n_t * a_.accumulator_bytes, 2 * (m_t + n_t) * e);
        if (slab >= 1) consider(Stationary::kOutput, m_t, n_t, std::min(slab, k), k, split);
      });
    });
  }

  // Weights (K_t × N_t) or inputs (M_t × K_t) stay in the array; the other operand streams.
  void held_operand(double split, Stationary dataflow) {
    const bool weights = dataflow == Stationary::kWeight;
    const double e = a_.element_bytes, k = up(p_.k / split);
    const double held = weights ? p_.n : p_.m, streamed = weights ? p_.m : p_.n;
    doubling(std::min(a_.rows, k), k, [&](double k_t) {
      doubling(std::min(a_.columns, held), held, [&](double h_t) {
        double s_t =
            room(a_.core_buffer_bytes, 2 * k_t * h_t * e, 2 * k_t * e + h_t * a_.accumulator_bytes);
        if (s_t < 1) return;
        s_t = up(streamed / up(streamed / s_t));  // even tiles
        consider(dataflow, weights ? s_t : h_t, weights ? h_t : s_t, k_t, k, split);
      });
    });
  }

  void consider(Stationary dataflow, double m_t, double n_t, double k_t, double k, double split) {
    const double tiles = up(p_.m / m_t) * up(p_.n / n_t) * p_.batch * split;
    // No tile takes less than its multiplications, so most need no closer look.
    const double work = up(m_t * n_t * k / (a_.rows * a_.columns));
    if (tiles / a_.num_cores * work / a_.clock_hz + a_.launch_s >= best_.seconds) return;
    const double glb_bytes = glb_traffic(m_t, n_t, split);
    const double glb_s = glb_bytes / a_.glb_bytes_per_s;
    if (glb_s + a_.launch_s >= best_.seconds) return;
    const double cycles = array_cycles(a_, dataflow, m_t, n_t, k, k_t);
    const double compute_s = up(tiles / a_.num_cores) * cycles / a_.clock_hz;
    const double fill_s = (m_t * k_t + k_t * n_t) * a_.element_bytes / a_.memory_bytes_per_s;
    const double inside_s = std::max(compute_s, glb_s);
    if (std::max(inside_s, compulsory_s_) + fill_s + a_.launch_s >= best_.seconds) return;
    Traffic traffic;
    double dram_time_s = 0;
    if (p_.streams != 0) {
      traffic = dram_traffic(m_t, n_t, k_t, k, split);
      dram_time_s = dram_s(traffic.bytes);
    } else {
      traffic.bytes = 0;
    }
    const double seconds = std::max(inside_s, dram_time_s) + fill_s + a_.launch_s;
    if (seconds >= best_.seconds) return;
    best_.seconds = seconds;
    best_.compute_s = compute_s;
    best_.dram_bytes = traffic.bytes;
    best_.glb_bytes = glb_bytes;
    best_.core_bytes = tiles * core_traffic(dataflow, m_t, n_t, k);
    best_.tiles = {dataflow,    traffic.order, m_t,         n_t,  k_t,
                   traffic.m_g, traffic.n_g,   traffic.k_g, split};
  }

  // Between the global buffer and the cores: each core tile fetches its own operands.
  double glb_traffic(double m_t, double n_t, double split) const {
    const double e = a_.element_bytes;
    const double inputs = p_.m * p_.k * up(p_.n / n_t) * e;
    const double weights = p_.k * p_.n * up(p_.m / m_t) * e;
    return p_.batch * (inputs + weights + outputs(split));
  }

  // Outputs written once in their format, and partial sums of the other parts written and read.
  double outputs(double parts) const {
    return p_.m * p_.n * (a_.element_bytes + 2 * (parts - 1) * a_.accumulator_bytes);
  }

  // Between a core's buffer and its array, for one tile.
  double core_traffic(Stationary dataflow, double m, double n, double k) const {
    const double e = a_.element_bytes, x = a_.rows, y = a_.columns;
    if (dataflow == Stationary::kOutput)
      return e * (m * k * up(n / y) + k * n * up(m / x)) + m * n * a_.accumulator_bytes;
    const double sums = m * n * a_.accumulator_bytes * (2 * up(k / x) - 1);
    if (dataflow == Stationary::kWeight) return e * (m * k * up(n / y) + k * n) + sums;
    return e * (k * n * up(m / y) + m * k) + sums;
  }

  // The least off-chip traffic over global tiles no smaller than the core tile, in three orders.
  Traffic dram_traffic(double m_t, double n_t, double k_t, double k, double split) const {
    const double e = a_.element_bytes, acc = a_.accumulator_bytes, buffer = a_.glb_bytes;
    Traffic best;
    const auto offer = [&](double bytes, Stationary order, double m_g, double n_g, double k_g) {
      if (bytes < best.bytes) best = {bytes, order, m_g, n_g, k_g};
    };
    doubling(m_t, p_.m, [&](double m_g) {
      const double n_g = std::min(room(buffer, 2 * m_g * k_t * e, 2 * k_t * e + m_g * acc), p_.n);
      if (n_g < n_t) return;
      const double inputs = p_.m * p_.k * up(p_.n / n_g) * e;
      const double weights = p_.k * p_.n * up(p_.m / m_g) * e;
      offer(p_.batch * (inputs + weights + outputs(split)), Stationary::kOutput, m_g, n_g, k_t);
    });
    doubling(k_t, k, [&](double k_g) {
      const double parts = split * up(k / k_g);
      const double n_g = std::min(room(buffer, 2 * m_t * k_g * e, 2 * k_g * e + m_t * acc), p_.n);
      if (n_g >= n_t)
        offer(p_.batch * (p_.m * p_.k * up(p_.n / n_g) * e + p_.k * p_.n * e + outputs(parts)),
              Stationary::kWeight, m_t, n_g, k_g);
      const double m_g = std::min(room(buffer, 2 * n_t * k_g * e, 2 * k_g * e + n_t * acc), p_.m);
      if (m_g >= m_t)
        offer(p_.batch * (p_.k * p_.n * up(p_.m / m_g) * e + p_.m * p_.k * e + outputs(parts)),
              Stationary::kInput, m_g, n_t, k_g);
    });
    return best;
  }

  const TiledMachine& a_;
  const Product& p_;
  double compulsory_s_;
  ProductEstimate best_;
};

// Slabs of a tile that does not end a fold: the array drains and fills at each.
double output_cycles(const TiledMachine& a, double m, double n, double k, double slab) {
  const double folds = up(m / a.rows) * up(n / a.columns);
  const double fill = a.rows + a.columns - 2;
  if (a.pipelined_folds != 0) return std::max(folds * k + fill - 1, folds * k);
  const double slabs = folds == 1 ? 1 : up(k / slab);
  return std::max(folds * (k + slabs * fill) - 1, folds * k);
}

double held_cycles(const TiledMachine& a, double streamed, double held, double k) {
  const double folds = up(k / a.rows) * up(held / a.columns);
  const double fill = a.rows + a.columns - 2 + a.rows;
  if (a.pipelined_folds != 0) return folds * streamed + fill;
  return folds * (streamed + fill);
}

}  // namespace

double array_cycles(const TiledMachine& machine, Stationary dataflow, double m, double n, double k,
                    double slab) {
  if (dataflow == Stationary::kOutput) return output_cycles(machine, m, n, k, slab);
  if (dataflow == Stationary::kWeight) return held_cycles(machine, m, n, k);
  return held_cycles(machine, n, m, k);
}

ProductEstimate estimate_product(const TiledMachine& machine, const Product& product) {
  return Search(machine, product).run();
}

std::vector<ProductEstimate> estimate_products(std::span<const TiledMachine> machines,
                                               std::span<const Product> products) {
  std::vector<ProductEstimate> estimates;
  estimates.reserve(machines.size() * products.size());
  for (const TiledMachine& machine : machines)
    for (const Product& product : products) estimates.push_back(estimate_product(machine, product));
  return estimates;
}

}  // namespace trainwright
