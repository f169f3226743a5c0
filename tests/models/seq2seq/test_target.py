"""Encoder–decoders in the engine: methods write what transformers' `generate` writes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch

from foretoken.config import build
from foretoken.drafters.blockwise import Blockwise, BlockwiseHeads
from foretoken.drafters.eagle import Eagle
from foretoken.drafters.hydra import Hydra, HydraHeads
from foretoken.drafters.mtp import Mtp, MtpModule
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.online import Online
from foretoken.drafters.peagle import PEagleModule
from foretoken.drafters.shared.mistakes import Example
from foretoken.draws import GreedyDraws
from foretoken.engine.engine import Engine
from foretoken.errors import ForetokenError
from foretoken.models.feed import chain_feed
from foretoken.models.seq2seq.model import Seq2Seq
from foretoken.models.seq2seq.target import Seq2SeqTarget, target_for
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.testing.checks import check_seeded, serve, texts
from foretoken.testing.models import Pair, tiny_pair
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.eagle import EagleModule
from foretoken.trainable.eagle3 import Eagle3Module
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.target_only import TargetOnly
from lessons import randomised
from seq2seq_models import EOS, NAMES, SOURCES, native_of, related, tiny, written

TOKENS = 14
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)
METHODS: dict[str, dict[str, Any]] = {
    "autoregressive": {},
    "pld": {},
    "llma": {},
    "suffix": {},
    "sad": {},
    "lookahead": {"tree": "paper"},
    "sps": {},
    "sequoia": {"tree": "paper"},
}

COPYING = ("pld", "llma", "suffix", "sad")
"""Those that copy from the source; `lookahead` waits for something to recur."""


@cache
def model_of(name: str) -> tuple[Seq2Seq, Seq2Seq, list[list[int]]]:
    """The native model, a draft model, and what transformers writes to `SOURCES`."""
    model = tiny(name)
    expected = [written(model, source, TOKENS) for source in SOURCES]
    return native_of(model), native_of(related(model)), expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NAMES)
def test_greedy_texts_are_transformers(name: str, method: str) -> None:
    """At 1, 3 and 8 sequences at a time; requests end at different lengths, so slots move."""
    native, draft, expected = model_of(name)
    for slots in (1, 3, 8):
        given = {"model": draft} if method in ("sps", "sequoia") else {}
        built = build({"method": method, **METHODS[method], **given})
        outputs = serve(
            native,
            built.drafter,
            built.verifier,
            SOURCES,
            GREEDY,
            slots=slots,
            eos_ids=frozenset({EOS}),
        )
        assert [output.error for output in outputs] == [None] * len(SOURCES)
        assert texts(outputs) == [text[:TOKENS] for text in expected]
        if method in COPYING:
            assert sum(output.stats.drafted for output in outputs) > 0


READING: dict[str, Callable[[Seq2Seq], Drafter]] = {
    "eagle": lambda model: Eagle(random_weights(EagleModule, model)),
    "mtp": lambda model: Mtp(random_weights(MtpModule, model)),
    "hydra++": lambda model: Hydra(random_weights(HydraHeads, model, prefix={})),
}
"""Drafters that keep a state of each of the text's tokens."""


def random_weights(module: type[Trained], model: Seq2Seq, **shape: Any) -> Any:
    return randomised(module(Facts.of(model), **shape), scale=0.03)


@pytest.mark.parametrize("drafter", READING)
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_states_of_the_text_are_read_and_not_the_sources(name: str, drafter: str) -> None:
    """With one token of opening and with two, whole and in chunks."""
    native, _, expected = model_of(name)
    for slots, chunk in ((1, 1), (3, 4), (8, 64)):
        outputs = serve(
            native,
            READING[drafter](native),
            MultiCandidate(),
            SOURCES,
            GREEDY,
            slots=slots,
            eos_ids=frozenset({EOS}),
            chunk=chunk,
        )
        assert [output.error for output in outputs] == [None] * len(SOURCES)
        assert texts(outputs) == [text[:TOKENS] for text in expected]
        assert sum(output.stats.drafted for output in outputs) > 0


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_mistakes_stand_at_their_places_in_the_text(name: str) -> None:
    """What `online` notes: the target's head makes of each state the token after it."""
    native = model_of(name)[0]
    noted: list[Example] = []
    online = Online([Blockwise(random_weights(BlockwiseHeads, native))], every=99)
    engine = Engine(target_for(native, 3, 64), online, TargetOnly(), eos_ids=frozenset({EOS}))
    online.learner.note = noted.append  # type: ignore[assignment, method-assign]
    for source in SOURCES:
        engine.add(source, GREEDY)
    while engine.busy:
        engine.step()
    assert any(example is not None for example in noted)
    for example in filter(None, noted):
        assert example.first == 0 and len(example.hidden[-1]) == len(example.tokens) - 1
        own = slice(example.written, None)
        guessed = native.head(example.hidden[-1]).argmax(-1).tolist()
        assert guessed[example.written - 1 :] == list(example.tokens[own])


def test_the_texts_differ() -> None:
    """What the tests compare isn't one text for all sources: a source that isn't read shows."""
    for name in NAMES:
        assert len({tuple(text) for text in model_of(name)[2]}) >= 4


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_seeded_texts_are_plain_decodings(name: str) -> None:
    native, draft, _ = model_of(name)
    built = build({"method": "suffix"})
    pair = Pair(native, draft)
    check_seeded(lambda _: built.drafter, TargetOnly(), pair, slots=3, prompts=SOURCES[:3])


def test_a_source_is_read_once_a_request() -> None:
    """Whole, whatever a chunk is, and for all samples of it; other requests' too in one pass."""
    native = model_of("bart")[0]
    with patch.object(Seq2Seq, "read", autospec=True, side_effect=Seq2Seq.read) as read:
        params = SamplingParams(temperature=1, n=3, seed=1, max_tokens=6, ignore_eos=True)
        outputs = serve(native, Nothing(), TargetOnly(), SOURCES[:2], params, slots=6, chunk=1)
    assert [call.args[1] for call in read.call_args_list] == [list(map(list, SOURCES[:2]))]
    alone = [serve(native, Nothing(), TargetOnly(), [s], params, slots=1)[0] for s in SOURCES[:2]]
    for output, single in zip(outputs, alone, strict=True):
        ids = [sample.token_ids for sample in output.outputs]
        assert ids == [sample.token_ids for sample in single.outputs]
        assert len({tuple(each) for each in ids}) > 1


@torch.inference_mode()
def test_a_source_outlasts_every_step() -> None:
    native = model_of("t5")[0]
    target = target_for(native, 1, 64)
    assert isinstance(target, Seq2SeqTarget)
    sequence = Sequence.start(target.opening, GREEDY, source=SOURCES[0])
    target.begin(sequence)
    assert target.pending(sequence) == len(SOURCES[0])
    target.prefill([sequence], 1)
    assert target.pending(sequence) == 0
    before = [layer.keys.clone() for layer in target.cache.sources.layer]
    for token in (4, 5, 6):
        drafts = build({"method": "pld"}).drafter
        drafts.bind(target)
        target.score([sequence], drafts.draft([sequence], [4], GreedyDraws()))
        sequence.tokens.append(token)
        target.commit([sequence], [[]])
    after = [layer.keys for layer in target.cache.sources.layer]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_the_source_is_the_first_reference() -> None:
    params = SamplingParams(references=[[7, 7]])
    assert Sequence.start([0], params, source=[1, 2]).references == [[1, 2], (7, 7)]
    assert Sequence.start([0], params).references == [(7, 7)]
    assert Sequence.start([0], params, source=[1, 2]).afresh().source == [1, 2]


class Failing(Nothing):
    """Its third step raises."""

    steps = 0

    def observe(self, *given: Any) -> None:
        self.steps += 1
        if self.steps == 3:
            raise ValueError("once")


def test_sequences_that_start_again_read_their_sources_again() -> None:
    native, _, expected = model_of("mbart")
    ends = frozenset({EOS})
    outputs = serve(native, Failing(), TargetOnly(), SOURCES[:3], GREEDY, slots=3, eos_ids=ends)
    assert texts(outputs) == [text[:TOKENS] for text in expected[:3]]


def test_costs_can_be_measured() -> None:
    """`auto`, and trees that are planned for costs, time passes over texts with a source."""
    native, _, expected = model_of("t5")
    built = build({"method": "auto:pld,suffix"})
    ends = frozenset({EOS})
    outputs = serve(native, built.drafter, built.verifier, SOURCES[:2], GREEDY, eos_ids=ends)
    assert texts(outputs) == [text[:TOKENS] for text in expected[:2]]


def engine(target: Any, **config: Any) -> Engine:
    built = build(config)
    return Engine(target_for(target, 2, 40), built.drafter, built.verifier)


def test_a_draft_model_must_read_what_the_target_reads() -> None:
    native, small = model_of("t5")[0], tiny_pair(61)
    with pytest.raises(ForetokenError, match="is a decoder-only model and the target is an enc"):
        engine(native, method="sps", model=small.draft)
    with pytest.raises(ForetokenError, match="is an encoder–decoder and the target is a decoder"):
        engine(small.target, method="sps", model=native)
    with pytest.raises(ForetokenError, match=r"begin with the tokens \[1, 2\] and the target's"):
        engine(native, method="sps", model=model_of("bart")[0])


def test_levels_that_it_lacks_are_refused() -> None:
    native = model_of("t5")[0]
    with pytest.raises(ForetokenError, match=r"needs .*\(e\) .* use a decoder-only model"):
        engine(native, method="swift")
    for method, module in (("eagle3", Eagle3Module), ("peagle", PEagleModule)):
        with pytest.raises(ForetokenError, match=r"needs .*\(d\) .* use a decoder-only model"):
            engine(native, method=method, model=random_weights(module, native))
    with pytest.raises(ForetokenError, match="Method ppd needs"):
        Engine(build({"method": "ppd"}).wrapped(target_for(native, 1, 8)), Nothing(), TargetOnly())


def test_requests_that_cant_be_served() -> None:
    served = engine(model_of("t5")[0], method="pld")
    with pytest.raises(ForetokenError, match="41 tokens and the context is 40"):
        served.add([3] * 41, GREEDY)
    with pytest.raises(ForetokenError, match="leave prompt_logprobs and LLM"):
        served.add([3], SamplingParams(prompt_logprobs=0))
    request = served.add([3] * 40, SamplingParams(max_tokens=None))
    assert request.samples[0].left == 39 and request.samples[0].longest == 40
    assert type(target_for(tiny_pair(61).target, 1, 8)) is ModelTarget


@torch.inference_mode()
def test_prefill_gives_the_texts_states_where_they_were_read() -> None:
    """Of each row the last ones; zeros for the source, and for a text of one token."""
    native = model_of("bart")[0]
    target = target_for(native, 3, 64, hidden=(-1,))
    starts = ([2], [*target.opening, 7], target.opening)
    sequences = [Sequence.start(text, GREEDY, source=SOURCES[i]) for i, text in enumerate(starts)]
    for sequence in sequences:
        target.begin(sequence)
    states = target.prefill(sequences, 64).hidden[-1]
    reads = [len(SOURCES[i]) + len(text) - 1 for i, text in enumerate(starts)]
    assert states.shape == (3, max(reads), native.width)
    for row, (text, read) in enumerate(zip(starts, reads, strict=True)):
        assert not states[row, : len(SOURCES[row])].any() and not states[row, read:].any()
        alone = target_for(native, 1, 64, hidden=(-1,))
        single = Sequence.start(text, GREEDY, source=SOURCES[row])
        alone.begin(single)
        alone.prefill([single], 64)
        alone.cache.lengths[0] = 0
        feed = chain_feed(alone.cache, [0], [text])
        want = native.forward(feed, alone.cache, (-1,)).hidden[-1][0, :-1]
        torch.testing.assert_close(states[row, len(SOURCES[row]) : read], want)


@torch.inference_mode()
def test_a_text_that_was_written_is_read_in_parts() -> None:
    """After its source, where a sequence begins again: each part's states, and no more of it."""
    native, text = model_of("bart")[0], [1, 2, 7, 9, 8, 4]
    whole, parted = (target_for(native, 2, 64, hidden=(-1,)) for _ in range(2))
    sequences = [Sequence.start(text, GREEDY, source=SOURCES[0])]
    sequences.append(Sequence.start(text[:3], GREEDY, source=SOURCES[2]))
    for target in (whole, parted):
        for sequence in sequences:
            target.begin(sequence)
    wanted = whole.prefill(sequences, 64).hidden[-1]
    read = [len(SOURCES[0]), len(SOURCES[2])]
    first = parted.prefill(sequences, 2).hidden[-1]
    assert first.shape[1] == read[0] + 2 and parted.pending(sequences[0]) == 3
    for row in range(2):
        torch.testing.assert_close(first[row, : read[row] + 2], wanted[row, : read[row] + 2])
    second = parted.prefill(sequences[:1], 2).hidden[-1]
    torch.testing.assert_close(second[0], wanted[0, read[0] + 2 : read[0] + 4])
