// How long one machine takes at least for jobs with heads and tails.
//
// A job may start at its head, works, and leaves a tail that needs no machine. Jobs that may be
// interrupted are best run by the longest tail of those at hand (Jackson's rule), and what that
// takes is the largest, over sets of jobs, of least head + all work + least tail (Carlier, European
// Journal of Operational Research 11, 1982): a bound for jobs that may not be. O(n log n).
#pragma once

#include <span>

namespace trainwright {

// Seconds from 0 to the end of the last tail; jobs whose tail is minus infinity are left out.
double one_machine_s(std::span<const double> head_s, std::span<const double> work_s,
                     std::span<const double> tail_s);

}  // namespace trainwright
