"""Whether 1,686 hostile inputs do any harm: to the API, by configs, files and command lines.

Each input goes to an LLM of a tiny model beside good requests whose texts are known. It is served,
or refused by one sentence that names the thing; the neighbours' texts stay the same, and so does
the next good request's. Cases run in processes of their own: one that dies or never returns counts
against the case, and the rest goes on. A seed fixes the cases. Example:

    python benchmarks/hostile.py --check
    python benchmarks/hostile.py --check --asan    # files, with loops built under AddressSanitizer
    python benchmarks/hostile.py --families params files --cases 50 --seed 7 --show
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from fuzz_checkpoints import sanitize, surroundings
from hostile_inputs import FAMILIES, family
from hostile_inputs.case import FAULTS, Case, shown
from hostile_inputs.isolate import Isolated, isolated
from hostile_inputs.stand import Stand, tried
from shared import options, save, table

Row = dict[str, Any]
MEMORY = 12 << 30  # bytes of address space; beyond that a process gets a MemoryError
SANITIZED = ("checkpoints", "files")
ALLOWED = {"asan": 120.0, "plain": 30.0}  # seconds for a case


def made(name: str, count: int, seed: int) -> list[Case]:
    """The cases of a family, the same for a seed."""
    return list(family(name).cases(Random(f"{seed}/{name}"), count))[:count]


def serve(name: str, count: int, seed: int, start: int, asan: bool) -> None:
    """In a process of its own: run the cases from `start` on, a line before and after each."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed goes where errors go
    if asan:
        sanitize()
    else:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        _keep_to(Path(folder), asan)
        stand = Stand(Path(folder))
        _ = stand.expected
        for place, case in enumerate(made(name, count, seed)):
            if place >= start:
                print(json.dumps({"begins": place}), file=out, flush=True)
                outcome = tried(case, stand)
                print(json.dumps({"ended": place, **outcome.data()}), file=out, flush=True)
        stand.close()


def _keep_to(folder: Path, asan: bool) -> None:
    """Write nowhere else, and ask nobody outside. The sanitized loops are built once, into a folder
    that all processes share."""
    for variable in ("HOME", "XDG_CACHE_HOME", "HF_HOME", *["FORETOKEN_CACHE"] * (not asan)):
        own = folder / variable.lower()
        own.mkdir()
        os.environ[variable] = str(own)
    work = folder / "work"
    work.mkdir()
    os.chdir(work)


def run(given: Namespace, name: str, count: int) -> list[Row]:
    """A row for each of a family's cases: its label and what came of it."""
    cases = made(name, count, given.seed)
    asked = [sys.executable, str(Path(__file__)), "--serve", name, "--cases", str(count)]
    asked += ["--seed", str(given.seed)] + ["--asan"] * given.asan
    allowed = ALLOWED["asan" if given.asan else "plain"]
    rows: list[Row] = []
    for done in isolated(Isolated(asked, given.environment, allowed, len(cases))):
        case = cases[len(rows)]
        rows.append({"family": name, "case": case.label, **done})
        if given.show:
            _print(rows[-1])
    return rows


def _print(row: Row) -> None:
    what = "; ".join(f"{fault}: {why}" for fault, why in row["faults"].items())
    said = row["errors"][0] if row["errors"] else "served" if row["served"] else "-"
    print(f"{row['case']}\n    {what or shown(said, 200)}", flush=True)


def counts(rows: list[Row]) -> dict[str, int]:
    """How many were served, were refused, and had each fault."""
    faults = Counter(fault for row in rows for fault in row["faults"])
    refused = sum(bool(row["errors"]) for row in rows)
    good = {"cases": len(rows), "served": sum(row["served"] for row in rows), "refused": refused}
    return good | {fault: faults[fault] for fault in FAULTS}


def measure(given: Namespace) -> dict[str, Any]:
    began, rows = perf_counter(), []
    for name in given.families:
        rows += run(given, name, given.cases or FAMILIES[name])
    families = {name: counts([r for r in rows if r["family"] == name]) for name in given.families}
    failures = [_failure(row) for row in rows if row["faults"]]
    return {
        "seed": given.seed,
        "address_sanitizer": given.asan,
        "seconds": round(perf_counter() - began, 1),
        "total": counts(rows),
        "families": families,
        "failures": failures,
        "met": not failures,
    }


def _failure(row: Row) -> Row:
    return {key: row[key] for key in ("family", "case", "faults")}


def show(results: dict[str, Any]) -> None:
    columns = ["cases", "served", "refused", *FAULTS]
    named = {**results["families"], "all": results["total"]}
    table([["", *columns], *([n, *(str(c[k]) for k in columns)] for n, c in named.items())])
    print(f"\n{results['seconds']} s")
    for failure in results["failures"]:
        print(f"{failure['case']}\n    {failure['faults']}")


def _build(environment: dict[str, str]) -> None:
    """The sanitized loops, before a case's time begins: on a busy machine they take minutes."""
    command = [sys.executable, "-c", "import fuzz_checkpoints; fuzz_checkpoints.sanitize()"]
    subprocess.run(command, env=os.environ | environment, cwd=Path(__file__).parent, check=True)


def _asked() -> Namespace:
    parser = options(__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of cases (default: 0)")
    parser.add_argument("--cases", type=int, help="of each family; by default as many as it has")
    parser.add_argument(
        "--families", nargs="+", choices=FAMILIES, help="default: all, sanitized those of files"
    )
    parser.add_argument("--show", action="store_true", help="print each case as it ends")
    parser.add_argument("--check", action="store_true", help="fail where anything is wrong")
    parser.add_argument("--asan", action="store_true", help="build the loops with it")
    parser.add_argument("--serve", help="(used by the script itself)")
    parser.add_argument("--start", type=int, default=0, help="(used by the script itself)")
    return parser.parse_args()


def main() -> int:
    given = _asked()
    if given.serve:
        serve(given.serve, given.cases, given.seed, given.start, given.asan)
        return 0
    given.environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    if given.families is None:
        given.families = list(SANITIZED if given.asan else FAMILIES)
    with tempfile.TemporaryDirectory() as home:
        if given.asan:
            given.environment |= surroundings(True, Path(home))
            _build(given.environment)
        results = measure(given)
    show(results)
    save("hostile-asan" if given.asan else "hostile", given, results)
    return 1 if results["failures"] and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
