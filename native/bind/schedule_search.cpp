// Binding of the schedule search: costs, limits and starting orders in, orders out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/numpy_arrays.hpp"
#include "bind/schedule.hpp"
#include "schedule/move_annealing.hpp"
#include "schedule/schedule_search.hpp"

namespace nb = nanobind;
using trainwright::ActionRow;
using trainwright::MovedOrders;
using trainwright::MovePlan;
using trainwright::Objective;
using trainwright::Resource;
using trainwright::SearchPhase;
using trainwright::SearchPlan;
using trainwright::SearchResult;
using trainwright::StreamProblem;
using trainwright::Words;
using trainwright::numpy::Array;
using trainwright::numpy::column;
using trainwright::numpy::CostArrays;
using trainwright::numpy::OrderArrays;
using trainwright::numpy::span_of;
using trainwright::numpy::Table;

namespace {

struct FoundOrders {
  std::vector<int32_t> actions;  // [n, 3], flat
  std::vector<int64_t> rank_offsets;
  SearchResult result;
};

// Tables of all resources one below the other: delta and transient [10 * R, S], room [R, p].
std::vector<Resource> resources_of(const Table<double>& delta, const Table<double>& transient,
                                   const Table<double>& room) {
  const size_t size = trainwright::kNumActionKinds * delta.shape(1), ranks = room.shape(1);
  std::vector<Resource> resources(room.shape(0));
  const size_t rows = trainwright::kNumActionKinds * resources.size();
  if (delta.shape(0) != rows || transient.shape(0) != rows)
    throw std::invalid_argument("tables of resources must have a row for every kind of action");
  for (size_t r = 0; r < resources.size(); ++r) {
    resources[r].delta.assign(delta.data() + r * size, delta.data() + (r + 1) * size);
    resources[r].transient.assign(transient.data() + r * size, transient.data() + (r + 1) * size);
    resources[r].room.assign(room.data() + r * ranks, room.data() + (r + 1) * ranks);
  }
  return resources;
}

StreamProblem stream_problem(const Array<int32_t>& rank_of_stage, int32_t num_ranks,
                             int32_t num_microbatches, const Table<double>& duration_s,
                             const Array<double>& forward_transfer_s,
                             const Array<double>& backward_transfer_s, const Array<bool>& fused,
                             const Array<bool>& recomputed, const Table<double>& resource_delta,
                             const Table<double>& resource_transient,
                             const Table<double>& resource_room, const std::string& objective) {
  const trainwright::ActionCosts costs{.duration_s = span_of(duration_s),
                                       .forward_transfer_s = span_of(forward_transfer_s),
                                       .backward_transfer_s = span_of(backward_transfer_s),
                                       .pair_s = {}};
  return StreamProblem(span_of(rank_of_stage), num_ranks, num_microbatches, costs, span_of(fused),
                       span_of(recomputed),
                       resources_of(resource_delta, resource_transient, resource_room),
                       objective == "span" ? Objective::span : Objective::makespan);
}

// Asks Python whether to stop; what it raises stops the search, and is raised after it.
std::function<bool(double)> asking(const nb::object& poll, std::exception_ptr& raised) {
  if (poll.is_none()) return {};
  return [&](double best_s) {
    nb::gil_scoped_acquire gil;
    try {
      return nb::cast<bool>(poll(best_s));
    } catch (...) {
      raised = std::current_exception();
      return true;
    }
  };
}

using Search = SearchResult (*)(const StreamProblem&, const std::vector<Words>&, const SearchPlan&);

FoundOrders found_by(Search search, const StreamProblem& problem,
                     const std::vector<OrderArrays>& starts, SearchPlan plan, nb::object poll) {
  std::exception_ptr raised;
  plan.poll = asking(poll, raised);
  FoundOrders found;
  {
    nb::gil_scoped_release release;
    std::vector<Words> words;
    for (const OrderArrays& start : starts) words.push_back(words_of(problem, start.view()));
    found.result = search(problem, words, plan);
    found.rank_offsets.push_back(0);
    for (const ActionRow& row : rows_of(problem, found.result.words))
      found.actions.insert(found.actions.end(), {row.kind, row.stage, row.microbatch});
    for (const auto& word : found.result.words)
      found.rank_offsets.push_back(found.rank_offsets.back() + static_cast<int64_t>(word.size()));
  }
  if (raised) std::rethrow_exception(raised);
  return found;
}

MovedOrders moved(const OrderArrays& orders, const CostArrays& costs,
                  const std::vector<Resource>& resources, Objective objective, MovePlan plan,
                  nb::object poll) {
  std::exception_ptr raised;
  plan.poll = asking(poll, raised);
  MovedOrders found;
  {
    nb::gil_scoped_release release;
    found = anneal_moves(orders.view(), costs.view(), resources, objective, plan);
  }
  if (raised) std::rethrow_exception(raised);
  return found;
}

const char* phase_name(const FoundOrders& found) {
  switch (found.result.winner) {
    case SearchPhase::none:
      return "none";
    case SearchPhase::given:
      return "given";
    case SearchPhase::offsets:
      return "offsets";
    case SearchPhase::annealed_offsets:
      return "annealed offsets";
    case SearchPhase::words:
      return "annealed words";
    case SearchPhase::repeating:
      return "repeating words";
  }
  return "none";
}

}  // namespace

void bind_schedule_search(nb::module_& module) {
  nb::class_<StreamProblem>(module, "StreamProblem")
      .def(nb::new_(&stream_problem), nb::kw_only(), nb::arg("rank_of_stage"), nb::arg("num_ranks"),
           nb::arg("num_microbatches"), nb::arg("duration_s"), nb::arg("forward_transfer_s"),
           nb::arg("backward_transfer_s"), nb::arg("fused"), nb::arg("recomputed"),
           nb::arg("resource_delta"), nb::arg("resource_transient"), nb::arg("resource_room"),
           nb::arg("objective"))
      .def_ro("num_actions", &StreamProblem::num_actions);

  nb::class_<FoundOrders>(module, "FoundOrders")
      .def_prop_ro("actions", &column<&FoundOrders::actions>, nb::rv_policy::reference_internal)
      .def_prop_ro("rank_offsets", &column<&FoundOrders::rank_offsets>,
                   nb::rv_policy::reference_internal)
      .def_prop_ro("span_s", [](const FoundOrders& found) { return found.result.length.span_s; })
      .def_prop_ro("makespan_s",
                   [](const FoundOrders& found) { return found.result.length.makespan_s; })
      .def_prop_ro("winner", &phase_name)
      .def_prop_ro("winning_start",
                   [](const FoundOrders& found) { return found.result.winning_start; })
      .def_prop_ro("work", [](const FoundOrders& found) { return found.result.work; })
      .def_prop_ro("interrupted",
                   [](const FoundOrders& found) { return found.result.interrupted; });

  const auto define = [&](const char* name, Search search) {
    module.def(
        name,
        [search](const StreamProblem& problem, const std::vector<OrderArrays>& starts,
                 uint64_t seed, int64_t work, double stop_at_s, nb::object poll) {
          SearchPlan plan{.seed = seed, .work = work, .stop_at_s = stop_at_s, .poll = {}};
          return found_by(search, problem, starts, std::move(plan), std::move(poll));
        },
        nb::arg("problem"), nb::arg("starts"), nb::kw_only(), nb::arg("seed"), nb::arg("work"),
        nb::arg("stop_at_s"), nb::arg("poll").none());
  };
  define("search_schedule", search_schedule);
  define("search_repeating", search_repeating);
  define("search_heated", search_heated);

  nb::class_<MovedOrders>(module, "MovedOrders")
      .def_ro("value_s", &MovedOrders::value_s)
      .def_ro("work", &MovedOrders::work)
      .def_ro("complete", &MovedOrders::complete)
      .def_ro("interrupted", &MovedOrders::interrupted)
      .def_prop_ro(
          "actions",
          [](const MovedOrders& orders) {
            return nb::ndarray<nb::numpy, const int32_t, nb::shape<-1, 3>>(
                reinterpret_cast<const int32_t*>(orders.actions.data()),
                {orders.actions.size(), 3});
          },
          nb::rv_policy::reference_internal);

  module.def(
      "anneal_moves",
      [](const OrderArrays& orders, const CostArrays& costs, const Table<double>& resource_delta,
         const Table<double>& resource_transient, const Table<double>& resource_room,
         const std::string& objective, uint64_t seed, int64_t work, double stop_at_s,
         nb::object poll) {
        return moved(orders, costs, resources_of(resource_delta, resource_transient, resource_room),
                     objective == "span" ? Objective::span : Objective::makespan,
                     {.seed = seed, .work = work, .stop_at_s = stop_at_s}, std::move(poll));
      },
      nb::arg("orders"), nb::arg("costs"), nb::kw_only(), nb::arg("resource_delta"),
      nb::arg("resource_transient"), nb::arg("resource_room"), nb::arg("objective"),
      nb::arg("seed"), nb::arg("work"), nb::arg("stop_at_s"), nb::arg("poll").none());
}
