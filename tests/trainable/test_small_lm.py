"""Small language models as trained drafters."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import gguf_files
from foretoken import ForetokenError
from foretoken.models.load import load_model
from foretoken.testing import logits_after
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.losses import Objective
from foretoken.trainable.small_lm import TrainedLM
from lessons import everywhere, random_lesson
from stored_models import with_code, written


def test_chances(checkpoints: tuple[Path, Path]) -> None:
    """Where the text is drawn from the target's distribution, min(1, q / p) has the mean sum(min(p,
    q))."""
    lesson = random_lesson(checkpoints[0], 0.8)
    drafter = TrainedLM(Facts(0, 97, 0), model=str(checkpoints[1]))
    q = (drafter.lm(lesson.tokens[:1, :20]).logits / 0.8).softmax(-1)[0]
    p = (lesson.head(lesson.hidden[-1])[0, :20] / 0.8).softmax(-1)
    mean = torch.zeros(19)
    for token in range(97):
        tokens = lesson.tokens.clone()
        tokens[0, 7] = token  # the draft after place 6
        chance = drafter.token_acceptance(
            dataclasses.replace(lesson, tokens=tokens), everywhere(lesson)
        )[0, 6]
        mean[6] += p[6, token] * chance
    assert mean[6].item() == pytest.approx(torch.minimum(p, q)[6].sum().item(), rel=1e-4)
    chances = drafter.token_acceptance(
        dataclasses.replace(lesson, temperature=0.0), everywhere(lesson)
    )
    right = drafter.lm(lesson.tokens[:1, :20]).logits[0].argmax(-1)[:-1] == lesson.tokens[0, 1:20]
    assert torch.equal(chances[0, :19].bool(), right) and not chances[:, [19, 39]].any()
    others = lesson.records.clone()
    others[:, 20:] = -1  # padding
    whole = drafter.token_acceptance(lesson, everywhere(lesson))
    alone = drafter.token_acceptance(
        dataclasses.replace(lesson, records=others), everywhere(lesson)
    )
    assert (whole[:, :39] > 0).sum() == 2 * 38 and not whole[:, 19].any()
    assert (alone[:, :19] > 0).all() and not alone[:, 19:].any()
    at = torch.zeros_like(others, dtype=torch.bool)
    at[0, 6] = at[1, 3] = at[1, 39] = True
    heads = Counter[int]()
    drafter.head = lambda states, head=drafter.head: (heads.update([len(states)]), head(states))[1]
    assert torch.allclose(drafter.token_acceptance(lesson, at), whole * at)
    assert heads == {2: 1}  # no logits of other places


def test_the_loss_by_hand(checkpoints: tuple[Path, Path]) -> None:
    """At every token but a text's first: the distribution after the one before it against the
    target's there, and the token itself, weighed by the token."""
    lesson = random_lesson(checkpoints[0], 0.0)
    lesson = dataclasses.replace(lesson, weight=torch.where(lesson.weight > 0, 1.0, 0.25))
    drafter = TrainedLM(Facts(0, 97, 0), model=str(checkpoints[1]))
    goal = Objective({"kl_div": 0.5, "nll": 2.0})
    total = weight = torch.zeros(())
    with torch.no_grad():
        for row in range(2):
            for first in (0, 20):
                tokens = lesson.tokens[row, first : first + 20]
                mine = drafter.lm(tokens[None]).logits[0].log_softmax(-1)
                theirs = lesson.head(lesson.hidden[-1])[row, first : first + 20].log_softmax(-1)
                for n in range(1, 20):
                    p, q = theirs[n - 1], mine[n - 1]
                    each = 0.5 * (p.exp() * (p - q)).sum() - 2.0 * q[tokens[n]]
                    total = total + lesson.weight[row, first + n] * each
                    weight = weight + lesson.weight[row, first + n]
        assert drafter(lesson, goal).item() == pytest.approx((total / weight).item(), rel=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3_text"])
def test_what_is_trained_is_what_is_served(
    checkpoints: tuple[Path, Path], tmp_path: Path, family: str
) -> None:
    """Windows of each kind of layer and the soft cap of logits, along texts that are packed."""
    lesson = random_lesson(checkpoints[0], 0.8)
    numbers = {} if family == "llama" else {"sliding_window": 4}
    if family.startswith("gemma"):
        numbers |= {"layer_types": ["sliding_attention", "full_attention"]}
        numbers |= {"final_logit_softcapping": 3.0}
    drafter = TrainedLM(Facts(0, 97, 0), model=str(written(tmp_path, family, **numbers)))
    with torch.no_grad():
        logits, served = drafter.head(drafter.states(lesson)), drafter.native()
    for row, records in enumerate(lesson.records.tolist()):
        for record in set(records) - {-1}:
            places = [at for at, one in enumerate(records) if one == record]
            want = logits_after(served, lesson.tokens[row, places].tolist())
            torch.testing.assert_close(logits[row, places[-1]], want, rtol=0, atol=2e-3)


@pytest.mark.parametrize("ends", [[5, 7], 7, None])
def test_texts_end_where_they_did(
    ends: list[int] | int | None, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """Also where the model that it began as says so in its generation_config.json alone: what is
    trained may be a target that is served."""
    began = shutil.copytree(checkpoints[0], tmp_path / "began")
    if ends is not None:
        (began / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    TrainedLM(Facts(0, 97, 0), model=str(began)).save(tmp_path / "own", {})
    found = load_model(tmp_path / "own").eos_ids
    assert found == load_model(began).eos_ids
    assert ends is None or found == frozenset([ends] if isinstance(ends, int) else ends)


def test_texts_of_a_gguf_file_end_where_they_did(tmp_path: Path) -> None:
    """Its metadata name ends of texts and of turns, of which transformers reads one."""
    began = gguf_files.written(tmp_path / "a.gguf")
    TrainedLM(Facts(0, gguf_files.VOCAB, 0), model=str(began)).save(tmp_path / "own", {})
    found = load_model(tmp_path / "own").eos_ids
    assert found == load_model(began).eos_ids == {gguf_files.VOCAB - 2, gguf_files.VOCAB - 1}


NUMBERS = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


def test_a_new_embedding_is_the_targets_without_its_mean(checkpoints: tuple[Path, Path]) -> None:
    """On as many of its directions as there is room for, as large as new weights are."""
    target = load_model(checkpoints[0], backend="plain")
    drafter = TrainedLM(Facts.of(target), **NUMBERS)
    drafter.copy_from(target)
    weight = drafter.lm.get_input_embeddings().weight.detach()
    assert weight.mean(0).abs().max() < 1e-6
    assert float(weight.std()) == pytest.approx(drafter.lm.config.initializer_range, rel=1e-3)


def test_an_embedding_that_is_the_head_too_is_written_once(tmp_path: Path) -> None:
    """Under the name by which others look for it."""
    TrainedLM(Facts(32, 97, 2), **NUMBERS).save(tmp_path, {})
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names


def test_what_is_refused(checkpoints: tuple[Path, Path]) -> None:
    """Another vocabulary, and numbers that no configuration has."""
    with pytest.raises(ForetokenError, match="vocabulary of 97 tokens and the target of 5"):
        TrainedLM(Facts(8, 5, 1), model=str(checkpoints[1]))
    with pytest.raises(ForetokenError, match="Did you mean 'hidden_size'"):
        TrainedLM(Facts(8, 5, 1), hidden_sise=3)


def test_a_model_that_its_own_code_reads_is_refused(tmp_path: Path) -> None:
    """By the reason, and not with an option that wouldn't help: what is trained runs natively."""
    with pytest.raises(ForetokenError, match="doesn't run natively; begin with another") as raised:
        TrainedLM(Facts(64, 97, 2), model=str(with_code(tmp_path / "own")))
    assert "trust" not in str(raised.value)
