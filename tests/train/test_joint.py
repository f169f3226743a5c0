"""Small drafters trained for a target: ordinary checkpoints, estimates, their own text, pairs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.models.load import load_model
from foretoken.train import joint
from foretoken.train.boost import Former
from foretoken.train.data import Conversation, sha_of
from foretoken.train.frozen import Frozen
from foretoken.train.own import Own
from foretoken.train.recipe import read_recipe
from foretoken.train.records import Records
from foretoken.train.run import Trial, make
from foretoken.train.sources import answered, named, steps, texts
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.head_losses import heads_loss
from foretoken.trainable.lesson import Lesson, estimate
from foretoken.trainable.losses import Objective, exponential, getting_there
from foretoken.trainable.small_lm import TrainedLM

pytest.importorskip("accelerate")

WORDS = ["the sea", "a house", "one night", "red wine", "cold bread", "my friend", "so long"]
ASKED = [Conversation(({"role": "user", "content": word},), raw=True) for word in WORDS]
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 4096,
}
SMALL: dict[str, Any] = {
    "length": 64,
    "max_tokens": 24,
    "held": 2,
    "rows": 2,
    "steps": 10,
    "evaluate_every": 5,
    "patience": 9,
    "distinct": 0.0,
    "lr": 3e-3,
    "shape": SHAPE,
}


def run(
    target: Path, out: Path, source: str = "target", after: Any = (), **changes: Any
) -> tuple[Trial, list[float]]:
    losses: list[float] = []
    trial = make(
        "sps",
        str(target),
        ASKED,
        read_recipe("sps", {**SMALL, **changes}),
        out,
        source=source,
        after=after,
        every=changes.pop("every", 60.0),
        show=False,
        say=lambda now: losses.append(now.loss),
    )
    return trial, losses


def test_a_checkpoint_like_any_other(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """The loss falls, the estimate of a chain is what is served, transformers reads the folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trial, losses = run(checkpoints[0], tmp_path / "out", steps=30)
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    expected, served = trial.expected.acceptance_length, trial.served.mean_acceptance_length
    assert expected == pytest.approx(served, rel=1e-3) and served > 1
    assert AutoTokenizer.from_pretrained(tmp_path / "out").vocab_size
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    ours = TrainedLM(Facts(0, theirs.config.vocab_size, 0), model=str(tmp_path / "out")).lm
    tokens = torch.arange(12)[None]
    assert torch.equal(theirs(tokens).logits, ours(tokens).logits)
    config = {"method": "sps", "model": tmp_path / "out"}
    params = SamplingParams(temperature=0, max_tokens=16)
    [said] = LLM(checkpoints[0], speculative_config=config).generate("the sea", params)
    assert said.token_ids == LLM(checkpoints[0]).generate("the sea", params)[0].token_ids


def test_a_files_own_texts(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """In a new folder; the estimate is still that of the target's own answers."""
    said = [dataclasses.replace(each, answer="one two three " * 3) for each in ASKED]
    out = tmp_path / "new" / "out"
    trial = make(
        "sps", str(checkpoints[0]), said, read_recipe("sps", SMALL), out, source="fixed", show=False
    )
    expected, served = trial.expected, trial.served
    assert expected.tokens == served.tokens > 0
    assert expected.acceptance_length == pytest.approx(served.mean_acceptance_length, rel=1e-3)


def test_held_out_texts_where_all_answers_loop(checkpoints: tuple[Path, Path]) -> None:
    """Better the file's texts than none."""
    llm, recipe = LLM(str(checkpoints[0])), read_recipe("sps", {**SMALL, "distinct": 2.0})
    held = Records.of([([5, 6], [7, 8]), ([9], [10])], 4, 97)
    assert answered(llm, held, recipe, 0) is held
    some = answered(llm, held, read_recipe("sps", {**SMALL, "distinct": 0.0}), 0)
    assert [some.prompt(i) for i in range(len(some))] == [[5, 6], [9]]


def test_goes_on_with_its_own_texts(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Stopped and gone on with, by what it writes itself: the very weights of one run."""
    settings = {"own_every": 4, "own_texts": 3, "shape": {"model": str(checkpoints[1])}}
    run(checkpoints[0], tmp_path / "one", "target+drafter", **settings)
    written = sorted(path.name for path in (tmp_path / "one" / "own").iterdir())
    assert written == ["own-00000.npz", "own-00001.npz", "own-00002.npz"]

    class Stopped(Exception):
        pass

    def stop(now: Any) -> None:
        if now.step == 7:
            raise Stopped

    recipe = read_recipe("sps", {**SMALL, **settings})
    for say in (stop, lambda now: None):
        try:
            make(
                "sps",
                str(checkpoints[0]),
                ASKED,
                recipe,
                tmp_path / "two",
                every=0.0,
                show=False,
                source="target+drafter",
                say=say,
            )
        except Stopped:
            assert (tmp_path / "two" / "resume").exists()
    nothing: Any = None
    asked = Records.of([([1], [2])], 4, 97)
    own = Own(nothing, nothing, asked, tmp_path / "none", SamplingParams(), 3, 4)
    with pytest.raises(ForetokenError, match=r"own-00001.npz is missing"):
        own(6)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_texts_at_another_temperature(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """They are drawn from as often as those at the recipe's, which alone are held out."""
    llm, asked = LLM(str(checkpoints[0])), ASKED * 2
    recipe, source = read_recipe("sps", SMALL), "target+target@1.5"
    found = texts(llm, asked, recipe, tmp_path, source, seed=0, show=False)
    assert list(found) == ["target", "target@1.5"]
    greedy = texts(llm, asked, recipe, tmp_path, "target", seed=0, show=False)["target"]
    assert sha_of(found["target"]) == sha_of(greedy) != sha_of(found["target@1.5"])
    warm = read_recipe("sps", {**SMALL, "temperature": 1.5})
    alone = texts(llm, asked, warm, tmp_path / "warm", "target", seed=0, show=False)["target"]
    assert sha_of(found["target@1.5"]) == sha_of(alone)
    nothing: Any = None
    parts = steps(found, source, nothing, llm, recipe, tmp_path, 0)(0)
    assert [sha_of(part) for part in parts] == [sha_of(part) for part in found.values()]
    with pytest.raises(ForetokenError, match="target@TEMPERATURE"):
        named("target@warm")


def test_what_is_refused(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ForetokenError, match="learns nothing from its own tokens"):
        run(checkpoints[0], tmp_path / "a", "drafter", objective={"nll": 1.0})
    with pytest.raises(ForetokenError, match="Did you mean 'drafter'"):
        named("target+drafters")
    with pytest.raises(ForetokenError, match="vocabulary of 97 tokens and the target of 5"):
        TrainedLM(Facts(8, 5, 1), model=str(checkpoints[1]))
    with pytest.raises(ForetokenError, match="Did you mean 'hidden_size'"):
        TrainedLM(Facts(8, 5, 1), hidden_sise=3)
    recipe = read_recipe("medusa", {**SMALL, "shape": {"num_heads": 1}})
    with pytest.raises(ForetokenError, match="can't write texts by itself"):
        make("medusa", str(checkpoints[0]), ASKED, recipe, tmp_path / "b", source="drafter")


def lesson_of(checkpoints: tuple[Path, Path], temperature: float) -> Lesson:
    """Random text in two records, two rows."""
    from foretoken.train.batches import collate

    random = torch.Generator().manual_seed(0)
    texts = [torch.randint(0, 97, (20,), generator=random).tolist() for _ in range(4)]
    records = Records.of([(text[:6], text[6:]) for text in texts], 16, 97)
    frozen = Frozen(load_model(checkpoints[0], backend="plain"), 8, temperature)
    return frozen.lesson(collate(records, [[0, 1], [2, 3]], 40, 0.0), (-1,))


def test_chances(checkpoints: tuple[Path, Path]) -> None:
    """Where the text is drawn from the target's distribution, min(1, q / p) has the mean sum(min(p,
    q))."""
    lesson = lesson_of(checkpoints, 0.8)
    drafter = TrainedLM(Facts(0, 97, 0), model=str(checkpoints[1]))
    q = (drafter.lm(lesson.tokens[:1, :20]).logits / 0.8).softmax(-1)[0]
    p = (lesson.head(lesson.hidden[-1])[0, :20] / 0.8).softmax(-1)
    mean = torch.zeros(19)
    for token in range(97):
        tokens = lesson.tokens.clone()
        tokens[0, 7] = token  # the draft after place 6
        chance = drafter.chances(dataclasses.replace(lesson, tokens=tokens))[0, 6]
        mean[6] += p[6, token] * chance
    assert mean[6].item() == pytest.approx(torch.minimum(p, q)[6].sum().item(), rel=1e-4)
    chances = drafter.chances(dataclasses.replace(lesson, temperature=0.0))
    right = drafter.lm(lesson.tokens[:1, :20]).logits[0].argmax(-1)[:-1] == lesson.tokens[0, 1:20]
    assert torch.equal(chances[0, :19].bool(), right) and not chances[:, [19, 39]].any()


def test_the_estimate_of_drawn_chains(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """At temperature 1 the walk over sampled text is what serving takes, up to chance."""
    trial, _ = run(
        checkpoints[0],
        tmp_path / "out",
        temperature=1.0,
        held=3,
        max_tokens=40,
        shape={"model": str(checkpoints[1])},
    )
    expected, served = trial.expected.acceptance_length, trial.served.mean_acceptance_length
    assert expected == pytest.approx(served, rel=0.2) and expected > 1.5


def test_a_pair(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """The second learns what the first misses; both are served in one tree, as estimated."""
    first, _ = run(checkpoints[0], tmp_path / "one")
    second, _ = run(checkpoints[0], tmp_path / "two", after=[tmp_path / "one"])
    expected, served = second.expected.acceptance_length, second.served.mean_acceptance_length
    assert expected == pytest.approx(served, rel=0.05)
    assert expected >= first.expected.acceptance_length
    lesson = lesson_of(checkpoints, 0.0)
    former = TrainedLM(Facts(0, 97, 0), model=str(tmp_path / "one"))
    weight, right = Former([former], 0.25).weigh(lesson), former.chances(lesson)[:, :-1]
    counted = lesson.weight[:, 1:] > 0
    assert torch.equal(weight[:, 1:][counted] == 0.25, right[counted] == 1)
    assert json.loads((tmp_path / "two" / "training.json").read_text())["after"]


def test_target_and_heads_together(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """A new target, near the old one, whose texts its heads don't change; the card says both."""
    heads = read_recipe("medusa", {**SMALL, "shape": {"num_heads": 2}, "steps": 2})
    make("medusa", str(checkpoints[0]), ASKED, heads, tmp_path / "heads", show=False)
    shape = {"heads": str(tmp_path / "heads")}
    recipe = read_recipe("medusa2", {**SMALL, "shape": shape, "lr": 1e-3, "steps": 12})
    losses: list[float] = []
    out = tmp_path / "out"
    trial = joint.make(
        str(checkpoints[0]), ASKED, recipe, out, show=False, say=lambda now: losses.append(now.loss)
    )
    assert losses[-1] < losses[0]
    first = load_file(tmp_path / "heads" / "model.safetensors")
    again = load_file(out / "heads" / "model.safetensors")
    assert first.keys() == again.keys()
    assert not all(torch.equal(first[key], again[key]) for key in first)
    old, new = (load_file(path / "model.safetensors") for path in (checkpoints[0], out / "target"))
    assert not all(torch.equal(old[key], new[key]) for key in new)
    card = (out / "README.md").read_text()
    assert "is a new target" in card and f"{trial.expected.acceptance_length:.3f}" in card
    config = {"method": "medusa", "model": out / "heads"}
    params = SamplingParams(temperature=0, max_tokens=16)
    [said] = LLM(out / "target", speculative_config=config).generate("the sea", params)
    assert said.token_ids == LLM(out / "target").generate("the sea", params)[0].token_ids
    with pytest.raises(ForetokenError, match="not from 'fixed'"):
        joint.make(str(checkpoints[0]), ASKED, recipe, out, source="fixed")


def test_weights_of_places() -> None:
    """exp(-i / gamma), and how often a draft gets there."""
    assert exponential(4.0) ** 4 == pytest.approx(torch.tensor(-1.0).exp().item())
    with pytest.raises(ForetokenError, match="gamma is 0"):
        exponential(0.0)
    there = getting_there(torch.tensor([0.5, 0.5, 1.0]))
    assert there.tolist() == [1.0, 0.5, 0.25]


def test_dynamic_weights(checkpoints: tuple[Path, Path]) -> None:
    """A head's loss counts as often as the heads before it, after the same root, are right."""
    lesson = lesson_of(checkpoints, 0.0)
    torch.manual_seed(0)
    states = torch.randn(2, 40, 3, 97)

    def logits(x: Tensor) -> Tensor:
        return x

    found = heads_loss(lesson, states, logits, [], Objective({"nll": 1.0}, 1.0, dynamic=0.5))
    total = torch.zeros(())
    for b in range(2):
        for place in range(40):
            there = torch.ones(())
            for head in range(3):
                token = place + 2 + head
                if token >= 40 or lesson.records[b, token] != lesson.records[b, place]:
                    break
                loss = -states[b, place, head].log_softmax(-1)[lesson.tokens[b, token]]
                total += lesson.weight[b, token] * loss * there**0.5
                there = there * (-loss).exp()
    assert found.item() == pytest.approx((total / lesson.weight.sum()).item(), rel=1e-4)
    assert estimate(lesson.room, torch.zeros(2, 40, 3)).acceptance_length == 1
