"""What a grammar forces, as a draft."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from foretoken import SamplingParams
from foretoken.config import build
from foretoken.drafters.grammar import Grammar
from foretoken.draws import GreedyDraws
from foretoken.engine.engine import Engine
from foretoken.grammar.xgrammar import XGrammarMatcher
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import automaton
from foretoken.verify.target_only import TargetOnly
from json_tokenizer import ids, pair, tokenizer

FORCED = automaton(5, {0: {0: 1}, 1: {2: 2}, 2: {4: 3}, 3: {0: 0, 1: 0}}, whole=())


class Access:
    device, vocab_size = torch.device("cpu"), 5


def drafted(
    params: SamplingParams,
    budget: int = 16,
    output: list[int] | None = None,
    access: type[Access] = Access,
) -> Any:
    drafter = Grammar(num_speculative_tokens=8)
    drafter.bind(access())  # type: ignore[arg-type]
    sequence = Sequence.start([1], params)
    sequence.tokens += output or []
    tree = drafter.draft([sequence], [budget], GreedyDraws())
    return tree.tokens[0].tolist()


def test_the_forced_tokens_are_the_draft() -> None:
    """From where the text is, up to the budget; nothing where there is a choice."""
    params = SamplingParams(temperature=0, structured_outputs=FORCED)
    assert drafted(params) == [0, 2, 4]
    assert drafted(params, budget=2) == [0, 2] and drafted(params, budget=0) == []
    assert drafted(params, output=[0, 2]) == [4] and drafted(params, output=[0, 2, 4]) == []


def test_a_request_without_a_grammar_gets_no_draft() -> None:
    assert drafted(SamplingParams(temperature=0)) == []


def test_what_is_forced_is_accepted_and_saves_steps() -> None:
    """Keys and quotes of a schema whose values are short."""
    names = ["first_name_of_the_author", "second_name_of_the_author"]
    schema = {
        "type": "object",
        "properties": {name: {"enum": ["red", "green"]} for name in names},
        "required": names,
        "additionalProperties": False,
    }
    params = SamplingParams(temperature=0, max_tokens=90, structured_outputs={"json": schema})
    steps, texts = [], []
    for method in ("autoregressive", "grammar"):
        target = ModelTarget(pair().target, 1, 256, tokenizer=tokenizer())
        engine = Engine(target, build({"method": method}).drafter, TargetOnly())
        request = engine.add(ids("the"), params)
        while engine.busy:
            engine.step()
        steps.append(engine.stats.engine_steps)
        texts.append(request.samples[0].output.token_ids)
    assert texts[0] == texts[1] and steps[1] * 4 < steps[0]
    assert request.stats.draft_acceptance_rate > 0.95


def test_xgrammars_forced_text_goes_on_from_the_text_before_it() -> None:
    """A tokenizer that puts a space before each text, as Llama 2's does, puts none there."""

    def spaced(text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [*b" " * bool(text), *text.encode()]}

    stub: Any = SimpleNamespace(stop_token_ids=[], find_jump_forward_string=lambda: '{"a":')
    assert XGrammarMatcher(stub, spaced, frozenset()).forced() == [*b'{"a":']
    stub.find_jump_forward_string = lambda: ""
    assert XGrammarMatcher(stub, None, frozenset()).forced() == [], "at no cost"


class Narrow(Access):
    """A target that lacks the last token."""

    vocab_size = 4


def test_what_the_target_lacks_is_not_drafted() -> None:
    params = SamplingParams(temperature=0, structured_outputs=FORCED)
    assert drafted(params, access=Narrow) == [0, 2]
