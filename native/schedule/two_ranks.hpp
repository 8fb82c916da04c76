// How long a V takes at least for the actions of two of its ranks, and what meets between them.
//
// The bound of crossings.hpp for rank a and the last rank b = p-1 together. Between them lie ranks
// a+1 .. b-1, which a microbatch passes four times: down with F of its first chunk, up with F of
// its second, down with I of that and up with I of the first. Each way down D meets each way up U
// of another microbatch that is on its way meanwhile, and on every rank one of the two is first:
// U on the n ranks nearest to b, D on the L-n others. With starts at one end and arrivals at the
// other, and `out` the time of D and U both over the first ranks from a, `in` over the last ones,
//   arrival of U >= start of D + out(L-n)  if n < L,   arrival of D >= start of U + in(n)  if n >
//   0.
// Whichever arrives first chooses when: as early as it can, or later, so that more is behind it.
// Beyond a, towards stage S-1, ways meet as in crossings.hpp. On both ranks memory and orders are
// exact, on the others only what meets counts. Labels hold free times of both ranks, and start and
// earliest arrival of every way, each as late as nobody can tell from earlier: a rank is free when
// something can run there, and a way starts at most in(n+1) + out(L-n) less the other way's time
// before its arrival, n the one for which that is longest. Beyond that, whoever is first where, the
// other arrives no later than it can anyway. So labels that mean the same are one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace trainwright {

// Stages s and S-1-s lie on rank min(s, S-1-s); one entry per stage, transfers into the next.
struct Fold {
  struct Held {
    std::vector<double> pending, late;  // [S]
    std::vector<double> room;           // [p]
  };
  std::vector<double> forward_s, input_grad_s, weight_grad_s;
  std::vector<double> forward_transfer_s, backward_transfer_s;  // [S-1]
  std::vector<Held> held;
};

struct TwoRanksTime {
  double least_s;
  bool is_whole;  // whether more labels would prove no more
};

// Seconds that `num_microbatches` take, or the window of rank a alone if not `makespan`; at most
// `enough_s`, from where on nothing is looked at. 0 where so few labels are not one per state, or
// `poll` says to stop.
TwoRanksTime two_ranks_s(const Fold& fold, int64_t rank, int64_t num_microbatches, bool makespan,
                         double enough_s, int64_t num_labels,
                         const std::function<bool()>& poll = {});

}  // namespace trainwright
