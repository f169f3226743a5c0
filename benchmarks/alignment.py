"""What a small drafter learns from: objectives and data at equal steps, and drafters in pairs.

Two drafters of --draft-model's shape are trained for --whole steps, from nothing or from its
weights: one on the answers of a file (nll, plain text), one on the target's distribution along its
own answers to the same prompts, greedy and at temperature 1 (distilled). A third is trained on
plain text for --begin steps; from it each arm continues for --steps more, every objective over
every source of text. Steps have equally many rows, of which more or fewer tokens are learned, by
how long answers are: the record has their number. The last weights count. From the distilled one
two continue: one learns what it misses (with it a boost-tuned pair), and one learns as before (a
pair to compare with). What each accepts, four tokens a draft, is counted along the target's answers
to the prompts of --suite, greedy and --samples to each at temperature 1; prompts whose greedy
answer loops are left out. The distilled one and the boost-tuned pair serve them as well, which is
to come to the same. Intervals are of ratios, paired over prompts, 95 %.

Resumes from WORK after an interruption, and adds further arms to those there; other settings than
WORK was begun with are refused. Example:

    python benchmarks/alignment.py --data prompts.jsonl --work WORK
    python benchmarks/alignment.py --check
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from counted import Along, written
from lengths import WRITTEN, Counts, compared, served
from page_tables import alignment_tables
from shared import options, save

from foretoken.bench.suites.suite import Prompt, find_suite
from foretoken.files import fingerprint, read_json, write_file, write_json
from foretoken.models import gguf
from foretoken.models.load import find, read_config
from foretoken.progress import track
from foretoken.train.data import read_conversations
from foretoken.train.drafter import merged
from foretoken.train.job import AUTO, PRECISIONS, Job
from foretoken.train.metrics import FILE as METRICS
from foretoken.train.recipe import Recipe, read_recipe
from foretoken.train.run import make

SOURCES = ("fixed", "target", "target@1", "drafter", "target+drafter")
OBJECTIVES = ("nll", "kl_div", "rkl", "jsd", "tv", "nla")
PLAIN, DISTILLED, FIRST = "plain text", "distilled", "nll, fixed"
SECOND, FURTHER = "second, on what it misses", "second, as before"
BOOSTED, BESIDE = "boost-tuned pair", "pair with the other second"
DRAFTED = 4
TEMPERATURES = (0.0, 1.0)
AGREE = 0.05  # what is counted with what is served
NUMBERS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "bos_token_id",
    "eos_token_id",
)


FREE = ("work", "out", "name", "check", "objectives", "sources")
"""Options that may change from one run in a folder to the next."""


def arms(sources: Sequence[str], objectives: Sequence[str]) -> list[str]:
    """Names of objective and source; a drafter's own tokens alone teach nothing."""
    return [
        f"{objective}, {source}"
        for source in sources
        for objective in objectives
        if (objective, source) != ("nll", "drafter")
    ]


def known_arms(given: Namespace) -> list[str]:
    """Those that are asked for, and those that WORK has from before; the first of all is what the
    others are compared with."""
    asked = arms(given.sources, given.objectives)
    every = arms(SOURCES, OBJECTIVES)
    there = [name for name in every if (given.work / f"{file_name(name)}.json").exists()]
    return [name for name in every if name in (FIRST, *asked, *there)]


def recipe(given: Namespace, steps: int, objective: str, shape: Mapping[str, Any]) -> Recipe:
    return read_recipe(
        "sps",
        {
            "steps": steps,
            "patience": 1_000,
            "evaluate_every": steps,  # no arm serves the best of several weights
            "lr": given.lr,
            "matrix_lr": given.matrix_lr,
            "rows": given.rows,
            "length": given.length,
            "shape": shape,
            "objective": {objective: 1.0},
            "own_every": given.own_every,
            "own_texts": given.own_texts,
            "held": 8,  # nothing depends on them
            "temperature": given.temperature,
            "max_tokens": given.max_tokens,
        },
    )


def begin(given: Namespace) -> None:
    """Note in WORK what decides how its checkpoints and answers are made. Ends the program where
    they were made otherwise, or nothing says how."""
    path = given.work / "settings.json"
    fixed = {name: value for name, value in vars(given).items() if name not in FREE}
    models = {
        name: fingerprint(*gguf.files_of(find(fixed[name]))) for name in ("model", "draft_model")
    }
    asked = {
        **fixed,
        **models,
        "data": [fingerprint(Path(name)) for name in given.data],
        "suite": find_suite(given.suite).sha256,
        "recipe": json.loads(json.dumps(asdict(recipe(given, 1, "nll", {})))),
    }
    if not path.exists() and given.work.is_dir() and any(given.work.iterdir()):
        raise SystemExit(
            f"{given.work} holds files and no {path.name} that says how they were made; give "
            "another --work."
        )
    before = read_json(path, "the settings of trainings") if path.exists() else asked
    for name, value in asked.items():
        if before.get(name) != value:
            option = f"--{name.replace('_', '-')}"
            raise SystemExit(
                f"{given.work} was begun with another {option}: {before.get(name)!r}, now "
                f"{value!r}; give another --work."
            )
    write_json(path, asked)


class Bench:
    """Trains and serves what isn't there yet."""

    def __init__(self, given: Namespace) -> None:
        self.given = given
        self.asked = [each for name in given.data for each in read_conversations(Path(name))]
        begin(given)
        count = min(given.limit, len(self.asked))
        self.asked = [self.asked[i * len(self.asked) // count] for i in range(count)]
        self.suite = find_suite(given.suite)
        asked = self.suite.round_robin(given.prompts)
        self.samples, most = {0.0: 1, 1.0: given.samples}, given.max_tokens
        texts = written(given.model, asked, self.samples, most, given.work / "answers.json")
        self.keep = [prompt for prompt in asked if prompt.id in texts["0.0"]]
        self.along = Along(given.model, texts, most, DRAFTED)

    def trained(
        self,
        name: str,
        steps: int,
        source: str,
        objective: str,
        shape: Mapping[str, Any],
        after: tuple[Path, ...] = (),
    ) -> Path:
        """The checkpoint of that name; texts of the target's are written once for all."""
        out = self.given.work / file_name(name)
        if (out / "README.md").exists():
            return out
        out.mkdir(parents=True, exist_ok=True)
        shared = self.given.work / "texts"
        shared.mkdir(exist_ok=True)
        if not (out / "data").is_symlink():
            (out / "data").symlink_to(Path("..", shared.name), target_is_directory=True)
        began = time.monotonic()
        chosen = recipe(self.given, steps, objective, shape)
        outcome = make(
            Job(
                "sps",
                self.given.model,
                self.asked,
                chosen,
                out,
                source=source,
                after=after,
                precision=self.given.precision,
            )
        )
        print(
            f"{name}: {steps} steps in {time.monotonic() - began:.0f} s, estimated "
            f"{outcome.expected.acceptance_length:.3f}",
            flush=True,
        )
        return out

    def counted(self, name: str, *folders: Path) -> dict[str, Counts]:
        """Temperature -> counts of each prompt, where these draft together."""
        path = self.given.work / f"{file_name(name)}.json"
        if not path.exists():
            write_file(path, json.dumps(self.along.counts(folders)))
        loaded: dict[str, Counts] = json.loads(path.read_text())
        return loaded

    def served(self, name: str, config: Mapping[str, Any]) -> dict[str, float]:
        """Temperature -> the mean acceptance length of serving, as a check of what is counted."""
        path = self.given.work / f"{file_name(name)}-served.json"
        if not path.exists():
            given, lengths = self.given, {}
            for t, samples in self.samples.items():
                counts = served(given.model, config, t, self.keep, samples, given.max_tokens)
                tokens, passes = (sum(each[i] for each in counts.values()) for i in (0, 1))
                lengths[str(t)] = tokens / passes
            write_file(path, json.dumps(lengths))
        loaded: dict[str, float] = json.loads(path.read_text())
        return loaded

    def learned(self, name: str) -> float:
        """What all tokens that a training's steps predicted weigh."""
        lines = (self.given.work / file_name(name) / METRICS).read_text().splitlines()
        return sum(json.loads(line)["learned"] for line in lines)


def file_name(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


def both(
    before: dict[str, Counts], after: dict[str, Counts], keep: Sequence[Prompt]
) -> dict[str, dict[str, Any]]:
    """By temperature: the lengths, and their ratio with its interval."""
    return {t: compared(before[t], after[t], keep) for t in map(str, TEMPERATURES)}


def measure(given: Namespace) -> dict[str, Any]:
    bench = Bench(given)
    keep = bench.keep
    shape = shape_of(given)
    how = (given.whole, given.distilled_from, given.distilled_by)
    learnt = {
        PLAIN: bench.trained(PLAIN, given.whole, "fixed", "nll", shape),
        DISTILLED: bench.trained(DISTILLED, *how, shape),
    }
    counts = {name: bench.counted(name, folder) for name, folder in learnt.items()}
    start = {"model": str(bench.trained("begun", given.begin, "fixed", "nll", shape))}
    wanted = known_arms(given)
    with track("Arms", len(wanted), True) as advance:
        for name in wanted:
            objective, source = name.split(", ")
            folder = bench.trained(name, given.steps, source, objective, start)
            counts[name] = bench.counted(name, folder)
            advance()
    return {
        "prompts": len(keep),
        "trained_on": len(bench.asked),
        "whole": given.whole,
        "begin": given.begin,
        "steps": given.steps,
        "rows": given.rows,
        "length": given.length,
        "lr": given.lr,
        "matrix_lr": given.matrix_lr,
        "temperature": given.temperature,
        "max_tokens": given.max_tokens,
        "own_every": given.own_every,
        "own_texts": given.own_texts,
        "own_temperature": recipe(given, 1, "nll", {}).own_temperature,
        "drafted": DRAFTED,
        "samples": given.samples,
        "suite": bench.suite.name,
        "tokens": counted(counts[DISTILLED], keep),
        "learned": {name: bench.learned(name) for name in (*learnt, "begun", *wanted)},
        "precision": given.precision,
        "keep_weights": given.keep_weights,
        "distilled_by": given.distilled_by,
        "distilled_from": given.distilled_from,
        "from_nothing": {name: both(counts[PLAIN], counts[name], keep) for name in learnt},
        "arms": {name: both(counts[FIRST], counts[name], keep) for name in wanted},
        **pairs(bench, learnt[DISTILLED], counts[DISTILLED]),
    }


def shape_of(given: Namespace) -> dict[str, Any]:
    """What the first drafters begin as."""
    if given.keep_weights:
        return {"model": given.draft_model}
    numbers = read_config(find(given.draft_model)).to_dict()
    return {key: numbers[key] for key in NUMBERS if numbers.get(key) is not None}


def counted(of: dict[str, Counts], keep: Sequence[Prompt]) -> dict[str, int]:
    """By temperature: the tokens by which a drafter is judged."""
    return {t: sum(counts[prompt.id][0] for prompt in keep) for t, counts in of.items()}


def pairs(bench: Bench, first: Path, alone: dict[str, Counts]) -> dict[str, Any]:
    """The distilled one compared with each of two trained on from it; and it and the boost-tuned
    pair as they serve."""
    given, start = bench.given, {"model": str(first)}
    how = (given.steps, given.distilled_from, given.distilled_by, start)
    second = bench.trained("second", *how, after=(first,))
    further = bench.trained("further", *how)
    one, two = bench.counted("second", second), bench.counted("further", further)
    pair = bench.counted("pair", first, second)
    other = bench.counted("other pair", first, further)
    keep = bench.keep
    compared_with = {
        SECOND: both(alone, one, keep),
        FURTHER: both(alone, two, keep),
        BESIDE: both(alone, other, keep),
        BOOSTED: both(alone, pair, keep),
        f"{BOOSTED}, to its second": both(one, pair, keep),
        f"{BOOSTED}, to the other pair": both(other, pair, keep),
    }
    chain = {"method": "sps", "model": str(first), "num_speculative_tokens": DRAFTED}
    as_served = {
        DISTILLED: bench.served(DISTILLED, chain),
        BOOSTED: bench.served("pair", merged([first, second], DRAFTED)),
    }
    return {"pairs": compared_with, "served": as_served}


def page(results: Mapping[str, Any]) -> list[str]:
    """The tables of docs/alignment.md, as a terminal shows them."""
    made = alignment_tables("").items()
    return [line for name, table in made for line in (name, "", table(lambda file: results), "")]


def failures(results: Mapping[str, Any]) -> list[str]:
    """What is asked for and wasn't reached."""
    bad = []
    for temperature in map(str, TEMPERATURES):
        gained = results["from_nothing"][DISTILLED][temperature]["ratio"]
        if gained < 1.08:
            bad.append(f"T = {temperature}: distilled is {gained:.3f} times plain text, not 1.08")
        for name in (BOOSTED, f"{BOOSTED}, to its second"):
            low = results["pairs"][name][temperature]["interval"][0]
            if low <= 1:
                bad.append(f"T = {temperature}: the interval of {name} begins at {low:.3f}")
    rows = {**results["from_nothing"], **results["pairs"]}
    for name, lengths in results.get("served", {}).items():
        for temperature, length in lengths.items():
            counted = rows[name][temperature]["length"]
            if abs(counted / length - 1) > AGREE:
                bad.append(f"T = {temperature}: {name} is {counted:.3f}, served {length:.3f}")
    return bad


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--data", nargs="+", default=[], help="prompts with answers, .jsonl")
    parser.add_argument("--work", type=Path, help="folder of what is trained")
    parser.add_argument("--limit", type=int, default=20_000, help="at most so many conversations")
    parser.add_argument("--suite", default="bundled", help="what is served: a suite's name or file")
    parser.add_argument("--prompts", type=int, help="so many of each task")
    parser.add_argument("--samples", type=int, default=4, help="answers at temperature 1 to each")
    parser.add_argument("--precision", default=AUTO, choices=PRECISIONS, help="of products")
    parser.add_argument("--max-tokens", type=int, default=WRITTEN, help="of an answer")
    parser.add_argument(
        "--keep-weights", action="store_true", help="begin with --draft-model's weights"
    )
    parser.add_argument("--name", default="alignment", help="of the record")
    parser.add_argument("--whole", type=int, default=3000, help="steps from nothing")
    parser.add_argument("--begin", type=int, default=1500, help="steps before the arms'")
    parser.add_argument("--steps", type=int, default=150, help="steps of each arm")
    parser.add_argument("--distilled-by", default="kl_div", choices=OBJECTIVES)
    parser.add_argument("--distilled-from", default="target+target@1", help="source of text")
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--matrix-lr", type=float, default=2e-2, help="of the matrices, by Muon")
    parser.add_argument("--temperature", type=float, default=0.0, help="of what is written")
    parser.add_argument("--own-every", type=int, default=50, help="steps between own texts")
    parser.add_argument("--own-texts", type=int, default=256, help="of the drafter's, at a time")
    parser.add_argument("--objectives", nargs="+", default=OBJECTIVES, choices=OBJECTIVES)
    parser.add_argument("--sources", nargs="*", default=SOURCES, choices=SOURCES)
    parser.add_argument("--check", action="store_true", help="look at the results there are")
    given = parser.parse_args()
    if given.check:
        path = given.out / f"{given.name}.json"
        if not path.exists():
            print(f"{path} isn't there; run this with --data and --work first", file=sys.stderr)
            return 1
        results = json.loads(path.read_text(encoding="utf-8"))
        print("\n".join(failures(results)) or "all as wanted")
        return 1 if failures(results) else 0
    if not given.data or not given.work:
        parser.error("give --data and --work, or --check")
    given.work = given.work.resolve()
    results = measure(given)
    print("\n".join(page(results)))
    save(given.name, given, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
