"""Makes the record of the drafters' table from runs of `foretoken bench`, a target each.

Of each run's results.json it keeps what the table and its readers need, at batch size 1. A target
measured in several runs must be merged before (foretoken bench does, with --shard or --ray).
Example:

    foretoken bench --suite bundled --limit 1 --max-tokens 64 --methods all --out small \\
        --draft-model mini-draft --method-config benchmarks/drafters.yaml --temperatures 0,1
    foretoken bench --suite bundled --limit 1 --max-tokens 64 --methods all --out large \\
        --draft-model mini-draft --inflate 135m --repeats 3
    python benchmarks/collect_drafters.py small large && python benchmarks/pages.py
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from foretoken.errors import ForetokenError
from foretoken.files import write_json

RESULTS = Path(__file__).parent / "results"
KEPT = (
    "method",
    "temperature",
    "tokens_per_second",
    "speedup",
    "speedup_ci95",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_rate_per_position",
    "ms_per_step",
    "target_passes",
    "tokens",
    "identical_to_autoregressive",
    "repeats",
    "prompts",
    "failed",
)
ALIKE = ("sha256", "max_tokens", "distinct_4_threshold", "history", "warm")
"""What the suite of a target's run and those of the others, which stand beside it, have alike."""


def part(results: dict[str, Any]) -> dict[str, Any]:
    """A target's runs at batch size 1, and what they were measured on."""
    runs = [run for run in results["runs"] if run["batch_size"] == 1]
    return {
        "environment": results["environment"],
        "target": results["target"],
        "suite": results["suite"],
        "repeats": max(run["repeats"] for run in runs),
        "runs": [{key: run[key] for key in KEPT} for run in runs],
    }


def record(folders: list[Path]) -> dict[str, Any]:
    """The parts of all folders, in their order. Raises ForetokenError for what can't be a row."""
    parts = []
    for folder in folders:
        path = folder / "results.json"
        if not path.is_file():
            raise ForetokenError(
                f"{folder} has no results.json; run foretoken bench into it first."
            )
        results = json.loads(path.read_text(encoding="utf-8"))
        if not any(run["batch_size"] == 1 for run in results["runs"]):
            raise ForetokenError(
                f"{folder} has no run at batch size 1, which the table is made of."
            )
        parts.append(part(results))
    names = [each["target"]["name"] for each in parts]
    if len(set(names)) < len(names):
        raise ForetokenError(f"The runs' targets are {', '.join(names)}; give one run a target.")
    for each, key in product(parts, ALIKE):
        first, own = parts[0]["suite"][key], each["suite"][key]
        if own != first:
            raise ForetokenError(
                f"The suite of {each['target']['name']} has {key} {own!r}, and that of {names[0]} "
                f"{first!r}; measure all targets alike."
            )
    return {"benchmark": "drafters", "environment": parts[0]["environment"], "parts": parts}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, help="folders of foretoken bench")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where drafters.json goes")
    given = parser.parse_args()
    write_json(given.out / "drafters.json", record(given.runs))
    print(f"-> {given.out / 'drafters.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
