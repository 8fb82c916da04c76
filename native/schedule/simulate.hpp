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
// Memory needs no times: a rank runs one action at a time, so its level is a running sum over its
// order, positive deltas at an action's start and negative ones at its end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trainwright {

enum ActionKind : int32_t { kForward, kInputGrad, kWeightGrad, kBackward, kRecompute };
inline constexpr int kNumActionKinds = 5;

struct ActionRow {
  int32_t kind, stage, microbatch;
};

// Orders of all ranks, one after the other; rank r owns rows rank_offsets[r] to rank_offsets[r+1].
struct Orders {
  std::span<const ActionRow> actions;
  std::span<const int64_t> rank_offsets;
  std::span<const int32_t> rank_of_stage;
  std::span<const int64_t> pairs;  // ascending rows of forwards paired with the backward after them
  int64_t num_microbatches = 0;

  int64_t num_ranks() const { return static_cast<int64_t>(rank_offsets.size()) - 1; }
  int64_t num_stages() const { return static_cast<int64_t>(rank_of_stage.size()); }
};

enum class TransferModel { free, link, blocking };

// Tables of shape [5, S] by kind and stage; transfers of shape [S-1], between s and s+1.
struct ActionCosts {
  std::span<const double> duration_s;
  std::span<const double> forward_transfer_s;
  std::span<const double> backward_transfer_s;
  std::span<const double> pair_s;  // [S], infinite where a pair runs one after the other
  TransferModel model = TransferModel::free;
  double blocking_fraction = 0.0;
};

struct ActionMemory {
  std::span<const double> delta_bytes;      // [5, S]
  std::span<const double> transient_bytes;  // [5, S]
  std::span<const double> static_bytes;     // [p]
  std::span<const double> limit_bytes;      // [p], static bytes included; infinite is none
};

// Transfer time out of each stage, 0 where the neighbour is on the same rank or absent.
struct Transfers {
  std::vector<double> forward_s, backward_s;  // [S]

  Transfers(const Orders& orders, const ActionCosts& costs);
};

// Which rows are pairs that run as one action, [n]; empty where none is.
std::vector<bool> overlapped_pairs(const Orders& orders, const ActionCosts& costs);

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

// Highest level of each rank, static bytes included.
std::vector<double> peak_bytes(const Orders& orders, const ActionMemory& memory);

// Latest start of every action with which each rank still ends by its deadline, orders unchanged:
// the same recurrences from the end. Needs orders that run to completion.
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
