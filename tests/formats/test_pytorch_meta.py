import hashlib
import json
from pathlib import Path

from trainwright.formats.document_json import decode, encode
from trainwright.formats.pytorch_csv import (
    CsvForm,
    PytorchMeta,
    describe_csv,
    format_compute_only,
    meta_path,
    parse_compute_only,
)


def test_the_side_file_names_its_csv_and_what_that_does_not_carry():
    text = "0F0,0B0\n1F0,1B0\n"
    schedule = parse_compute_only(text)
    meta = describe_csv(
        format_compute_only(schedule),
        schedule,
        form=CsvForm.COMPUTE_ONLY,
        trainwright_version="1.2.3",
    )
    written = json.loads(json.dumps(encode(meta)))
    assert decode(PytorchMeta, written) == meta
    assert written["csv_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert written["rank_of_stage"] == [0, 1]
    assert "memory deltas and limits" in written["not_represented"]


def test_the_side_file_lies_beside_the_csv():
    assert meta_path(Path("out/schedule.csv")) == Path("out/schedule.meta.json")
