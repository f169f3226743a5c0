"""foretoken against transformers, OpenVINO GenAI and llama.cpp: same models, prompts and machine.

Each engine runs in a separate environment, made on first use, and in a separate process; they are
asked in turn, prompt by prompt, and only one works at a time, all with the same number of
threads. Greedy, float32 (the KV caches too), one sequence; the bundled prompts' first turns.

measure.py describes what is timed and how, lineup.py the options of each row. Example:

    python benchmarks/peers/run.py --targets mini --limit 1 --repeats 1
    python benchmarks/peers/run.py --check      (all of it)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import torch
import transformers
from checkpoints import converted, pair
from environments import CACHE, HERE, libraries, prepare, python
from lineup import DRAFT, ENGINES, LOOKUP, PLAIN, ROWS, Row
from measure import Answer
from protocol import Failed, Worker
from tables import markdown

from foretoken import LLM, SamplingParams, zoo
from foretoken.bench.measure.environment import environment
from foretoken.bench.measure.identity import compare
from foretoken.bench.suites.suite import load_suite
from foretoken.errors import ForetokenError, unknown
from foretoken.files import write_file, write_json
from foretoken.progress import track
from foretoken.repetition import DISTINCT_4, distinct_4

RESULTS = HERE.parent / "results"
PEERS = tuple(name for name in ENGINES if name != "foretoken")
_WORST = ("identical", "near_tie", "different")
FASTER = {
    PLAIN: {"135m": 1.3},
    LOOKUP: {"135m": 2.0, "1.1b": 2.0},
    DRAFT: {"135m": 2.0, "1.1b": 2.0},
}
"""How many times transformers' tokens/s are wanted, by kind and target."""

Verdicts = Mapping[Row, Sequence[str | None]]
"""How a row's answer to each prompt compares with foretoken's plain one; None where it failed."""


def _names(text: str) -> list[str]:
    return text.split(",")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--targets", type=_names, default=["mini", "135m"], help="mini,135m,1.1b,7b"
    )
    parser.add_argument("--peers", type=_names, default=list(PEERS), help=",".join(PEERS))
    parser.add_argument("--limit", type=int, default=4, help="prompts of a task (default: 4)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (default: 64)")
    parser.add_argument("--repeats", type=int, default=5, help="default: 5")
    parser.add_argument("--threads", type=int, default=environment()["cores"], help="default: all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where peers.json goes")
    parser.add_argument(
        "--check",
        action="store_true",
        help="fail where an engine is left out, fails or differs by more than rounding, or where "
        "transformers is outdone by less than is wanted",
    )
    given = parser.parse_args()
    for name in given.peers:
        if name not in PEERS:
            raise unknown("peer", name, PEERS)
    return given


def main() -> int:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    given = options()
    record = given.out / "peers.json"
    torch.set_num_threads(given.threads)
    left_out = installed(given.peers)
    results: dict[str, Any] = {
        "benchmark": "peers",
        "method": measure.__doc__,
        "environment": environment(),
        "threads": given.threads,
        "max_tokens": given.max_tokens,
        "repeats": given.repeats,
        "limit": given.limit,
        "distinct_4_threshold": DISTINCT_4,
        "versions": {},
        "left_out": left_out,
        "targets": [],
    }
    lines: list[str] = []
    for name in given.targets:
        engines = ["foretoken", *(peer for peer in given.peers if peer not in left_out)]
        target, more = one(name, engines, given, results)
        results["targets"].append(target)
        lines += more
        write_json(record, results)
        write_file(record.with_suffix(".jsonl"), "".join(lines))
    print(markdown(results))
    print(f"-> {record}")
    met = sound(results) and fast(results)
    return 0 if met or not given.check else 1


def installed(peers: Sequence[str]) -> dict[str, str]:
    """Make the environments; which engines must be left out, and why."""
    left_out: dict[str, str] = {}
    for home in filter(None, dict.fromkeys(ENGINES[peer] for peer in peers)):
        try:
            prepare(home)
        except (Failed, OSError) as error:
            left_out |= {peer: str(error) for peer in peers if ENGINES[peer] == home}
            print(f"{home} is left out: {error}", file=sys.stderr)
    return left_out


def one(
    name: str, engines: Sequence[str], given: argparse.Namespace, results: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """One target: its part of peers.json, and its lines of peers.jsonl."""
    folders = pair(name)
    llm = LLM(folders[0], dtype="float32", max_num_seqs=1)
    asked, left_out = questions(llm, given.limit, given.max_tokens)
    ids = [question.ids for question in asked]
    (eos,) = llm.engine.eos_ids
    terms = {
        "threads": given.threads,
        "eos": eos,
        "server": str(libraries() / "llama-server"),
        "context": -(-(max(map(len, ids)) + given.max_tokens + 64) // 256) * 256,
    }
    with started(name, folders, ROWS, engines, terms, results) as workers:
        rows = [row for row in ROWS if row.engine in workers]
        with track(f"Measuring {name}", len(ids) * given.repeats, True) as advance:
            answers = measure.measure(
                workers,
                rows,
                ids,
                eos=eos,
                max_tokens=given.max_tokens,
                repeats=given.repeats,
                advance=advance,
            )
    verdicts = {
        row: [
            _verdict(llm, question, written) for question, written in zip(asked, own, strict=True)
        ]
        for row, own in answers.items()
    }
    target = {
        "name": name,
        "parameters": llm.model.parameters,
        "backend": llm.model.backend,
        "prompts": len(asked),
        "left_out": left_out,
        "rows": _rows(answers, verdicts),
    }
    return target, list(samples(name, asked, answers, verdicts))


def _rows(answers: measure.Answers, verdicts: Verdicts) -> list[dict[str, Any]]:
    return [
        {**measure.numbers(answers, row), "identity": {word: seen.count(word) for word in _WORST}}
        for row, seen in verdicts.items()
    ]


@dataclass(frozen=True)
class Question:
    """A prompt as token ids, and foretoken's plain answer to it."""

    id: str
    ids: list[int]
    plain: list[int]


def questions(llm: LLM, limit: int, max_tokens: int) -> tuple[list[Question], list[str]]:
    """Those to ask, and the ids of those left out because plain decoding answers with a loop."""
    prompts = load_suite(zoo.prompts_path(), "bundled prompts").round_robin(limit)
    ids = [llm.chat_prompt([{"role": "user", "content": p.turns[0]}]) for p in prompts]
    outputs = llm.generate(ids, SamplingParams(temperature=0, max_tokens=max_tokens))
    results = [
        Question(prompt.id, own, list(out.outputs[0].token_ids))
        for prompt, own, out in zip(prompts, ids, outputs, strict=True)
    ]
    loops = [q.id for q in results if distinct_4(q.plain) < DISTINCT_4]
    return [q for q in results if q.id not in loops], loops


@contextmanager
def started(
    name: str,
    folders: tuple[Path, Path],
    rows: Sequence[Row],
    engines: Sequence[str],
    terms: Mapping[str, Any],
    results: dict[str, Any],
) -> Iterator[dict[str, Worker]]:
    """The engines' workers, with the target and what their rows need loaded; those that fail are
    written into `results`."""
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for engine in engines:
            try:
                worker = _worker(name, folders, rows, engine, terms)
            except (Failed, OSError) as error:
                if engine == "foretoken":
                    raise ForetokenError(f"foretoken's own worker failed: {error}.") from error
                results["left_out"][engine] = f"{name}: {error}"
                print(f"{engine} is left out: {error}", file=sys.stderr)
                continue
            stack.callback(worker.close)
            workers[engine] = worker
            results["versions"][engine] = worker.versions
        yield workers


def _worker(
    name: str,
    folders: tuple[Path, Path],
    rows: Sequence[Row],
    engine: str,
    terms: Mapping[str, Any],
) -> Worker:
    home = ENGINES[engine]
    given = {
        **terms,
        "target": str(converted(home, folders[0], name, "target")),
        "draft": str(converted(home, folders[1], name, "draft")),
        "methods": {row.method: row.options for row in rows if row.engine == engine},
    }
    paths = [str(HERE)] + ([os.environ.get("PYTHONPATH", "")] if home is None else [])
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": str(terms["threads"]),
        "HF_HUB_OFFLINE": "1",
        "LLAMA_CPP_LIB_PATH": str(libraries()),
    }
    interpreter = sys.executable if home is None else str(python(home))
    CACHE.mkdir(parents=True, exist_ok=True)
    log = CACHE / f"{engine}-worker.log"
    return Worker([interpreter, str(script(engine)), json.dumps(given)], log, env=env)


def script(engine: str) -> Path:
    """The file that a worker of this engine runs."""
    return HERE / "engines" / f"with_{engine.replace('.', '_').replace('-', '_')}.py"


def samples(
    name: str, asked: Sequence[Question], answers: measure.Answers, verdicts: Verdicts
) -> Iterator[str]:
    """Lines of peers.jsonl: a row's answer to a prompt, with the seconds of every repeat."""
    for row, own in answers.items():
        for question, answer, verdict in zip(asked, own, verdicts[row], strict=True):
            line = {
                "target": name,
                "engine": row.engine,
                "method": row.method,
                "id": question.id,
                "tokens": answer.tokens,
                "first": answer.first,
                "whole": answer.whole,
                "sameness": verdict,
                "error": answer.error,
            }
            yield json.dumps(line) + "\n"


def _verdict(llm: LLM, question: Question, answer: Answer) -> str | None:
    """The worst of the repeats compared with foretoken's plain answer; None where it failed."""
    params = SamplingParams(temperature=0)
    words = [compare(llm, question.ids, params, question.plain, text)[0] for text in answer.texts]
    return max(words, key=_WORST.index) if words and answer.error is None else None


def sound(results: Mapping[str, Any]) -> bool:
    """Nobody was left out, nothing failed, and texts part from foretoken's at near ties only."""
    rows = [row for target in results["targets"] for row in target["rows"]]
    bad = [row for row in rows if row["failed"] or row["identity"]["different"]]
    for row in bad:
        print(f"not sound: {row['engine']}, {row['kind']}: {row['identity']} {row['error'] or ''}")
    return not bad and not results["left_out"]


def fast(results: Mapping[str, Any]) -> bool:
    """Whether transformers is outdone as far as is wanted; prints where it is not."""
    met = True
    for target in results["targets"]:
        for row in (row for row in target["rows"] if row["engine"] == "transformers"):
            wanted = FASTER[row["kind"]].get(target["name"], 0.0)
            ratio = (row["decoding"]["foretoken_over_it"] or {"ratio": 0.0})["ratio"]
            if ratio < wanted:
                met = False
                method = ", ".join(filter(None, (row["kind"], row["note"])))
                print(f"too slow: {target['name']}, {method}: {ratio:.2f} of {wanted:g} times")
    return met


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ForetokenError as error:
        sys.exit(f"Error: {error}")
