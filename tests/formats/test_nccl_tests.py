"""nccl-tests output: the table is read, and the link it was made from is found again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.cluster import Hop, NetworkLevel
from trainwright.costing.communication import collective_time_s
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.formats.cluster_toml import load_cluster
from trainwright.formats.nccl_tests import COLLECTIVES, fit_link, read_nccl_tests

HEADER = """\
# nThread 1 nGpus {ranks} minBytes 8 maxBytes 8589934592 step: 4(factor) iters: 20
#
# Using devices
{devices}
#
#  size   count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
#   (B) (elems)                       (us) (GB/s) (GB/s)          (us) (GB/s) (GB/s)
"""
OURS = {"alltoall": "all_to_all", "sendrecv": "point_to_point"}


def output(collective: str, ranks: int, rows: list[tuple[int, float]], *, operation: str) -> str:
    devices = "\n".join(
        f"#  Rank {rank:2d} Group  0 Pid {100 + rank} on node device {rank:2d} [0x07] A100"
        for rank in range(ranks)
    )
    lines = [
        f"{size:12d} {size // 4:13d} {'float':>9} {operation:>7} {-1:7d} {1e6 * time_s:8.4f} "
        f"{size / time_s / 1e9:7.2f} {0.0:7.2f} {0:6d} {1e6 * time_s:8.4f} 1.00 1.00 0"
        for size, time_s in rows
    ]
    head = HEADER.format(ranks=ranks, devices=devices)
    name = f"# Collective test starting: {collective}_perf\n"
    return name + head + "\n".join(lines) + "\n# Out of bounds values : 0 OK\n"


@given(
    collective=st.sampled_from(COLLECTIVES),
    ranks=st.integers(2, 16),
    latency_us=st.floats(0.5, 50),
    gigabytes=st.floats(1, 900),
)
def test_a_link_that_follows_our_own_formulas_is_found_again(
    collective: str, ranks: int, latency_us: float, gigabytes: float
) -> None:
    level = NetworkLevel(
        name="link",
        size=ranks,
        bandwidth_bytes_per_s=gigabytes * 1e9,
        latency_s=latency_us * 1e-6,
    )
    hops = (Hop(level=level, ranks=ranks),)
    start_s = 2 * (ranks - 1) * level.latency_s
    share = 2 * (ranks - 1) / ranks

    def time_s(size: int) -> float:
        if collective == "all_reduce":  # the ring; our own takes a tree where that is faster
            return start_s + share * size / level.bandwidth_bytes_per_s
        return collective_time_s(OURS.get(collective, collective), float(size), hops)

    rows = [(size, time_s(size)) for size in (4**k for k in range(4, 17))]
    text = output(collective, ranks, rows, operation="sum" if "reduce" in collective else "none")
    run = read_nccl_tests(text)
    assert (run.collective, run.num_ranks, len(run.time_s)) == (collective, ranks, 13)
    link = fit_link(run)
    assert link.bandwidth_bytes_per_s == pytest.approx(level.bandwidth_bytes_per_s, rel=1e-2)
    assert link.latency_s == pytest.approx(level.latency_s, rel=1e-2)
    assert link.misfit < 1e-2


def test_a_cluster_file_takes_its_link_from_a_measurement(tmp_path: Path) -> None:
    rows = [(size, 42e-6 + 1.75 * size / 200e9) for size in (4**k for k in range(4, 16))]
    text = output("all_reduce", 8, rows, operation="sum")
    (tmp_path / "all_reduce.txt").write_text(text, encoding="utf-8")
    file = tmp_path / "mine.toml"
    file.write_text(
        'device_kind = "A100-80GB-SXM"\n'
        '[[level]]\nname = "nvlink"\nsize = 8\nnccl_tests = "all_reduce.txt"\n',
        encoding="utf-8",
    )
    (level,) = load_cluster(file, accelerators=catalog.accelerators()).levels
    assert level.effective_bytes_per_s == pytest.approx(200e9, rel=1e-3)
    assert level.latency_s == pytest.approx(3e-6, rel=1e-3)
    assert dict(level.sources)["latency_s"].origin == "measured"


TABLE = output("all_reduce", 2, [(8, 1e-5), (1024, 2e-5)], operation="sum")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "collective: must be one of all_reduce, all_gather"),
        (TABLE.replace("Rank", "Runk"), "ranks: must list at least 2 ranks"),
        ("\n".join(TABLE.splitlines()[:-2]), "table: must have at least 2 rows"),
    ],
)
def test_what_is_missing_is_named(text: str, fault: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_nccl_tests(text)
    assert fault in str(caught.value)


def test_times_that_do_not_grow_fit_no_link() -> None:
    text = output("all_reduce", 2, [(8, 2e-5), (1024, 1e-5)], operation="sum")
    with pytest.raises(InvalidInput, match="must have times that grow with the payload"):
        fit_link(read_nccl_tests(text))


def test_an_older_output_is_told_its_collective() -> None:
    text = TABLE.split("\n", 1)[1]
    with pytest.raises(InvalidInput, match="collective"):
        read_nccl_tests(text)
    assert read_nccl_tests(text, collective="all_reduce").num_ranks == 2


def test_a_measured_level_states_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text(TABLE, encoding="utf-8")
    file = tmp_path / "mine.toml"
    level = '[[level]]\nname = "a"\nsize = 2\nlatency_s = 1e-6\nnccl_tests = "out.txt"\n'
    file.write_text(f'device_kind = "B200"\n{level}', encoding="utf-8")
    with pytest.raises(InvalidInput, match="measures latency_s; give only one"):
        load_cluster(file, accelerators=catalog.accelerators())
    file.write_text(
        f'device_kind = "B200"\n{level}'.replace("out.txt", "no.txt").replace(
            "latency_s = 1e-6\n", ""
        ),
        encoding="utf-8",
    )
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_cluster(file, accelerators=catalog.accelerators())
