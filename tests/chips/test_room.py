"""Machine rooms: what systems cost, bounds of boxes, the search against exhaustion, its proof."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from chips.jobs import job, question, some_designs
from trainwright.chips.room import AXES, Bill, Limits, Room, RoomPricer, read_room
from trainwright.chips.room_proof import Branch, closed_by, prove
from trainwright.chips.room_search import Box, RoomOutcome, RoomSearch
from trainwright.commands.main import main
from trainwright.errors import CheckFailed, InvalidInput
from trainwright.execution import Budget

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
TOML = """
stacks = [1, 2]
stack_gib = [8, 16]
node_devices = [1, 4]
node_gbytes_per_s = [100]
topology = ["switch"]
cards = [0.25, 1]
oversubscription = [1]
"""


@cache
def small() -> RoomPricer:
    """Six designs of BERT with six layers and of GPT-2 with four."""
    bert = job("bert-base", 128, (1, 2), layers=6, global_batch=32)
    gpt = job("gpt2", 128, (1,), layers=4, global_batch=16)
    asked = question(bert, gpt, space=some_designs(6, seed=5), devices=8)
    return RoomPricer(asked, ROOM, None, None)


@cache
def everything() -> list[tuple[int, tuple[int, ...], object]]:
    """Every sound system of the small room, priced in full."""
    pricer, rows = small(), np.arange(6)
    return [
        (stacks, place, pricer.price(stacks, ROOM.system(place), rows)[0])
        for stacks, place in pricer.every_system()
        if pricer.is_sound(stacks, ROOM.system(place))
    ]


def found(aim: str, limits: Limits = Limits(), gap: float = 0.01) -> RoomOutcome:  # noqa: B008
    return RoomSearch(small(), aim=aim, limits=limits, gap=gap, budget=Budget()).run()


def certificate(outcome: RoomOutcome) -> dict[str, Branch]:
    return {path: Branch(one.axis, one.left) for path, one in outcome.tree.items()}


def checked(outcome: RoomOutcome, tree: dict[str, Branch], aim: str, bound: float) -> None:
    prove(
        small(),
        tree,
        aim=aim,
        limits=Limits(),
        lower_bound=bound,
        sample=60,
        seed=0,
        budget=Budget(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("aim", ["time", "cost", "energy"])
@pytest.mark.parametrize("limited", [False, True])
def test_the_search_finds_what_exhaustion_finds(aim: str, limited: bool) -> None:
    dollars = sorted(float(d) for *_, f in everything() for d in f.dollars)  # type: ignore[attr-defined]
    limits = Limits(dollars=dollars[len(dollars) // 3]) if limited else Limits()
    least = min(
        float(np.where(limits.kept(f), f.of(aim), np.inf).min())  # type: ignore[arg-type, attr-defined]
        for *_, f in everything()
    )
    outcome = found(aim, limits)
    assert outcome.best is not None
    assert outcome.lower_bound is not None
    assert outcome.lower_bound <= least <= outcome.best.value
    assert outcome.lower_bound >= outcome.best.value * 0.99 * (1 - 1e-9)
    assert outcome.best.figures[4] <= (limits.dollars or np.inf)


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
                assert (bounds <= figures.cost).all()  # type: ignore[attr-defined]


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
    for part in closed_by(ROOM, certificate(outcome), 6):
        ranges = [range(a, b + 1) for a, b in zip(part.low, part.high, strict=True)]
        for place in product(*ranges):
            covered[(ROOM.stacks.index(part.stacks), *place)][part.designs] += 1
    alone = AXES.index("node_devices") + 1
    once = np.moveaxis(covered, alone, 0)
    assert (once[1] == 1).all()
    assert once[0].max() == 1  # a domain of one chip stands for all links in it
    checked(outcome, certificate(outcome), "cost", outcome.lower_bound or 0.0)


@pytest.mark.slow
def test_a_certificate_that_proves_nothing_is_refused() -> None:
    outcome = found("cost")
    tree, bound = certificate(outcome), outcome.lower_bound or 0.0
    with pytest.raises(CheckFailed, match="below the bound"):
        checked(outcome, tree, "cost", bound * 3.0)
    longest = max(tree, key=len)
    with pytest.raises(CheckFailed, match="has no box at"):
        checked(outcome, {k: v for k, v in tree.items() if k != longest}, "cost", bound)
    with pytest.raises(CheckFailed, match="belong nowhere"):
        checked(outcome, {**tree, longest + "0": Branch(None, {})}, "cost", bound)
    rows = {1: np.arange(7)}
    with pytest.raises(CheckFailed, match="appear from nowhere"):
        checked(outcome, {**tree, "": Branch(tree[""].axis, rows)}, "cost", bound)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("stacks = 3", "stacks: must be a list of numbers > 0, got 3"),
        ("cards = [0]", "cards: must be a list of numbers > 0"),
        ("devices = [1.5]", "devices: must be a list of whole numbers"),
        ("oversubscription = [0.5]", "oversubscription: must be a list of numbers >= 1"),
        ("topology = ['ring']", "topology: must be a list of torus and switch"),
        ("memory = 'ddr'", "memory: must be one of hbm2e, hbm3, hbm3e, got 'ddr'"),
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


def test_the_command_finds_a_system_says_why_and_checks_it_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, answer = tmp_path / "room.toml", tmp_path / "answer.json"
    path.write_text(TOML, encoding="utf-8")
    made_of = tmp_path / "technology.toml"
    ranges = "num_tc = [8, 16]\nnum_vc = [8]\nwidth = [64]\ndepth = [64]\nglb_mib = [4, 8]"
    made_of.write_text(f'process = "5nm"\nleast_area_share = 0\n[ranges]\n{ranges}\n')
    asked = ["codesign", "gpt2", "--devices", "8", "--global-batch", "32", "--sequence", "256"]
    asked += ["--technology", str(made_of), "--room", str(path), "--aim", "cost"]
    with pytest.raises(SystemExit) as ended:
        main((*asked, "--budget-money", "60000", "-o", str(answer), "--json"))
    assert not ended.value.code
    told = json.loads(capfd.readouterr().out)
    best = told["best"]
    assert told["systems"] == 4 * 2 * 2 * 2 * 2 * 4
    assert best["dollars"] <= 60000
    assert told["gap"] <= 0.01
    parts = sum(part["seconds"] for part in told["step_parts"])
    assert parts == pytest.approx(best["plans"][0]["step_time_s"])
    assert {one["axis"] for one in told["next_values"]} >= {"devices", "stacks", "cards"}
    with pytest.raises(SystemExit) as ended:
        main(("codesign", "--recheck", str(answer), "--sample", "20", "--json"))
    assert not ended.value.code
    assert json.loads(capfd.readouterr().out)["proof"]["repriced"] == 20
    told["lower_bound"] = told["value"] * 2
    answer.write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(("codesign", "--recheck", str(answer)))
    assert ended.value.code


@pytest.mark.parametrize(
    "beside",
    [("--workers", "2"), ("--journal", "j.json"), ("--sample", "9"), ("--chip", "dgx-h100")],
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
