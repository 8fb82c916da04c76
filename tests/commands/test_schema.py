"""The server against its own OpenAPI schema: whatever is sent, what comes back is described."""

from __future__ import annotations

import json
from functools import cache

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_cases import cases

pytest.importorskip("fastapi", reason="needs the extra [serve]")
pytest.importorskip("uvicorn", reason="needs the extra [serve]")

from served import served

pytestmark = pytest.mark.serve


@pytest.fixture(scope="module")
def client():
    with served(time_limit_s=0.05, max_kept=8) as made:
        yield made


@cache
def schema(client):
    return client.get("/openapi.json").value


def check(client, operation, answer):
    """The status is one the schema lists, and a JSON body is what it says of that status."""
    assert answer.status < 500, answer.body
    said = operation["responses"]
    assert str(answer.status) in said, f"{answer.status} is not described: {answer.body[:200]}"
    content = said[str(answer.status)].get("content", {})
    shape = content.get("application/json", {}).get("schema")
    if shape is not None and answer.headers["content-type"].startswith("application/json"):
        whole = {**shape, "components": schema(client)["components"]}
        jsonschema.validate(answer.value, whole)


texts = st.text(max_size=12) | st.sampled_from(
    ["gpt2", "dgx-a100", "megatron", "../x", "\0", "https://a.example", "1", "", "llama2-7b"]
)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
configs = st.fixed_dictionaries(
    {"model_type": st.sampled_from(["gpt2", "llama", "mixtral", "mamba"]) | texts},
    optional={
        "hidden_size": values,
        "n_layer": values,
        "num_hidden_layers": st.integers(-1, 5) | values,
        "num_attention_heads": st.integers(-1, 9) | values,
        "vocab_size": st.integers(-1, 5000) | values,
        "intermediate_size": st.integers(-1, 999) | values,
    },
)
FIELDS = {
    "model": st.just("gpt2") | texts,
    "config": configs | values,
    "cluster": st.just("dgx-a100") | texts,
    "devices": st.integers(1, 64) | values,
    "global_batch": st.sampled_from([1, 8, 7]) | values,
    "sequence": st.sampled_from([1, 128, 1024]) | values,
    "memory_gib": st.floats(1, 4096) | values,
    "bandwidth_gb_per_s": st.floats(0.01, 1e5) | values,
    "framework": st.sampled_from(["megatron", "torchtitan"]) | texts,
    "time_limit_s": st.just(0.02) | values,
    "cluster_file": st.just('[[pool]]\ndevice_kind = "x"') | texts | values,
    "options": st.dictionaries(st.sampled_from(["tp", "zero", "calibration"]) | texts, texts),
    "ticket": st.just("0123456789abcdef") | values,
    "job": st.fixed_dictionaries({"name": texts, "text": texts}) | values,
}


def test_the_fields_tried_are_those_of_the_schema(client):
    ask = schema(client)["components"]["schemas"]["Ask"]
    assert set(FIELDS) == set(ask["properties"])


@cases(120)
@given(data=st.data())
def test_questions_of_any_shape_get_an_answer_that_is_described(client, data):
    most = {name: FIELDS[name] for name in ("cluster", "devices", "global_batch", "sequence")}
    rest = {name: FIELDS[name] for name in FIELDS if name not in most}
    question = data.draw(st.fixed_dictionaries(most, optional=rest) | values)
    operation = schema(client)["paths"]["/api/plans"]["post"]
    body = json.dumps(question).encode(errors="surrogatepass")
    check(client, operation, client.call("POST", "/api/plans", body))


@cases(60)
@given(body=st.binary(max_size=200), kind=st.sampled_from(["application/json", "text/plain", "x"]))
def test_bytes_of_any_kind_get_an_answer_that_is_described(client, body, kind):
    operation = schema(client)["paths"]["/api/plans"]["post"]
    check(client, operation, client.call("POST", "/api/plans", body, {"Content-Type": kind}))


@cases(40)
@given(plan_id=st.text("0123456789abcdefxyz-._~", min_size=1, max_size=30))
@pytest.mark.parametrize("path", ["/api/plans/{plan_id}", "/pages/{plan_id}"])
def test_ids_of_any_kind_get_an_answer_that_is_described(client, path, plan_id):
    if plan_id in (".", ".."):
        return
    operation = schema(client)["paths"][path]["get"]
    check(client, operation, client.get(path.replace("{plan_id}", plan_id)))


@cases(15)
@given(target=st.sampled_from(["megatron", "deepspeed", "pytorch", "chrome-trace"]) | texts)
def test_exports_of_any_target_get_an_answer_that_is_described(client, target):
    from urllib.parse import quote

    if target in (".", "..") or "/" in target:
        return
    path = "/api/plans/{plan_id}/exports/{target}"
    operation = schema(client)["paths"][path]["get"]
    question = {"model": "gpt2", "cluster": "dgx-a100", "devices": 8, "global_batch": 8}
    made = client.ask(**question, sequence=256)
    name = quote(target.encode(errors="replace"), safe="")
    check(client, operation, client.get(f"/api/plans/{made.value['id']}/exports/{name}"))


def test_the_schema_says_what_every_refusal_looks_like(client):
    for path, operations in schema(client)["paths"].items():
        for operation in operations.values():
            for status, said in operation["responses"].items():
                if status.startswith("4"):
                    reference = said["content"]["application/json"]["schema"]["$ref"]
                    assert reference.endswith("/Refused"), (path, status)
