"""Processes that train together, as torchrun starts them: what they meet by, and one number each.

They are forked from a process that has imported what they need, which takes longer than a small
training does. Where one fails, the others are ended.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

IMPORTED = (
    *("accelerate", "torch.distributed.fsdp", "transformers.models.gpt2.modeling_gpt2"),
    *("transformers.models.llama.modeling_llama", "train.test_shared_target"),
)


def launch(script: Path, log: Path, count: int, seconds: int) -> int:
    """The exit code of so many processes that run a file of Python, with what they say in `log`;
    they have so many seconds."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    print(json.dumps([str(script), str(log), count, seconds]), file=server.stdin, flush=True)
    return int(server.stdout.readline())


@cache
def _server() -> subprocess.Popen[str]:
    """It ends as this process does, which then leaves it nothing to read."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-c", "import launches; launches.serve()"],
        env={**os.environ, "PYTHONPATH": paths, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def serve() -> None:
    """Start what is asked for, one after the other."""
    from importlib import import_module

    for name in IMPORTED:
        import_module(name)
    for line in sys.stdin:
        if not (agent := os.fork()):
            _start(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1]), flush=True)


def _start(script: str, log: str, count: int, seconds: int) -> NoReturn:
    """Hold the store that the processes meet by, as torchrun does, until all of them have ended."""
    from torch.distributed import TCPStore

    with open(log, "w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    running = {_process(script, rank, count, store.port, seconds) for rank in range(count)}
    while running:
        ended, status = os.wait()
        running.remove(ended)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)
            os._exit(1)
    os._exit(0)


def _process(script: str, rank: int, count: int, port: int, seconds: int) -> int:
    own: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
    own |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1"}
    own |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
    if process := os.fork():
        return process
    signal.alarm(seconds)
    os.environ.update({name: str(value) for name, value in own.items()})
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
