// Pseudo-random numbers that are the same on every platform (xoshiro256++, Blackman and Vigna).
#pragma once

#include <cmath>
#include <cstdint>

namespace trainwright {

class RandomSource {
 public:
  explicit RandomSource(uint64_t seed) {
    for (auto& word : state_) {
      seed += 0x9e3779b97f4a7c15ULL;  // splitmix64
      uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
      word = z ^ (z >> 31);
    }
  }

  uint64_t bits() {
    const uint64_t result = rotate(state_[0] + state_[3], 23) + state_[0];
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  // In [0, 1).
  double unit() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }
  double between(double low, double high) { return low + (high - low) * unit(); }
  bool chance(double probability) { return unit() < probability; }

  // In 0 .. count-1.
  int32_t below(int64_t count) {
    return static_cast<int32_t>(
        (static_cast<unsigned __int128>(bits()) * static_cast<uint64_t>(count)) >> 64);
  }

  // Standard exponential: how much worse an annealing step may be, in temperatures.
  double exponential() { return -std::log(1.0 - unit()); }

 private:
  static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

  uint64_t state_[4];
};

}  // namespace trainwright
