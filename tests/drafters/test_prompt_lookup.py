"""The drafters that copy: what they draft, against searching by hand; and that nothing but the
speed depends on what they are given."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.drafters.aggressive import Aggressive
from foretoken.drafters.forced import Forced
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.sam import Sam
from foretoken.drafters.suffix import Suffix
from foretoken.engine.engine import Engine
from foretoken.lookup.suffix_automaton import StaticAutomaton
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    ByteTokenizer,
    Pair,
    check_distribution,
    check_seeded,
    serve,
    table_pair,
)
from foretoken.testing.checks import PROMPTS
from foretoken.verify.target_only import TargetOnly

VOCAB = 97
few = st.lists(st.integers(0, 2), min_size=1, max_size=14)
some = st.lists(few, max_size=3)


def bound(drafter: Any, vocab_size: int = VOCAB) -> Any:
    """A drafter that may draft, without a model."""
    drafter.bind(SimpleNamespace(device="cpu", vocab_size=vocab_size))
    return drafter


def sequence(prompt: Seq[int], output: Seq[int] = (), references: Seq[Seq[int]] = ()) -> Sequence:
    one = Sequence.start(prompt, SamplingParams(references=references))
    one.tokens.extend(output)
    return one


def paths(drafter: Drafter, one: Sequence, budget: int = 64) -> set[tuple[int, ...]]:
    """The draft's nodes, each by the tokens on the way to it."""
    tree = drafter.draft([one], [budget], None)  # type: ignore[arg-type]
    found = {tuple(path) for path in tree.contexts()[0][: tree.counts[0] + 1]} - {()}
    assert len(found) == tree.counts[0] <= budget
    return found


def draft(drafter: Drafter, one: Sequence, budget: int = 64) -> list[int]:
    """The tokens of a chain."""
    return list(max(paths(drafter, one, budget), key=len, default=()))


def ends(text: Seq[int], phrase: Seq[int]) -> list[int]:
    """After which places the phrase stands."""
    size = len(phrase)
    return [at for at in range(size, len(text) + 1) if list(text[at - size : at]) == list(phrase)]


def looked_up(texts: Seq[Seq[int]], tail: Seq[int], sizes: Seq[int]) -> list[int]:
    """Prompt lookup by hand. The first of `texts` is the request's own, the last win after it."""
    for size in sizes:
        for text in (texts[0], *reversed(texts[1:])):
            found = [at for at in ends(text, tail[len(tail) - size :]) if at < len(text)]
            if found and size <= len(tail):
                return list(text[found[-1] : found[-1] + 4])
    return []


@given(few, some, some)
def test_prompt_lookup(text: list[int], references: list[list[int]], earlier: Any) -> None:
    """The longest n-gram, in the text, then the references, then earlier outputs; the latest."""
    drafter = bound(PromptLookup(4, max_cached_tokens=1000))
    for output in earlier:
        drafter.end([sequence([9, 9], output)])
    own = sequence(text[:2], references=references)
    for token in [*text[2:], None]:
        expected = looked_up([own.tokens, *earlier, *references], own.tokens, (3, 2, 1))
        assert draft(drafter, own) == expected
        if token is not None:
            own.tokens.append(token)
            drafter.observe([own], [])


def test_prompt_lookup_forgets_across_requests_by_default() -> None:
    """Only LLMA's cache-assisted setting remembers outputs, and never prompts."""
    plain, assisted = bound(PromptLookup(2)), bound(PromptLookup(2, max_cached_tokens=50))
    for drafter in (plain, assisted):
        drafter.end([sequence([7, 8, 9], [1, 2, 3])])
        assert draft(drafter, sequence([4, 8])) == []
    assert plain.shared is None
    assert draft(plain, sequence([4, 1])) == [] and draft(assisted, sequence([4, 1])) == [2, 3]
    assert draft(assisted, sequence([1, 2, 3])) == []  # an output's end is not drafted
    assisted.shared.reset()
    assert draft(assisted, sequence([4, 1])) == []


def copied_from(given: Seq[int], output: Seq[int]) -> list[int]:
    """Aggressive decoding by hand: an end of the output that stands once in the input."""
    if not output:
        return list(given)
    for size in range(1, len(output) + 1):
        if len(found := ends(given, output[-size:])) == 1:
            return list(given[found[0] :])
    return []


@given(few, few, st.booleans())
def test_aggressive_decoding(given_: list[int], output: list[int], as_reference: bool) -> None:
    """The whole input first; then what follows an end of the output that occurs once."""
    drafter = bound(Aggressive())
    own = sequence([5], (), [given_]) if as_reference else sequence(given_)
    for token in [*output, None]:
        assert draft(drafter, own) == copied_from(given_, own.output)
        assert draft(drafter, own, 2) == copied_from(given_, own.output)[:2]
        if token is not None:
            own.tokens.append(token)
    copy = sequence(own.tokens[: own.prompt_length], own.output[:1], own.references)
    drafter.fork(own, copy)
    assert draft(drafter, copy) == copied_from(given_, copy.output)


def test_aggressive_decoding_stays_in_one_reference() -> None:
    """A draft ends where its reference does, and several are one input."""
    drafter = bound(Aggressive(num_speculative_tokens=3))
    given_ = [[1, 2, 3, 4, 5], [6, 7, 3]]
    assert draft(drafter, sequence([0], [], given_)) == [1, 2, 3]
    assert draft(drafter, sequence([0], [4], given_)) == [5]
    assert draft(drafter, sequence([0], [3], given_)) == []  # it stands in both
    assert draft(drafter, sequence([0], [7, 3], given_)) == []  # the end
    assert draft(drafter, sequence([0], [8, 2], given_)) == [3, 4, 5]


def test_forced() -> None:
    """The given answer from where the output ends, whatever was written."""
    drafter = bound(Forced(3))
    assert draft(drafter, sequence([1, 2], [], [[7, 8, 9, 6], [5]])) == [7, 8, 9]
    assert draft(drafter, sequence([1, 2], [4, 4], [[7, 8, 9, 6]])) == [9, 6]
    assert draft(drafter, sequence([1, 2], [4, 4], [[7]])) == []
    assert draft(drafter, sequence([1, 2, 3], [4])) == [2, 3]


def tree_by_hand(
    texts: Seq[Seq[int]], phrase: Seq[int], most: int, least: float, starts: int | None = None
) -> list[float]:
    """Weights of the likeliest paths after a phrase, counted in texts; falling.

    starts: only phrases that begin before it count.
    """
    known = [(text, at) for text in texts for at in ends(text, phrase)]
    known = [(t, at) for t, at in known if starts is None or at - len(phrase) < starts]
    found: list[float] = []
    waiting = [((), known, 1.0)]
    while waiting:
        path, places, weight = waiting.pop()
        for token in {t[at] for t, at in places if at < len(t)}:
            after = [(t, at + 1) for t, at in places if at < len(t) and t[at] == token]
            share = weight * len(after) / len(places)
            if share >= least and len(phrase) + len(path) < 6:
                found.append(share)
                waiting.append(((*path, token), after, share))  # type: ignore[arg-type]
    return sorted(found, reverse=True)[:most]


@given(few, some)
def test_suffix_decoding(text: list[int], earlier: list[list[int]]) -> None:
    """The score is the best over both trees and all phrases, counted by hand; and the draft has
    that score."""
    drafter = bound(Suffix(4, max_tree_depth=6, min_token_prob=0.2))
    for output in earlier:
        drafter.end([sequence([9], output)])
    own = sequence(text)
    guess = drafter.guess(own, 4)
    first = next(i for i in range(len(text) + 1) if _stood_before(text, i))
    best = 0.0
    for size in range(1, 6):
        if size > len(text):
            break
        phrase = text[-size:]
        others = tree_by_hand(earlier, phrase, min(4, size), 0.2)
        mine = tree_by_hand([text], phrase, min(4, size), 0.2, first)
        best = max(best, sum(others), sum(mine) if size <= len(text) - first else 0)
    assert guess.score == pytest.approx(best)
    assert len(paths(drafter, own)) == len(guess.tokens)


def _stood_before(text: list[int], start: int) -> bool:
    """Whether all from `start` on is a phrase of earlier, and not too long to be looked for."""
    size = len(text) - start
    earlier = any(text[at : at + size] == text[start:] for at in range(start))
    return size == 0 or (size < 6 and earlier)


def test_suffix_paths_and_trees() -> None:
    """Branches by their counts; with one child each, the most frequent path, as a chain."""
    text = [1, 2, 3, 0, 1, 2, 3, 5, 1, 2, 4, 6, 1, 2]
    tree, path = bound(Suffix(max_spec_factor=2)), bound(Suffix(max_spec_factor=2, max_children=1))
    assert paths(tree, sequence(text)) == {(3,), (4,), (3, 0), (3, 5)}
    assert (tree.trees, tree.wants.levels) == (True, "ab")
    assert (path.trees, path.wants.levels) == (False, "a")
    chain = path.draft([sequence(text)], [64], None)
    assert chain.is_chain and chain.tokens.tolist() == [[3, 0, 1, 2]]
    assert path.draft([sequence([1, 2, 1])], [0], None).counts == [0]


def test_suffix_learns_from_outputs() -> None:
    """What ended is drafted for others; prompts are not kept."""
    drafter = bound(Suffix())
    drafter.end([sequence([7, 8, 9], [1, 2, 3, 4])])
    assert draft(drafter, sequence([5, 1, 2])) == [3, 4]
    assert draft(drafter, sequence([5, 7, 8])) == []
    assert drafter.shared.tokens == 4
    assert bound(Suffix(max_cached_tokens=0)).shared is None


@given(few, few)
def test_sam_reads_its_own_text(text: list[int], more: list[int]) -> None:
    """After the first occurrence of the longest end that occurred before, α tokens for each."""
    drafter, own = bound(Sam(draft_factor=1.5)), sequence(text)
    for token in [*more, None]:
        read = own.tokens
        known = [n for n in range(1, len(read)) if ends(read, read[-n:])[0] < len(read)]
        expected = []
        if known:
            start = ends(read, read[-max(known) :])[0]
            expected = read[start : start + int(1.5 * max(known))]
        assert draft(drafter, own) == expected
        if token is not None:
            own.tokens.append(token)


def test_sam_chooses_by_match_length(tmp_path: Path) -> None:
    """The corpus counts where its match is longer than the bias and the text's own; as a tree."""
    corpus = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8], [2, 3, 4, 5]]
    drafter = bound(Sam(draft_factor=1, static_bias=2, corpus=corpus))
    assert drafter.trees and not Sam().trees and Sam().wants.levels == "a"
    assert paths(drafter, sequence([9, 2, 3])) == set()  # two tokens are not more than the bias
    assert paths(drafter, sequence([9, 1, 2, 3])) == {(4,)}
    assert paths(drafter, sequence([9, 1, 2, 3, 4])) == {(5,), (7,)}
    assert paths(drafter, sequence([4, 9, 1, 2, 3, 4])) == {(5,), (7,)}  # two against one
    assert paths(drafter, sequence([3, 4, 9, 1, 2, 3, 4])) == {(9,), (9, 1)}  # two against two
    file = tmp_path / "corpus"
    StaticAutomaton.of(corpus).save(file, VOCAB)
    assert paths(bound(Sam(draft_factor=1, static_bias=2, corpus=file)), sequence([1, 2, 3])) == {
        (4,)
    }
    narrow = bound(Sam(draft_factor=1, static_bias=2, corpus=corpus, max_children=1))
    assert draft(narrow, sequence([9, 1, 2, 3, 4])) == [5, 6]
    with pytest.raises(ForetokenError, match="made for vocab_size 97"):
        bound(Sam(corpus=file), 98)
    with pytest.raises(ForetokenError, match="token id 8 and the target's vocabulary 8"):
        bound(Sam(corpus=corpus), 8)


GIVEN: list[list[int]] = [[5, 9, 2, 40, 3, 17], [60, 61, 62, 11, 11], list(range(90))]
MAKERS: dict[str, Callable[[], Drafter]] = {
    "llma": lambda: PromptLookup(20, 5, max_cached_tokens=60),
    "sad": lambda: Aggressive(),
    "forced": lambda: Forced(4),
    "suffix": lambda: Suffix(max_cached_tokens=60),
    "suffix path": lambda: Suffix(max_children=1, max_spec_offset=3),
    "sam": lambda: Sam(corpus=GIVEN, static_bias=0),
}
each = pytest.mark.parametrize("name", MAKERS)


@each
@pytest.mark.parametrize("slots", [1, 4])
def test_text_is_plain_decodings(name: str, slots: int, pair: Pair) -> None:
    """References, a corpus and a warm memory at its bound change no token at any temperature."""
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=30, references=GIVEN)
    outputs = check_seeded(
        lambda p: MAKERS[name](),
        TargetOnly(),
        pair,
        slots=slots,
        params=params,
        prompts=[*PROMPTS, *PROMPTS],
    )
    assert sum(output.stats.drafted for output in outputs) > 0


@each
def test_distribution_is_the_targets(name: str) -> None:
    """The joint distribution of two tokens, enumerated, with references and a corpus."""
    given_ = [[0, 1, 2, 0, 2], [1, 1]]
    makers = dict(MAKERS, sam=lambda: Sam(corpus=given_, static_bias=0, draft_factor=1))
    makers["llma"] = lambda: PromptLookup(2)
    params = SamplingParams(temperature=0.8, references=given_)
    check_distribution(
        lambda p: makers[name](), TargetOnly(), table_pair(3), params, 2, rows=1, budget=2
    )


def test_a_given_answer_is_taken_whole(pair: Pair) -> None:
    """With the target's own answer the forced and the aggressive drafter need as few passes as
    there can be."""
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    for drafter in (Forced(9), Aggressive(9)):
        [plain] = serve(pair.target, Forced(), TargetOnly(), PROMPTS[:1], params)
        given_ = SamplingParams(
            temperature=0, max_tokens=30, ignore_eos=True, references=[plain.token_ids]
        )
        [output] = serve(pair.target, drafter, TargetOnly(), PROMPTS[:1], given_)
        assert output.token_ids == plain.token_ids and output.stats.passes == 3


def test_a_repeated_request_is_copied(pair: Pair) -> None:
    """The second time an answer is written, the memory of the first drafts it."""
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=40)
    for drafter in (PromptLookup(20, 5, max_cached_tokens=60), Suffix(max_cached_tokens=60)):
        engine = Engine(ModelTarget(pair.target, 1, 256), drafter, TargetOnly())
        passes = []
        for _ in range(2):
            request = engine.add([50, 51], params)
            while engine.busy:
                engine.step()
            passes.append(request.stats.passes)
        assert passes[1] < passes[0] / 2


def test_references_as_text(pair: Pair) -> None:
    """LLM turns texts into ids of the target's; what it can't serve it says."""
    tokenizer = ByteTokenizer(VOCAB)
    llm = LLM(pair.target, tokenizer=tokenizer, speculative_config={"method": "forced"})
    params = SamplingParams(temperature=0, max_tokens=20)
    [plain] = llm.generate(["abc"], params)
    said = SamplingParams(temperature=0, max_tokens=20, references=[plain.text, [1, 2]])
    [output] = llm.generate(["abc"], said)
    assert output.token_ids == plain.token_ids and output.stats.passes == 1
    [refused] = llm.generate([[1, 2]], SamplingParams(references=[[3, VOCAB]]))
    assert refused.error is not None and "outside the vocabulary of 97" in refused.error
    with pytest.raises(ForetokenError, match=r"LLM\.generate"):
        llm.engine.add([1, 2], SamplingParams(references=["text"]))
    [unread] = LLM(pair.target).generate([[1, 2]], SamplingParams(references=["text"]))
    assert "no tokenizer" in (unread.error or "")
    for given_ in ("text", [1, 2]):
        with pytest.raises(ForetokenError, match="a list of texts or of lists of token ids"):
            SamplingParams(references=given_)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Aggressive(0), "at least 1, or None"),
        (lambda: Forced(0), "at least 1"),
        (lambda: Suffix(0), "at least 1 and 2"),
        (lambda: Suffix(max_tree_depth=1), "at least 1 and 2"),
        (lambda: Suffix(max_spec_factor=-1), "max_spec_factor is -1"),
        (lambda: Suffix(max_children=0), "max_children 0"),
        (lambda: Sam(draft_factor=0), "draft_factor above 0"),
        (lambda: bound(Suffix(max_cached_tokens=-1)), "max_cached_tokens is -1"),
        (lambda: bound(Sam(corpus="no/file")), "can't be read as a suffix automaton"),
    ],
)
def test_wrong_options(make: Callable[[], object], said: str) -> None:
    """One sentence."""
    with pytest.raises(ForetokenError, match=said):
        make()
