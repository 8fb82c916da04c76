"""Machine rooms: what systems cost, bounds of boxes, the search against exhaustion, its proof."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chips.jobs import job, question, some_designs
from trainwright.chips.room import AXES, Bill, Figures, Limits, Room, RoomPricer, System, read_room
from trainwright.chips.room_answer import (
    Branch,
    Prover,
    answer,
    closed_by,
    limits_of,
    next_values,
    pricer_of,
    recheck,
    room_view,
    step_parts,
)
from trainwright.chips.room_front import FrontSearch, representatives
from trainwright.chips.room_search import Box, RoomOutcome, RoomSearch
from trainwright.chips.technology import losses_of, with_losses
from trainwright.chips.workload import end_words, ends_of_system
from trainwright.commands.codesign import machine_room
from trainwright.commands.main import main
from trainwright.errors import CheckFailed, InvalidInput
from trainwright.execution import Budget
from trainwright.execution.budget import Progress
from trainwright.formats.codesign_document import RoomResult
from trainwright.formats.document_json import FileJournal, encode
from trainwright.plans.status import Status

ROOM = replace(
    read_room(None, devices=8),
    devices=(4, 8),
    stacks=(1, 3),
    stack_gib=(0.25, 8.0),
    node_devices=(1, 2),
    node_gbytes_per_s=(50.0, 300.0),
    topology=("torus", "switch"),
    cards=(0.125, 0.5),
    oversubscription=(2.0, 1.0),
)
FIELDS = Figures._fields
TOML = """
stacks = [1, 2]
stack_gib = [8, 16]
node_devices = [1, 4]
node_gbytes_per_s = [100]
topology = ["switch"]
cards = [0.25, 1]
oversubscription = [1]
"""


MADE_OF = """
process = "5nm"
least_area_share = 0
[ranges]
num_tc = [8, 16]
num_vc = [8]
width = [64]
depth = [64]
glb_mib = [4, 8]
"""


@cache
def small() -> RoomPricer:
    """Six designs of BERT with six layers and of GPT-2 with four."""
    bert = job("bert-base", 128, (1, 2), layers=6, global_batch=32)
    gpt = job("gpt2", 128, (1,), layers=4, global_batch=16)
    asked = question(bert, gpt, space=some_designs(6, seed=5), devices=8)
    return RoomPricer(asked, ROOM, None)


@cache
def everything() -> list[tuple[int, tuple[int, ...], Figures]]:
    """Every sound system of the small room, priced in full."""
    pricer, rows = small(), np.arange(6)
    return [
        (stacks, place, pricer.price(stacks, ROOM.system(place), rows)[0])
        for stacks in ROOM.stacks
        for place in product(*(range(size) for size in ROOM.sizes))
        if pricer.is_sound(stacks, ROOM.system(place))
    ]


def found(aim: str, limits: Limits = Limits(), gap: float = 0.01) -> RoomOutcome:  # noqa: B008
    return RoomSearch(small(), aim=aim, limits=limits, gap=gap, budget=Budget()).run()


def a_third_of(name: str) -> float:
    """A budget that a third of all systems and designs keeps to."""
    values = sorted(float(v) for *_, f in everything() for v in getattr(f, name))
    return values[len(values) // 3]


def certificate(outcome: RoomOutcome) -> dict[str, Branch]:
    return {path: Branch(one.axis, one.left) for path, one in outcome.tree.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("aim", "budget"),
    [
        ("time", "watts"),
        ("cost", None),
        ("energy", "silicon_mm2"),
        *(
            pytest.param(*one, marks=pytest.mark.papers)
            for one in (
                *(("time", None), ("time", "silicon_mm2"), ("energy", None)),
                *(("cost", "dollars"), ("cost", "watts")),
            )
        ),
    ],
)
def test_the_search_finds_what_exhaustion_finds(aim: str, budget: str | None) -> None:
    limits = Limits() if budget is None else Limits(**{budget: a_third_of(budget)})
    least = min(float(np.where(limits.kept(f), f.of(aim), np.inf).min()) for *_, f in everything())
    outcome = found(aim, limits)
    assert outcome.best is not None
    assert outcome.lower_bound is not None
    assert outcome.lower_bound <= least <= outcome.best.value
    assert outcome.lower_bound >= outcome.best.value * 0.99 * (1 - 1e-9)
    if budget is not None:
        assert outcome.best.figures[FIELDS.index(budget)] <= a_third_of(budget)


@pytest.mark.slow
@pytest.mark.parametrize(
    "budget",
    [
        None,
        "watts",
        *(pytest.param(n, marks=pytest.mark.papers) for n in ("dollars", "silicon_mm2")),
    ],
)
def test_the_front_covers_every_system(budget: str | None) -> None:
    limits = Limits() if budget is None else Limits(**{budget: a_third_of(budget)})
    search = RoomSearch(small(), aim="cost", limits=limits, gap=0.01, budget=Budget())
    search.run()
    front = FrontSearch(search, epsilon=0.05).run()
    points = np.array([[one.figures[column] for column in (0, 1, 3)] for one in front.points])
    assert front.epsilon == pytest.approx(0.05)
    furthest = 0.0
    for *_, figures in everything():
        for row in np.flatnonzero(limits.kept(figures) & np.isfinite(figures.pace_s)).tolist():
            one = np.array([figures[column][row] for column in (0, 1, 3)])
            furthest = max(furthest, float((points / one).max(axis=1).min()))
    assert 1.0 <= furthest <= 1.05 * (1 + 1e-9)
    assert front.epsilon <= front.epsilon_of_any_cut


def test_a_design_that_stands_for_another_takes_no_more_of_anything() -> None:
    burden = np.random.default_rng(0).normal(size=(300, 7)).cumsum(axis=1)
    stands = representatives(burden, 0.5)
    slack = np.where(np.arange(7) < 4, np.log(1.5), 1e-12)
    assert (burden[stands] <= burden + slack).all()
    assert (stands[stands] == stands).all()
    assert 1 < np.unique(stands).size < 300
    exact = representatives(burden, 0.0)
    beaten = [(np.delete(burden, i, 0) <= burden[i]).all(axis=1).any() for i in range(300)]
    assert ((exact != np.arange(300)) == np.array(beaten)).all()


@pytest.mark.slow
def test_no_system_of_a_box_is_below_its_bound() -> None:
    search = RoomSearch(small(), aim="cost", limits=Limits(), gap=0.0, budget=Budget())
    random, rows = np.random.default_rng(0), np.arange(6)
    for _ in range(12):
        ends = [sorted(random.integers(size, size=2).tolist()) for size in ROOM.sizes]
        low, high = (tuple(end[i] for end in ends) for i in (0, 1))
        for stacks, place, figures in everything():
            inside = all(a <= at <= b for a, at, b in zip(low, place, high, strict=True))
            if inside:
                bounds = search._bound(Box(low, high), stacks, rows)
                assert (bounds <= figures.cost).all()


def test_a_later_value_never_costs_less() -> None:
    room = read_room(None, devices=64)
    for name in AXES:
        axis = AXES.index(name)
        for at in range(room.sizes[axis] - 1):
            place = tuple(size // 2 for size in room.sizes)
            less, more = (
                room.system((*place[:axis], at + step, *place[axis + 1 :])) for step in (0, 1)
            )
            for part in ("dollars", "watts"):
                before, after = (getattr(Bill.of(room, 2, one), part) for one in (less, more))
                assert all(before[key] <= after[key] for key in before), name


@pytest.mark.slow
def test_a_certificate_covers_every_system_once() -> None:
    outcome = found("cost")
    covered = np.zeros((len(ROOM.stacks), *ROOM.sizes, 6), dtype=int)
    begun = {stacks: np.arange(6) for stacks in ROOM.stacks}
    for part in closed_by(ROOM, certificate(outcome), begun):
        ranges = [range(a, b + 1) for a, b in zip(part.low, part.high, strict=True)]
        for place in product(*ranges):
            covered[(ROOM.stacks.index(part.stacks), *place)][part.designs] += 1
    alone = AXES.index("node_devices") + 1
    once = np.moveaxis(covered, alone, 0)
    assert (once[1] == 1).all()
    assert once[0].max() == 1  # a domain of one chip stands for all links in it


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> RoomResult:
    """The least cost of GPT-2 in a small room of four designs."""
    folder = tmp_path_factory.mktemp("room")
    (folder / "room.toml").write_text(TOML, encoding="utf-8")
    (folder / "made-of.toml").write_text(MADE_OF, encoding="utf-8")
    return machine_room(
        "gpt2",
        devices=8,
        aim="cost",
        global_batch=32,
        sequence=256,
        room=folder / "room.toml",
        technology=folder / "made-of.toml",
        max_dollars=60000.0,
    ).document


@pytest.mark.slow
def test_certificates_that_prove_nothing_are_refused(answered: RoomResult) -> None:
    def refused(message: str, **changed: object) -> None:
        with pytest.raises(CheckFailed, match=message):
            recheck(replace(answered, **changed), sample=30, seed=0, budget=Budget())  # type: ignore[arg-type]

    proof, boxes = answered.front_proof, answered.certificate
    assert proof is not None
    dear = max(answered.front, key=lambda one: one.dollars_per_token)
    told = dear.dollars_per_token
    pricer = pricer_of(answered.request)
    found = Prover(pricer, answered, sample=1, seed=0).priced_again(dear)
    parts = tuple(step_parts(pricer, found))
    nexts = tuple(next_values(pricer, found, "cost", limits_of(answered.request)))
    chips = answered.request.chips
    ends = tuple(ends_of_system(answered.request.room, chips.rules, dear))
    own: dict[str, Any] = {"best": dear, "value": told, "gap": 0.0, "step_parts": parts}
    own |= {"next_values": nexts, "at_ends": ends, "status": Status.OPTIMAL}
    refused("below the bound", lower_bound=told, **own)
    longest = max(boxes, key=lambda one: len(one.path))
    refused("has no box at", certificate=tuple(one for one in boxes if one != longest))
    lost = replace(longest, path=longest.path + "00", axis=None, left={})
    refused("belong nowhere", certificate=(*boxes, lost))
    first = replace(boxes[0], left={"1": "0-7"})
    refused("appear from nowhere", certificate=(first, *boxes[1:]))
    one, *rest = answered.front
    refused(r"front\[0\].watts", front=(replace(one, watts=one.watts * 0.9), *rest))
    cheapest = min(answered.front, key=lambda one: one.dollars_per_token)
    few = tuple(one for one in answered.front if one.watts > cheapest.watts)
    refused("no point of the front is within", front=few)
    refused("stands for", front_proof=replace(proof, of_designs=-0.9))


@pytest.mark.slow
def test_nobody_finds_a_system_below_the_bound_or_off_the_front(answered: RoomResult) -> None:
    proof = recheck(answered, sample=40, seed=1, budget=Budget()).proof
    assert proof is not None
    assert proof.searched
    assert min(proof.drawn, proof.near, proof.repriced, proof.of_front) > 0
    assert answered.front_epsilon == pytest.approx(0.15)


@pytest.mark.slow
@pytest.mark.parametrize("aim", ["time", "energy"])
def test_certificates_of_other_aims_hold(answered: RoomResult, aim: str) -> None:
    found = answer(replace(answered.request, aim=aim, budget_dollars=None), Budget())
    proof = recheck(found, sample=100, seed=0, budget=Budget()).proof
    assert proof is not None
    assert proof.repriced > 0


@pytest.mark.slow
def test_a_bound_raised_by_hand_is_found_whatever_is_drawn(answered: RoomResult) -> None:
    request = replace(answered.request, wanted_gap=0.2, wanted_front=None)
    found = answer(request, Budget())
    assert found.value is not None
    assert found.lower_bound is not None
    assert found.lower_bound < found.value * 0.99
    raised = (found.lower_bound + found.value) / 2
    gap = 1.0 - raised / found.value
    edited = replace(found, lower_bound=raised, gap=gap)
    with pytest.raises(CheckFailed, match="lower_bound: the document claims more"):
        recheck(edited, sample=0, seed=0, budget=Budget())
    less = replace(
        found, lower_bound=found.lower_bound / 2, gap=1 - found.lower_bound / 2 / found.value
    )
    proof = recheck(less, sample=0, seed=0, budget=Budget()).proof  # as a search cut short claims
    assert proof is not None
    assert proof.searched


@pytest.mark.slow
def test_a_front_that_claims_to_be_nearer_is_found(answered: RoomResult) -> None:
    assert answered.front_epsilon_of_any_cut is not None
    nearer = replace(answered, front_epsilon_of_any_cut=answered.front_epsilon_of_any_cut * 0.9)
    with pytest.raises(CheckFailed, match="front_epsilon_of_any_cut: the document claims more"):
        recheck(nearer, sample=1, seed=0, budget=Budget())


def plain(found: RoomResult) -> RoomResult:
    return replace(found, search_s=0.0, front_s=None)


@pytest.mark.slow
def test_a_search_goes_on_from_its_journal_to_the_same_answer(
    answered: RoomResult, tmp_path: Path
) -> None:
    whole, path = answer(answered.request, Budget()), tmp_path / "whole"
    assert plain(answer(answered.request, Budget(), FileJournal(path, about="x"))) == plain(whole)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert sum('"front:' in line for line in lines) > 3
    for count in (2, 5, 10, len(lines) - 3, len(lines)):
        part = tmp_path / f"part{count}"
        part.write_text("".join(lines[:count]) + '{"key": "cut off', encoding="utf-8")
        kept = FileJournal(part, about="x")
        assert plain(answer(answered.request, Budget(), kept)) == plain(whole)
        assert len(kept) == len(lines) - 1  # what was missing was written down


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_from_its_journal(
    answered: RoomResult, tmp_path: Path
) -> None:
    (tmp_path / "room.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "made-of.toml").write_text(MADE_OF, encoding="utf-8")
    journal, output = tmp_path / "journal", tmp_path / "answer.json"
    words = ["codesign", "gpt2", "--devices", "8", "--global-batch", "32", "--sequence", "256"]
    words += ["--room", str(tmp_path / "room.toml"), "--aim", "cost", "--budget-money", "60000"]
    words += ["--technology", str(tmp_path / "made-of.toml"), "--journal", str(journal)]
    run = "import sys; from trainwright.commands.main import main; main(sys.argv[1:])"
    started = subprocess.Popen([sys.executable, "-c", run, *words])
    while started.poll() is None:
        if journal.exists() and journal.read_text(encoding="utf-8").count("\n") > 4:
            started.kill()
            break
        time.sleep(0.002)
    started.wait()
    with pytest.raises(SystemExit) as ended:
        main((*words, "-o", str(output), "--json"))
    assert not ended.value.code
    told = json.loads(output.read_text(encoding="utf-8"))
    assert told["value"] == answered.value
    assert told["certificate"] == json.loads(json.dumps(encode(answered)))["certificate"]


def test_a_system_at_the_end_of_an_axis_says_what_widens_it(answered: RoomResult) -> None:
    assert answered.best is not None
    best, room = answered.best, answered.request.room
    told = {one.axis: one for one in answered.at_ends}
    assert best.stack_gib in (min(room.stack_gib), max(room.stack_gib))
    assert told["stack_gib"].widen == "--set room.stack_gib=[...]"
    assert (best.node_devices, "node_devices" in told) in ((1, False), (4, True))
    assert "topology" not in told
    (line,) = [end_words(one) for one in answered.at_ends if one.axis == "stack_gib"]
    assert line.startswith("the best lies at the end of the range of GiB of a stack, ")
    assert line in list(room_view(answered))


@pytest.mark.slow
def test_domains_slower_than_the_network_around_them_are_no_systems(answered: RoomResult) -> None:
    room = replace(answered.request.room, node_gbytes_per_s=(50.0,), node_devices=(4,))
    slow = replace(room, topology=("torus",), cards=(0.125, 2.0))
    asked = replace(answered.request, room=slow, aim="time", budget_dollars=None)
    found = answer(asked, Budget())
    assert found.best is not None
    assert found.best.cards == 0.125
    assert recheck(found, sample=200, seed=0, budget=Budget()).proof is not None


@pytest.mark.slow
def test_an_interrupted_search_says_what_it_proved(tmp_path: Path) -> None:
    polls = iter(range(10**6))

    class Few(Budget):
        __slots__ = ()

        def poll(self, progress: Progress) -> bool:
            return next(polls) >= 12

    search = RoomSearch(small(), aim="cost", limits=Limits(), gap=0.01, budget=Few())
    outcome = search.run()
    begun = {stacks: np.arange(6) for stacks in ROOM.stacks}
    assert outcome.best is not None
    assert 0 < (outcome.lower_bound or 0.0) < outcome.best.value
    assert sum(part.designs.size for part in closed_by(ROOM, certificate(outcome), begun)) > 0
    front = FrontSearch(search, epsilon=0.05).run()
    assert front.epsilon > 0.05


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("stacks = 3", "stacks: must be a list of whole numbers > 0, got 3"),
        ("memory = ['hbm3']", "memory: must be one of hbm2"),
        ("topology = [['torus']]", "topology: must be a list of torus and switch"),
        ("cards = [1e400]", "cards: must be a list of numbers > 0, got [inf]"),
        (f"prices = {{load = 1{'0' * 400}}}", "prices.load: must be a number >= 0"),
        ("cards = [0]", "cards: must be a list of numbers > 0"),
        ("devices = [1.5]", "devices: must be a list of whole numbers"),
        ("oversubscription = [0.5]", "oversubscription: must be a list of numbers >= 1"),
        ("topology = ['ring']", "topology: must be a list of torus and switch"),
        ("memory = 'ddr'", 'memory: must be one of hbm2e, hbm3, hbm3e, got "ddr"'),
        ("[prices]\nhost = 3", "prices.host: is not a known key"),
        ("[prices]\nhost_price = -1", "prices.host_price: must be a number >= 0, got -1"),
        ("colour = 3", "colour: is not a known key"),
    ],
)
def test_a_fault_of_a_room_is_named_by_its_place(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "room.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput) as refused:
        read_room(path, devices=8)
    assert fault in str(refused.value)


def test_axes_are_ordered_by_what_they_can_do(tmp_path: Path) -> None:
    path = tmp_path / "room.toml"
    path.write_text('oversubscription = [1, 4]\ntopology = ["switch", "torus"]\ncards = [2, 1]')
    room: Room = read_room(path, devices=8)
    assert (room.oversubscription, room.topology) == ((4, 1), ("torus", "switch"))
    assert (room.cards, room.devices) == ((1, 2), (1, 2, 4, 8))


@pytest.mark.slow
def test_the_command_finds_a_system_says_why_and_checks_it_again(
    tmp_path: Path, answered: RoomResult, capfd: pytest.CaptureFixture[str]
) -> None:
    path, written = tmp_path / "room.toml", tmp_path / "answer.json"
    path.write_text(TOML, encoding="utf-8")
    made_of = tmp_path / "technology.toml"
    made_of.write_text(MADE_OF, encoding="utf-8")
    asked = ["codesign", "gpt2", "--devices", "8", "--global-batch", "32", "--sequence", "256"]
    asked += ["--technology", str(made_of), "--room", str(path), "--aim", "cost"]
    with pytest.raises(SystemExit) as ended:
        main((*asked, "--budget-money", "60000", "-o", str(written), "--json"))
    assert not ended.value.code
    told = json.loads(capfd.readouterr().out)
    best = told["best"]
    assert told["systems"] == 4 * 2 * 2 * 2 * 2 * 4
    assert best["dollars"] <= 60000
    assert told["gap"] <= 0.01
    with pytest.raises(SystemExit) as ended:
        main(("codesign", "--recheck", str(written), "--sample", "20", "--json"))
    assert not ended.value.code
    assert json.loads(capfd.readouterr().out)["proof"]["repriced"] > 0
    with pytest.raises(SystemExit) as ended:
        main(("report", str(written), "-o", str(tmp_path / "room.html")))
    assert not ended.value.code
    page = (tmp_path / "room.html").read_text(encoding="utf-8")
    assert "A machine room for gpt2" in page
    assert "What the next value buys" in page
    with pytest.raises(SystemExit) as ended:
        main(("estimate", "gpt2", "--cluster", str(written), *asked[4:8]))
    assert not ended.value.code


def test_the_tables_of_why_add_up(answered: RoomResult) -> None:
    assert answered.best is not None
    parts = sum(part.seconds for part in answered.step_parts)
    assert parts == pytest.approx(answered.best.plans[0].step_time_s)
    axes = [one for one in answered.next_values if one.now]
    beyond, together = answered.next_values[-2:]
    assert {one.axis for one in axes} >= {"devices", "stacks", "cards"}
    assert (beyond.axis, together.axis) == ("interplay", "all at once")
    for name in ("step_change", "rate_change", "value_change", "dollars"):
        total = sum(getattr(one, name) for one in (*axes, beyond))
        assert total == pytest.approx(getattr(together, name), abs=1e-9)
    for one in answered.next_values:
        assert one.step_change + one.rate_change == pytest.approx(one.value_change)


@pytest.mark.parametrize(
    "beside",
    [
        ("--jobs", "2"),
        ("--sample", "9"),
        ("--chip", "dgx-h100"),
        ("--node-devices", "8"),  # axes of the room
        ("--stacks", "2"),
        ("--memory-bandwidth", "1TB/s"),
        ("--tdp", "50"),  # and limits of one chip
    ],
)
def test_what_a_search_of_systems_does_not_do_is_refused(
    beside: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["codesign", "gpt2", "--devices", "8", "--global-batch", "32", "--sequence", "256"]
    with pytest.raises(SystemExit) as ended:
        main((*asked, "--aim", "cost", *beside))
    assert ended.value.code == 2
    told = "must not be given where whole systems are sought"
    assert f"error: {beside[0][2:]}: {told}" in capfd.readouterr().err


def test_a_package_limits_one_chip_and_is_refused_beside_systems() -> None:
    with pytest.raises(InvalidInput, match="package: must not be given where whole systems"):
        machine_room("gpt2", devices=8, figures={"package": "air"})


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        ({"max_dollars": 10.0}, "dollars, budget-money allows 10"),
        ({"max_watts": 5.0}, "watts, budget-power allows 5"),
        ({"max_silicon_mm2": 1.0}, "mm2 of dies, budget-area allows 1"),
    ],
)
def test_a_budget_that_nothing_keeps_to_is_named(
    answered: RoomResult, budget: dict[str, float], told: str
) -> None:
    names = {"max_dollars": "budget_dollars", "max_watts": "budget_watts"}
    own = {names.get(name, "budget_mm2"): limit for name, limit in budget.items()}
    found = answer(replace(answered.request, **{"budget_dollars": None, **own}), Budget())  # type: ignore[arg-type]
    assert (found.status, found.best) == (Status.INFEASIBLE, None)
    assert told in (found.infeasible_because or "")


def test_a_schedule_without_bounds_is_refused() -> None:
    with pytest.raises(InvalidInput, match="schedule: must be 1f1b"):
        machine_room("gpt2", devices=8, schedule="zb-h1,1f1b", global_batch=32, sequence=256)


def test_cards_lose_what_networks_between_nodes_lose() -> None:
    """In any domain, and as beside a room; a size of nodes that was stated changes nothing."""
    losses = losses_of("typical")
    system = System(
        devices=8,
        stack_gib=8,
        node_devices=4,
        node_gbytes_per_s=100.0,
        topology="switch",
        cards=0.25,
        oversubscription=1.0,
    )
    asked = small().question
    raw = asked.surroundings[0]
    stated = replace(asked, surroundings=(replace(raw, node_devices=8),))
    for question_ in (asked, stated):
        found = RoomPricer(question_, ROOM, losses).surroundings(2, system)
        beside = with_losses(replace(raw, node_devices=4), losses)
        for name in ("link_efficiency", "link_latency_s", "node_efficiency", "node_latency_s"):
            assert getattr(found, name) == getattr(beside, name), name
    assert found.link_efficiency != found.node_efficiency


@pytest.mark.parametrize(
    ("key", "edited"),
    [
        ("best.watts", lambda r: replace(r, best=replace(r.best, watts=r.best.watts * 0.9))),
        ("value", lambda r: replace(r, best=replace(r.best, stacks=3 - r.best.stacks))),
        ("gap", lambda r: replace(r, gap=r.gap / 2 + 0.001)),
        ("lower_bound", lambda r: replace(r, lower_bound=r.value * 1.01)),
        ("systems", lambda r: replace(r, systems=r.systems + 1)),
        ("status", lambda r: replace(r, status=Status.UNKNOWN)),
        ("at_ends", lambda r: replace(r, at_ends=r.at_ends[1:])),
        (
            "next_values[0].dollars",
            lambda r: replace(
                r, next_values=(replace(r.next_values[0], dollars=1.0), *r.next_values[1:])
            ),
        ),
        (
            "step_parts[0].seconds",
            lambda r: replace(
                r,
                step_parts=(
                    replace(r.step_parts[0], seconds=r.step_parts[0].seconds * 2),
                    *r.step_parts[1:],
                ),
            ),
        ),
        (
            "best.plans[0].step_time_s",
            lambda r: replace(
                r,
                best=replace(
                    r.best,
                    plans=(
                        replace(r.best.plans[0], step_time_s=r.best.plans[0].step_time_s * 0.99),
                        *r.best.plans[1:],
                    ),
                ),
            ),
        ),
    ],
)
def test_an_edited_figure_is_named(answered: RoomResult, key: str, edited: Any) -> None:
    with pytest.raises(CheckFailed) as refused:
        recheck(edited(answered), sample=2, seed=0, budget=Budget())
    assert str(refused.value).startswith(f"{key}: the document says")
