"""Trains everything, several at once: `python run.py --work W --rows 512 --at-once 8`.

After prepare.py: both base models, then the drafters of each, every one by a process of its own,
whose output goes to WORK/TASK/NAME.log. Killed, it goes on where it was; what is finished is
finished at once. It fails where one of them does, after the others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pairs

import drafters

HERE = Path(__file__).parent
Job = tuple[str, str, list[str]]
"""Task, name, command."""


def jobs(given: argparse.Namespace) -> tuple[list[Job], list[Job]]:
    """The base models, and the drafters, which need them."""
    every = ["--work", str(given.work), "--device", given.device]
    if given.workers is not None:
        every += ["--workers", str(given.workers)]
    bases, others = [], []
    for task in given.tasks:
        python = [sys.executable, "-u"]
        one = ["--task", task, "--minutes", str(given.minutes_base), "--rows", str(given.rows)]
        bases.append((task, "base", [*python, str(HERE / "train.py"), *one, *every]))
        for name in drafters.NAMES:
            one = ["--task", task, "--only", name, "--minutes", str(given.minutes_drafter)]
            rows = ["--rows", str(given.rows_drafter or given.rows)]
            command = [*python, str(HERE / "drafters.py"), *one, *rows, *every]
            others.append((task, name, command))
    return bases, others


def run(job: Job, work: Path) -> bool:
    task, name, command = job
    path = work / task / f"{name}.log"
    with path.open("ab") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
    said = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    steps = [line for line in said if line.startswith("step ")]
    about = (steps or said or ["nothing said"])[-1] if code == 0 else f"failed, see {path}"
    print(f"{task} {name}: {about}", flush=True)
    return code == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=pairs.TASKS, default=pairs.TASKS)
    parser.add_argument("--minutes-base", type=float, default=2.5)
    parser.add_argument("--minutes-drafter", type=float, default=2.0)
    parser.add_argument("--at-once", type=int, default=8, help="trainings")
    parser.add_argument("--rows", type=int, default=512, help="pairs of a step")
    parser.add_argument("--rows-drafter", type=int, help="of a drafter's step; default: --rows")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--workers", type=int, help="of each training; see train.py")
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    for stage in jobs(given):
        with ThreadPoolExecutor(given.at_once) as pool:
            fine = list(pool.map(lambda job: run(job, given.work), stage))
        if not all(fine):
            raise SystemExit(f"{fine.count(False)} of {len(fine)} trainings failed.")


if __name__ == "__main__":
    main()
