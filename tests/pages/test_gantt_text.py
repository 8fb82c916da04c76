import pytest
from hypothesis import given
from hypothesis import strategies as st

import pictures
from strategies_schedule import schedules_with_costs
from trainwright.errors import InvalidInput
from trainwright.pages.gantt import Charset, MemoryUnit, gantt_text
from trainwright.plans.schedule import ScheduleCosts
from trainwright.scheduling.families import FamilyRequest, generate
from trainwright.scheduling.simulate import simulate
from trainwright.units import TimeUnit


def unit_timeline(family="1f1b", ranks=3, microbatches=4):
    schedule = generate(family, FamilyRequest(num_ranks=ranks, num_microbatches=microbatches))
    return simulate(schedule, ScheduleCosts.of(schedule.placement))


SMALL = """\
rank 0 F0─F1─F2─············B0────F3─B1────···B2────···B3────
rank 1 ···F0─F1─······B0────F2─B1────F3─B2────···B3────······
rank 2 ······F0─B0────F1─B1────F2─B2────F3─B3────············
       ┬              ┬              ┬              ┬
       0              5              10             15 s
rank 0 ▃▃▃▆▆▆██████████████████████████████▆▆▆▆▆▆▆▆▆▃▃▃▃▃▃▃▃▃ 3 act.
rank 1    ▃▃▃▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▆▃▃▃▃▃▃▃▃▃       2 act.
rank 2       ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃             1 act.
F forward, B backward, · idle; below: memory and its peak
"""


def test_a_small_schedule_shows_every_action():
    drawn = unit_timeline()
    assert gantt_text(drawn, width=73, memory_unit=MemoryUnit.ACTIVATIONS) == SMALL


@given(st.integers(40, 160), st.integers(1, 6))
def test_whole_slots_are_equally_wide(width, microbatches):
    drawn = unit_timeline(microbatches=microbatches)
    text = gantt_text(drawn, width=width, time_unit=TimeUnit.SLOTS)
    assert " slots" in text
    bars = [line.split(" ", 2)[2] for line in text.splitlines()[:3]]
    (columns,) = {len(bar) for bar in bars}
    if columns >= drawn.makespan_s:
        assert columns % drawn.makespan_s == 0


@given(schedules_with_costs(), st.integers(40, 160), st.sampled_from(Charset))
def test_lines_fit_the_width(case, width, charset):
    text = gantt_text(simulate(*case), width=width, charset=charset)
    assert max(map(len, text.splitlines()[:-1])) <= width


@given(schedules_with_costs())
def test_ascii_is_ascii(case):
    assert gantt_text(simulate(*case), charset=Charset.ASCII).isascii()


def test_names_shrink_as_the_width_does():
    drawn = unit_timeline("interleaved", ranks=2, microbatches=2)
    assert "2F0" in gantt_text(drawn, width=120)
    narrow = gantt_text(drawn, width=60)
    assert "2F0" not in narrow
    assert "F0" in narrow


def test_a_long_schedule_shows_what_fills_each_column():
    drawn = pictures.timeline(family="1f1b", ranks=2, microbatches=500)
    first, second = gantt_text(drawn, width=80).splitlines()[:2]
    assert set(first[7:]) <= set("FIW·")
    assert first[7:].count("I") > 50  # 4 of 9 seconds; F has 3, W has 2
    assert len(first) == len(second)


def test_idle_ends_of_a_long_schedule_stay_visible():
    drawn = pictures.timeline(family="gpipe", ranks=8, microbatches=64)
    last = gantt_text(drawn, width=100).splitlines()[7]
    assert last[7:].startswith("··")


def test_memory_that_breaks_its_limit_is_marked():
    assert "GiB!" in gantt_text(pictures.timeline(limit_gib=20))
    assert "!" not in gantt_text(pictures.timeline(limit_gib=50))


def test_a_terminal_that_is_too_narrow_is_refused():
    with pytest.raises(InvalidInput, match="width: must be >= 40 characters, got 20"):
        gantt_text(unit_timeline(), width=20)
