"""The distribution of the texts that a method writes: exact, by enumerating every random outcome of
the code that runs, or sampled.

`joint_distribution` runs the real loop again and again, by the scripts of `enumeration.py`. Many
scripts run as the rows of one batch.

Legend: V vocabulary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from foretoken.grammar.constraint import CompiledGrammar
from foretoken.models.model import CausalLM
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Target, Verifier
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.step import prefill, step
from foretoken.testing.enumeration import EnumeratedDraws, Script
from foretoken.testing.models import logits_after

Distribution = dict[tuple[int, ...], float]
"""Token sequence -> probability."""


def joint_distribution(
    model: CausalLM,
    make: Callable[[], Drafter],
    verifier: Verifier,
    prompt: Seq[int],
    params: SamplingParams,
    tokens: int,
    *,
    steps: int | None = None,
    rows: int = 1,
    budget: int | None = None,
    end_ids: frozenset[int] = frozenset(),
    wrap: Callable[[ModelTarget], Target] | None = None,
) -> Distribution:
    """The exact distribution of the first `tokens` tokens that the method writes after `prompt`.

    After `steps` steps (None: no end) the rest is taken from the target's distribution.
    `budget` bounds the nodes of each draft (None: as in the engine, one less than the tokens left).
    `rows` scripts run side by side, for speed where drafts are equally long in all rows; else leave
    it at 1. `wrap` makes the target of a method that wraps it."""
    distribution: Distribution = defaultdict(float)
    todo: list[list[int]] = [[]]
    while todo:
        scripts = [Script(todo.pop()) for _ in range(min(rows, len(todo)))]
        start = [Sequence.start(prompt, params, end_ids=end_ids) for _ in scripts]
        _run(model, make(), verifier, start, tokens, steps, scripts, budget, wrap=wrap)
        for sequence, script in zip(start, scripts, strict=True):
            todo += script.others
            distribution[tuple(sequence.output[:tokens])] += script.weight
    total = sum(distribution.values())
    if abs(total - 1) > 1e-9:
        raise AssertionError(
            f"The outcomes' probabilities sum to {total:.6f}: what a row draws depends on the "
            "other rows (then use rows=1) or on something random outside draws."
        )
    return _completed(distribution, model, prompt, params, tokens, end_ids)


def sampled_counts(
    model: CausalLM,
    make: Callable[[], Drafter],
    verifier: Verifier,
    prompt: Seq[int],
    params: SamplingParams,
    tokens: int,
    samples: int,
    *,
    seed: int = 0,
    rows: int = 4096,
    budget: int | None = None,
    tokenizer: Any = None,
    trust_remote_code: bool = False,
    wrap: Callable[[ModelTarget], Target] | None = None,
) -> Counter[tuple[int, ...]]:
    """How often each text of `tokens` tokens was written with the seeds from `seed` on.

    `budget` bounds the nodes of each draft (None: as in the engine, one less than the tokens left).
    """
    counts: Counter[tuple[int, ...]] = Counter()
    for begin in range(seed, seed + samples, rows):
        end = min(begin + rows, seed + samples)
        batch = [Sequence.start(prompt, params, seed=i) for i in range(begin, end)]
        _run(
            model,
            make(),
            verifier,
            batch,
            tokens,
            budget=budget,
            tokenizer=tokenizer,
            trust_remote_code=trust_remote_code,
            wrap=wrap,
        )
        counts.update(tuple(s.output[:tokens]) for s in batch)
    return counts


@torch.inference_mode()
def _run(
    model: CausalLM,
    drafter: Drafter,
    verifier: Verifier,
    sequences: list[Sequence],
    tokens: int,
    steps: int | None = None,
    scripts: list[Script] | None = None,
    budget: int | None = None,
    tokenizer: Any = None,
    trust_remote_code: bool = False,
    wrap: Callable[[ModelTarget], Target] | None = None,
) -> None:
    """Step all sequences, of one prompt, until each has `tokens` tokens of output."""
    longest = len(sequences[0].tokens) + tokens
    scorer = ModelTarget(
        model,
        len(sequences),
        longest + 32,
        nodes=32,
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
    )
    target: Target = scorer if wrap is None else wrap(scorer)
    target.bind(drafter)
    for sequence in sequences:
        target.begin(sequence)
        drafter.begin(sequence)
    first, *others = sequences
    while target.pending(first):
        prefill(target, drafter, [first], 512)
    for other in others:
        target.fork(first, other)
        drafter.fork(first, other)
    done = 0
    while steps is None or done < steps:
        left = [tokens - len(s.output) for s in sequences]
        if max(left) <= 0:
            break
        _advance(target, drafter, verifier, sequences, left, scripts, budget)
        done += 1


def _advance(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    sequences: list[Sequence],
    left: list[int],
    scripts: list[Script] | None,
    budget: int | None,
) -> None:
    """One step for every sequence that has tokens left to write.

    Enumerated rows with equally many left go together: the padding of a ragged batch would be
    enumerated too.
    """
    groups: dict[int, list[int]] = defaultdict(list)
    for row, count in enumerate(left):
        if count > 0:
            groups[count if scripts is not None else 0].append(row)
    for members in groups.values():
        draws = None if scripts is None else EnumeratedDraws([scripts[r] for r in members])
        budgets = [left[r] - 1 if budget is None else budget for r in members]
        step(target, drafter, verifier, [sequences[r] for r in members], budgets, draws)


def target_distribution(
    model: CausalLM,
    prompt: Seq[int],
    params: SamplingParams,
    tokens: int,
    end_ids: frozenset[int] = frozenset(),
    written: tuple[int, ...] = (),
) -> Distribution:
    """The distribution of plain decoding, slowly and plainly: a whole pass for every prefix."""
    distribution: Distribution = {written: 1.0}
    for _ in range(tokens):
        longer: Distribution = {}
        for text, probability in distribution.items():
            context = [*prompt, *text]
            logits = logits_after(model, context)
            for token, p in enumerate(
                reference_distribution(logits, context, len(prompt), params, end_ids)
            ):
                if p > 0:
                    longer[(*text, token)] = probability * p
        distribution = longer
    return distribution


def _completed(
    distribution: Distribution,
    model: CausalLM,
    prompt: Seq[int],
    params: SamplingParams,
    tokens: int,
    end_ids: frozenset[int],
) -> Distribution:
    """Texts shorter than `tokens`, continued by the target's distribution."""
    whole: Distribution = defaultdict(float)
    for text, probability in distribution.items():
        rest = target_distribution(model, prompt, params, tokens - len(text), end_ids, text)
        for full, p in rest.items():
            whole[full] += probability * p
    return dict(whole)


def reference_distribution(
    logits: Tensor,
    context: Seq[int],
    prompt_length: int,
    params: SamplingParams,
    end_ids: Iterable[int] = (),
) -> list[float]:
    """The folded distribution [V] of one place, spelled out token by token: `fold` is checked
    against it."""
    scores = logits.double().clone()
    prompt, output = list(context[:prompt_length]), list(context[prompt_length:])
    vocab = range(len(scores))
    banned = set(params.bad_token_ids or ())
    if params.allowed_token_ids is not None:
        banned |= set(vocab) - set(params.allowed_token_ids)
    if len(output) < params.min_tokens:
        banned |= set(end_ids)
    words: Seq[Any] = params.bad_words  # of ids
    for word in words:
        if output[max(0, len(output) - len(word) + 1) :] == list(word[:-1]):
            banned.add(word[-1])
    banned |= {token for token in vocab if not _permits(params, output, token, set(end_ids))}
    for token in vocab:
        scores[token] += (params.logit_bias or {}).get(token, 0.0)
        if token in banned:
            scores[token] = -torch.inf
    for process in params.logits_processors:
        scores = process(torch.tensor([list(context)]), scores[None].clone())[0]
    for make in params.logits_processor_factories:
        process = make()
        for end in range(prompt_length, len(context)):
            process(torch.tensor([list(context[:end])]), torch.zeros(1, len(scores)))
        scores = process(torch.tensor([list(context)]), scores[None].clone())[0]
    for token in vocab:
        if token in prompt or token in output:
            rate = params.repetition_penalty
            scores[token] = scores[token] / rate if scores[token] > 0 else scores[token] * rate
        count = output.count(token)
        scores[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    if params.temperature == 0:
        best = int(scores.argmax())
        return [float(token == best) for token in vocab]
    return _truncated((scores / params.temperature).tolist(), params)


def _permits(params: SamplingParams, output: Seq[int], token: int, ends: set[int]) -> bool:
    """Whether a grammar that holds from the start lets this token follow the output: a new matcher
    reads all of it."""
    grammar = params.structured_outputs
    if not isinstance(grammar, CompiledGrammar) or ends.intersection(output):
        return True
    matcher = grammar.start()
    if not all(matcher.accept(written) for written in output):
        raise AssertionError(f"The text {list(output)} is none of the grammar's.")
    return (token in ends and matcher.complete) or matcher.accept(token)


def _truncated(scaled: list[float], params: SamplingParams) -> list[float]:
    """min_p, then top_k, then top_p of what is left, as probabilities."""
    distribution = torch.tensor(scaled, dtype=torch.float64).softmax(-1).tolist()
    floor = params.min_p * max(distribution)
    kept = sorted(
        (t for t, p in enumerate(distribution) if p >= floor), key=lambda t: -distribution[t]
    )
    if params.top_k > 0:
        kept = kept[: params.top_k]
    total, mass, last = sum(distribution[t] for t in kept), 0.0, 0
    for last, token in enumerate(kept, 1):  # noqa: B007
        mass += distribution[token] / total
        if mass >= params.top_p:
            break
    kept = kept[:last]
    total = sum(distribution[t] for t in kept)
    return [distribution[t] / total if t in kept else 0.0 for t in range(len(distribution))]


def distance(one: Mapping[tuple[int, ...], float], other: Mapping[tuple[int, ...], float]) -> float:
    """The largest difference between two distributions' probabilities of a text."""
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other})


def chi_square(
    counts: Mapping[tuple[int, ...], int],
    distribution: Mapping[tuple[int, ...], float],
    bin_of: Callable[[tuple[int, ...]], object] = lambda text: text,
    least: float = 5.0,
) -> float:
    """The p-value of Pearson's chi-square test of counts against `distribution`; 0 where a count is
    impossible.

    `bin_of` groups texts; bins that expect fewer than `least` are put together, and with the next
    smallest where they expect fewer in sum.
    """
    samples = sum(counts.values())
    if not samples:
        raise ValueError("There are no samples, so nothing is tested.")
    expected: dict[object, float] = defaultdict(float)
    observed: dict[object, float] = defaultdict(float)
    for text, p in distribution.items():
        expected[bin_of(text)] += p * samples
    for text, n in counts.items():
        if distribution.get(text, 0.0) <= 0:
            return 0.0
        observed[bin_of(text)] += n
    possible = sum(e > 0 for e in expected.values())
    if possible > 1 and max(expected.values()) < least:
        raise ValueError(f"{samples} samples are too few to tell {possible} bins apart; take more.")
    rare = [b for b, e in expected.items() if e < least]
    for b in rare:
        expected["rare"] += expected.pop(b)
        observed["rare"] += observed.pop(b, 0.0)
    if expected.get("rare", least) < least and len(expected) > 1:
        smallest = min((b for b in expected if b != "rare"), key=lambda b: expected[b])
        expected[smallest] += expected.pop("rare")
        observed[smallest] += observed.pop("rare")
    statistic = sum((observed[b] - e) ** 2 / e for b, e in expected.items() if e > 0)
    half = torch.tensor([max(1, len(expected) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
