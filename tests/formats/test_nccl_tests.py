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
from trainwright.formats.cluster_toml import COLLECTIVES, fit_link, load_cluster, read_nccl_tests

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


BARE = """\
$ mpirun -np 4 ./build/all_reduce_perf -b 32M -e 512M -f 4 -g 1 -c 0
#   Rank  0 Pid  1320 on node-1 device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  1 Pid  1321 on node-1 device  1 [0x00] Tesla V100-SXM2-16GB
#   Rank  2 Pid  1320 on node-2 device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  3 Pid  1321 on node-2 device  1 [0x00] Tesla V100-SXM2-16GB
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw
node-1:41:52 [0] NCCL INFO Channel 00/24 :    0   1   2   3
    33554432       8388608   float     sum   1000.0   33.55   50.33    N/A   1458.1   23.01   45.84
node-1:41:52 [0] NCCL WARN Missing "iommu=pt" from kernel command line
   134217728      33554432   float     sum     4000   33.55   50.33  2e-07     3900   34.41   51.62
   536870912     134217728   float     sum    16000   33.55   50.33    N/A
"""


def test_a_table_without_roots_and_with_other_lines_between_is_read() -> None:
    run = read_nccl_tests(BARE)
    assert (run.collective, run.num_ranks) == ("all_reduce", 4)
    assert run.payload_bytes == (2.0**25, 2.0**27, 2.0**29)
    assert run.time_s == pytest.approx((1e-3, 4e-3, 16e-3))


def test_what_a_launcher_puts_before_lines_is_passed_over() -> None:
    run = read_nccl_tests(BARE)
    for mark in ("[1,0]<stdout>:", "0: ", "worker-0 | ", "  "):
        assert read_nccl_tests("".join(f"{mark}{line}\n" for line in BARE.splitlines())) == run
    assert read_nccl_tests(BARE.replace("#", "")) == run


def test_columns_in_place_may_hold_anything() -> None:
    rows = [(size, 1e-5 + size / 1e11) for size in (4**k for k in range(8, 14))]
    text = output("alltoall", 8, rows, operation="none")
    other = "\n".join(
        line.rsplit(maxsplit=1)[0] + " N/A" if line.startswith(" ") else line
        for line in text.splitlines()
    )
    assert read_nccl_tests(other) == read_nccl_tests(text)
    for root in ("0", "3"):
        assert read_nccl_tests(text.replace(" -1 ", f" {root} ")) == read_nccl_tests(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (BARE + BARE, "ranks: must be those of one run, got rank 0 2 times"),
        (
            BARE + BARE.replace("all_reduce", "alltoall"),
            "collective: must be one program's in a file, got all_reduce, alltoall",
        ),
        (BARE.replace("all_reduce", "broadcast"), "got broadcast"),
    ],
)
def test_several_runs_and_other_programs_are_refused(text: str, fault: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_nccl_tests(text)
    assert fault in str(caught.value)


@pytest.mark.parametrize("stated", ["sources = 3", "collective = [1]"])
def test_a_measured_level_states_text_and_tables(stated: str, tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text(TABLE, encoding="utf-8")
    file = tmp_path / "mine.toml"
    level = f'[[level]]\nname = "a"\nsize = 2\nnccl_tests = "out.txt"\n{stated}\n'
    file.write_text(f'device_kind = "B200"\n{level}', encoding="utf-8")
    with pytest.raises(InvalidInput, match=stated.split()[0]):
        load_cluster(file, accelerators=catalog.accelerators())
