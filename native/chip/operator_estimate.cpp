#include "chip/operator_estimate.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

namespace trainwright {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestSplit = 64;
constexpr double kSafe = 1 - 1e-12;

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

// Slabs of a tile that does not end a fold: the array drains and fills at each.
double output_cycles(const TiledMachine& a, double folds, double k, double slab) {
  const double fill = a.rows + a.columns - 2;
  if (a.pipelined_folds != 0) return std::max(folds * k + fill - 1, folds * k);
  const double slabs = folds == 1 ? 1 : up(k / slab);
  return std::max(folds * (k + slabs * fill) - 1, folds * k);
}

double held_cycles(const TiledMachine& a, double folds, double streamed) {
  const double fill = a.rows + a.columns - 2 + a.rows;
  if (a.pipelined_folds != 0) return folds * streamed + fill;
  return folds * (streamed + fill);
}

// One way to cut an extent: tiles of `size`, how many, and the folds of each on the array.
struct Cut {
  double size, tiles, folds;
};

// Tiles of an extent, doubling from the side of the array to the whole of it; made as asked for.
class Cuts {
 public:
  Cuts(double extent, double side) : extent_(extent), side_(side), next_(std::min(side, extent)) {}
  // Null beyond the whole extent.
  const Cut* at(size_t index) {
    if (index == count_) {
      if (next_ > extent_) return nullptr;
      cuts_[count_++] = {next_, up(extent_ / next_), up(next_ / side_)};
      next_ = next_ < extent_ ? std::min(2 * next_, extent_) : kInfinity;
    }
    return &cuts_[index];
  }
  // Of all tiles together, the fewest: those of tiles as large as the array.
  double folds() { return at(0)->tiles; }

 private:
  double extent_, side_, next_;
  std::array<Cut, 64> cuts_;  // extents are below 2^63
  size_t count_ = 0;
};

class Search {
 public:
  Search(const TiledMachine& machine, const Product& product)
      : a_(machine),
        p_(product),
        m_cuts_(product.m, machine.rows),
        n_cuts_(product.n, machine.columns),
        held_m_cuts_(product.m, machine.columns),
        inputs_(product.m * product.k),
        weights_(product.k * product.n),
        fill_(machine.rows + machine.columns - 2),
        core_share_(1 / machine.num_cores),
        cycle_s_(kSafe / machine.clock_hz),
        glb_byte_s_(kSafe / machine.glb_bytes_per_s),
        memory_byte_s_(kSafe / machine.memory_bytes_per_s),
        launch_s_(kSafe * machine.launch_s) {
    best_.seconds = kInfinity;
  }

  ProductEstimate run() {
    for (split_ = 1; split_ <= kLargestSplit && split_ <= p_.k; split_ *= 2) {
      k_ = up(p_.k / split_);
      parts_ = p_.batch * split_;
      outputs_ = outputs(split_);
      least_memory_s_ = p_.streams != 0 ? glb_traffic(1, 1) * memory_byte_s_ : 0;
      output_stationary();
      held_operand(Stationary::kWeight);
      held_operand(Stationary::kInput);
    }
    return best_;
  }

 private:
  double dram_s(double bytes) const {
    return (bytes + a_.memory_half_bytes) / a_.memory_bytes_per_s;
  }

  // Whether no way beats the best whose core tiles take `cycles` in all for each part, and
  // `longest` for one of them: most ways end here, without a division. The factors are a little too
  // small, so that rounding refuses nothing.
  bool hopeless(double cycles, double longest, double glb_bytes) const {
    const double compute_s = std::max(cycles * parts_ * core_share_, longest) * cycle_s_;
    const double inside_s = std::max(compute_s, glb_bytes * glb_byte_s_);
    return std::max(inside_s, least_memory_s_) + launch_s_ >= best_.seconds;
  }

  // Cycles that a fold takes at least: the array fills once, unless behind the fold before.
  double least_fold(double streamed, double fill) const {
    return a_.pipelined_folds != 0 ? streamed : streamed + fill;
  }

  void output_stationary() {
    const double e = a_.element_bytes, fold = least_fold(k_, fill_ - 1);
    const double all_folds = m_cuts_.folds() * n_cuts_.folds();
    if (hopeless(all_folds * fold, fold, glb_traffic(1, 1))) return;
    for (size_t i = 0; const Cut* m = m_cuts_.at(i); ++i)
      for (size_t j = 0; const Cut* n = n_cuts_.at(j); ++j) {
        const double left = a_.core_buffer_bytes - m->size * n->size * a_.accumulator_bytes;
        const double slab_bytes = 2 * (m->size + n->size) * e;
        if (left < slab_bytes) {  // nor does any larger tile fit
          if (j == 0) return;
          break;
        }
        const double folds = m->folds * n->folds, tiles = m->tiles * n->tiles;
        if (hopeless(tiles * folds * fold, folds * fold, glb_traffic(m->tiles, n->tiles))) continue;
        const double slab = std::min(down(left / slab_bytes), k_);
        consider(Stationary::kOutput, *m, *n, slab, output_cycles(a_, folds, k_, slab));
      }
  }

  // Weights (K_t × N_t) or inputs (M_t × K_t) stay in the array; the other operand streams.
  void held_operand(Stationary dataflow) {
    const bool weights = dataflow == Stationary::kWeight;
    Cuts& cuts = weights ? n_cuts_ : held_m_cuts_;
    const double streamed = weights ? p_.m : p_.n, e = a_.element_bytes;
    const double fill = fill_ + a_.rows, k_folds = up(k_ / a_.rows);
    const auto traffic = [&](double passes, double tiles) {
      return weights ? glb_traffic(passes, tiles) : glb_traffic(tiles, passes);
    };
    // Tiles of the streamed operand, most of them where the held one is largest: at least `passes`.
    const auto left = [&](double k_t, double h_t) {
      return a_.core_buffer_bytes - 2 * k_t * h_t * e;
    };
    const auto row_bytes = [&](double k_t, double h_t) {
      return 2 * k_t * e + h_t * a_.accumulator_bytes;
    };
    const double k_least = std::min(a_.rows, k_), h_least = cuts.at(0)->size;
    const double widest = down(left(k_least, h_least) / row_bytes(k_least, h_least));
    if (widest < 1) return;
    const double passes = up(streamed / widest);
    const double pass = k_folds * least_fold(streamed, passes * fill);
    const double row = k_folds * least_fold(1, fill);
    if (hopeless(cuts.folds() * pass, row, glb_traffic(1, 1))) return;
    doubling(k_least, k_, [&](double k_t) {
      for (size_t i = 0; const Cut* held = cuts.at(i); ++i) {
        const double room = left(k_t, held->size), unit = row_bytes(k_t, held->size);
        if (room < unit) break;  // nor does any larger tile fit
        if (hopeless(held->tiles * held->folds * pass, held->folds * row,
                     traffic(passes, held->tiles)))
          continue;
        const double tiles = up(streamed / down(room / unit));
        const Cut other{up(streamed / tiles), tiles, 1};  // even tiles
        const double cycles = held_cycles(a_, k_folds * held->folds, other.size);
        consider(dataflow, weights ? other : *held, weights ? *held : other, k_t, cycles);
      }
    });
  }

  void consider(Stationary dataflow, const Cut& m, const Cut& n, double k_t, double cycles) {
    const double glb_bytes = glb_traffic(m.tiles, n.tiles);
    if (hopeless(m.tiles * n.tiles * cycles, cycles, glb_bytes)) return;
    const double tiles = m.tiles * n.tiles * p_.batch * split_;
    const double compute_s = up(tiles / a_.num_cores) * cycles / a_.clock_hz;
    const double inside_s = std::max(compute_s, glb_bytes / a_.glb_bytes_per_s);
    const double fill_s = (m.size * k_t + k_t * n.size) * a_.element_bytes / a_.memory_bytes_per_s;
    if (std::max(inside_s, least_memory_s_) + fill_s + a_.launch_s >= best_.seconds) return;
    Traffic traffic;
    double dram_time_s = 0;
    if (p_.streams != 0) {
      traffic = dram_traffic(m.size, n.size, k_t);
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
    best_.core_bytes = tiles * core_traffic(dataflow, m.size, n.size, k_);
    best_.tiles = {dataflow,    traffic.order, m.size,      n.size, k_t,
                   traffic.m_g, traffic.n_g,   traffic.k_g, split_};
  }

  // Between the global buffer and the cores: each core tile fetches its own operands.
  double glb_traffic(double m_tiles, double n_tiles) const {
    const double e = a_.element_bytes;
    return p_.batch * (inputs_ * n_tiles * e + weights_ * m_tiles * e + outputs_);
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
  Traffic dram_traffic(double m_t, double n_t, double k_t) const {
    const double e = a_.element_bytes, acc = a_.accumulator_bytes, buffer = a_.glb_bytes;
    Traffic best;
    const auto offer = [&](double bytes, Stationary order, double m_g, double n_g, double k_g) {
      if (bytes < best.bytes) best = {bytes, order, m_g, n_g, k_g};
    };
    doubling(m_t, p_.m, [&](double m_g) {
      const double n_g = std::min(room(buffer, 2 * m_g * k_t * e, 2 * k_t * e + m_g * acc), p_.n);
      if (n_g < n_t) return;
      const double inputs = inputs_ * up(p_.n / n_g) * e;
      const double weights = weights_ * up(p_.m / m_g) * e;
      offer(p_.batch * (inputs + weights + outputs_), Stationary::kOutput, m_g, n_g, k_t);
    });
    if (best.bytes == glb_traffic(1, 1)) return best;  // each operand passes once
    doubling(k_t, k_, [&](double k_g) {
      const double parts = split_ * up(k_ / k_g);
      const double n_g = std::min(room(buffer, 2 * m_t * k_g * e, 2 * k_g * e + m_t * acc), p_.n);
      if (n_g >= n_t)
        offer(p_.batch * (inputs_ * up(p_.n / n_g) * e + weights_ * e + outputs(parts)),
              Stationary::kWeight, m_t, n_g, k_g);
      const double m_g = std::min(room(buffer, 2 * n_t * k_g * e, 2 * k_g * e + n_t * acc), p_.m);
      if (m_g >= m_t)
        offer(p_.batch * (weights_ * up(p_.m / m_g) * e + inputs_ * e + outputs(parts)),
              Stationary::kInput, m_g, n_t, k_g);
    });
    return best;
  }

  const TiledMachine& a_;
  const Product& p_;
  Cuts m_cuts_, n_cuts_, held_m_cuts_;
  const double inputs_, weights_, fill_;
  const double core_share_, cycle_s_, glb_byte_s_, memory_byte_s_, launch_s_;
  // Of the split that is tried:
  double split_ = 1, k_ = 0, parts_ = 0, outputs_ = 0, least_memory_s_ = 0;
  ProductEstimate best_;
};

}  // namespace

double output_stationary_cycles(const TiledMachine& machine, double m, double n, double k) {
  return output_cycles(machine, up(m / machine.rows) * up(n / machine.columns), k, k);
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
