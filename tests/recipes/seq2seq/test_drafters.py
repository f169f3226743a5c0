"""The models and what drafts for them: batches, losses, and the whole recipe on a small corpus."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from foretoken import LLM, SamplingParams
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that a second trains."""
    import model

    monkeypatch.setattr(model, "BASE", model.Shape(2, 3, 32, 48, 1))
    monkeypatch.setattr(model, "STUDENT", model.Shape(1, 1, 16, 24, 1))


def batch_of(task_folder: Path) -> tuple[Any, Any]:
    import model
    import pairs

    tokenizer = model.tokenizer_of(task_folder.parent, task_folder.name)
    texts = pairs.read(task_folder.parent, task_folder.name, "train")
    return tokenizer, model.collate(tokenizer, pairs.Batches(texts, 5).batch(3))


@pytest.fixture
def prepared(corpus: Path, tmp_path: Path, small: None) -> Path:
    import prepare

    prepare.prepare(tmp_path, corpus, "corrector")
    return tmp_path


def test_the_loss_is_transformers_own(prepared: Path) -> None:
    """Labels shifted by the decoder's start, padding left out."""
    import model

    tokenizer, batch = batch_of(prepared / "corrector")
    base = model.new(model.BASE, len(tokenizer)).eval()
    labels = batch.goal
    seen = (batch.seen[:, 0, 0] == 0).long()
    theirs = base(input_ids=batch.source, attention_mask=seen, labels=labels).loss
    torch.testing.assert_close(model.loss_of(base, batch), theirs)
    lengths = (labels != model.IGNORED).sum(1)
    assert labels.shape[1] % 16 == 0 and len(set(lengths.tolist())) > 1


def test_a_shallow_decoder_begins_as_the_bases_layers(prepared: Path) -> None:
    """Its encoder, embedding and head are the base's and stay so."""
    import model

    tokenizer, _ = batch_of(prepared / "corrector")
    base = model.new(model.BASE, len(tokenizer))
    two, of_base = model.with_decoder(base, 2), base.state_dict()
    for name, weight in two.state_dict().items():
        source = name.replace("decoder.block.1.", "decoder.block.2.")
        torch.testing.assert_close(weight, of_base[source], rtol=0, atol=0)
    learned = {name for name, p in two.named_parameters() if p.requires_grad}
    assert learned and all(name.startswith("decoder.") for name in learned)
    assert all(p.requires_grad for p in base.parameters())


def test_masks_see_each_other_and_what_is_before_them(prepared: Path) -> None:
    import model
    import prepare

    import drafters

    _, batch = batch_of(prepared / "corrector")
    tokens, sees, where = drafters.blocks(batch, step=4)
    lengths = (batch.goal != model.IGNORED).sum(1)
    for row in range(len(tokens)):
        start, end = int(where[row, 0]), int(where[row, -1]) + 1
        assert 1 <= start <= lengths[row] and end - start == drafters.MASKS
        assert (tokens[row, start:end] == prepare.MASK_ID).all()
        assert tokens[row, :start].tolist() == batch.before[row, :start].tolist()
        assert sees[row, start:end, :end].all() and not sees[row, start:end, end:].any()
        assert torch.equal(sees[row, :start], torch.ones_like(sees[row]).tril()[:start])
    again = drafters.blocks(batch, step=4)
    assert torch.equal(again[2], where) and not torch.equal(drafters.blocks(batch, 5)[2], where)


@pytest.mark.parametrize("share", [0.0, 0.7])
def test_glancing_learns_what_is_not_shown(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """The loss is of the masks that stand for a token, but those that are told, about `share` of
    the wrong ones."""
    import model

    import drafters

    tokenizer, batch = batch_of(prepared / "corrector")
    base = model.new(model.BASE, len(tokenizer)).eval()
    drafter = model.with_decoder(base, 2).eval()
    monkeypatch.setattr(drafters, "GLANCED", share + 0.2)
    torch.manual_seed(0)
    loss = drafters.glancing(base, drafter, lambda: 1.0)(4, batch)

    tokens, sees, where = drafters.blocks(batch, 4)
    goal = F.pad(batch.goal, (0, model.MULTIPLE), value=model.IGNORED).gather(1, where - 1)
    read = model.encoded(base, batch)

    def guessed(tokens: torch.Tensor) -> torch.Tensor:
        states = model.decoded(drafter, batch, read, tokens, sees)
        return torch.stack(
            [model.logits_of(drafter, s)[at] for s, at in zip(states, where, strict=True)]
        )

    first, counted = guessed(tokens).argmax(-1), goal != model.IGNORED
    torch.manual_seed(0)
    chance, told, left = torch.rand(goal.shape), tokens.clone(), []
    for row, at in counted.nonzero().tolist():
        wrong = int(((first[row] != goal[row]) & counted[row]).sum())
        if chance[row, at] * counted[row].sum() < share * wrong:
            told[row, where[row, at]] = goal[row, at]
        else:
            left.append((row, at))
    logits = guessed(told)
    losses = [F.cross_entropy(logits[row, at], goal[row, at]) for row, at in left]
    assert (len(left) < counted.sum()) == (share > 0)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_heads_learn_by_the_librarys_loss(prepared: Path) -> None:
    """At all places of a small batch, up to what a text's end adds: no token is to be written
    there."""
    import model

    import drafters

    tokenizer, batch = batch_of(prepared / "corrector")
    base = model.new(model.BASE, len(tokenizer)).eval().requires_grad_(False)
    heads, loss_of = drafters.module_of("blockwise", base, lambda: 0.0)
    torch.nn.init.normal_(heads.down, std=0.1)
    lesson = lesson_of(base, batch)
    wanted = heads(lesson, Objective({"kl_div": 1.0}))
    torch.testing.assert_close(loss_of(0, batch), wanted, rtol=1e-4, atol=1e-5)


def lesson_of(base: Any, batch: Any) -> Lesson:
    import model

    last = batch.goal.masked_fill(batch.goal == model.IGNORED, 0)
    tokens = torch.cat((batch.before[:, :1], last), 1)  # [B, T + 1]
    real = F.pad(batch.goal != model.IGNORED, (1, 0), value=True)
    states = model.decoded(base, batch, model.encoded(base, batch), tokens)
    weight = real.float()
    weight[:, 0] = 0.0  # the decoder's start isn't written
    unused: Any = None
    return Lesson(
        tokens,
        torch.arange(tokens.shape[1]).expand_as(tokens),
        torch.where(real, 0, -1),
        weight,
        torch.where(real, 8, -1),
        {-1: states},
        lambda states: model.logits_of(base, states),
        unused,
        unused,
        unused,
    )


def test_batches_from_stored_ids_are_those_of_texts(prepared: Path) -> None:
    """Made by this process or another one, and as many as are asked for."""
    import feed
    import model
    import pairs

    made = feed.Made(prepared, "corrector", 6, seed=2)
    tokenizer = model.tokenizer_of(prepared, "corrector")
    texts = pairs.Batches(pairs.read(prepared, "corrector", "train"), 6, seed=2)
    for workers in (0, 1):
        batches = feed.Feed(made, torch.device("cpu"), workers)(5)
        for number in (5, 6):
            wanted = model.collate(tokenizer, texts.batch(number))
            for a, b in zip(next(batches), wanted, strict=True):
                assert torch.equal(a, b)
    text = texts.batch(5)[0][0]
    assert model.ids_of(tokenizer, [text])[0].tolist() == tokenizer(text)["input_ids"]
    long = model.ids_of(tokenizer, ["many words " * 300])[0].tolist()
    assert long == tokenizer("many words " * 300, truncation=True)["input_ids"]
    with pytest.raises(SystemExit, match="is of other texts than"):
        feed.stored_ids(prepared, "corrector", tokenizer, texts.texts[:-1])


def test_weights_to_begin_with(tmp_path: Path) -> None:
    """A drafter's own, where what is shared may be left out; no other one's."""
    import drafters

    def new() -> torch.nn.Module:
        parts = {"up": torch.nn.Linear(2, 2), "lm_head": torch.nn.Linear(2, 2, bias=False)}
        return torch.nn.ModuleDict(parts)

    weights = {name: w for name, w in new().state_dict().items() if name != "lm_head.weight"}
    save_file(weights, tmp_path / "model.safetensors")
    module = new()
    drafters.begin(module, tmp_path)
    assert all(torch.equal(module.state_dict()[name], weights[name]) for name in weights)
    for other in ({**weights, "more": torch.ones(1)}, {"up.bias": torch.ones(2)}):
        save_file(other, tmp_path / "model.safetensors")
        with pytest.raises(SystemExit, match="has other weights than this drafter"):
            drafters.begin(new(), tmp_path)


def test_what_half_precision_cannot_hold_stays_whole(tmp_path: Path) -> None:
    import pack

    with pytest.raises(SystemExit, match=r"big of .* keep it whole"):
        pack.half({"small": torch.ones(2), "big": torch.tensor([1.0, 1e6])}, tmp_path)


def run(monkeypatch: pytest.MonkeyPatch, script: str, *options: str) -> None:
    """A script of the recipe, as from the command line."""
    monkeypatch.setattr(sys, "argv", [script, *options])
    import_module(script).main()


@pytest.mark.parametrize("task", ["corrector", "translator"])
def test_the_whole_recipe(
    corpus: Path, tmp_path: Path, small: None, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every drafter that it makes drafts for the base, whose texts stay what they were."""
    work = str(tmp_path)
    run(monkeypatch, "prepare", "--data", str(corpus), "--work", work)
    run(monkeypatch, "train", "--task", task, "--minutes", "0.02", "--rows", "8", "--work", work)
    run(
        monkeypatch, "drafters", "--task", task, "--minutes", "0.005", "--rows", "8", "--work", work
    )
    folder = tmp_path / task
    configs: dict[str, dict[str, Any]] = {
        name: {"method": "sps", "model": str(folder / name)} for name in ("shallow", "student")
    }
    configs["blockwise"] = {"method": "blockwise", "model": str(folder / "blockwise")}
    configs["block"] = {"method": "masked_block", "model": str(folder / "block")}
    params = SamplingParams(temperature=0, max_tokens=12)
    asked = ["The old man is reading a apple.", "5 Katzen sehen den Hund."]
    plain = [o.outputs[0].token_ids for o in LLM(folder / "base").generate(asked, params)]
    packed, again = tmp_path / "packed", tmp_path / "again"
    run(monkeypatch, "pack", "pack", work, str(packed), "--tasks", task)
    run(monkeypatch, "pack", "unpack", str(packed), str(again), "--tasks", task)
    for name in ("base", "shallow", "student", "blockwise", "block"):
        one, other = (load_file(at / task / name / "model.safetensors") for at in (tmp_path, again))
        assert one.keys() == other.keys()
        for key, weight in one.items():
            assert torch.equal(weight.half().float(), other[key])
        files = {path.name for path in (folder / name).iterdir()}
        assert files == {path.name for path in (again / task / name).iterdir()}
    stored = load_file(packed / task / "shallow" / "model.safetensors")
    assert all(key.startswith("decoder.") for key in stored)
    for config in configs.values():
        llm = LLM(folder / "base", speculative_config=config)
        outputs = llm.generate(asked, params)
        assert [o.outputs[0].token_ids for o in outputs] == plain
        assert sum(o.stats.passes for o in outputs) <= sum(map(len, plain))
