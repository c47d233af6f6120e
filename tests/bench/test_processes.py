"""An edge, a link and clients as processes of their own: started, asked, stopped, and what is said when they fail."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from covspec.bench.processes import ask, running_edge, running_link
from covspec.common.errors import CovspecError, EdgeUnavailable
from covspec.common.radio.link import LinkConfig

TARGET = ("--model", "table:target-512")
QUESTION = ("--query", "bade", "--draft-model", "table:draft-512", "--max-new-tokens", "20")


def test_an_edge_is_asked_and_stopped() -> None:
    with running_edge(*TARGET) as edge:
        speculative = ask(edge, *QUESTION)
        edge_only = ask(edge, *QUESTION, "--mode", "edge-only")
        with pytest.raises(CovspecError, match="exit code 2:\nerror: .*query"):
            ask(edge, "--query", "")
    assert speculative["num_tokens"] == 20
    assert speculative["token_ids"] == edge_only["token_ids"]
    assert not _alive(edge.pid)


def test_a_link_delays_what_an_edge_answers() -> None:
    rtt_s = 0.05
    with running_edge(*TARGET) as edge, running_link(edge, LinkConfig(rtt_s=rtt_s)) as address:
        near = ask(edge, *QUESTION)
        far = ask(replace(edge, address=address), *QUESTION)
    assert far["token_ids"] == near["token_ids"]
    assert far["decode_s"] > far["num_rounds"] * rtt_s


def test_a_link_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(EdgeUnavailable, match="(?s)covspec ended with exit code 2.*--loss-stall"),
        running_link("127.0.0.1:1", None, "--loss-stall", "often"),
    ):
        pytest.fail("it is not ready")


def test_an_edge_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(EdgeUnavailable, match="(?s)exit code 5.*cannot find the model 'no-such'"),
        running_edge("--model", "no-such"),
    ):
        pytest.fail("it is not ready")


def test_a_taken_port_is_one_line() -> None:
    with running_edge(*TARGET) as edge:
        port = edge.address.rpartition(":")[2]
        command = [sys.executable, "-m", "covspec.edge.server", *TARGET, "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"error: cannot listen on {edge.address}: the port is taken")
    assert done.stderr.count("\n") == 1


def test_an_edge_that_takes_too_long_is_stopped() -> None:
    with (
        pytest.raises(EdgeUnavailable, match="was not ready after"),
        running_edge(*TARGET, timeout_s=0.01),
    ):
        pytest.fail("it is not ready")


def test_a_terminated_owner_takes_its_edge_along() -> None:
    code = (
        "import signal, sys, time\n"
        "from covspec.bench.processes import running_edge\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"with running_edge(*{TARGET!r}) as edge:\n"
        "    print(edge.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.send_signal(signal.SIGTERM)
        assert owner.wait(20) == 143
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    for _ in range(20):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True
