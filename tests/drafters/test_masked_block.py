"""A block of masks: filled as transformers fills it, and served exactly beside ragged sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken.config import build
from foretoken.drafters.blockwise import Blockwise, BlockwiseHeads
from foretoken.drafters.masked_block import MaskedBlock, MaskedModel, read_block
from foretoken.errors import ForetokenError
from foretoken.models.seq2seq.target import target_for
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.testing.checks import serve, texts
from foretoken.testing.models import tiny_pair
from foretoken.trainable.checkpoint import Facts
from foretoken.verify.target_only import TargetOnly
from lessons import randomised
from seq2seq_models import EOS, SOURCES, VOCAB, native_of, related, tiny, written

MASK, SIZE, TOKENS = 2, 4, 14
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)
ENDS = frozenset({EOS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("block")
    model = related(tiny("t5"))
    model.config.foretoken_block = {"mask_token_id": MASK, "size": SIZE}
    model.save_pretrained(path)
    return path


@torch.no_grad()
def filled(model: Any, source: list[int], text: list[int]) -> torch.Tensor:
    """[SIZE, V] by transformers: masks that see the text, the source and each other."""
    tokens = torch.tensor([[*text, *[MASK] * SIZE]])
    sees = torch.ones(tokens.shape[1], tokens.shape[1]).tril()
    sees[-SIZE:, -SIZE:] = 1
    mask = torch.zeros_like(sees, dtype=model.dtype).masked_fill_(sees == 0, -torch.inf)
    read = model.encoder(torch.tensor([source])).last_hidden_state
    states = model.decoder(
        tokens, attention_mask=mask[None, None], encoder_hidden_states=read, use_cache=False
    ).last_hidden_state
    logits: torch.Tensor = model.lm_head(states * model.config.d_model**-0.5)[0, -SIZE:]
    return logits


@torch.inference_mode()
def test_masks_see_each_other_and_the_text_none_of_them() -> None:
    """Texts of different lengths in one pass, then on from what the cache kept."""
    model = related(tiny("t5"))
    target = target_for(native_of(tiny("t5")), 2, 40)
    drafts = MaskedModel(native_of(model), target, MASK, SIZE)
    sequences = [Sequence.start([0], GREEDY, source=source) for source in SOURCES[:2]]
    for sequence in sequences:
        drafts.begin(sequence)
    for more in ([[], [7, 9]], [[4], [8, 3, 5]]):
        for sequence, tokens in zip(sequences, more, strict=True):
            sequence.tokens.extend(tokens)
        logits = drafts.ahead(sequences)
        for row, sequence in enumerate(sequences):
            want = filled(model, SOURCES[row], list(sequence.tokens))
            torch.testing.assert_close(logits[row], want, atol=1e-6, rtol=1e-6)


def test_texts_are_the_targets(folder: Path) -> None:
    expected = [written(tiny("t5"), source, TOKENS)[:TOKENS] for source in SOURCES]
    for slots in (1, 3, 8):
        built = build({"method": "masked_block", "model": str(folder)})
        native = native_of(tiny("t5"))
        outputs = serve(
            native, built.drafter, built.verifier, SOURCES, GREEDY, slots=slots, eos_ids=ENDS
        )
        assert texts(outputs) == expected
        assert sum(output.stats.accepted for output in outputs) > 0


def test_what_cant_draft_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ForetokenError, match="name its folder"):
        MaskedBlock()
    with pytest.raises(ForetokenError, match="fills 4 masks"):
        target_for(native_of(tiny("t5")), 1, 8).bind(MaskedBlock(str(folder), 5))
    with pytest.raises(ForetokenError, match="a decoder-only model"):
        target_for(tiny_pair(61).target, 1, 8).bind(MaskedBlock(str(folder)))
    for given in (
        None,
        {"size": 4},
        {"mask_token_id": True, "size": 4},
        {"mask_token_id": 2, "size": 0},
    ):
        (tmp_path / "config.json").write_text(json.dumps({"foretoken_block": given}))
        with pytest.raises(ForetokenError, match="isn't a block drafter"):
            read_block(tmp_path)
    block = {"mask_token_id": VOCAB, "size": 4}
    (tmp_path / "config.json").write_text(json.dumps({"foretoken_block": block}))
    with pytest.raises(ForetokenError, match=f"has the mask {VOCAB} and the target's vocabulary"):
        target_for(native_of(tiny("t5")), 1, 8).bind(MaskedBlock(str(tmp_path)))


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_heads_read_the_decoders_last_state(name: str) -> None:
    """With one token of opening and with two; heads that begin as the target's own state."""
    native = native_of(tiny(name))
    expected = [written(tiny(name), source, TOKENS)[:TOKENS] for source in SOURCES]
    heads = randomised(BlockwiseHeads(Facts.of(native)), scale=0.03).double()
    for slots, chunk in ((1, 1), (3, 4), (8, 64)):
        outputs = serve(
            native,
            Blockwise(heads),
            TargetOnly(),
            SOURCES,
            GREEDY,
            slots=slots,
            eos_ids=ENDS,
            chunk=chunk,
        )
        assert [output.error for output in outputs] == [None] * len(SOURCES)
        assert texts(outputs) == expected
        assert sum(output.stats.drafted for output in outputs) > 0
