"""Two replicas on a cluster of this machine: one is killed under load, or hangs, and nothing is
lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from foretoken import LLM
from foretoken.serve.replicas import run
from foretoken.serve.run import listening
from foretoken.serve.settings import ServerSettings
from foretoken.testing import tiny_transformers

pytest.importorskip("ray.serve", exc_type=ImportError)
CLIENTS, EACH = 8, 6
KEPT = {"max_tokens": 60, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "toy"
    tiny_transformers(257).to(torch.float64).save_pretrained(folder)
    return folder


@contextmanager
def started(model: Path, *words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command as a process, in the model's parent folder; no process is left of it."""
    with listening("127.0.0.1", 0) as opened:
        port = str(opened.getsockname()[1])
    command = [sys.executable, "-m", "foretoken", "serve", model.name, "--port", port]
    given = ["--dtype", "float64", "--replicas", "2", *words]
    server = subprocess.Popen(
        [*command, *given], cwd=model.parent, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        assert server.stderr is not None
        lines = [server.stderr.readline(), server.stderr.readline()]
        assert "127.0.0.1" in lines[0] and "2 replicas" in lines[1], lines
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()


def _pids(parent: int) -> list[int]:
    """The processes of replicas that a server started."""
    told = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 2) for line in told.stdout.splitlines()]
    parents = {int(pid): int(of) for pid, of, *_ in rows}

    def ours(pid: int) -> bool:
        while pid > 1 and pid != parent:
            pid = parents.get(pid, 0)
        return pid == parent

    named = [int(row[0]) for row in rows if row[2:] and "ServeReplica:foretoken:replica" in row[2]]
    return [pid for pid in named if ours(pid)]


def _ask(url: str, body: dict[str, Any]) -> tuple[str, bool]:
    """The text of an answer, and whether it came whole."""
    with httpx.Client(timeout=60) as http:
        if not body.get("stream"):
            answer = http.post(f"{url}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]["text"], True
        text, reasons, ends = "", [], 0
        with http.stream("POST", f"{url}/v1/completions", json=body) as lines:
            assert lines.status_code == 200
            for line in lines.iter_lines():
                if line == "data: [DONE]":
                    ends += 1
                elif line:
                    [choice] = json.loads(line.removeprefix("data: "))["choices"]
                    text += choice["text"]
                    reasons.append(choice["finish_reason"])
        return text, ends == 1 and reasons[-1] == "length" and reasons[:-1].count(None) + 1 == len(
            reasons
        )


@pytest.mark.parametrize("most", [2, 4])
def test_a_fixed_number_or_by_load(most: int) -> None:
    """Ray takes both descriptions."""
    scale = run.Scale(least=2, most=most, target=8, imbalance=4)
    run.application(LLM, ServerSettings(names=("m",)), scale, run.Share(0.5, 0.0), 60)
    scaled = {"min_replicas": 2, "max_replicas": 4, "target_ongoing_requests": 8}
    assert run._count(scale) == (
        {"num_replicas": 2} if most == 2 else {"autoscaling_config": scaled}
    )


@pytest.mark.slow
def test_one_is_killed_under_load(model: Path) -> None:
    """Every answer, streamed or not, is the one that was given before the replica died; SIGTERM
    lets what runs come to its end."""
    bodies = [
        KEPT | {"prompt": [1 + i % 8, 2 + i // 8, 7, i], "seed": i, "stream": i % 2 == 0}
        for i in range(CLIENTS * EACH)
    ]
    with started(model, "--max-num-seqs", "4") as (url, server):
        first = [_ask(url, body) for body in bodies[:16]]
        with ThreadPoolExecutor(CLIENTS) as pool:
            asked = [pool.submit(_ask, url, body) for body in bodies * 3]
            time.sleep(0.5)
            victims = _pids(server.pid)
            assert len(victims) == 2 and not all(one.done() for one in asked)
            os.kill(victims[0], signal.SIGKILL)
            answers = [one.result() for one in asked]
        assert all(whole for _, whole in answers)
        rounds = [answers[at : at + len(bodies)] for at in range(0, len(answers), len(bodies))]
        assert rounds[0] == rounds[1] == rounds[2]
        assert rounds[0][:16] == first

        with ThreadPoolExecutor(1) as pool:
            body = {"prompt": [5, 6], "seed": 1, "stream": True, "ignore_eos": True, "n": 1}
            long = pool.submit(_ask, url, body | {"max_tokens": 220})
            time.sleep(0.1)
            server.send_signal(signal.SIGTERM)
            assert long.result()[1]
        assert server.wait(30) == 0


@pytest.mark.slow
def test_one_hangs(model: Path) -> None:
    """A process that is stopped answers nothing and doesn't die: the other one has all its requests
    meanwhile, also those that it was to have taken, and the server is well."""
    bodies = [KEPT | {"prompt": [1 + i, 7, i], "seed": i} for i in range(8)]
    with started(model, "--max-num-seqs", "4") as (url, server):
        before = [_ask(url, body) for body in bodies]
        stopped = _pids(server.pid)[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(CLIENTS) as pool:
                assert [*pool.map(lambda body: _ask(url, body), bodies)] == before
            for path in ("/health", "/load", "/metrics"):
                assert httpx.get(url + path, timeout=15).status_code == 200, path
        finally:
            os.kill(stopped, signal.SIGCONT)
