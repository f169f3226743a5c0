"""What users of other libraries bring: vLLM's names with every value, transformers' `generate`
with our hook, files of other programs in place of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch

from foretoken import LLM, assisted
from foretoken.errors.vllm_names import CONFIG_NAMES, LLM_NAMES
from hostile_inputs import files
from hostile_inputs.case import Case, Outcome, shown
from hostile_inputs.stand import GOOD, GREEDY, SLOTS, Stand
from hostile_inputs.values import VALUES, Make

Bytes = Callable[[Random], bytes]

HOOK: dict[str, Any] = {
    "method": ["nope", 5, torch.zeros(2), "medusa", "sps", "rest", "", LLM, "pld+pld"],
    "draft_model": [5, "no/such", "", torch.nn.Linear(2, 2), [], Path("nowhere")],
    "streamer": [5, "x", object()],
    "stop_strings": [5, [5], "a", [""], ["\ud800"]],
    "tokenizer": [5, "x"],
    "prompt_lookup_num_tokens": ["four", -1, 0, 1.5, 10**30, [1]],
    "speculative_config": [5, "pld", [], {"method": "pld", "x": 1}, {1: 2}, {"method": 5}],
    "num_speculative_tokens": ["four", 0, None],
    "nonsense": [1],
}
"""Arguments of `assisted`."""

GENERATE: dict[str, Any] = {
    "num_beams": 4,
    "num_return_sequences": 3,
    "penalty_alpha": 0.6,
    "assistant_model": "x",
    "prompt_lookup_num_tokens": 3,
    "streamer": 5,
    "cache_implementation": "static",
    "output_scores": True,
    "output_attentions": True,
    "guidance_scale": 2.0,
    "diversity_penalty": 1.0,
    "max_time": 1e-9,
    "temperature": 1e-30,
    "top_k": 10**9,
    "repetition_penalty": 1e30,
    "stopping_criteria": [lambda *_: 1 / 0],
    "logits_processor": [lambda *_: None],
    "min_new_tokens": 99,
    "bad_words_ids": [[1]],
    "position_ids": torch.zeros(1, 4).long(),
}
"""Arguments of `generate`, some of which it refuses itself."""

FILES: dict[str, Bytes] = {
    "model.gguf": lambda random: b"GGUF" + random.randbytes(200),
    "empty.gguf": lambda random: b"",
    "model.bin": lambda random: random.randbytes(200),
    "model.pt": lambda random: b"PK\x03\x04" + random.randbytes(200),
    "model.safetensors": lambda random: (2**62).to_bytes(8, "little") + b"{",
    "model.onnx": lambda random: random.randbytes(100),
    "config.json": lambda random: b"{}",
    "model.tar.gz": lambda random: b"\x1f\x8b" + random.randbytes(100),
}
"""Files given as models, draft models and tokenizers."""


def cases(random: Random, count: int) -> Iterator[Case]:
    """A part each of vLLM's names, the hook, and files."""
    every = [*_keywords(random), *_options(random)]
    every = random.sample(every, max(0, min(len(every), count - 70)))
    every += [*_hooks(), *_generates(), *_files(random)]
    random.shuffle(every)
    yield from every[:count]


def _names(table: Any, random: Random) -> Iterator[tuple[str, str, Make]]:
    for words in table:
        for name in words.split():
            for label, make in random.sample(list(VALUES.items()), 4):
                yield name, label, make


def _keywords(random: Random) -> Iterator[Case]:
    for name, label, make in _names(LLM_NAMES, random):
        given = lambda make=make, name=name: {name: make()}  # noqa: E731
        yield _loaded(f"LLM({name}={shown(label)})", given, (name,))


def _options(random: Random) -> Iterator[Case]:
    for name, label, make in _names(CONFIG_NAMES, random):
        config = lambda make=make, name=name: {  # noqa: E731
            "speculative_config": {"method": "pld", name: make()}
        }
        yield _loaded(f"speculative_config {name}={shown(label)}", config, (name,))


def _loaded(label: str, given: Callable[[], dict[str, Any]], names: tuple[str, ...]) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        with stand.neighbour(stand.llm(), outcome):
            llm = outcome.attempt(
                lambda: LLM(stand.target, tokenizer=stand.letters, max_num_seqs=SLOTS, **given())
            )
            if llm is not None:
                with llm:
                    outputs = outcome.attempt(lambda: llm.generate(GOOD, GREEDY)) or []
                stand.note(outputs, outcome)
                if [o.token_ids for o in outputs if o.error is None] != stand.expected[:2]:
                    outcome.blame("wrong", "an accepted name changed the text")

    return Case(label, run, names)


def _hooks() -> Iterator[Case]:
    for name, values in HOOK.items():
        for value in values:
            yield _hook(f"assisted({name}={shown(value)})", {name: value}, {}, name)


def _generates() -> Iterator[Case]:
    for name, value in GENERATE.items():
        yield _hook(f"generate({name}={shown(value)}) with the hook", {}, {name: value}, name)


def _hook(label: str, hook: dict[str, Any], options: dict[str, Any], name: str) -> Case:
    """What transformers refuses itself, in words of its own, is no fault of ours; nor is what a
    user's own criterion raises, which comes out as in plain `generate`."""

    def run(stand: Stand, outcome: Outcome) -> None:
        model, ids = stand.transformers, torch.tensor([GOOD[1]])
        given: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8, **options}
        try:
            plain = model.generate(ids, **given)
        except Exception as error:
            plain = error
        made = outcome.attempt(lambda: assisted(**hook))
        if made is None:
            return
        with stand.neighbour(stand.llm(), outcome):
            try:
                found = model.generate(ids, custom_generate=made, **given)
            except Exception as error:
                if type(error) is type(plain):
                    return
                outcome.attempt(lambda error=error: _again(error))
                return
        outcome.served = True
        both = isinstance(plain, torch.Tensor) and isinstance(found, torch.Tensor)
        if both and not torch.equal(plain, found) and "time" not in name:
            outcome.blame("wrong", "generate wrote another text than without the hook")

    return Case(label, run)


def _again(error: Exception) -> None:
    raise error


def _files(random: Random) -> Iterator[Case]:
    for name, content in FILES.items():
        for option in ("model", "tokenizer", "draft"):
            yield _file(name, content(random), option)


def _file(name: str, content: bytes, option: str) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        path = stand.place() / name
        path.write_bytes(content)
        given: dict[str, Any] = {"model": stand.target, "max_num_seqs": SLOTS}
        if option == "draft":
            given["speculative_config"] = {"method": "sps", "model": str(path)}
        elif option == "tokenizer":
            given |= {"model": str(files.model(stand)), "tokenizer": str(path)}
        else:
            given[option] = str(path)
        with stand.neighbour(stand.llm(), outcome):
            outcome.attempt(lambda: LLM(**given).close())

    return Case(f"{name} as {option}", run, ("checkpoint", name), "refuse")
