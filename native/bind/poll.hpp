// What Python is asked while the core works: whether to stop.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <functional>
#include <optional>

namespace trainwright::numpy {

using Poll = std::optional<nanobind::callable>;

// What it raises goes through the core, which must hold nothing that outlives a call.
inline std::function<bool()> asking(const Poll& poll) {
  if (!poll) return {};
  return [&poll] {
    nanobind::gil_scoped_acquire acquire;
    return nanobind::cast<bool>((*poll)());
  };
}

}  // namespace trainwright::numpy
