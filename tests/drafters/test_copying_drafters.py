"""All drafters that copy: nothing but the speed depends on what they are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from copying_drafters import VOCAB
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.drafters.aggressive import Aggressive
from foretoken.drafters.forced import Forced
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.sam import Sam
from foretoken.drafters.suffix import Suffix
from foretoken.engine.engine import Engine
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.testing import (
    ByteTokenizer,
    Pair,
    check_distribution,
    check_seeded,
    serve,
    table_pair,
)
from foretoken.testing.checks import PROMPTS, texts
from foretoken.verify.target_only import TargetOnly

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
WARM = SamplingParams(temperature=0.9, seed=3, max_tokens=30, references=GIVEN)


@pytest.fixture(scope="module")
def plain(pair: Pair) -> list[list[int]]:
    """What plain decoding writes to each prompt."""
    return texts(serve(pair.target, Nothing(), TargetOnly(), PROMPTS, WARM))


@each
@pytest.mark.parametrize("slots", [1, 4])
def test_text_is_plain_decodings(name: str, slots: int, pair: Pair, plain: list[list[int]]) -> None:
    """References, a corpus and a warm memory at its bound change no token at any temperature."""
    outputs = check_seeded(
        lambda p: MAKERS[name](),
        TargetOnly(),
        pair,
        slots=slots,
        params=WARM,
        prompts=[*PROMPTS, *PROMPTS],
        expected=plain * 2,
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
    """LLM turns texts into ids of the target; what it can't serve is an error."""
    tokenizer = ByteTokenizer(VOCAB)
    llm = LLM(pair.target, tokenizer=tokenizer, speculative_config={"method": "forced"})
    params = SamplingParams(temperature=0, max_tokens=20)
    [plain] = llm.generate(["abc"], params)
    with_references = SamplingParams(temperature=0, max_tokens=20, references=[plain.text, [1, 2]])
    [output] = llm.generate(["abc"], with_references)
    assert output.token_ids == plain.token_ids and output.stats.passes == 1
    [refused] = llm.generate([[1, 2]], SamplingParams(references=[[3, VOCAB]]))
    assert refused.error is not None and "outside the vocabulary of 97" in refused.error
    with pytest.raises(ForetokenError, match=r"LLM\.generate"):
        llm.engine.add([1, 2], SamplingParams(references=["text"]))
    [unread] = LLM(pair.target).generate([[1, 2]], SamplingParams(references=["text"]))
    assert "no tokenizer" in (unread.error or "")
    for given_ in ("text", [1, 2]):
        with pytest.raises(ForetokenError, match="a list of texts or lists of whole numbers"):
            SamplingParams(references=given_)  # type: ignore[arg-type]
