r"""Writes the answers that the trainings of SmolLM2's drafters share, or reads on where it stopped.

    python recipes/smollm2/answers.py --target model.gguf --data prompts.jsonl \
        --source target+target@1 --out FOLDER

FOLDER is that of one of the trainings: what it would write first is all that is written. Settings
of the recipes that were changed follow, NAME=VALUE.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from foretoken.cli.train import conversations
from foretoken.train.job import Job
from foretoken.train.recipe import read_recipe
from foretoken.train.run import prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="its GGUF file")
    parser.add_argument("--data", required=True, help="prompts")
    parser.add_argument("--source", required=True, help="as foretoken train takes it")
    parser.add_argument("--out", type=Path, required=True, help="a training's folder")
    parser.add_argument("changes", nargs="*", help="settings of the recipe, NAME=VALUE")
    given = parser.parse_args()
    pairs = (change.split("=", 1) for change in given.changes)
    changes = {name: yaml.safe_load(value) for name, value in pairs}
    recipe = read_recipe(Path(__file__).parent / "small.yaml", changes)
    asked = conversations(given.data)
    prepare(Job("sps", given.target, asked, recipe, given.out, source=given.source))


if __name__ == "__main__":
    main()
