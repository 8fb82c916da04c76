"""Random questions whose spaces are so small that every plan can be priced, drawn from a seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from math import comb, prod

from exhaustive import (
    LLAMA,
    TINY_MIXTURE,
    asked,
    every_candidate,
    has_its_ends,
    two_nodes_of_two,
)
from trainwright.model import Optimizer, Recipe
from trainwright.planning.question.layouts import LOOPED, SLICED
from trainwright.planning.question.question import (
    USUAL_SETTINGS,
    RunSettings,
    Span,
    estimate_profile,
)
from trainwright.plans.configuration import DEFAULT_OVERHEADS, NO_OVERHEADS, Overlap
from trainwright.profile import USUAL_MODES

CHAINS = ("1f1b", "zb-h1", "zb-h2", "eager-1f1b", "gpipe")
NONE, SELECTIVE, FULL = USUAL_MODES
BARE = RunSettings(
    recipe=Recipe(optimizer=Optimizer.SGD, gradient_dtype="bf16", main_weight_dtype="none"),
    overlap=Overlap(gradients=0, parameters=0, pipeline=0),
)
HIDDEN = RunSettings(overlap=Overlap(gradients=1, parameters=1, tensor=1, experts=1))


def random_question(rng, families, *, most_plans):
    """A question of at least one and at most so many plans, under one or two of the families."""
    while True:
        question = _drawn(rng, families)
        if 0 < num_plans(question, most_plans) <= most_plans:
            return question


def _drawn(rng, families):
    model = rng.choice((LLAMA, LLAMA, TINY_MIXTURE, replace(LLAMA, tied_embeddings=True)))
    model = replace(model, num_layers=rng.randint(2, 8))
    devices = rng.choice((2, 4, 4, 8))
    clusters = [None, None]
    if devices == 4:
        clusters += [two_nodes_of_two(25e9), two_nodes_of_two(3e9)]
    pipeline, tensor = rng.choice((2, 2, 3, 4)), rng.choice((1, 1, 2))
    least = 2 if set(families) <= set(LOOPED) else 1
    several, batch = rng.random() < 0.3, rng.choice((1, 2, 2, 3, 4, 4, 6, 8))
    sizes = (Span.only(1), Span.only(1 + (batch + 1) % 2), Span(most=2))
    ends_gib = 5 if model.experts else 19
    state_gib = (ends_gib + 4 * model.num_layers) / (pipeline * tensor)
    memory_gib = round(state_gib * 2 ** rng.uniform(-0.7, 2), 2)
    sequence, cluster = rng.choice((512, 1024, 2048, 4096, 8192)), rng.choice(clusters)
    overheads = rng.choice((NO_OVERHEADS, NO_OVERHEADS, DEFAULT_OVERHEADS))
    settings = rng.choice((USUAL_SETTINGS, USUAL_SETTINGS, BARE, HIDDEN))
    schedules = tuple(rng.sample(families, min(len(families), rng.choice((1, 1, 2)))))
    if not SLICED.isdisjoint(schedules):  # into as many slices as ranks
        sequence *= 3
    return asked(
        model,
        memory_gib=memory_gib,
        devices=devices,
        batch=batch,
        sequence=sequence,
        cluster=cluster,
        overheads=overheads,
        settings=settings,
        schedules=schedules,
        zero_stages=tuple(sorted(rng.sample((0, 1, 2, 3), rng.choice((1, 1, 2))))),
        recompute=rng.choice(((NONE,), (NONE, FULL), (NONE, FULL), (FULL,), (NONE, SELECTIVE))),
        tensor=Span.only(tensor),
        context=Span.only(rng.choice((1, 1, 1, 2))),
        pipeline=Span(least=least if several else pipeline, most=pipeline),
        microbatch_size=rng.choice(sizes),
    )


def num_plans(question, most):
    """Plans that exhaustion prices; counting stops beyond `most`."""
    estimator, total, profiles = question.estimator(), 0, {}
    for candidate in every_candidate(question):
        point = candidate.point
        if point not in profiles:
            profiles[point] = estimate_profile(estimator, question, point)
        total += _num_plans_of(candidate, profiles[point])
        if total > most:
            break
    return total


def _num_plans_of(candidate, profile):
    layers, costs = profile.structure.layers, profile.costs
    classes = tuple(layer.layer_class for layer in layers)
    options = tuple(len(costs.rows_of(number)) for number in range(costs.num_classes))
    stages = candidate.pipeline * candidate.virtual_stages
    if candidate.schedule not in LOOPED:
        return _num_of_chain(classes, options, stages)
    inner = combinations(range(1, len(layers)), stages - 1)
    cuts = ((0, *each, len(layers)) for each in inner)
    return sum(
        prod(_num_of_stage(classes[a:b], options) for a, b in pairwise(ends))
        for ends in cuts
        if has_its_ends(layers, ends)
    )


@cache
def _num_of_chain(classes, options, stages):
    if stages == 1:
        return _num_of_stage(classes, options)
    return sum(
        _num_of_stage(classes[:after], options)
        * _num_of_chain(classes[after:], options, stages - 1)
        for after in range(1, len(classes) - stages + 2)
    )


@cache
def _num_of_stage(classes, options):
    """Of layers of one class only how many run under each option matters."""
    return prod(
        comb(count + options[number] - 1, options[number] - 1)
        for number, count in Counter(classes).items()
    )
