// How long a matrix product takes on an array of multiplier cores with two levels of buffers.
//
// A product (b, M, N, K) on C cores of X × Y multipliers is cut into core tiles (M_t, N_t) whose
// inner dimension streams in slabs of K_t, global tiles (M_g, N_g, K_g), and `split` parts of K:
//
//   cycles(OS)  = ⌈M_t/X⌉ ⌈N_t/Y⌉ (K + X + Y − 2) − 1       outputs stay in the array
//   cycles(WS)  = ⌈K/X⌉ ⌈N_t/Y⌉ (M_t + 2X + Y − 2)          weights stay, loading them takes X
//   cycles(IS)  = WS with M and N swapped
//   compute_s   = ⌈tiles · b · split / C⌉ · cycles / clock
//   bytes(order)= the stationary operand once, the others as often as they are passed
//   seconds     = max(compute_s, dram_s, glb_s) + first slab + launch
//
// with 2 (M K + K N) e + M N e_acc inside each buffer, operands double-buffered. The least over all
// of them is returned, the first in order of enumeration where several are least. Following
// SCALE-Sim (Samajdar et al., 2018) in cycles and Timeloop (Parashar et al., 2019) in traffic.
// About 1 µs each: most candidates end at a bound without a division, whole splits and dataflows
// too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainwright {

// One row of a table of machines; all doubles, so that it crosses the border as one array.
struct TiledMachine {
  double num_cores;
  double rows;
  double columns;
  double core_buffer_bytes;
  double glb_bytes;
  double clock_hz;  // times the share of it that products reach
  double glb_bytes_per_s;
  double memory_bytes_per_s;  // times the largest share that transfers reach
  double memory_half_bytes;   // a transfer of that size reaches half of it
  double launch_s;
  double element_bytes;
  double accumulator_bytes;
  double pipelined_folds;  // 1: the fill of all folds but the first is hidden
};

// `streams` 0: operands come and go by another way (a fused kernel), which the caller counts.
struct Product {
  double batch;
  double m;
  double n;
  double k;
  double streams;
};

enum class Stationary : int64_t { kOutput = 0, kWeight = 1, kInput = 2 };

struct TileChoice {
  Stationary dataflow = Stationary::kOutput;
  Stationary order = Stationary::kOutput;  // of the passes over off-chip memory
  double m_t = 0, n_t = 0, k_t = 0;
  double m_g = 0, n_g = 0, k_g = 0;
  double split = 1;
};

struct ProductEstimate {
  double seconds = 0;
  double compute_s = 0;
  double dram_bytes = 0;
  double glb_bytes = 0;
  double core_bytes = 0;  // between core buffers and arrays
  TileChoice tiles;
};

// Cycles of an array whose outputs (m × n) stay in it while k streams through.
double output_stationary_cycles(const TiledMachine& machine, double m, double n, double k);

// The fastest way; infinite seconds where not even the least tile fits.
ProductEstimate estimate_product(const TiledMachine& machine, const Product& product);

// Every product on every machine, machine by machine.
std::vector<ProductEstimate> estimate_products(std::span<const TiledMachine> machines,
                                               std::span<const Product> products);

}  // namespace trainwright
