// Labels of a bound: times that some orders cannot beat, few enough to go on with.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace trainwright {

using TimeLabel = std::vector<double>;

// Without those that are nowhere earlier than another; beyond `kept`, a label joins the one that
// loses least, weighed by component, and their componentwise minimum stands for both.
std::vector<TimeLabel> thinned(std::vector<TimeLabel> labels, std::span<const double> weight,
                               size_t kept);

}  // namespace trainwright
