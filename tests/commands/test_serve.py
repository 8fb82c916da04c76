"""The command that serves: what it refuses before it listens, how it says where it is."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

HAS_SERVE = bool(importlib.util.find_spec("fastapi") and importlib.util.find_spec("uvicorn"))


@pytest.mark.skipif(HAS_SERVE, reason="the extra [serve] is installed")
def test_without_the_extra_its_name_is_told(run):
    done = run("serve")
    assert done.code == 2
    assert "pip install '.[serve]'" in done.err


@pytest.mark.skipif(not HAS_SERVE, reason="needs the extra [serve]")
@pytest.mark.serve
def test_a_port_in_use_is_refused(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "--port", str(taken.getsockname()[1]))
    assert done.code == 2
    assert "port:" in done.err


@pytest.mark.parametrize("port", ["-1", "http", "70000"])
def test_what_is_no_port_is_refused(run, port):
    assert run("serve", "--port", port).code == 2


@pytest.mark.skipif(not HAS_SERVE, reason="needs the extra [serve]")
@pytest.mark.serve
def test_it_says_where_it_is_and_ends_with_control_c():
    program = Path(sys.executable).parent / "trainwright"
    started = subprocess.Popen(
        [program, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        address = started.stderr.readline().split()[1]
        with urllib.request.urlopen(address, timeout=30) as page:
            assert b"Explore plans" in page.read()
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 130
        assert "Traceback" not in started.stderr.read()
    finally:
        started.kill()
        started.stderr.close()
