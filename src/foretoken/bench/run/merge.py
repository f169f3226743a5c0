"""Merges the shards of a run into the files that one run over all prompts would have written."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from foretoken.bench.plan import shard_of
from foretoken.bench.record import Results, read_results
from foretoken.bench.run.resume import COUNT, PLAN, SAMPLES, Samples, read_plan
from foretoken.bench.run.summary import fill_in
from foretoken.bench.suites.suite import Suite
from foretoken.errors import ForetokenError
from foretoken.files import write_file, write_json

RESULTS = "results*.json"


def merge(folders: Seq[Path], out: Path, suite: Suite) -> list[Results]:
    """Write plan, samples and results of all shards of one run to `out`; returns the results.

    Raises `ForetokenError` where a shard is missing, unfinished, given twice, or of another run.
    """
    plan = _common_plan(folders)
    samples = [Samples(folder) for folder in folders]
    names = sorted({path.name for folder in folders for path in folder.glob(RESULTS)})
    if not names:
        raise ForetokenError(f"{folders[0]} has no results; finish its shard first.")
    merged: list[Results] = []
    lines: list[str] = []
    names.sort(key=lambda name: name != "results.json")
    for name in names:
        parts = [read_results(folder / name) for folder in folders]
        results = parts[0]
        target = results["target"]
        results["environment"] = _merged_environment([part["environment"] for part in parts])
        if reasons := {k: why for part in parts for k, why in part.get("not_run", {}).items()}:
            results["not_run"] = reasons  # a machine may lack the memory that another has
        answers = [a for shard in samples for a in shard.of(target["name"], target["dtype"])]
        fill_in(results, answers, suite, plan["repeats"])
        lines += [a.line() + "\n" for a in answers]
        merged.append(results)
    write_json(out / PLAN, plan)
    write_file(out / SAMPLES, "".join(lines))
    for name, results in zip(names, merged, strict=True):  # last: they say that the run is whole
        write_json(out / name, results)
    return merged


def _common_plan(folders: Seq[Path]) -> dict[str, Any]:
    """The plan of the whole run; each folder must have another of its shards."""
    plans = [read_plan(folder) for folder in folders]
    whole = {**plans[0], "shard": None}
    for folder, plan in zip(folders, plans, strict=True):
        for key in {**whole, **plan}.keys() - {"shard", COUNT}:
            if plan.get(key) != whole.get(key):
                raise ForetokenError(
                    f"{folder} and {folders[0]} are of different runs: their {key} differs."
                )
    shards = [shard_of(plan["shard"] or "1/1") for plan in plans]
    count = shards[0][1]
    if sorted(shards) != [(i, count) for i in range(1, count + 1)]:
        names = ", ".join(f"{i}/{n}" for i, n in sorted(shards))
        raise ForetokenError(f"The shards {names} are not the whole of one run, each once.")
    return whole


def _merged_environment(environments: Seq[dict[str, Any]]) -> dict[str, Any]:
    """The shards' environments as one: values that differ between machines are joined by " | "."""
    merged = dict(environments[0])
    for key in merged.keys() - {"date"}:
        values = list(dict.fromkeys(str(one[key]) for one in environments))
        if len(values) > 1:
            merged[key] = " | ".join(values)
    return merged
