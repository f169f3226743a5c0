"""Draft models whose head knows a part of the tokens: cheaper drafts of the same texts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType

import block_matrices
import gguf_files
import stored_models
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.models.load import generation_ends, load_model
from foretoken.models.native.backends import blocks
from foretoken.models.native.backends.blocks import KINDS
from foretoken.models.native.build import rows_of
from foretoken.testing import (
    check_distribution,
    check_greedy,
    check_independence,
    logits_after,
    related,
    tiny_pair,
)
from foretoken.testing.checks import PROMPTS
from foretoken.verify.speculative import Speculative

FEW, ALL = 60, 97
METHODS: dict[str, dict[str, Any]] = {
    "sps": {"num_speculative_tokens": 2},
    "specinfer": {"widths": (2, 1)},
    "mcsd": {"widths": (2, 1)},
    "cs_drafting": {"k_matrix": ((1, 1), (0, 1))},
    "suffix+sps": {"num_speculative_tokens": 2, "max_cached_tokens": 0},
}


@cache
def small(vocab_size: int = ALL) -> TemporaryDirectory[str]:
    """A draft model of `tiny_pair`'s target as a checkpoint."""
    folder, pair = TemporaryDirectory(), tiny_pair(vocab_size, width=8 if vocab_size < 9 else 32)
    related(pair.transformers, 0.02).save_pretrained(folder.name)
    return folder


def drafter(method: str, size: int, vocab_size: int = ALL) -> Any:
    config = {"method": method, "model": small(vocab_size).name, "draft_vocab_size": size}
    return build({**config, **METHODS[method]})


@pytest.mark.parametrize("method", METHODS)
def test_texts_are_plain_decodings(method: str) -> None:
    """At temperature 0 in float64, alone and among others, with drafts that are accepted."""
    for slots in (1, 3):
        rule = drafter(method, FEW).verifier
        outputs = check_greedy(
            lambda _: drafter(method, FEW).drafter,
            rule,
            tiny_pair(),
            slots=slots,
            prompts=PROMPTS[:3],
        )
        assert sum(output.stats.accepted for output in outputs)


def test_a_seeds_text_does_not_depend_on_company() -> None:
    check_independence(lambda _: drafter("sps", FEW).drafter, Speculative(), tiny_pair())


@pytest.mark.parametrize("method", METHODS)
def test_the_distribution_is_plain_decodings(method: str) -> None:
    """By enumeration, where half of the tokens are never drafted."""
    check_distribution(
        lambda _: drafter(method, 2, 4).drafter,
        drafter(method, 2, 4).verifier,
        tiny_pair(4, width=8),
        SamplingParams(temperature=0.8),
        2,
        rows=1,
    )


@pytest.mark.parametrize(
    "params", [{"top_k": 3, "presence_penalty": 0.6}, {"allowed_token_ids": [2, 3]}]
)
def test_the_proposal_is_what_was_drawn_from(params: dict[str, Any]) -> None:
    """Also under truncation wider than the head, and where the head knows nothing that may be
    written."""
    given = SamplingParams(temperature=0.9, **params)
    check_distribution(
        lambda _: drafter("sps", 2, 4).drafter,
        Speculative(),
        tiny_pair(4, width=8),
        given,
        2,
        rows=1,
    )


@pytest.mark.parametrize("method", [*METHODS, "llmcad", "auto:sps,pld"])
def test_every_method_with_a_draft_model_takes_its_size(method: str) -> None:
    """Its small model then predicts so many tokens."""
    config = {"method": method, "model": small().name, "draft_vocab_size": FEW}
    llm = LLM(tiny_pair().target, speculative_config=config, max_model_len=64)
    drafting = llm.engine.drafter
    [model] = [lm for part in (drafting, *drafting.parts) for lm in part.small_models]
    assert int(logits_after(model, [1, 2, 3]).isfinite().sum()) == FEW


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_rows_of_blocks(kind: str, tied: bool, tmp_path: Path) -> None:
    """Bit for bit the logits of the whole head; all others are -inf, and less is read."""
    numbers = {"tie_word_embeddings": tied, "hidden_size": 256}
    file = gguf_files.written(tmp_path / "a.gguf", "llama", GGMLQuantizationType[kind], **numbers)
    for backend in ("blocks", "q4"):
        _same_rows(file, backend)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_of_blocks(kind: str) -> None:
    """Their products have the bits that they have in the whole matrix."""
    whole, ids = block_matrices.matrix(kind, 90, 512), torch.tensor([0, 1, 5, 40, 41, 77, 89])
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(0))
    found = blocks.product([rows_of(whole, ids)], None)(x)
    assert torch.equal(found, blocks.product([whole], None)(x)[:, ids])


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_rows_of_numbers(family: str, tmp_path: Path) -> None:
    """Also of a family that caps its logits."""
    folder = stored_models.written(tmp_path / "model", family, eos_token_id=90)
    _same_rows(folder, "plain")


def _same_rows(source: Path, backend: str) -> None:
    whole = load_model(source, backend=backend, device="cpu")
    part = load_model(source, backend=backend, device="cpu", draft_vocab_size=20)
    logits = logits_after(part, stored_models.IDS)
    known = [i for i in range(whole.vocab_size) if bool(logits[i].isfinite())]
    ends = whole.eos_ids | generation_ends(source)
    assert known == sorted({*ends, *[i for i in range(99) if i not in ends][: 20 - len(ends)]})
    meant = logits_after(whole, stored_models.IDS)
    torch.testing.assert_close(logits[known], meant[known], rtol=0, atol=0)
    assert part.bytes_read < whole.bytes_read and part.vocab_size == whole.vocab_size


def test_ends_of_text_can_be_drafted(tmp_path: Path) -> None:
    """Whatever their ids are."""
    folder = stored_models.written(tmp_path / "model", eos_token_id=[90, 5])
    model = load_model(folder, device="cpu", draft_vocab_size=4)
    finite = logits_after(model, stored_models.IDS).isfinite().nonzero()[:, 0]
    assert finite.tolist() == [0, 1, 5, 90]


def test_a_copy_of_the_target(tmp_path: Path) -> None:
    """`substitute` drafts fewer tokens too, and the text stays the same."""
    folder = str(stored_models.written(tmp_path / "model"))
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    config = {"method": "substitute", "draft_backend": "q8", "draft_vocab_size": 50}
    plain = LLM(folder, device="cpu", max_model_len=64)
    drafting = LLM(folder, device="cpu", max_model_len=64, speculative_config=config)
    [expected], [found] = (llm.generate([[3, 50, 7]], params) for llm in (plain, drafting))
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    [copy] = drafting.engine.drafter.small_models
    assert int(logits_after(copy, [3, 50, 7]).isfinite().sum()) == 50


@pytest.mark.parametrize("size", [0, 1, 97, 10**9])
def test_a_size_that_makes_no_sense(size: int, tmp_path: Path) -> None:
    folder = stored_models.written(tmp_path / "model")
    with pytest.raises(ForetokenError, match=rf"draft_vocab_size is {size}; .* 1, .* below 97"):
        load_model(folder, device="cpu", draft_vocab_size=size)


def test_what_cannot_be_reduced() -> None:
    """A model that is loaded, one that transformers runs, and one that learns."""
    pair = tiny_pair()
    config: dict[str, Any] = {"method": "sps", "model": pair.draft, "draft_vocab_size": 9}
    with pytest.raises(ForetokenError, match=r"draft_vocab_size is 9, and .* loaded already"):
        LLM(pair.target, speculative_config=config, max_model_len=64)
    with pytest.raises(ForetokenError, match=r"draft_vocab_size is for .* 'transformers'"):
        load_model(small().name, model_impl="transformers", draft_vocab_size=9)
    config |= {"method": "online", "model": small().name}
    with pytest.raises(ForetokenError, match="whole vocabulary; leave draft_vocab_size out"):
        LLM(pair.target, speculative_config=config, max_model_len=64)
