"""What an exact method must satisfy: each check is a function that raises `AssertionError`.

A drafter comes as a function from a `Pair` to a new drafter, since a drafter serves one engine.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from foretoken.config import build
from foretoken.drafters.nothing import Nothing
from foretoken.engine.engine import Engine
from foretoken.engine.outputs import RequestOutput
from foretoken.models.model import CausalLM
from foretoken.models.seq2seq.target import target_for
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Target, Verifier
from foretoken.sampling.params import SamplingParams
from foretoken.testing.distributions import distance, joint_distribution, target_distribution
from foretoken.testing.models import Pair, logits_after, table_pair, tiny_pair
from foretoken.tree import Kind
from foretoken.verify.target_only import TargetOnly

Make = Callable[[Pair], Drafter]
Wrap = Callable[[ModelTarget], Target]

_ENUMERATED = 3  # nodes of a draft, of which each draw multiplies the cases
PROMPTS = ([5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3], [11] * 3, [60, 61, 62, 63, 60, 61, 62])
"""Token ids with something to copy."""

SAMPLED = SamplingParams(
    temperature=0.7,
    top_p=0.9,
    top_k=20,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    seed=7,
    max_tokens=24,
    ignore_eos=True,
)


def serve(
    model: CausalLM,
    drafter: Drafter,
    verifier: Verifier,
    prompts: Seq[Seq[int]],
    params: SamplingParams | Seq[SamplingParams],
    *,
    slots: int = 8,
    tokenizer: Any = None,
    eos_ids: frozenset[int] = frozenset(),
    chunk: int = 512,
    wrap: Wrap | None = None,
) -> list[RequestOutput]:
    """Serve prompts to the end on a new engine; the outputs in the prompts' order.

    `wrap`: makes the target of a method that wraps it."""
    target = target_for(model, slots, model.max_length, tokenizer=tokenizer)
    served = target if wrap is None else wrap(target)
    engine = Engine(served, drafter, verifier, eos_ids=eos_ids, chunk=chunk)
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    requests = [engine.add(p, own) for p, own in zip(prompts, each, strict=True)]
    while engine.busy:
        engine.step()
    return [request.snapshot() for request in requests]


def texts(outputs: Seq[RequestOutput]) -> list[list[int]]:
    """The token ids of each output's only sample."""
    return [output.token_ids for output in outputs]


def greedy_reference(model: CausalLM, prompt: Seq[int], tokens: int) -> list[int]:
    """Plain greedy decoding, a whole pass for every token."""
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(logits_after(model, text).argmax()))
    return text[len(prompt) :]


def check_greedy(
    make: Make,
    verifier: Verifier,
    pair: Pair,
    *,
    slots: int = 1,
    tokens: int = 24,
    prompts: Seq[Seq[int]] = PROMPTS[:2],
    expected: Seq[Seq[int]] | None = None,
    wrap: Wrap | None = None,
) -> list[RequestOutput]:
    """At temperature 0 the tokens are plain decoding's (`expected`, or computed here)."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    outputs = serve(pair.target, make(pair), verifier, prompts, params, slots=slots, wrap=wrap)
    if expected is None:
        expected = [greedy_reference(pair.target, prompt, tokens) for prompt in prompts]
    _compare(texts(outputs), expected, f"greedy decoding in batches of {slots}")
    return outputs


def check_seeded(
    make: Make,
    verifier: Verifier,
    pair: Pair,
    *,
    slots: int = 1,
    params: SamplingParams = SAMPLED,
    prompts: Seq[Seq[int]] = PROMPTS,
    expected: Seq[Seq[int]] | None = None,
    wrap: Wrap | None = None,
) -> list[RequestOutput]:
    """Chosen drafts: at any temperature the tokens are those of plain decoding with that seed
    (`expected`, or computed here)."""
    outputs = serve(pair.target, make(pair), verifier, prompts, params, slots=slots, wrap=wrap)
    if expected is None:
        plain = [texts(serve(pair.target, Nothing(), TargetOnly(), [p], params)) for p in prompts]
        expected = [text for [text] in plain]
    _compare(texts(outputs), expected, f"sampling in batches of {slots}")
    return outputs


def check_independence(
    make: Make,
    verifier: Verifier,
    pair: Pair,
    params: SamplingParams = SAMPLED,
    *,
    wrap: Wrap | None = None,
) -> None:
    """A request's tokens depend neither on the other requests nor on how its prompt was cut."""

    def written(prompts: Seq[Seq[int]], **options: Any) -> list[list[int]]:
        return texts(
            serve(pair.target, make(pair), verifier, prompts, params, wrap=wrap, **options)
        )

    alone = [written([prompt])[0] for prompt in PROMPTS]
    for slots, chunk in ((len(PROMPTS), 512), (2, 3)):
        together = written(PROMPTS, slots=slots, chunk=chunk)
        _compare(together, alone, f"{len(PROMPTS)} requests in {slots} slots against each alone")


def check_distribution(
    make: Make,
    verifier: Verifier,
    pair: Pair,
    params: SamplingParams,
    tokens: int = 3,
    *,
    prompt: Seq[int] = (0, 1, 0),
    tolerance: float = 1e-12,
    **options: Any,
) -> None:
    """The joint distribution of the first tokens, by enumeration, is the target's."""
    distribution = joint_distribution(
        pair.target, lambda: make(pair), verifier, prompt, params, tokens, **options
    )
    ends = options.get("end_ids", frozenset())
    off = distance(distribution, target_distribution(pair.target, prompt, params, tokens, ends))
    assert off <= tolerance, f"The distribution of {tokens} tokens is off by {off:.3g} ({params})."


def check_drafter(
    make: Make,
    verifier: Verifier | None = None,
    *,
    pair: Pair | None = None,
    tiny: Pair | None = None,
) -> None:
    """All of the above for one drafter under its exact rule, on tiny models.

    pair: what the token checks run on. tiny: a pair of a vocabulary of 3 or 4 for the distribution;
    give one where the drafter needs more of the target than logits and masks."""
    pair, tiny = pair or tiny_pair(), tiny or table_pair()
    drafter = make(pair)
    rule = verifier or build({"method": drafter}).verifier
    for slots in (1, 3):
        check_greedy(make, rule, pair, slots=slots)
    check_independence(make, rule, pair)
    if drafter.kinds <= {Kind.CHOSEN, Kind.AUXILIARY}:
        for slots in (1, len(PROMPTS)):
            check_seeded(make, rule, pair, slots=slots)
    bound = make(tiny)  # from when on its nodes are known
    target_for(tiny.target, 1, tiny.target.max_length).bind(bound)
    nodes = min(bound.nodes, _ENUMERATED)  # where three tokens leave room for two
    for params in (SamplingParams(temperature=0.8), SamplingParams(top_k=2, presence_penalty=0.5)):
        check_distribution(make, rule, tiny, params, rows=1, budget=nodes, steps=1)
        check_distribution(make, rule, tiny, params, rows=1)


def _compare(actual: Seq[Seq[int]], expected: Seq[Seq[int]], what: str) -> None:
    for place, (mine, right) in enumerate(zip(actual, expected, strict=True)):
        if list(mine) == list(right):
            continue
        at = next((i for i, (a, b) in enumerate(zip(mine, right, strict=False)) if a != b), -1)
        at = at if at >= 0 else min(len(mine), len(right))
        raise AssertionError(
            f"{what}: text {place} differs from plain decoding at token {at}: "
            f"{list(mine)[at : at + 4]} instead of {list(right)[at : at + 4]}."
        )
