// What a schedule is made short in: the whole, or the busiest rank's time from start to end.
#pragma once

namespace trainwright {

enum class Objective { makespan, span };

}  // namespace trainwright
