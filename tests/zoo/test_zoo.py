"""The bundled models load, stop and stay small; the bundled prompts are complete."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from foretoken import zoo
from foretoken.zoo.shape import Shape, parameters_read

transformers = pytest.importorskip("transformers")
SIX = {"chat", "translation", "summarization", "qa", "math", "rag"}


def prompts() -> list[dict]:
    return [json.loads(line) for line in zoo.prompts_path().read_text("utf-8").splitlines()]


def test_names_and_paths() -> None:
    """Each name has a folder; an unknown one names its neighbour."""
    assert zoo.names() == [
        "mini",
        "mini-dflash",
        "mini-draft",
        "mini-eagle",
        "mini-eagle3",
        "mini-hydra",
        "mini-medusa",
        "mini-mtp",
        "smollm2-eagle3",
        "smollm2-hydra",
        "smollm2-medusa",
        "smollm2-mtp",
    ]
    assert (zoo.path("mini") / "model.safetensors").exists()
    with pytest.raises(ValueError, match="Did you mean 'mini-draft'"):
        zoo.path("mini_draft")


def test_bundle_is_small_and_names_no_machine() -> None:
    """At most 90 MiB, and no path of the machine that made it."""
    files = [f for f in zoo.path("mini").parent.rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) <= 90 * 2**20
    for file in files:
        if file.suffix in {".json", ".md", ".jinja"} and file.name != "tokenizer.json":
            text = file.read_text("utf-8")
            assert "/tmp/" not in text and "/work" not in text and "/home/" not in text


def test_drafter_fits_its_target() -> None:
    """The same tokenizer, and at most a tenth of the parameters that a pass reads."""
    draft, target = (zoo.path(n) for n in ("mini-draft", "mini"))
    assert (draft / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    read = [
        parameters_read(Shape.of(json.loads((f / "config.json").read_text())))
        for f in (draft, target)
    ]
    assert read[0] <= read[1] / 10


def test_target_answers_and_stops() -> None:
    """Greedy answers to short questions end by themselves."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(zoo.path("mini"))
    model = transformers.AutoModelForCausalLM.from_pretrained(zoo.path("mini"), dtype=torch.float32)
    assert len(tokenizer) == model.config.vocab_size == 8192
    asked = [p["turns"][0] for p in prompts() if p["task"] in ("chat", "translation")][:24:2]
    stopped = 0
    for text in asked:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt"
        )["input_ids"]
        said = model.generate(ids, max_new_tokens=48, do_sample=False)[0, ids.shape[1] :]
        stopped += int(said[-1] == tokenizer.eos_token_id)
    assert stopped >= len(asked) - 1


def test_chat_template_holds_several_turns() -> None:
    """Turns in order, each answer ended; text comes back from its tokens."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(zoo.path("mini"))
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")]
    text = tokenizer.apply_chat_template(
        [{"role": r, "content": c} for r, c in turns], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|startoftext|><|user|>Hi<|assistant|>Hello.<|endoftext|><|user|>Bye<|assistant|>"
    )
    assert tokenizer.decode(tokenizer.encode("Größe 123\n  def f(x):")) == "Größe 123\n  def f(x):"


def test_prompts_are_complete() -> None:
    """Every task has at least ten prompts, ids are unique, long tasks have long texts."""
    found = prompts()
    assert len({p["id"] for p in found}) == len(found)
    assert set(Counter(p["task"] for p in found)) == {*SIX, "grammar"}
    assert min(Counter(p["task"] for p in found).values()) >= 10
    for p in found:
        assert p["turns"] and all(isinstance(t, str) and t.strip() for t in p["turns"])
        if p["task"] in ("summarization", "rag"):
            assert 80 <= len(p["turns"][0].split()) <= 250
