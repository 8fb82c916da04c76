// The incumbent of a local search on words: its times, and the times after a change to one rank.
//
// Actions are kept in one sequence that respects every need (a rank per entry: the next action of
// that rank's word). A change to positions a..b of a rank can only move what stands in the sequence
// between a and b, and times of what comes later. So the stretch a..b is simulated anew, which also
// finds a new sequence for it or a deadlock, and what follows in one straight pass that stops as
// soon as no changed time has a reader left.
//
//   words      rank 0:  F0 F1 F2 B0 B1       an action needs the one before it in its word, and its
//              rank 1:  F0 B0 F1 B1          input from the other rank
//
//   sequence   0  0  1  0  1  0  1  1  0     all actions, each behind what it needs; only the rank
//              F0 F1 F0 F2 B0 B0 F1 B1 B1    is stored
//                       |-----|              on trial: B0 before F2 on rank 0. This stretch is
//                       1  0  0  1  1  0     simulated anew, which puts it in another order. The
//                       B0 B0 F2 F1 B1 B1    rest keeps its order and gets new times in one pass
//
// For every action, end + tail_s <= objective: where the new end of one at the border of the
// stretch breaks that for the length wanted, the trial ends before the rest is simulated.
//
// Most changes make a schedule too long, and what follows the stretch tells so without a
// simulation: it keeps its order, so that the way from an action to the end is as long as it was
// (`tail_s_`).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/stream_problem.hpp"

namespace trainwright {

class WordState {
 public:
  explicit WordState(const StreamProblem& problem);

  // Take over `words`; false if they break a need, a limit or deadlock, and the state is void.
  bool load(const Words& words);

  // Replace what stands at `first`, `first` + 1, ... of a rank. False: illegal, or seen to be
  // longer than `longest_s`; nothing changed. True: times are those after the change until `accept`
  // or `reject`.
  bool try_window(int32_t rank, int32_t first, std::span<const int32_t> streams, double longest_s);
  void accept();
  void reject();

  const Length& length() const { return length_; }
  Words words() const;
  int32_t word_size(int32_t rank) const { return static_cast<int32_t>(items_[rank].size()); }
  int32_t stream_at(int32_t rank, int32_t position) const { return items_[rank][position].stream; }
  int32_t microbatch_at(int32_t rank, int32_t position) const {
    return items_[rank][position].microbatch;
  }
  int32_t position(int32_t stream, int32_t microbatch) const {
    return position_[problem_.slot(stream, microbatch)];
  }
  double start_s(int32_t stream, int32_t microbatch) const {
    return end_s_[problem_.slot(stream, microbatch)] - problem_.streams[stream].duration_s;
  }

  struct Place {
    int32_t rank, position;
  };
  // The chain of actions that makes the schedule as long as it is, last action first.
  void trace_critical_path(std::vector<Place>& path) const;

  // Actions whose times were computed so far: what a search has cost.
  int64_t work() const { return work_; }

 private:
  struct Item {
    int32_t stream, microbatch;
  };
  // A stream as the simulation loop reads it: no branch for streams without input.
  struct Timing {
    double duration_s, lag_s;
    int64_t input_slot, input_stride;
  };
  static constexpr int64_t kMarkEvery = 32;
  using Levels = std::array<double, kMaxResources>;

  bool word_is_legal(int32_t rank, int32_t first, std::span<const int32_t> streams);
  void write_window(int32_t rank, int32_t first, std::span<const int32_t> streams);
  bool simulate_stretch(int64_t low, int64_t high);
  void simulate_rest(int64_t from, int64_t reach);
  bool is_longer(int64_t high, double longest_s) const;
  bool start_clocks();
  void measure_tails(int64_t from, int64_t reach);
  double longest_tail_s(const Item& item, int32_t rank, int32_t next_position) const;
  int64_t first_writer(const Item& item, int32_t rank, int32_t position) const;
  void set_end(int64_t slot, double end_s);
  int64_t last_reader(const Item& item, int32_t rank, int32_t next_position) const;
  void place_cursors(int64_t at);
  void place_marks(int64_t from, int64_t until);
  void free_ranks();
  void measure();
  void undo_window();

  const StreamProblem& problem_;
  std::vector<Timing> timing_;               // [stream]
  std::vector<std::vector<Item>> items_;     // [rank][position]
  std::vector<std::vector<Levels>> levels_;  // [rank][position]: held before the action
  std::vector<std::vector<int32_t>> index_;  // [rank][position] -> place in the sequence
  std::vector<int32_t> position_;            // [slot]
  std::vector<double> end_s_;                // [slot], and a last entry for "no input"
  std::vector<int32_t> sequence_;            // ranks
  std::vector<int32_t> marks_;               // [place / kMarkEvery][rank]: cursors there
  std::vector<double> tail_s_;               // [slot]: end_s_ + tail_s_ <= objective
  std::vector<double> origin_s_;             // [rank]: when the objective's clock starts
  int64_t last_head_ = 0;                    // place in the sequence of the last first action
  Length length_;
  int64_t work_ = 0;

  // The change on trial.
  int32_t rank_ = 0, first_ = 0;
  int64_t low_ = 0;
  Length length_before_;
  std::vector<Item> items_before_, new_items_;
  std::vector<Levels> new_levels_;
  std::vector<int32_t> stretch_;  // new ranks of the sequence from low_ on
  struct OldEnd {
    int64_t slot;
    double end_s;
  };
  std::vector<OldEnd> old_ends_;
  std::vector<int32_t> cursor_, stretch_end_, count_, active_;
  std::vector<double> free_s_;
};

}  // namespace trainwright
