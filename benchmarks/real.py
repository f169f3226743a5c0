"""Real models: every method, and the engines that a user could have instead, on the same files.

Targets are Qwen2.5-Coder-1.5B-Instruct, with its 0.5B as draft model, and SmolLM2-135M-Instruct:
GGUF files in --models, multiplied as they lie where the CPU can. Prompts are every eighth official
Spec-Bench question of each task, both turns where there are two, ten requests to edit code and ten
to correct a text; 128 tokens.

    screen      24 prompts × 64 tokens: all methods once, greedy, one sequence
    grid        plain, the best four, sps, auto and the peers' best; greedy and temperature 1,
                batches of 1 and 4, SmolLM2's up to 16; cold and warm; three rounds
    whole       SmolLM2: all 480 questions for plain, the best and auto
    precision   float16 and float32 for a few rows; the 0.5B as a target
    trained     SmolLM2: drafters that were trained for it, beside plain and the best untrained
                methods; 60 official questions, first turns, half of them at temperature 1
    memory      the peak of one conversation of 2,000 tokens, as stored and in float16

real_table/cells.py says what is left out where --hours don't suffice. Rows of a cell answer each
prompt in turn, so ratios are of the same minutes. Whatever stops it, the same command goes on
where it was; answers are kept in --work, and real.json is made from them each time. They are
packed beside it (results/real), from where another machine goes on. While a file `pause` is in
--work it waits after a prompt, and a file `resting` says that the machine is free. Example:

    FORETOKEN_DATA=folder nice python benchmarks/real.py --models folder --minutes 110
    python benchmarks/real.py --models folder --minutes 0      (only the record, and what is left)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import transformers
from real_table.archive import pack, unpack
from real_table.cells import OF_TRAINED, Cell
from real_table.engines import checkpoint
from real_table.lineup import PAIR, PEERS, SMALL, TARGETS
from real_table.progress import DONE, STAGES, Whole
from real_table.prompts import official
from real_table.record import MEMORY, hashes, made, title
from real_table.serve import Bench, serve
from real_table.trained import settle
from shared import RESULTS, exit_with, table

from foretoken.bench.measure.environment import environment
from foretoken.bench.record import BASELINE
from foretoken.errors import ForetokenError, unknown
from foretoken.files import held, write_json
from foretoken.machine import cache_folder

HERE = Path(__file__).parent


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, help="the folder of the GGUF files")
    parser.add_argument("--targets", nargs="+", default=[SMALL, PAIR], help=", ".join(TARGETS))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), help=", ".join(PEERS))
    parser.add_argument("--stages", nargs="+", default=[*STAGES, "memory"], help="default: all")
    parser.add_argument(
        "--minutes", type=float, help="stop after these (default: when all is done)"
    )
    parser.add_argument("--hours", type=float, default=20.0, help="of measuring in all (20)")
    parser.add_argument("--limit", type=int, help="prompts of a stage, to try it out")
    parser.add_argument("--threads", type=int, default=environment()["cores"], help="default: all")
    parser.add_argument("--work", type=Path, default=cache_folder() / "real", help="the answers")
    parser.add_argument("--drafters", type=Path, help="the trained ones' folder (default: the zoo)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where real.json goes")
    parser.add_argument("--check", action="store_true", help="fail where something is missed")
    given = parser.parse_args()
    for kind, names, known in (
        ("target", given.targets, TARGETS),
        ("peer", given.peers, PEERS),
        ("stage", given.stages, [*STAGES, "memory"]),
    ):
        for name in names:
            if name not in known:
                raise unknown(kind, name, known)
    _check_models(given)
    return given


def _check_models(given: argparse.Namespace) -> None:
    """Raises `ForetokenError` for a file that is missing."""
    names = [name for target in given.targets for name in TARGETS[target].files]
    for name in (name for name in names if name.endswith(".gguf")):
        if given.models is None or not (given.models / name).is_file():
            raise ForetokenError(
                f"There is no {name} in {given.models or 'the folder of models'}; name the folder "
                "that holds it by --models."
            )


def main() -> int:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    given = options()
    until = None if given.minutes is None else perf_counter() + 60 * given.minutes
    whole = Whole(
        given.work, tuple(given.targets), tuple(given.peers), official(), given.hours, given.limit
    )
    bench = Bench(given.models or Path(), given.work, given.threads, until, given.drafters)
    with held(given.work):
        if given.limit is None:  # what is only tried out is not kept
            unpack(given.out / "real", given.work)
        found = hashes(bench.models, whole.targets)
        whole.keep(found)
        if OF_TRAINED in given.stages:
            settle(whole, given.drafters)
        if "memory" in given.stages and bench.left():  # minutes, so that it isn't what is cut
            measure_memory(whole, bench)
        run(whole, bench, given.stages)
        left = ahead(whole)
        record = made(whole, bench.models, found, sum(left.values()))
        write_json(given.out / "real.json", record)
        if given.limit is None:
            pack(given.work, given.out / "real")
    show(record)
    print(f"\n-> {given.out / 'real.json'}")
    for name, seconds in left.items():
        print(f"left: {name}, about {seconds / 60:.0f} minutes")
    print(f"{whole.spent() / 3600:.1f} hours spent, about {sum(left.values()) / 3600:.1f} left")
    if not record["choices"]:
        print(f"The screen decides what follows it, within {whole.hours:g} hours in all.")
    print("\n".join(record["missed"]))
    return 1 if given.check and record["missed"] else 0


def run(whole: Whole, bench: Bench, stages: list[str]) -> None:
    """Serve cell after cell until the time is over; all of them follow from the screen."""
    while (cell := following(whole, stages)) is not None and bench.left():
        if whole.spent() > 3600 * whole.hours:
            print(
                f"The {whole.hours:g} hours are used up; {cell.name} and what follows is left: "
                "give more by --hours."
            )
            return
        print(f"{cell.name}: about {whole.expected(cell) / 60:.0f} minutes", flush=True)
        if serve(cell, whole.asked(cell), bench):
            (bench.folder(cell) / DONE).touch()


def following(whole: Whole, stages: list[str]) -> Cell | None:
    """The next cell to serve."""
    cells = (cell for cell in whole.cells() if cell.stage in stages)
    return next((cell for cell in cells if not whole.done(cell)), None)


def ahead(whole: Whole) -> dict[str, float]:
    """The cells that are left, of all stages, with the seconds they are expected to take."""
    return {cell.name: whole.expected(cell) for cell in whole.cells() if not whole.done(cell)}


def measure_memory(whole: Whole, bench: Bench) -> None:
    """The peaks of each target, alone and with its draft model, each in a process of its own."""
    if (bench.work / MEMORY).is_file():
        return
    rows: list[dict[str, Any]] = []
    for name, backend in product(whole.targets, ("auto", "half")):
        target = TARGETS[name]
        models = [str(checkpoint(file, bench)) for file in target.files]
        for method, paths in ((BASELINE, models[:1]), ("sps", models)):
            if method == BASELINE or target.draft:
                rows.append({"target": name, "method": method, **_peak(backend, paths)})
    write_json(bench.work / MEMORY, {"environment": environment(), "rows": rows})


def _peak(backend: str, paths: list[str]) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "real_table" / "peak.py"), backend, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ForetokenError(f"The peak of {paths[0]} was not found: {done.stderr[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(record: dict[str, Any]) -> None:
    """Every cell's rows, and what a conversation takes of memory."""
    for cell in record["cells"]:
        print(f"\n{title(cell)}: {cell['prompts']} prompts, {cell['rounds']} rounds")
        head = ["row", "tokens/s", "over plain", "tokens/pass", "ideal", "of it", "same"]
        table([head, *map(_line, cell["rows"])])
        if cell["peers"]:
            table(
                [["engine", "decoding", "whole", "over ours plainly"], *map(_peer, cell["peers"])]
            )
    if record["memory"]:
        print("\nThe most that one conversation takes:")
        table(
            [["target", "method", "weights", "tokens", "MiB"], *map(_peak_line, record["memory"])]
        )


def _line(row: dict[str, Any]) -> list[str]:
    same = row["identity"]
    said = f"{same['identical']}+{same['near_tie']} of {same['prompts']}" if same else "–"
    numbers = [row["tokens_per_second"], row["mean_acceptance_length"], row["ideal"]]
    speed, length, ideal = (_number(value) for value in numbers)
    over, of_ideal = _ratio(row["over_plain"]), _number(row["of_ideal"])
    return [row["method"], speed, over, length, ideal, of_ideal, said]


def _peak_line(row: dict[str, Any]) -> list[str]:
    size = f"{row['peak_mib']:.0f}"
    return [row["target"], row["method"], row["backend"], str(row["tokens"]), size]


def _peer(row: dict[str, Any]) -> list[str]:
    speeds = [_number(row[part]["tokens_per_second"]) for part in ("decoding", "whole")]
    over = _ratio(row["decoding"]["over_foretoken_plain"])
    return [f"{row['engine']}, {row['method']}", *speeds, over]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _ratio(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    ends = found["ci95"]
    return f"{found['ratio']:.2f}" + (f" ({ends[0]:.2f}–{ends[1]:.2f})" if ends else "")


if __name__ == "__main__":
    exit_with(main)
