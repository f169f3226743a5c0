"""The measurements of a folder, also of a run that goes on or was killed, as they stand.

A target's results are written when all of its prompts are answered. Until then they follow from
plan.json and samples.jsonl, but for what only the end of a run writes: the machine, the target's
size, which prompts were skipped and which methods could not be run, what passes cost and what
follows from that. BLEU is left out too, as it needs the suite's references.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from foretoken.bench.plan import TUNED
from foretoken.bench.record import SCHEMA, Answer, Results, Target, read_results
from foretoken.bench.report.samples import each_answer
from foretoken.bench.run.resume import PLAN, SAMPLES, read_plan
from foretoken.bench.run.summary import fill_in
from foretoken.bench.suites.suite import Suite
from foretoken.errors import ForetokenError
from foretoken.errors.values import typed
from foretoken.models import gguf
from foretoken.repetition import DISTINCT_4

_NONE = "none"  # the shape of a target that is not inflated
_NEEDED: dict[str, Any] = {
    "suite": str,
    "sha256": str,
    "max_tokens": int,
    "repeats": int,
    "own_history": bool,
    "warm": bool,
}
"""What results need of a plan."""
_NEEDED_OF_TARGETS: dict[str, Any] = {
    "model": str,
    "shape": str,
    "dtype": str,
    "methods": Mapping[str, Mapping[str, Any]],
}


def read_finished(folder: Path) -> list[Results]:
    """The finished measurements in a folder. Raises `ForetokenError` where there is none."""
    first = folder / "results.json"
    if first.is_file():
        return [read_results(path) for path in (first, *sorted(folder.glob("results-*.json")))]
    if _begun(folder):
        raise ForetokenError(
            f"{folder} has no results.json: its run is unfinished, and the same command resumes it."
        )
    raise ForetokenError(f"{folder} has no results.json; measure something into it first.")


def read_folder(folder: Path) -> list[Results]:
    """All measurements in a folder: the finished ones, then the others as they stand, each planned
    target's; `suite["planned"]` tells them apart.

    Raises `ForetokenError` where there is none, and where the plan of an unfinished run or a line
    of its answers can't be read.
    """
    begun = _begun(folder)
    finished = read_finished(folder) if (folder / "results.json").is_file() or not begun else []
    return [*finished, *(_unfinished(folder, finished) if begun else [])]


def _begun(folder: Path) -> bool:
    """Whether there are answers, with the plan that they follow."""
    samples = folder / SAMPLES
    return (folder / PLAN).is_file() and samples.is_file() and samples.stat().st_size > 0


def _unfinished(folder: Path, finished: Seq[Results]) -> list[Results]:
    """Targets are measured in the plan's order, so those without results are its last."""
    plan = read_plan(folder)
    targets = typed(f"{PLAN}: targets", plan.get("targets", [{}]), Seq[Mapping[str, Any]])
    if len(finished) >= len(targets):
        return []
    plan = _checked(folder, plan, _NEEDED)
    left = [_checked(folder, own, _NEEDED_OF_TARGETS) for own in targets[len(finished) :]]
    known = {(part["target"]["name"], part["target"]["dtype"]) for part in finished}
    answers: dict[tuple[str, str], list[Answer]] = {}
    for answer in each_answer(folder / SAMPLES):
        if (answer.target, answer.dtype) not in known:
            answers.setdefault((answer.target, answer.dtype), []).append(answer)
    if len(answers) > len(left):
        raise ForetokenError(
            f"{folder / SAMPLES} has answers of {len(answers)} targets without results, and {PLAN} "
            f"names {len(left)} of them; measure into another folder."
        )
    groups = [*answers.values(), *[[]] * (len(left) - len(answers))]
    return [_results(plan, own, group) for own, group in zip(left, groups, strict=True)]


def _checked(folder: Path, values: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    missing = [key for key in kinds if key not in values]
    if missing:
        raise ForetokenError(
            f"{folder} has no results for all of its answers, and {PLAN} lacks {missing[0]}; run "
            "the command that began it once more."
        )
    return {**values, **{k: typed(f"{PLAN}: {k}", values[k], kind) for k, kind in kinds.items()}}


def _results(plan: Mapping[str, Any], planned: Mapping[str, Any], answers: Seq[Answer]) -> Results:
    remote = plan.get("base_url") is not None and plan.get("baseline_url") is None
    results: Results = {
        "schema": SCHEMA,
        "environment": {},
        "target": _target(plan, planned, answers),
        "suite": {
            "name": plan["suite"],
            "sha256": plan["sha256"],
            "prompts": 0,
            "turns": 0,
            "max_tokens": plan["max_tokens"],
            "distinct_4_threshold": 0.0 if plan.get("keep_loops") else DISTINCT_4,
            "left_out": [],
            "skipped": [],
            "history": "own" if plan["own_history"] or remote else "autoregressive",
            "warm": plan["warm"],
            "planned": _planned(plan),
        },
        "costs": None,
        "runs": [],
    }
    tuned = {key: dict(own) for key, own in planned["methods"].items() if key.startswith(TUNED)}
    if tuned:
        results["tuned"] = tuned
    if whole := _whole_units(answers):
        suite = Suite(plan["suite"], plan["sha256"], ())
        fill_in(results, whole, suite, plan["repeats"])
    for run in results["runs"]:
        for part in (run, *run["by_task"].values()):
            part["scores"].pop("bleu", None)
    return results


def _target(plan: Mapping[str, Any], planned: Mapping[str, Any], answers: Seq[Answer]) -> Target:
    """A target by its answers; without any, by the plan."""
    model, shape = gguf.model_name(planned["model"]), planned["shape"]
    target: Target = {
        "name": model if shape == _NONE else f"{model}-{shape}",
        "parameters": 0,
        "dtype": planned["dtype"],
        "backend": str(plan.get("backend", "")),
    }
    if answers:
        target |= {"name": answers[0].target, "dtype": answers[0].dtype}
    if shape != _NONE:
        target["inflated"] = shape
    if plan.get("base_url") is not None:
        target["server"] = str(plan["base_url"])
    return target


def _planned(plan: Mapping[str, Any]) -> int | None:
    """A shard has a part of the prompts, and which ones is not in its plan."""
    prompts = plan.get("prompts")
    if prompts is None or plan.get("shard") is not None:
        return None
    return int(typed(f"{PLAN}: prompts", prompts, int))


def _whole_units(answers: Seq[Answer]) -> list[Answer]:
    """The answers without those of the last unit, where some method's are missing there."""
    if not answers:
        return []
    last = _unit(answers[-1])
    counts = Counter(a.method for a in answers if _unit(a) == last)
    whole = len({*counts.values()}) == 1 and counts.keys() == {a.method for a in answers}
    return [a for a in answers if whole or _unit(a) != last]


def _unit(answer: Answer) -> tuple[str, int, float]:
    return answer.group, answer.batch_size, answer.temperature
