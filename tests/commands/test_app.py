"""The server over real connections: answers, refusals, limits."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import socket
import threading
import time
import zipfile
from contextlib import ExitStack

import pytest

pytest.importorskip("fastapi", reason="needs the extra [serve]")
pytest.importorskip("uvicorn", reason="needs the extra [serve]")

from html_page import Page
from served import served

pytestmark = pytest.mark.serve
# One schedule and few degrees: answered in half a second of CPU.
FEW = {"schedule": "1f1b", "tp": "1..2", "pp": "1..2", "cp": "1"}
SMALL = {
    "cluster": "dgx-a100",
    "devices": 8,
    "global_batch": 8,
    "sequence": 512,
    "options": FEW,
}
GPT2 = {"model": "gpt2", **SMALL}
LARGE = {
    "model": "deepseek-v3",
    "cluster": "dgx-h100",
    "devices": 8192,
    "global_batch": 8192,
    "sequence": 4096,
}


@pytest.fixture(scope="module")
def answered(client):
    found = client.ask(**GPT2)
    assert found.status == 200
    return found.value


def test_the_plan_is_the_one_of_the_command_line(answered, capsys):
    from shlex import split

    from trainwright.commands.main import main

    with pytest.raises(SystemExit):
        main([*split(answered["command"])[1:], "--json"])
    own = json.loads(capsys.readouterr().out)
    assert own["step_time_s"] == answered["document"]["step_time_s"]
    assert own["stages"] == answered["document"]["stages"]
    assert answered["is_complete"] is True


def test_the_page_and_the_document_of_a_plan_can_be_fetched(client, answered):
    document = client.get(f"/api/plans/{answered['id']}")
    assert document.value == answered["document"]
    assert "attachment" in document.headers["content-disposition"]
    page = client.get(f"/pages/{answered['id']}")
    assert page.headers["content-type"].startswith("text/html")
    assert "gpt2 on" in Page(page.body.decode()).all("h1")[0][1]


def test_the_files_of_an_export_are_those_of_the_command(client):
    from trainwright.commands.export import bundle_of
    from trainwright.commands.live import Ask, answer
    from trainwright.execution import Budget

    ask = {**GPT2, "framework": "megatron"}
    found = client.ask(**ask).value
    saved = client.get(f"/api/plans/{found['id']}/exports/megatron")
    assert saved.status == 200
    assert saved.headers["content-type"] == "application/zip"
    own = bundle_of(answer(Ask(**ask).question, Budget()), "megatron")
    with zipfile.ZipFile(io.BytesIO(saved.body)) as archive:
        assert archive.testzip() is None
        names = [name.partition("/")[2] for name in archive.namelist()]
    assert names == list(own.files)


@pytest.mark.parametrize("target", ["torchtitan-0.3", "torchtitan@0.3", "torchtitan"])
def test_every_spelling_of_a_target_is_known(client, answered, target):
    spelled = client.get(f"/api/plans/{answered['id']}/exports/{target}")
    plain = client.get(f"/api/plans/{answered['id']}/exports/torchtitan@0.3")
    assert (spelled.status, spelled.body) == (plain.status, plain.body)
    assert "plan_id" not in spelled.body.decode(errors="replace")
    assert "pattern" not in spelled.body.decode(errors="replace")


def test_an_export_that_cannot_be_is_refused_with_its_reason(client, answered):
    for target in ("abacus", "chrome-trace"):
        assert client.get(f"/api/plans/{answered['id']}/exports/{target}").status in (200, 422)
    unknown = client.get(f"/api/plans/{answered['id']}/exports/abacus")
    assert unknown.status == 422
    assert unknown.faults


def test_memory_and_bandwidth_reach_the_plan(client):
    found = client.ask(**GPT2, memory_gib=16.0, bandwidth_gb_per_s=1.0)
    pool = found.value["document"]["request"]["cluster"]["content"]["pools"][0]
    assert pool["accelerator"]["memory_bytes"] == 16 * 2**30
    assert pool["levels"][-1]["bandwidth_bytes_per_s"] == 1e9


def test_a_config_of_ones_own_is_planned(client):
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 2,
        "vocab_size": 1000,
        "n_positions": 1024,
    }
    found = client.ask(config=config, **SMALL)
    assert found.status == 200
    assert found.value["document"]["request"]["model"]["content"]["num_layers"] == 2
    assert "carries what was asked" in found.value["command_note"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"model": "/etc/passwd"}, "model"),
        ({"model": "..", "cluster": "dgx-a100"}, "model"),
        ({"model": "pyproject.toml"}, "model"),
        ({"model": "org.repo"}, "model"),
        ({"cluster": "pyproject.toml"}, "cluster"),
        ({"cluster": "nowhere"}, "cluster"),
        ({"devices": 0}, "devices"),
        ({"devices": 10**9}, "devices"),
        ({"devices": True}, "devices"),
        ({"global_batch": -1}, "global_batch"),
        ({"memory_gib": 0.1}, "memory_gib"),
        ({"framework": "abacus"}, "framework"),
        ({"surprise": 1}, "surprise"),
        ({"config": {"model_type": "nonesuch"}, "model": None}, "question"),
        ({"config": {}}, "model"),
        ({"model": None}, "model"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_name(client, change, path):
    found = client.ask(**{**GPT2, **change})
    assert found.status == 422
    assert path in found.faults, found.faults


@pytest.mark.parametrize("path", ["/api/plans/0123456789abcdef01234567", "/pages/" + "a" * 24])
def test_plans_that_are_not_kept_are_not_there(client, path):
    assert client.get(path).status == 404


@pytest.mark.parametrize("path", ["/pages/..%2f..%2fetc%2fpasswd", "/pages/ABC", "/docs", "/etc"])
def test_other_paths_lead_nowhere(client, path):
    assert client.get(path).status in (404, 422)


def test_the_file_of_a_job_is_read_and_planned_without_its_neighbours(client, request):
    text = (request.config.rootpath / "examples" / "megatron_job.sh").read_text()
    given = {"name": "megatron_job.sh", "text": text}
    stated = client.call("POST", "/api/jobs", given).value
    assert (stated["devices"], stated["global_batch"], stated["sequence"]) == (16, 64, 4096)
    assert stated["options"]["tp"] == "4"
    sizes = {"cluster": "dgx-h100", "devices": 16, "global_batch": 64, "sequence": 4096}
    found = client.ask(job=given, options=stated["options"], **sizes).value["document"]
    assert found["parallelism"]["tensor"] == 4
    assert found["request"]["model"]["name"] == "megatron_job"
    for text in ("source ./secrets.sh\n", "torchrun train.py --model /etc/passwd", ""):
        refused = client.call("POST", "/api/jobs", {"name": "../x.sh", "text": text})
        assert refused.status == 422, text
        assert refused.faults


def test_connections_that_are_held_block_nobody():
    """Half of the headers, or of a body, and nothing more; each is closed after its time."""
    with served(header_s=1.0, body_s=1.0) as client, ExitStack() as held:
        begun = [b"POST /api/plans HTTP/1.1\r\nHost:", b"", _chunked(client, 1)]
        connections = [
            held.enter_context(socket.create_connection(("127.0.0.1", client.port), timeout=20))
            for _ in range(300)
        ]
        for at, each in enumerate(connections):
            each.sendall(begun[at % 3])
        began = time.monotonic()
        assert client.get("/").status == 200
        assert time.monotonic() - began < 20  # not as long as they would wait
        for each in connections:
            while each.recv(4096):
                pass


def test_other_hosts_are_not_served(client):
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[::1"):
        assert client.get("/api/choices", Host=host).status == 421
    assert client.get("/api/choices", Host=f"localhost:{client.port}").status == 200


def test_other_pages_may_not_ask(client):
    for origin in ("https://evil.example", "http://[", "null", "http://[::1"):
        assert client.call("POST", "/api/plans", GPT2, {"Origin": origin}).status == 403
    plain = {"Content-Type": "text/plain"}
    assert client.call("POST", "/api/plans", GPT2, plain).status == 415
    own = {"Origin": f"http://127.0.0.1:{client.port}"}
    assert client.call("POST", "/api/plans", GPT2, own).status == 200


def test_nothing_is_shared_with_other_pages(client, answered):
    for path in ("/", "/api/choices", f"/pages/{answered['id']}"):
        found = client.get(path, Origin="https://evil.example")
        assert "access-control-allow-origin" not in found.headers
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_the_policy_admits_exactly_the_style_and_the_script(client):
    found = client.get("/")
    page = Page(found.body.decode())
    inline = [text for _, text in page.all("script")] + [text for _, text in page.all("style")]
    digests = {hashlib.sha256(text.encode()).digest() for text in inline}
    hashes = {f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests}
    policy = found.headers["content-security-policy"]
    assert set(re.findall(r"'sha256-[^']+'", policy)) == hashes
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*(https?:)?//""", found.body.decode())


def test_long_bodies_are_refused_without_being_read(client):
    head = (
        f"POST /api/plans HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n"
        "Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as raw:
        raw.sendall(head.encode())
        assert b"413" in raw.recv(100)


def _chunked(client, count):
    """A question of so many chunks of a quarter MiB, without its end."""
    head = (
        f"POST /api/plans HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head.encode() + count * (b"40000\r\n" + b" " * 0x40000 + b"\r\n")


def test_long_bodies_without_a_length_are_refused_too(client):
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as raw:
        raw.sendall(_chunked(client, 5))
        assert b"413" in raw.recv(100)


def test_who_sends_a_long_body_whole_still_hears_why(client):
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as raw:
        raw.sendall(_chunked(client, 20) + b"0\r\n\r\n")
        heard = b"".join(iter(lambda: raw.recv(4096), b""))
    assert heard.endswith(b'"problem": "must be at most 1048576 bytes"}]}')


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[]", b"null", b"1e999", b"[" * 5000, b""])
def test_what_is_no_question_is_refused(client, body):
    found = client.call("POST", "/api/plans", body)
    assert found.status in (400, 422)
    assert found.faults


def test_a_search_ends_with_its_limit():
    with served(time_limit_s=0.3) as client:
        began = time.monotonic()
        found = client.ask(**LARGE, time_limit_s=3600)
        took = time.monotonic() - began
    assert found.status == 200
    assert found.value["document"]["status"] in ("unknown", "gap")
    assert found.value["is_complete"] is False
    assert took < 30, "a limit of 0.3 s; the rest is patience with a busy machine"


def test_more_questions_than_wait_are_refused():
    def ask_until_answered(client):
        while client.ask(**LARGE).status != 200:
            pass

    with served(max_running=1, max_waiting=0, time_limit_s=3) as client:
        first = threading.Thread(target=ask_until_answered, args=(client,))
        first.start()
        statuses = set()
        while first.is_alive() and 429 not in statuses:
            statuses.add(client.ask(**GPT2).status)
        first.join()
    assert 429 in statuses


def test_a_question_nobody_waits_for_is_stopped():
    with served(max_running=1, max_waiting=0, time_limit_s=60) as client:
        body = json.dumps(LARGE).encode()
        head = (
            f"POST /api/plans HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        raw = socket.create_connection(("127.0.0.1", client.port))
        raw.sendall(head.encode() + body)
        while client.ask(**GPT2).status != 429:
            time.sleep(0.01)
        raw.close()
        began = time.monotonic()
        while client.ask(**GPT2).status == 429:
            assert time.monotonic() - began < 40, "60 s were allowed"
            time.sleep(0.05)


def test_a_search_tells_its_best_step_and_how_far_it_is(client):
    asked = {**GPT2, "global_batch": 24, "options": {"schedule": "1f1b"}}
    told = [json.loads(line) for line in _lines(client, asked)]
    steps = [each["told"] for each in told if each.get("told", {}).get("step_time_s")]
    assert all(each["searched_s"] <= each["step_time_s"] * (1 + 1e-9) for each in steps)
    plans = [each["plan"]["document"] for each in told if "plan" in each]
    assert plans[-1]["reasons"]["without"]
    assert all(each["step_time_s"] >= plans[-1]["step_time_s"] * (1 - 1e-9) for each in steps)


def _lines(client, asked):
    return client.call("POST", "/api/searches", asked).body.splitlines()


def test_only_the_last_plans_are_kept():
    with served(max_kept=1) as client:
        first = client.ask(**GPT2).value["id"]
        second = client.ask(**{**GPT2, "global_batch": 16}).value["id"]
        assert client.get(f"/pages/{first}").status == 404
        assert client.get(f"/pages/{second}").status == 200


def test_choices_are_those_of_the_catalog(client):
    from trainwright.formats.catalog import model_names

    found = client.get("/api/choices").value
    assert [model["name"] for model in found["models"]] == list(model_names())
    for cluster in found["clusters"]:
        assert cluster["devices_per_node"] <= cluster["most_devices"]
