"""A draft model whose encoder is the target's takes the states that the target has computed."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretoken.config import build
from foretoken.models.drafting.draft_model import DraftModel
from foretoken.models.feed import chain_feed
from foretoken.models.load import load_model
from foretoken.models.seq2seq.encoder import Encoder, Lent, Origin
from foretoken.models.seq2seq.model import Seq2Seq
from foretoken.models.seq2seq.stack import Stack
from foretoken.models.seq2seq.target import target_for
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.testing.checks import serve, texts
from seq2seq_models import CPU, EOS, NAMES, SOURCES, native_of, related, tiny, written

TOKENS = 14
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)
ENDS = frozenset({EOS})


def shallow(name: str) -> Any:
    """The encoder and the embedding of a tiny model under one layer of its decoder, with noise."""
    model = copy.deepcopy(tiny(name))
    model.config.foretoken_block = {"mask_token_id": 2, "size": 4}
    inner = related(model).get_decoder()
    stack, layers = model.get_decoder(), "block" if name.startswith("t5") else "layers"
    setattr(stack, layers, getattr(inner, layers)[:1])
    setattr(model.config, "num_decoder_layers" if layers == "block" else "decoder_layers", 1)
    return model


@pytest.fixture
def folders(request: Any, tmp_path: Path) -> tuple[Path, Path]:
    """Of a target and of a draft model with its encoder."""
    name = getattr(request, "param", "t5")
    tiny(name).save_pretrained(tmp_path / "base")
    shallow(name).save_pretrained(tmp_path / "shallow")
    return tmp_path / "base", tmp_path / "shallow"


def loaded(folder: Path) -> Seq2Seq:
    model = load_model(folder, dtype=torch.float64, device=CPU)
    assert isinstance(model, Seq2Seq)
    return model


def changed(folder: Path, name: str) -> None:
    """The last number of a tensor is another one."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights[name].view(-1)[-1] += 1e-3
    save_file(weights, file, {"format": "pt"})


def shares(target: Path, draft: Path) -> bool:
    reader = DraftModel(draft, target_for(loaded(target), 1, 40)).lm
    assert isinstance(reader, Seq2Seq)
    return isinstance(reader.encoder, Lent)


def both(
    folders: tuple[Path, Path],
    slots: int,
    method: str = "sps",
    options: Mapping[str, Any] = MappingProxyType({}),
    **params: Any,
) -> tuple[int, Any]:
    """How many sources were encoded, and what was written to all of them."""
    base, draft = folders
    built = build({"method": method, "model": str(draft), **options})
    wanted = SamplingParams(**{"temperature": 0, "max_tokens": TOKENS, **params})
    with patch.object(Stack, "encode", autospec=True, side_effect=Stack.encode) as encode:
        outputs = serve(
            loaded(base),
            built.drafter,
            built.verifier,
            SOURCES,
            wanted,
            slots=slots,
            eos_ids=ENDS,
        )
    assert [output.error for output in outputs] == [None] * len(SOURCES)
    assert sum(output.stats.drafted for output in outputs) > 0
    return sum(len(call.args[3]) for call in encode.call_args_list), outputs


@pytest.mark.parametrize("folders", NAMES, indirect=True)
def test_a_source_is_encoded_once_for_both(folders: tuple[Path, Path], request: Any) -> None:
    name = request.node.callspec.params["folders"]
    expected = [written(tiny(name), source, TOKENS)[:TOKENS] for source in SOURCES]
    for slots in (1, 3, 8):
        encoded, outputs = both(folders, slots)
        assert encoded == len(SOURCES)
        assert texts(outputs) == expected


@pytest.mark.parametrize("method", ["masked_block", "sequoia", "cascade"])
def test_other_methods_share_it_too(folders: tuple[Path, Path], method: str) -> None:
    options = {"tree": "paper"} if method == "sequoia" else {}  # others time passes over a source
    expected = [written(tiny("t5"), source, TOKENS)[:TOKENS] for source in SOURCES]
    encoded, outputs = both(folders, 3, method, options)
    assert encoded == len(SOURCES)
    assert texts(outputs) == expected


def test_samples_of_a_request_share_it_too(folders: tuple[Path, Path]) -> None:
    encoded, _ = both(folders, 3, n=3, temperature=1.0, seed=1)
    assert encoded == len(SOURCES)


@pytest.mark.parametrize(
    "tensor",
    [
        "encoder.final_layer_norm.weight",
        "encoder.block.1.layer.1.DenseReluDense.wo.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    ],
)
def test_an_encoder_that_differs_reads_by_itself(folders: tuple[Path, Path], tensor: str) -> None:
    changed(folders[1], tensor)
    encoded, outputs = both(folders, 3)
    assert encoded == 2 * len(SOURCES)
    expected = [written(tiny("t5"), source, TOKENS)[:TOKENS] for source in SOURCES]
    assert texts(outputs) == expected


def test_what_else_an_encoder_depends_on(folders: tuple[Path, Path]) -> None:
    base, draft = folders
    assert shares(base, draft) and shares(draft, base)
    changed(draft, "decoder.final_layer_norm.weight")
    assert shares(base, draft)
    config = json.loads((draft / "config.json").read_text())
    for key, value in (("relative_attention_max_distance", 13), ("layer_norm_epsilon", 1e-3)):
        (draft / "config.json").write_text(json.dumps({**config, key: value}))
        assert not shares(base, draft)
    (draft / "config.json").write_text(json.dumps(config))
    other = load_model(draft, dtype=torch.float32, device=CPU)
    narrow = DraftModel(other, target_for(loaded(base), 1, 40)).lm
    assert narrow is other
    changed(draft, "shared.weight")
    assert not shares(base, draft)


def origin(
    folder: Path, table: str = "shared", changed: Mapping[str, torch.Tensor] = MappingProxyType({})
) -> Origin:
    """Of a folder with a table of embeddings and a norm."""
    folder.mkdir()
    weights = {table: torch.ones(3, 2), "norm": torch.ones(2), **changed}
    save_file(weights, folder / "model.safetensors")
    return Origin((7,), ("shared", "own"), ("norm", "absent"), folder)


def test_encoders_of_two_folders(tmp_path: Path) -> None:
    """The table may have another name; what is in neither folder tells nothing. Numbers that are
    stored otherwise were rounded otherwise, perhaps."""
    one = origin(tmp_path / "one")
    assert one.makes(one) and one.makes(origin(tmp_path / "named", "own"))
    others = {
        "half": {"norm": torch.ones(2, dtype=torch.float16)},
        "more": {"absent": torch.ones(2)},
        "table": {"shared": torch.ones(3, 2) * 2},
        "none": {"shared": torch.ones(3, 2), "norm": torch.zeros(2)},
    }
    for name, given in others.items():
        other = origin(tmp_path / name, changed=given)
        assert not one.makes(other) and not other.makes(one)
    assert not one.makes(one._replace(folder=None)) and not one._replace(folder=None).makes(one)
    assert not one.makes(one._replace(settings=(8,)))


@torch.inference_mode()
def test_states_are_the_targets_of_the_same_source(folders: tuple[Path, Path]) -> None:
    """Bit for bit, however ragged the sources are, and in whatever order they are asked for."""
    target = target_for(loaded(folders[0]), 3, 40)
    sequences = [Sequence.start(target.opening, GREEDY, source=source) for source in SOURCES[:3]]
    for sequence in sequences:
        target.begin(sequence)
    reader = DraftModel(folders[1], target).lm
    assert isinstance(reader, Seq2Seq)
    with patch.object(Encoder, "run", autospec=True, side_effect=Encoder.run) as run:
        target.prefill(sequences, 64)
        [call] = run.call_args_list
        want = run.side_effect(*call.args)
        for order in ([0, 1, 2], [2, 0], [1]):
            sources = [SOURCES[row] for row in order]
            feed = chain_feed(reader.new_cache(3, 40), list(range(len(order))), sources)
            given = reader.encoder.read(feed, sources)
            for states, row in zip(given, order, strict=True):
                length = len(SOURCES[row])
                assert torch.equal(states[:length], want[row, :length])
                assert not states[length:].any()
        assert run.call_count == 1
        feed = chain_feed(reader.new_cache(1, 40), [0], [SOURCES[4]])
        own = loaded(folders[1]).encoder.read(feed, [SOURCES[4]])
        assert torch.equal(reader.encoder.read(feed, [SOURCES[4]]), own)
        both = [SOURCES[0], SOURCES[4]]  # of which one is known
        feed = chain_feed(reader.new_cache(2, 40), [0, 1], both)
        own = loaded(folders[1]).encoder.read(feed, both)
        assert torch.equal(reader.encoder.read(feed, both), own)


@torch.inference_mode()
def test_a_draft_model_follows_as_if_it_had_read_the_sources(folders: tuple[Path, Path]) -> None:
    target = target_for(loaded(folders[0]), 3, 40)
    sharing, own = DraftModel(folders[1], target), DraftModel(native_of(shallow("t5")), target)
    assert isinstance(sharing.lm, Seq2Seq) and isinstance(sharing.lm.encoder, Lent)
    assert isinstance(own.lm, Seq2Seq) and isinstance(own.lm.encoder, Encoder)
    sequences = [Sequence.start(target.opening, GREEDY, source=source) for source in SOURCES[:3]]
    for sequence in sequences:
        for model in (target, sharing, own):
            model.begin(sequence)
    target.prefill(sequences, 64)
    torch.testing.assert_close(sharing.root_logits(sequences), own.root_logits(sequences))


def test_the_draft_models_own_encoder_is_dropped(folders: tuple[Path, Path]) -> None:
    target = target_for(loaded(folders[0]), 1, 40)
    made: list[Any] = []
    start = Encoder.__init__

    def remember(encoder: Encoder, *given: Any) -> None:
        start(encoder, *given)
        made.append(weakref.ref(encoder))

    with patch.object(Encoder, "__init__", remember):
        drafts = DraftModel(folders[1], target)
    gc.collect()
    assert isinstance(drafts.lm, Seq2Seq) and [encoder() for encoder in made] == [None]


@torch.inference_mode()
def test_states_are_kept_for_draft_models_only_and_of_the_last_read(
    folders: tuple[Path, Path],
) -> None:
    model = loaded(folders[0])
    encoder, cache = model.encoder, model.new_cache(2, 40)
    assert isinstance(encoder, Encoder)
    model.read(SOURCES[:2], [0, 1], cache)
    assert encoder.last(SOURCES[0]) is None
    assert isinstance(encoder.lend().lend(), Lent)
    for row in (0, 1):
        cache.acquire(row)
    model.read([SOURCES[0]], [0], cache)
    model.read([SOURCES[1]], [1], cache)
    assert encoder.last(SOURCES[0]) is None and encoder.last(SOURCES[1]) is not None
