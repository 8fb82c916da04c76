"""Orders written out by hand, and specs of stages, for questions about schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from question_lines import compact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def orders_1f1b(p: int, m: int, *, split: bool = False) -> list[list[str]]:
    """1F1B on one chunk per rank, written out by hand."""
    rows = []
    for rank in range(p):
        warm = min(m, p - 1 - rank)
        row = [f"{rank}F{j}" for j in range(warm)]
        for j in range(m):
            if warm + j < m:
                row.append(f"{rank}F{warm + j}")
            row += [f"{rank}I{j}", f"{rank}W{j}"] if split else [f"{rank}B{j}"]
        rows.append(row)
    return rows


def orders_gpipe(p: int, m: int) -> list[list[str]]:
    """All forwards, then all backwards in reverse."""
    return [
        [f"{r}F{j}" for j in range(m)] + [f"{r}B{j}" for j in reversed(range(m))] for r in range(p)
    ]


def as_json(rows: Sequence[Sequence[str]], m: int, ranks: Sequence[int] | None = None) -> str:
    return compact(
        {
            "kind": "orders",
            "format_version": 1,
            "num_microbatches": m,
            "rank_of_stage": list(ranks) if ranks is not None else list(range(len(rows))),
            "orders": [list(row) for row in rows],
        }
    )


def as_csv(rows: Iterable[Sequence[str]]) -> str:
    return "".join(",".join(row) + "\n" for row in rows)


def spec(**fields: Any) -> str:
    """A spec file; fused backwards, transfers and limits are as its fields say."""
    made: dict[str, Any] = {
        "kind": "schedule_spec",
        "format_version": 1,
        "forward_s": [0.013, 0.011, 0.012, 0.015],
        "input_grad_s": [0.014, 0.012, 0.012, 0.016],
        "weight_grad_s": [0.009],
        "transfer_s": [0.0007],
        "transfer_model": "free",
    }
    return compact({**made, **fields})
