"""SLEM: drafted text in the target's tokens."""

from __future__ import annotations

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.slem import Slem
from foretoken.models.drafting.vocabulary import Vocabulary, shared
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import TableModel, serve
from foretoken.verify.target_only import TargetOnly
from pieces import Pieces, check_where_few_tokens_are_shared

GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


def test_drafted_text_joins_the_last_word() -> None:
    """Tokenized together with the word if its tokens stay the same, by itself if they don't."""
    theirs, own = Pieces(["a", "b", "c", "ab", " "]), Pieces(["c", "b", "a", " ", "ca"])
    drafter = Slem(TableModel.random(5), own, theirs)
    drafter.bind(ModelTarget(TableModel.random(5), 1, 32))
    assert drafter._joined([2], "ab") == [3]
    assert drafter._joined([0], "bc") == [1, 2]  # "abc" would be ab, c: not what stands there
    assert drafter._joined([2], " ab") == [4, 3]


def test_ends_are_one_token() -> None:
    """The end of a text is shared whatever it is called, and a drafted end is the target's."""
    theirs, own = Pieces(["a", "b", "<end>"], end=2), Pieces(["</s>", "b", "c"], end=0)
    assert set(shared(Vocabulary(own, 3), Vocabulary(theirs, 3))) == {(1, 1), (0, 2)}
    drafter = Slem(TableModel.random(3), own, theirs)
    drafter.bind(ModelTarget(TableModel.random(3), 1, 32))
    sequence = Sequence.start([0, 1], GREEDY)
    drafter.begin(sequence)
    drafter._lm.room(sequence)
    assert drafter._retokenized(sequence, [1, 0, 1]) == [1, 2]


def test_distribution_where_few_tokens_are_shared() -> None:
    """The target's own distribution, though most of its tokens can't be drafted."""
    check_where_few_tokens_are_shared(Slem, TargetOnly())


def test_a_long_draft_where_the_small_model_s_context_ends() -> None:
    """There are cells for it; and where there is no room left, nothing is drafted."""
    pieces = Pieces(list("abcdefghijklmnopqrstuvwxyz"))
    target = TableModel(TableModel.random(26).table, max_length=200)
    small = TableModel(TableModel.random(26, 1).table, max_length=64)
    prompts = [[i % 26 for i in range(60)]]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    [drafted] = serve(target, Slem(small, pieces, pieces, 100), TargetOnly(), prompts, params)
    [plain] = serve(target, Nothing(), TargetOnly(), prompts, params)
    assert drafted.error is None and drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted > 0


class Begun(Pieces):
    """Has a token for the beginning of texts."""

    bos_token_id = 2


def test_another_special_token_is_no_end() -> None:
    """It ends the draft, and not the text."""
    theirs, own = Pieces(["a", "b", "<end>"], end=2), Begun(["</s>", "b", "<s>"], end=0)
    drafter = Slem(TableModel.random(3), own, theirs)
    drafter.bind(ModelTarget(TableModel.random(3), 1, 32))
    sequence = Sequence.start([0, 1], GREEDY)
    drafter.begin(sequence)
    drafter._lm.room(sequence)
    assert drafter._retokenized(sequence, [1, 2, 1]) == [1]


class Spaced(Pieces):
    """Puts a space before a text, as Llama 2's tokenizer does."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return super().__call__(f" {text}" if text else "", add_special_tokens)


def test_after_a_special_token_a_text_begins() -> None:
    """With what the target's tokenizer puts before one."""
    theirs = Spaced([" ", "a", "b", "<end>"], end=3)
    drafter = Slem(TableModel.random(3), Pieces(["a", "b", "c"]), theirs)
    drafter.bind(ModelTarget(TableModel.random(4), 1, 32))
    assert drafter._joined([3], "ab") == [0, 1, 2]
    assert drafter._joined([1], "b") == [2]
