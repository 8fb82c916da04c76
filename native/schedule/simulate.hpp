// Earliest times of a pipeline schedule whose per-rank orders are given.
//
//   start(a) = max(end of the action before a on its rank, arrival of a's input)
//   end(a)   = start(a) + duration(kind, stage)
//   arrival  = end of the producer + transfer time, 0 within a rank
//
// Inputs: F(s,j) needs F(s-1,j); I(s,j) and B(s,j) need I or B(s+1,j), and F(s,j); W(s,j) needs
// I(s,j); R(s,j) needs F(s,j). One worklist pass, O(actions): a rank advances while its next input
// is known and otherwise waits for the one action that produces it.
//
// Beside the computation each rank has a link to its host. O copies the activations of F(s,j) to
// the host and L brings them back; both run on the link, one after the other, and are issued by the
// rank where they stand in its order. D drops the device's copy once O has ended; what computes
// with the activations (R, I, B) waits for L:
//
//   start(O) = max(end of the computation before it, end of the link's last copy), L alike
//   start(D) = max(end of the computation before it, end(O))
//
// A head that is cut over all ranks has two more actions, V and T, one each per rank and
// microbatch. V(j) needs F(S-1,j); T(j) needs V(j) of all ranks; I or B(S-1,j) needs T(j) of all
// ranks where the head has two barriers, V(j) of all where it has one.
//
// Memory needs no times: a rank computes one action at a time, and what a copy frees is freed by
// an action of that order. So its level is a running sum over its order, positive deltas at an
// action's start and negative ones at its end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainwright {

enum ActionKind : int32_t {
  kForward,
  kInputGrad,
  kWeightGrad,
  kBackward,
  kRecompute,
  kOffload,
  kDrop,
  kReload,
  kHead,
  kHeadGrad,
};
inline constexpr int kNumActionKinds = 10;

// Whether a rank's link to its host runs the action, and not the rank itself.
constexpr bool on_host_link(int32_t kind) { return kind == kOffload || kind == kReload; }

struct ActionRow {
  int32_t kind, stage, microbatch;
};

// Orders of all ranks, one after the other; rank r owns rows rank_offsets[r] to rank_offsets[r+1].
struct Orders {
  std::span<const ActionRow> actions;
  std::span<const int64_t> rank_offsets;
  std::span<const int32_t> rank_of_stage;
  std::span<const int64_t> pairs;  // ascending rows of forwards that run with the row after them
  int64_t num_microbatches = 0;
  int64_t num_pipelines = 1;  // copies of the model, stages of each one after the other
  int64_t head_barriers = 0;  // of a head that is cut over all ranks; 0 where it is part of a stage

  int64_t num_ranks() const { return static_cast<int64_t>(rank_offsets.size()) - 1; }
  int64_t num_stages() const { return static_cast<int64_t>(rank_of_stage.size()); }
  int64_t pipeline_length() const { return num_stages() / num_pipelines; }
  bool is_first(int64_t stage) const { return stage % pipeline_length() == 0; }
  bool is_last(int64_t stage) const { return (stage + 1) % pipeline_length() == 0; }

  // Whether there is one pipeline, and nothing beside its computation.
  bool is_plain() const;
};

enum class TransferModel { free, link, blocking };

// Tables of shape [10, S] by kind and stage; transfers of shape [S-1], between s and s+1.
//
// A forward and a backward that run as a pair take pair_s of the first one's stage. Where that is
// infinite, and in other pairs, each may hide the other's network time n, of its duration d:
// max(d1, d2, n1 + n2, d1 + d2 - n1 - n2).
struct ActionCosts {
  std::span<const double> duration_s;
  std::span<const double> forward_transfer_s;
  std::span<const double> backward_transfer_s;
  std::span<const double> pair_s;     // [S], infinite where nobody knows
  std::span<const double> network_s;  // like duration_s, which contains it; or empty
  std::span<const double> slice_s;  // [10, S, q], more than duration_s for slice j mod q; or empty
  double barrier_s = 0.0;           // from the last stage to a cut head, and per barrier of it
  TransferModel model = TransferModel::free;
  double blocking_fraction = 0.0;

  double of(const ActionRow& a, int64_t stages) const {
    const int64_t at = a.kind * stages + a.stage;
    if (slice_s.empty()) return duration_s[at];
    const auto slices = static_cast<int64_t>(slice_s.size()) / (kNumActionKinds * stages);
    return duration_s[at] + slice_s[at * slices + a.microbatch % slices];
  }
};

// Relative. Sums of the same numbers in another order differ.
inline constexpr double kSumRounding = 1e-9;

struct ActionMemory {
  std::span<const double> delta_bytes;      // [10, S]
  std::span<const double> transient_bytes;  // [10, S]
  std::span<const double> static_bytes;     // [p]
  std::span<const double> limit_bytes;      // [p], static bytes included; infinite is none

  // What a rank's level may reach by its limit.
  double most_bytes(int64_t rank) const { return limit_bytes[rank] * (1 + kSumRounding); }
};

// Transfer time out of each stage, 0 where the neighbour is on the same rank or absent.
struct Transfers {
  std::vector<double> forward_s, backward_s;  // [S]

  Transfers(const Orders& orders, const ActionCosts& costs);
};

// Seconds of each row that begins a pair which runs as one action, [n], infinite for other rows;
// empty where there is none.
std::vector<double> overlapped_pairs(const Orders& orders, const ActionCosts& costs);

struct Simulation {
  std::vector<double> start_s, end_s;      // [n]
  std::vector<double> forward_arrival_s;   // [S, m], negative where F did not run
  std::vector<double> backward_arrival_s;  // [S, m], negative where I or B did not run
  std::vector<int64_t> blocked_rows;       // per rank the row that waits for ever, or -1
  bool complete = true;
};

// `sequence`, if given, receives the rows in an order that respects every need.
Simulation simulate(const Orders& orders, const ActionCosts& costs,
                    std::vector<int64_t>* sequence = nullptr);

// Highest level of each rank, static bytes included. Transients of a pair lie beside each other
// where it runs as one action by `costs`, which is so of none without them.
std::vector<double> peak_bytes(const Orders& orders, const ActionMemory& memory,
                               const ActionCosts* costs = nullptr);

// Latest start of every action with which each rank still ends by its deadline, orders unchanged:
// the same recurrences from the end. Needs plain orders that run to completion.
std::vector<double> latest_starts(const Orders& orders, const ActionCosts& costs,
                                  std::span<const double> deadline_s);

// Of these the latest starts of forwards, and of input gradients or backwards: [S, m], infinite
// where there is none.
struct LatestHandovers {
  std::vector<double> forward_s, backward_s;
};

// Of orders that were simulated, in the sequence that their simulation gave.
LatestHandovers latest_handovers(const Orders& orders, const ActionCosts& costs,
                                 std::span<const double> deadline_s, const Simulation& simulation,
                                 std::span<const int64_t> sequence);

}  // namespace trainwright
