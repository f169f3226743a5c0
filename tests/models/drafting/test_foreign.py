"""Drafters of another tokenizer: what they read, what they propose, how often they are right."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.slem import Slem
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.tli import Tli
from foretoken.engine.engine import Engine
from foretoken.models.drafting import foreign
from foretoken.models.drafting.foreign import ForeignModel, ForeignOptions, SharedTokensModel
from foretoken.models.drafting.vocabulary import shared
from foretoken.models.target import ModelTarget
from foretoken.models.warm import common_length
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    ByteTokenizer,
    Pair,
    TableModel,
    logits_after,
    native,
    related,
    serve,
    tiny_pair,
    tiny_transformers,
)
from foretoken.testing.checks import PROMPTS, texts
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from pieces import Pieces, two_tokenizers
from seq2seq_models import SOURCES, VOCAB, native_of, tiny
from stories import stories

GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, seed=3, max_tokens=32, ignore_eos=True)


def renamed(model: Any, order: list[int]) -> Any:
    """The same model of transformers with token i under the id order.index(i)."""
    copy, index = related(model, 0.0), torch.tensor(order)
    with torch.no_grad():
        for matrix in (copy.get_input_embeddings().weight, copy.get_output_embeddings().weight):
            matrix.copy_(matrix[index])
    return copy


@pytest.fixture(scope="module")
def same_models() -> tuple[Any, Any, Any, Pieces, Pieces]:
    """(target, draft model, the draft model with ids in another order, both tokenizers)."""
    model = tiny_transformers(90)
    letters = two_tokenizers(90)[0].pieces
    order = [(7 * i + 3) % 90 for i in range(90)]
    draft = related(model, 0.02)
    mixed = native(renamed(draft, order))
    return native(model), native(draft), mixed, Pieces(letters), Pieces([letters[i] for i in order])


@pytest.mark.parametrize("params", [GREEDY, DRAWN])
def test_as_good_as_the_same_tokenizer(same_models: Any, params: SamplingParams) -> None:
    """A draft model whose ids are in another order is accepted as it is in the target's order."""
    target, draft, mixed, theirs, own = same_models
    ours = serve(target, Tli(mixed, own, theirs), Speculative(), PROMPTS, params)
    same = serve(target, SmallLM(draft), Speculative(), PROMPTS, params)
    assert [o.stats.accepted for o in ours] == [o.stats.accepted for o in same]
    assert sum(o.stats.accepted for o in ours) > 10
    if params.greedy:
        slem = serve(target, Slem(mixed, own, theirs, 4), TargetOnly(), PROMPTS, params)
        assert [o.stats.accepted for o in slem] == [o.stats.accepted for o in same]
        assert texts(slem) == texts(ours) == texts(same)


def test_the_distribution_is_of_shared_tokens_only() -> None:
    """TLI by its definition: the draft model's distribution over what both have, renormalised."""
    theirs, own = Pieces(["a", "b", "c", "d"]), Pieces(["b", "ab", "d", "z", "a"])
    model = TableModel.random(5, seed=4)
    options = ForeignOptions(model, own, theirs)
    made = SharedTokensModel(options, ModelTarget(TableModel.random(4), 1, 32), nodes=8)
    sequence = Sequence.start([0, 1, 2, 3], DRAWN)  # "abcd" is "ab", "d" to the drafter
    made.begin(sequence)
    assert made.room(sequence) and sequence.state[made].text.tokens == [1, 2]
    distribution = made.root_logits([sequence]).softmax(-1)[0, 0]
    full = logits_after(model, [1, 2]).softmax(-1)
    kept = torch.stack((full[4], full[0], torch.tensor(0.0), full[2])).double()
    torch.testing.assert_close(distribution, kept / kept.sum())
    after = made.next_logits([sequence], torch.tensor([3])).softmax(-1)[
        0, 0
    ]  # their d is the drafter's 2
    full = logits_after(model, [1, 2, 2]).softmax(-1)
    kept = torch.stack((full[4], full[0], torch.tensor(0.0), full[2])).double()
    torch.testing.assert_close(after, kept / kept.sum())


def test_a_step_costs_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the text before them is."""
    theirs, own = Pieces(list("ab ")), Pieces(["a", "b", " ", "ab"])
    options = ForeignOptions(TableModel.random(4), own, theirs)
    made = ForeignModel(options, ModelTarget(TableModel.random(3), 1, 64), nodes=8)
    sequence = Sequence.start(theirs("ab " * 16)["input_ids"], GREEDY)
    made.begin(sequence)
    compared: list[int] = []

    def noted(one: list[int], other: list[int]) -> int:
        compared.append(max(len(one), len(other)))
        return common_length(one, other)

    monkeypatch.setattr(foreign, "common_length", noted)
    for more in ("a", "b", " ", "a"):
        sequence.tokens += theirs(more)["input_ids"]
        assert made.room(sequence)
    assert sequence.state[made].text.tokens == [3, 2] * 17 + [0]
    assert len(compared) == 4 and max(compared) <= 4


def test_the_last_word_is_read_anew() -> None:
    """A word that grows is tokenized as a whole, and what stood there is forgotten."""
    theirs, own = Pieces(list("abcd ")), Pieces(["a", "b", "c", "d", " ", "ab", " ab", "abc"])
    options = ForeignOptions(TableModel.random(8), own, theirs)
    made = ForeignModel(options, ModelTarget(TableModel.random(5), 1, 32), nodes=8)
    sequence = Sequence.start(theirs("ab a")["input_ids"], GREEDY)
    made.begin(sequence)
    held = made._model._cache.lengths
    for more, tokens in (("", [5, 4, 0]), ("b", [5, 6]), ("c", [5, 6, 2]), (" d", [5, 6, 2, 4, 3])):
        before = list(sequence.state[made].text.tokens)
        made.root_logits([sequence]) if more else None
        sequence.tokens += theirs(more)["input_ids"]
        made.room(sequence)
        assert sequence.state[made].text.tokens == tokens
        alike = sum(x == y for x, y in zip(before, tokens, strict=False))
        assert held[0] <= min(alike, len(tokens) - 1)
    assert theirs(" d")["input_ids"] == made.unfinished(sequence)


def test_what_is_missing_is_said(pair: Pair) -> None:
    """One sentence each: no model, no tokenizer, nothing shared, another vocabulary under sps."""
    target = ModelTarget(pair.target, 1, 64)
    with pytest.raises(ForetokenError, match="small model of any tokenizer"):
        Tli()
    with pytest.raises(ForetokenError, match="small model of any tokenizer"):
        Slem()
    with pytest.raises(ForetokenError, match="no tokenizer of the draft model"):
        Tli(pair.draft, target_tokenizer=ByteTokenizer()).bind(target)
    with pytest.raises(ForetokenError, match=r"no tokenizer of the target.*target_tokenizer"):
        Slem(pair.draft, tokenizer=ByteTokenizer()).bind(target)
    with pytest.raises(ForetokenError, match="max_cached_words is -1"):
        Tli(pair.draft, ByteTokenizer(), ByteTokenizer(), max_cached_words=-1).bind(target)
    with pytest.raises(ForetokenError, match="no token in common"):
        Tli(pair.draft, Pieces(["x"]), Pieces(["y"])).bind(target)
    with pytest.raises(ForetokenError, match="'tli' or 'slem'"):
        SmallLM(native(tiny_transformers(400))).bind(target)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stories(tmp_path_factory.mktemp("stories"))


def test_the_stories_model_is_converted_right(small: Path) -> None:
    """Greedy text that its author's own program writes."""
    [out] = LLM(small).generate("Once upon a time", SamplingParams(temperature=0, max_tokens=40))
    assert out.text.startswith(", there was a little girl named Lily. She loved to play outside in")


def test_a_real_tokenizer_of_another_kind(small: Path) -> None:
    """sentencepiece with 512 tokens drafts for byte-level pairs with 8192: the text is unchanged,
    some of it is accepted, and words keep their spaces."""
    prompts = ["Once upon a time", "<|user|>Tell me of a naïve cat 🐈 in Paris.<|assistant|>"]
    params = dataclasses.replace(GREEDY, max_tokens=16)
    plain = LLM("mini").generate(prompts, params)
    for method in ("tli", "slem"):
        llm = LLM("mini", speculative_config={"method": method, "model": str(small)})
        assert [o.text for o in llm.generate(prompts, params)] == [o.text for o in plain]
        assert llm.stats.accepted > 0
    model = llm.engine.drafter._lm  # type: ignore[attr-defined]
    assert len(shared(model.own, model.theirs)) > 250
    text = " Lily wanted to play, but it was naïve."
    assert model.own.text(model.own.continuing(text)) == text
    assert model.theirs.text(model.theirs.continuing(text)) == text
    for ids in ([*model.theirs.continuing(text)], model.theirs.starting(text[1:])):
        assert [i for group in model.theirs.groups(ids) for i in group] == ids


def test_an_end_without_a_beginning(pair: Pair) -> None:
    """Ending twice, or what never began, is no error: a step may fail anywhere."""
    theirs, own = two_tokenizers(pair.target.vocab_size)
    options = ForeignOptions(pair.draft, own, theirs)
    model = ForeignModel(options, ModelTarget(pair.target, 1, 64), nodes=8)
    sequence = Sequence.start([1, 2, 3], GREEDY)
    model.end(sequence)
    for _ in range(2):
        model.begin(sequence)
        model.end(sequence)
        model.end(sequence)


def test_a_copy_of_nothing() -> None:
    """A prompt of tokens that the model has nothing for: there is nothing to copy, and no cell of
    what a draft has left."""
    theirs, own = Pieces(["a", "b", "<end>"], end=2), Pieces(["a", "b", "c"])
    access = ModelTarget(TableModel.random(3), 2, 32)
    made = ForeignModel(ForeignOptions(TableModel.random(3), own, theirs), access, nodes=8)
    one, two = (Sequence.start([2, 2], GREEDY) for _ in range(2))
    for sequence in (one, two):
        made.begin(sequence)
        assert not made.room(sequence)
    cache = made._model._cache
    keys = cache.layer[0].keys
    keys[cache.slot(id_of(made, one))] = 7.0
    made.fork(one, two)
    assert cache.lengths == [0, 0] and not keys[cache.slot(id_of(made, two))].any()


def id_of(made: ForeignModel, sequence: Sequence) -> int:
    """Of its text in own tokens."""
    return int(sequence.state[made].text.id)


@pytest.mark.parametrize("others", [True, False])
def test_a_text_that_is_longer_than_was_reserved(others: bool) -> None:
    """Eight own tokens for each of the target's, where memory is reserved for two: the model reads
    on where more is free, and else drafts no more for that text, which stays what it was."""
    letters = "abcdefgh"
    theirs, own = Pieces([letters[i:] + letters[:i] for i in range(8)]), Pieces(list(letters))
    pair = tiny_pair(8, max_length=2048)
    params = dataclasses.replace(GREEDY, max_tokens=60)
    prompts = [[i % 8, 3, 7, 1, 1, 6, 2, 5] * 5 for i in range(4 if others else 1)]
    target = ModelTarget(pair.target, 4, 512)
    engine, budget = Engine(target, Slem(pair.draft, own, theirs, 16), TargetOnly()), target.budget
    needed = budget.needs(100)
    budget.limit = (2 if others else 8) * needed
    requests, most = [engine.add(prompt, params) for prompt in prompts], 0
    while engine.busy:
        engine.step()
        assert budget.written <= budget.reserved <= budget.limit
        most = max(most, budget.reserved)
    assert most <= 2 * needed if others else most > needed
    plain = serve(pair.target, Nothing(), TargetOnly(), prompts, params)
    assert [request.snapshot().token_ids for request in requests] == texts(plain)


def test_an_encoder_decoder_is_refused() -> None:
    """When it is bound: its texts are sources, which a model with another tokenizer never reads."""
    target, words = native_of(tiny("t5")), ByteTokenizer(VOCAB)
    for drafter, verifier in ((Slem, TargetOnly()), (Tli, Speculative())):
        made = drafter(native_of(tiny("t5")), words, words)
        with pytest.raises(ForetokenError, match="doesn't read an encoder–decoder's source"):
            serve(target, made, verifier, [SOURCES[0]], SamplingParams(max_tokens=2))


class Spaced(Pieces):
    """Puts a space before a text, as Llama 2's tokenizer does."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return super().__call__(f" {text}" if text else "", add_special_tokens)


def test_text_after_a_special_token_begins_anew() -> None:
    """As at the very beginning, with whatever the tokenizer puts before a text."""
    theirs, own = Pieces(["a", "b", "<end>"], end=2), Spaced([" ", "a", "b", "</s>"], end=3)
    options = ForeignOptions(TableModel.random(4), own, theirs)
    made = ForeignModel(options, ModelTarget(TableModel.random(3), 1, 32), nodes=8)
    sequence = Sequence.start([0, 2, 0, 1], GREEDY)
    made.begin(sequence)
    assert sequence.state[made].text.tokens == [0, 1, 3, 0, 1, 2]


class Begun(Pieces):
    """Puts its first piece before every text."""

    bos_token_id = 0

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = super().__call__(text)["input_ids"]
        return {"input_ids": [0, *ids] if add_special_tokens else ids}


def test_a_text_has_one_beginning() -> None:
    """Though both tokenizers put one there."""
    theirs, own = Begun(["<s>", "b", "a"]), Begun(["<begin>", "a", "b"])
    options = ForeignOptions(TableModel.random(3), own, theirs)
    made = ForeignModel(options, ModelTarget(TableModel.random(3), 1, 32), nodes=8)
    sequence = Sequence.start([0, 2, 1], GREEDY)
    made.begin(sequence)
    assert sequence.state[made].text.tokens == [0, 1, 2]


@torch.inference_mode()
def test_a_copys_last_word_is_its_own() -> None:
    """What the other text has made of that word in its own tokens isn't copied."""
    theirs, own = Pieces(list("abc ")), Pieces(["a", "b", "c", " ", "aab"])
    model = TableModel.random(5)
    access = ModelTarget(TableModel.random(4), 2, 32)
    made = ForeignModel(ForeignOptions(model, own, theirs), access, nodes=8)
    one, copy = (Sequence.start(theirs("c aa")["input_ids"], GREEDY) for _ in range(2))
    for sequence in (one, copy):
        made.begin(sequence)
    one.tokens += theirs("b")["input_ids"]
    assert made.room(one) and one.state[made].text.tokens == [2, 3, 4]
    made.root_logits([one])
    made.fork(one, copy)
    text = copy.state[made].text
    assert text.tokens == [2, 3, 0, 0] and made._model.pending(text) == 1
    whole = logits_after(model, text.tokens)
    torch.testing.assert_close(made.root_logits([copy])[0, 0], whole)


@torch.inference_mode()
def test_a_prompt_that_takes_nothing_over_is_read() -> None:
    """Though an earlier text began alike."""
    theirs, own = Pieces(list("ab ")), Pieces(["b", "a", " "])
    access = ModelTarget(TableModel.random(3), 1, 32)
    made = ForeignModel(ForeignOptions(TableModel.random(3), own, theirs), access, nodes=8)

    def pending(reusable: int) -> int:
        sequence = Sequence.start([0, 1, 0, 1], GREEDY)
        sequence.salt, sequence.reusable = "", reusable
        made.begin(sequence)
        left = made._model.pending(sequence.state[made].text)
        assert made.room(sequence)
        made.root_logits([sequence])
        made.end(sequence)
        return left

    assert [pending(3), pending(3), pending(0)] == [3, 0, 3]


@torch.inference_mode()
def test_a_token_that_is_nothing_to_the_model() -> None:
    """Its text is what it was, and is read on from its last token."""
    theirs, own = Pieces(["a", "b", "<end>"], end=2), Pieces(["b", "a"])
    model, access = TableModel.random(2), ModelTarget(TableModel.random(3), 1, 32)
    made = ForeignModel(ForeignOptions(model, own, theirs), access, nodes=8)
    sequence = Sequence.start([0, 1], GREEDY)
    made.begin(sequence)
    for more in ([], [2]):
        sequence.tokens += more
        assert made.room(sequence)
        found = made.root_logits([sequence])[0, 0]
        torch.testing.assert_close(found, logits_after(model, [1, 0]))
