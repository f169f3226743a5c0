"""Files that the library keeps or is given, damaged: caches, stores, runs, trained drafters."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from foretoken import LLM, METHODS
from foretoken.lookup.suffix_automaton import StaticAutomaton
from foretoken.methods import Need
from foretoken.models import layer_set
from hostile_inputs import damage, makings
from hostile_inputs.case import Case, Outcome
from hostile_inputs.commands import command, note
from hostile_inputs.stand import GOOD, GREEDY, SLOTS, VOCAB, Stand

TRAINED = [row.name for row in METHODS.values() if Need.WEIGHTS in row.needs]
EXPORTED = {"eagle3": "speculators", "dflash": "vllm"}
SHARING = ("token_recycling", "suffix", "swift")
"""Methods whose drafter keeps what it has learned in a file of its own."""


def cases(random: Random, count: int) -> Iterator[Case]:
    makers = [_layers, _datastore, _automaton, _trained, _trained, _exported, _tuned, _costs]
    makers += [_shared, _report, _resumed, _suite, _texts, _simulated]
    for number in range(count):
        yield makers[number % len(makers)](Random(random.randrange(2**62)))


# --- what a method reads ---


def _layers(random: Random) -> Case:
    def config(stand: Stand, folder: Path) -> dict[str, Any]:
        path = folder / "layers.npz"
        layer_set.save(path, (0, 1), stand.target)
        _damage(path, random)
        return {"method": "draft_verify", "skip": str(path)}

    return _method("a layer set", config, ("layers.npz", "layer set", "skip"), random)


def _datastore(random: Random) -> Case:
    def config(stand: Stand, folder: Path) -> dict[str, Any]:
        store = damage.copy(makings.texts(stand), folder)
        _damage(random.choice(sorted(store.iterdir())), random)
        return {"method": "rest", "datastore": str(store)}

    return _method("a datastore", config, ("datastore",), random)


def _automaton(random: Random) -> Case:
    def config(stand: Stand, folder: Path) -> dict[str, Any]:
        path, own = folder / "corpus.npz", Random(0)
        texts = [own.choices(range(VOCAB), k=40) for _ in range(5)]
        StaticAutomaton.of(texts).save(path, VOCAB)
        _damage(path, random)
        return {"method": "sam", "corpus": str(path)}

    return _method("a corpus", config, ("corpus", "automaton"), random)


def _trained(random: Random) -> Case:
    method = random.choice(TRAINED)

    def config(stand: Stand, folder: Path) -> dict[str, Any]:
        source = makings.trained(stand, METHODS[method].drafter)
        trained = damage.copy(source, folder)
        _damage(random.choice(sorted(p for p in trained.iterdir() if p.is_file())), random)
        return {"method": method, "model": str(trained)}

    return _method(f"a trained {method}", config, ("trained-",), random)


def _exported(random: Random) -> Case:
    method = random.choice(list(EXPORTED))

    def config(stand: Stand, folder: Path) -> dict[str, Any]:
        exported = damage.copy(_written_for(stand, method), folder)
        _damage(random.choice(sorted(p for p in exported.iterdir() if p.is_file())), random)
        return {"method": method, "model": str(exported)}

    return _method(f"{EXPORTED[method]}'s {method}", config, ("exported-",), random)


@cache
def _written_for(stand: Stand, method: str) -> Path:
    """A drafter in another program's format."""
    folder = stand.folder / f"exported-{method}"
    source = makings.trained(stand, METHODS[method].drafter)
    target = makings.draft_folder(stand)
    options = ["--to", EXPORTED[method], "--target", str(target), "--out", str(folder)]
    result = command("export", str(source), *options)
    if result.exit_code:
        raise RuntimeError(result.output)
    return folder


def _tuned(random: Random) -> Case:
    def config(stand: Stand, folder: Path) -> dict[str, Any]:
        path = folder / "best.json"
        options = {"method": "pld", "num_speculative_tokens": 5, "prompt_lookup_max": 3}
        known = {"schema": 1, "name": "best", "model": "tiny", "method": "pld"}
        path.write_text(json.dumps({**known, "speculative_config": options}))
        _damage(path, random)
        return {"tuned": str(path)}

    names = ("best.json", "tune", "option", "method", "num_speculative", "lookup", "config")
    return _method("a tuned method", config, names, random)


def _costs(random: Random) -> Case:
    def config(stand: Stand, folder: Path) -> dict[str, Any]:
        made = {"method": "auto:pld,suffix"}
        shutil.rmtree(Path(os.environ["FORETOKEN_CACHE"]) / "costs", ignore_errors=True)
        LLM(stand.target, speculative_config=made).close()
        for path in sorted(Path(os.environ["FORETOKEN_CACHE"]).glob("costs/*")):
            _damage(path, random)
        return made

    return _method("a cost cache", config, ("cost", "cache"), random)


def _shared(random: Random) -> Case:
    method = random.choice(SHARING)

    def run(stand: Stand, outcome: Outcome) -> None:
        path, llm = stand.place() / "learned", stand.new(method)
        with llm, stand.neighbour(stand.llm(), outcome):
            llm.generate(GOOD, GREEDY)
            shared = llm.engine.drafter.shared
            if shared is None:
                outcome.served = True
                return
            shared.save(path)
            _damage(path, random)
            outcome.attempt(lambda: shared.load(path))
            stand.serves(llm, outcome)

    return Case(f"what {method} learned{_number(random)}", run, ("learned",))


Config = Callable[[Stand, Path], dict[str, Any]]


def _method(what: str, config: Config, names: tuple[str, ...], random: Random) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        made = config(stand, stand.place())
        with stand.neighbour(stand.llm(), outcome):
            build = lambda: LLM(  # noqa: E731
                stand.target,
                speculative_config=made,
                tokenizer=stand.letters,
                max_num_seqs=SLOTS,
            )
            llm = outcome.attempt(build)
            if llm is None:
                return
            with llm:
                outputs = outcome.attempt(lambda: llm.generate(GOOD, GREEDY)) or []
            stand.note(outputs, outcome)
            row = METHODS.get(str(made.get("method")))
            texts = [output.token_ids for output in outputs if output.error is None]
            lossless = row is not None and row.lossless
            if lossless and any(text not in stand.expected for text in texts):
                outcome.blame("wrong", "it wrote another text than plain decoding")

    return Case(f"{what}{_number(random)}", run, names)


def _number(random: Random) -> str:
    """Tells cases of one kind from each other; what they do follows from the seed."""
    return f" (#{random.randrange(10_000)})"


def _damage(path: Path, random: Random) -> None:
    damage.some(path, random)[1](path, random)


# --- what a command reads ---


@cache
def bench_run(stand: Stand) -> Path:
    """The folder of a small measurement."""
    folder = stand.folder / "run"
    result = command("bench", *measuring(stand), "--out", str(folder))
    if result.exit_code:
        raise RuntimeError(result.output)
    return folder


@cache
def model(stand: Stand) -> Path:
    """A checkpoint with a tokenizer and room for prompts."""
    from foretoken.testing import tiny_transformers

    folder = stand.folder / "model"
    tiny_transformers(VOCAB, max_length=512).float().save_pretrained(folder)
    stand.letters.save_pretrained(folder)
    return folder


@cache
def suite(stand: Stand) -> Path:
    path = stand.folder / "suite.jsonl"
    prompts = [{"id": "a", "task": "qa", "turns": ["hello"]}]
    prompts += [{"id": "b", "task": "chat", "turns": ["one", "two"]}]
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return path


def measuring(stand: Stand) -> list[str]:
    """Options of a small measurement."""
    given = {
        "--model": str(model(stand)),
        "--suite": str(suite(stand)),
        "--methods": "pld",
        "--temperatures": "0",
        "--max-tokens": "4",
        "--max-model-len": "512",
    }
    return [word for pair in given.items() for word in pair]


def _report(random: Random) -> Case:
    def arguments(stand: Stand, folder: Path) -> list[str]:
        run = damage.copy(bench_run(stand), folder)
        name = random.choice(("results.json", "samples.jsonl", "plan.json"))
        _damage(run / name, random)
        if random.random() < 0.5:
            return ["report", str(run)]
        return ["report", str(bench_run(stand)), str(run)]

    return _command("report of a damaged run", arguments, random)


def _resumed(random: Random) -> Case:
    def arguments(stand: Stand, folder: Path) -> list[str]:
        run = damage.copy(bench_run(stand), folder)
        name = random.choice(("results.json", "samples.jsonl", "samples.jsonl", "plan.json"))
        _damage(run / name, random)
        return ["bench", *measuring(stand), "--out", str(run)]

    return _command("bench resumes a damaged run", arguments, random)


def _simulated(random: Random) -> Case:
    def arguments(stand: Stand, folder: Path) -> list[str]:
        run = damage.copy(bench_run(stand), folder)
        _damage(run / "results.json", random)
        return ["simulate", "--from", str(run / "results.json"), "--method", "pld"]

    return _command("simulate from a damaged run", arguments, random)


def _suite(random: Random) -> Case:
    def arguments(stand: Stand, folder: Path) -> list[str]:
        path = damage.copy(suite(stand), folder)
        _damage(path, random)
        options = measuring(stand)
        options[options.index("--suite") + 1] = str(path)
        return ["bench", *options, "--out", str(folder / "out")]

    return _command("bench of a damaged suite", arguments, random)


def _texts(random: Random) -> Case:
    def arguments(stand: Stand, folder: Path) -> list[str]:
        path = folder / "texts.jsonl"
        lines = [{"text": "hello"}, {"messages": [{"role": "user", "content": "hi"}]}]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        _damage(path, random)
        options = ["--tokenizer", str(model(stand)), "--out", str(folder / "store")]
        return ["datastore", "build", str(path), *options]

    return _command("a datastore of damaged texts", arguments, random)


def _command(what: str, arguments: Callable[[Stand, Path], list[str]], random: Random) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        given = arguments(stand, stand.place())
        with stand.neighbour(stand.llm(), outcome):
            note(command(*given), outcome)

    names = ("results.json", "samples.jsonl", "plan.json", "suite.jsonl", "texts.jsonl", "run")
    names += ("no text to put", "was not measured")
    return Case(f"{what}{_number(random)}", run, names)
