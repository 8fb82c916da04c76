// The rules of ZeRO that kernels evaluate themselves: the one native twin of step/zero.py, where
// they are explained. A test holds both against each other.
//
// What replicas hold and exchange is worked out in Python and given, by number of replicas, as
// bytes that a layer adds and as lines of seconds over bytes. Here is what depends on the stage
// that a kernel has just made: its bytes, and the compute that hides an exchange,
//
//   left after the last microbatch     max(0, L - U) - max(0, E - U)
//   weights gathered by a rank         min(layers · largest, all)
//
// A kernel that knows only exchanges of the last microbatch has E = 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace trainwright::zero {

// What of an exchange no compute hides.
inline double beyond_s(double time_s, double under_s) { return std::max(0.0, time_s - under_s); }

// Bytes of weights beside a rank's own shards; `layers` of the heaviest, at most the whole.
inline double gathered_bytes(double layers, double largest, double whole) {
  return std::min(layers * largest, whole);
}

// Seconds of a collective by its bytes; nothing to send takes no time.
struct Line {
  double start_s = 0, byte_s = 0;

  double of(double bytes) const { return bytes > 0 ? start_s + bytes * byte_s : 0.0; }
};

// What d replicas of a chain hold and exchange once a step, one entry [D] for each d.
struct Sharing {
  std::span<const double> layer_bytes;   // [D, C] state that a layer of each class adds
  std::span<const double> beside_bytes;  // state of a stage beside its layers
  std::span<const double> gradients_start_s;
  std::span<const double> gradients_byte_s;
  std::span<const double> parameters_start_s;
  std::span<const double> parameters_byte_s;
  std::span<const double> beside_s;  // what a stage exposes beside its exchanges
  std::span<const double> update_parts;
  double gradients_under = 0;   // share of the last backward that gradients hide under
  double parameters_under = 0;  // share of the first forward that parameters hide under
};

// The same of one number of replicas.
class Replicas {
 public:
  Replicas(const Sharing& sharing, size_t at, size_t num_classes)
      : layer_bytes_(sharing.layer_bytes.subspan(at * num_classes, num_classes)),
        beside_bytes_(sharing.beside_bytes[at]),
        gradients_{sharing.gradients_start_s[at], sharing.gradients_byte_s[at]},
        parameters_{sharing.parameters_start_s[at], sharing.parameters_byte_s[at]},
        beside_s_(sharing.beside_s[at]),
        update_parts_(sharing.update_parts[at]),
        gradients_under_(sharing.gradients_under),
        parameters_under_(sharing.parameters_under) {}

  double layer_bytes(size_t layer_class) const { return layer_bytes_[layer_class]; }
  double beside_bytes() const { return beside_bytes_; }

  // What a stage adds to the end of its last backward; its update is of all parts.
  double after_s(double sync_bytes, double forward_s, double backward_s, double update_s) const {
    return beyond_s(gradients_.of(sync_bytes), gradients_under_ * backward_s) +
           beyond_s(parameters_.of(sync_bytes), parameters_under_ * forward_s) + beside_s_ +
           update_s / update_parts_;
  }

 private:
  std::span<const double> layer_bytes_;
  double beside_bytes_;
  Line gradients_, parameters_;
  double beside_s_, update_parts_, gradients_under_, parameters_under_;
};

}  // namespace trainwright::zero
