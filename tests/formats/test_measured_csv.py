"""Tables of measured runs: common columns become fields, the rest settings, faults are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainwright import lab
from trainwright.errors import InvalidInput
from trainwright.formats.measured_csv import (
    COMMON_COLUMNS,
    OPTION_KEYS,
    measured_files,
    read_layer_tables,
    read_measured,
    read_measured_table,
)
from trainwright.profile.measured_model import MeasuredLayers

ROW = {
    "row_id": "made-1",
    "model": "gpt-1b",
    "accelerator": "A100-80GB-SXM",
    "gpus": "8",
    "gpus_per_node": "8",
    "tp": "2",
    "pp": "2",
    "dp": "2",
    "cp": "1",
    "ep": "1",
    "seq_len": "1024",
    "global_batch_seqs": "16",
    "precision": "fp16",
    "sequence_parallel": "1",
}


def write(path: Path, *rows: dict[str, str], extra: tuple[str, ...] = ()) -> Path:
    columns = [*COMMON_COLUMNS, *extra]
    lines = [",".join(columns)]
    lines += [",".join({**ROW, **row}.get(c, "") for c in columns) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_an_empty_cell_is_unknown_and_never_a_default(tmp_path: Path) -> None:
    (run,) = read_measured(write(tmp_path / "made.csv", {}))
    assert run.table == "made"
    assert run.microbatch_size is None
    assert run.virtual_stages is None
    assert run.step_time_s is None
    assert run.sequence_parallel is True


def test_columns_of_one_table_alone_are_settings(tmp_path: Path) -> None:
    path = write(tmp_path / "made.csv", {"swiglu": "1", "lr": "x"}, extra=("swiglu", "lr", "gap"))
    (run,) = read_measured(path)
    assert run.flag("swiglu") and not run.flag("gap")
    assert run.setting("gap") is None
    assert run.number("lr") is None and run.number("swiglu") == 1.0


def test_every_fault_names_its_line_and_column(tmp_path: Path) -> None:
    path = write(
        tmp_path / "made.csv",
        {"tp": "two"},
        {"dp": "0"},
        {"gpus": "inf"},
        {"zero_stage": "4"},
        {"sequence_parallel": "yes"},
    )
    with pytest.raises(InvalidInput) as caught:
        read_measured(path)
    assert [str(fault) for fault in caught.value.faults] == [
        'line 2, tp: must be a whole number from 1 to 1000000000, got "two"',
        'line 3, dp: must be a whole number from 1 to 1000000000, got "0"',
        'line 4, gpus: must be a whole number from 1 to 1000000000, got "inf"',
        'line 5, zero_stage: must be 0, 1, 2 or 3, got "4"',
        'line 6, sequence_parallel: must be 0 or 1, got "yes"',
    ]


def test_a_row_that_leaves_open_what_every_run_needs_is_kept_apart(tmp_path: Path) -> None:
    open_rows = {"gpus": "", "precision": " "}, {"tp": ""}, {"ep": ""}
    path = write(tmp_path / "made.csv", {}, *open_rows)
    table = read_measured_table(path)
    assert [run.states_experts for run in table.runs] == [True, False]  # dense models have none
    assert table.incomplete == (("precision", "gpus"), ("tp",))
    assert table.missing_columns == ()


def test_a_column_that_is_not_there_is_as_unknown_as_an_empty_one(tmp_path: Path) -> None:
    names = [name for name in ROW if name not in ("sequence_parallel", "tp")]
    path = tmp_path / "made.csv"
    path.write_text(",".join(names) + "\n" + ",".join(ROW[name] for name in names) + "\n")
    table = read_measured_table(path)
    assert table.runs == () and table.incomplete == (("tp",),)
    assert {"tp", "sequence_parallel", "vocab_size"} <= set(table.missing_columns)
    assert "gpus" not in table.missing_columns


def test_marks_of_other_programs_change_nothing(tmp_path: Path) -> None:
    """A byte-order mark, CRLF, spaces around names, and whole numbers that became floats."""
    plain = write(tmp_path / "made.csv", {"zero_stage": "1"}, extra=("swiglu",))
    text = plain.read_text().replace(",1,", ",1.0,")
    (tmp_path / "other").mkdir()
    odd = tmp_path / "other" / "made.csv"
    odd.write_bytes(b"\xef\xbb\xbf" + text.replace("model,", " model ,", 1).encode())
    odd.write_bytes(odd.read_bytes().replace(b"\n", b"\r\n"))
    assert read_measured(odd) == read_measured(plain)


def test_a_flag_may_be_written_as_a_float(tmp_path: Path) -> None:
    path = write(tmp_path / "made.csv", {"fused": "1.0", "off": "0.0"}, extra=("fused", "off"))
    (run,) = read_measured(path)
    assert run.flag("fused") and not run.flag("off")


def with_options(path: Path, text: str) -> Path:
    columns = [*ROW, "options"]
    quoted = text.replace('"', '""')
    path.write_text(f'{",".join(columns)}\n{",".join(ROW.values())},"{quoted}"\n')
    return path


def test_options_are_numbers_flags_or_words(tmp_path: Path) -> None:
    said = (
        '{"capacity_factor": "1.25", "lora_rank": 16, "flash_attention": "false", "dropout": null}'
    )
    (run,) = read_measured(with_options(tmp_path / "made.csv", said))
    assert run.options == {"capacity_factor": 1.25, "lora_rank": 16, "flash_attention": False}


def test_every_option_that_is_read_is_known() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(*lab.__path__).glob("*.py"))
    read = set(re.findall(r'run\.options(?:\.get\(|\[)"(\w+)"', sources))
    assert len(read) > 5 and read <= OPTION_KEYS


@pytest.mark.parametrize(
    "said",
    ['{"capacity_factor": "x"}', '{"lora_rank": -1}', '{"flash_attention": 2}', '{"blocks": 8}'],
)
def test_options_of_another_kind_are_faults(tmp_path: Path, said: str) -> None:
    with pytest.raises(InvalidInput, match="line 2, options: must be a JSON object, with numbers"):
        read_measured(with_options(tmp_path / "made.csv", said))


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "made.csv").write_text("")
    with pytest.raises(InvalidInput, match="must have a line of column names") as caught:
        read_measured(tmp_path / "made.csv")
    assert caught.value.source == str(tmp_path / "made.csv")


def test_a_table_of_something_else_is_refused_with_the_columns_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "made.csv"
    path.write_text("row_id,model\n1,x\n")
    with pytest.raises(InvalidInput) as caught:
        read_measured(path)
    assert "accelerator" in {fault.path for fault in caught.value.faults}


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="at least 1 CSV"):
        measured_files(tmp_path)


def layer_tables(tmp_path: Path, times: list[tuple[int, float, float, float]]) -> MeasuredLayers:
    header = "model,accelerator,micro_batch_seqs,tp,layer_index,forward_s,backward_s,update_s\n"
    rows = [f"m,D,{b},2,0,{f!r},{g!r},{u!r}\n" for b, f, g, u in times]
    (tmp_path / "a_layer_times.csv").write_text(header + "".join(rows))
    layers = read_layer_tables(tmp_path)
    assert layers is not None
    return layers


def test_a_line_through_layer_times_evens_out_what_one_of_them_missed(tmp_path: Path) -> None:
    """Forward lies on 1 ms + 2 ms · b but for b = 4; backward falls, update varies around zero."""
    layers = layer_tables(
        tmp_path,
        [(1, 3e-3, 4e-3, 0.0), (2, 5e-3, 3e-3, 0.0), (4, 7e-3, 2e-3, 3e-3), (8, 17e-3, 1e-3, 0.0)],
    )
    ((forward_s, backward_s, update_s),) = layers.steady_times_at(
        "m", "D", microbatch_size=4, tensor_parallel=2
    )
    assert 7e-3 < forward_s < 9e-3
    assert 1e-3 < backward_s < 4e-3  # nothing gets faster with more to do: the line is level
    assert update_s == pytest.approx(0.75e-3)
    level = layers.steady_times_at("m", "D", microbatch_size=64, tensor_parallel=2)
    assert level[0][1] == pytest.approx(backward_s)


def test_layer_times_on_a_line_are_kept_and_continued(tmp_path: Path) -> None:
    layers = layer_tables(tmp_path, [(b, 1e-3 + 2e-3 * b, 3e-3 * b, 1e-4) for b in (1, 2, 8)])
    ((forward_s, backward_s, update_s),) = layers.steady_times_at(
        "m", "D", microbatch_size=16, tensor_parallel=2
    )
    assert (forward_s, backward_s, update_s) == pytest.approx((33e-3, 48e-3, 1e-4))


def test_two_measured_microbatches_make_no_line(tmp_path: Path) -> None:
    layers = layer_tables(tmp_path, [(1, 1e-3, 2e-3, 0.0), (4, 3e-3, 4e-3, 0.0)])
    wanted = {"microbatch_size": 1, "tensor_parallel": 2}
    assert layers.steady_times_at("m", "D", **wanted) == layers.times_at("m", "D", **wanted)


def test_layer_times_between_two_microbatches_grow_as_a_power(tmp_path: Path) -> None:
    header = "model,accelerator,micro_batch_seqs,tp,layer_index,forward_s,backward_s,update_s\n"
    rows = "m,D,1,2,0,0.001,0.002,0.0\nm,D,4,2,0,0.004,0.032,0.0\n"
    (tmp_path / "a_layer_times.csv").write_text(header + rows)
    layers = read_layer_tables(tmp_path)
    assert layers is not None
    times = layers.times_at("m", "D", microbatch_size=2, tensor_parallel=2)
    assert times is not None
    assert times[0][0] == pytest.approx(0.002)  # linear stays linear
    assert times[0][1] == pytest.approx(0.008)  # quadratic stays quadratic
    assert layers.times_at("m", "other", microbatch_size=2, tensor_parallel=2) is None
