"""Trains the drafters of SmolLM2-135M-Instruct, one after another or several at once; see
README.md.

    python recipes/smollm2/train.py --target model.gguf --data prompts.jsonl --work FOLDER

A draft model is cut out of the target and distilled, twice; another of the same shape begins with
random weights and has as many steps as both together. What is finished is left alone.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import IO

import yaml

HERE = Path(__file__).parent
SMALL = HERE / "small.yaml"
HEADS = ("eagle3", "medusa", "hydra", "dflash2", "mtp")
CUTS = {
    "middle": "--layers 15 --hidden-size 384 --intermediate-size 1024 --kv-heads 2",
    "small": "--layers 6 --hidden-size 288 --intermediate-size 768 --kv-heads 1",
}
"""What is left of the target after each cut."""
FRESH = "fresh"
DRAFTS = (*CUTS, FRESH)
"""The draft models; each begins with what the one before has left."""
SOURCE = "target+target@1"
"""Greedy answers, and some at temperature 1, so that a drafter serves at both."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="its GGUF file")
    parser.add_argument("--data", required=True, help="prompts")
    parser.add_argument("--work", type=Path, required=True, help="where everything is written")
    parser.add_argument("--only", nargs="+", choices=[*HEADS, *DRAFTS], default=[*HEADS, *DRAFTS])
    parser.add_argument("--precision", default="auto", help="of products: auto, bfloat16, float32")
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of all recipes, as foretoken train takes it, e.g. rows=24",
    )
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    given = parser.parse_args()
    if given.jobs < 1:
        parser.error("--jobs must be at least 1")
    all_of(given)


def all_of(given: argparse.Namespace) -> None:
    """Every training that is asked for and isn't finished. Where one fails, those that haven't
    begun don't begin."""
    left = [name for name in (*HEADS, *DRAFTS) if name in given.only and not finished(name, given)]
    lines = [[name] for name in left if name in HEADS]
    lines.append([name for name in left if name in DRAFTS])
    if left and given.jobs > 1:
        write_answers(left[0], given)  # or each of them would
    failed = Event()
    with ThreadPoolExecutor(given.jobs) as pool:
        begun = [pool.submit(one_after_another, line, given, failed) for line in lines]
        try:
            for training in begun:
                training.result()
        except BaseException:  # Ctrl-C too
            failed.set()
            raise


def finished(name: str, given: argparse.Namespace) -> bool:
    return (given.work / name / "README.md").is_file()  # the card, which is written last


def one_after_another(names: Sequence[str], given: argparse.Namespace, failed: Event) -> None:
    for name in names:
        if failed.is_set():
            return
        try:
            train(name, given)
        except BaseException:
            failed.set()  # before this thread takes the next line
            raise


def train(name: str, given: argparse.Namespace) -> None:
    """One training, with the answers that all share; of several at once what it says goes into a
    file."""
    out = folder(name, given)
    method, changes = (name, []) if name in HEADS else ("sps", changes_of(name, given))
    recipe = HERE / f"{name}.yaml" if name in HEADS else SMALL
    texts_of = ["--target", given.target, "--data", given.data, "--source", SOURCE]
    kept = ["--out", str(out), "--precision", given.precision]
    asked = [word for change in given.changes for word in ("--set", change)]
    command = ["train", method, "--recipe", str(recipe), *texts_of, *kept, *asked, *changes]
    if given.jobs == 1:
        run(*command)
    else:
        with (given.work / f"{name}.log").open("a") as log:
            run(*command, log=log)


def folder(name: str, given: argparse.Namespace) -> Path:
    """Where a training writes, its answers where all have them."""
    out, texts = given.work / name, given.work / "answers"
    texts.mkdir(parents=True, exist_ok=True)
    out.mkdir(exist_ok=True)
    if not (out / "data").exists():
        (out / "data").symlink_to(texts.resolve())
    return out


def write_answers(name: str, given: argparse.Namespace) -> None:
    """The answers, as the training of that name would write them, by a process of its own, whose
    memory the trainings then have."""
    words = ["--target", given.target, "--data", given.data, "--source", SOURCE]
    words += ["--out", str(folder(name, given))]
    subprocess.run([sys.executable, str(HERE / "answers.py"), *words, *given.changes], check=True)


def changes_of(name: str, given: argparse.Namespace) -> list[str]:
    """The model that a draft model begins as."""
    begun, unfinished = given.work / f"{name}-begun", given.work / f"{name}-unfinished"
    if not begun.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed
        if name == FRESH:
            randomised(given.work / "small-begun", unfinished)
        else:
            source = given.target if name == "middle" else str(given.work / "middle")
            cut = ["--data", given.data, "--out", str(unfinished), *CUTS[name].split()]
            run("prune", source, *cut)
        unfinished.rename(begun)
    model = ["--set", f"shape={{model: {begun}}}"]
    return [*model, "--set", f"steps={2 * steps_of(given)}"] if name == FRESH else model


def steps_of(given: argparse.Namespace) -> int:
    """Of a cut's training."""
    asked = dict(change.split("=", 1) for change in given.changes)
    return int(float(asked.get("steps") or yaml.safe_load(SMALL.read_text())["steps"]))


def randomised(like: Path, out: Path) -> None:
    """A checkpoint of the same shape with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(like)).save_pretrained(out)
    AutoTokenizer.from_pretrained(like).save_pretrained(out)


def run(*command: str, log: IO[str] | None = None) -> None:
    words = [sys.executable, "-m", "foretoken", *command]
    subprocess.run(words, check=True, stdout=log, stderr=log)


if __name__ == "__main__":
    main()
