"""Checks that a method writes what a given target alone would write; users can run it.

- *greedy*: at temperature 0 the tokens are plain decoding's, whatever the batch.
- *seeded*: drafts of chosen tokens write plain decoding's tokens at that seed, at any temperature.
- *distribution*: drafts of drawn tokens keep the joint distribution of the first tokens. Texts are
  sampled and counted in at most 64 bins, whose probabilities are worked out from the target alone:
  the bins are prefixes, found by splitting the likeliest one again and again. Pearson's chi-square
  compares.

Probabilities of chance are corrected for the number of a method's distribution checks (Bonferroni),
so that one threshold holds for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from foretoken.bench.measure.identity import compare
from foretoken.config import build
from foretoken.llm import LLM
from foretoken.methods import METHODS
from foretoken.models.model import CausalLM
from foretoken.registry import OPTION_ALIASES
from foretoken.sampling.params import SamplingParams
from foretoken.testing.distributions import chi_square, reference_distribution, sampled_counts
from foretoken.testing.models import logits_after
from foretoken.tree import Kind
from foretoken.tuned import resolve_tuned

THRESHOLD = 1e-4
"""A distribution check fails below this corrected probability."""
MOST_BINS = 64
_CHILDREN = 7
_ROWS = 256  # samples taken at a time
_BUDGET = 8  # most nodes of a draft in a distribution check
_ORDER = ("passed", "near_tie", "failed")

PROCESSORS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "repetition": {"repetition_penalty": 1.3},
}
TEMPERATURES = (1.0, 0.3, 1.5)


@dataclass(frozen=True)
class Plan:
    """What is run. prompts: token ids. cells: name -> parameters of the seeded and distribution
    checks."""

    prompts: tuple[tuple[int, ...], ...]
    cells: Mapping[str, SamplingParams]
    batches: tuple[int, ...] = (1, 3)
    max_tokens: int = 32
    samples: int = 4000
    first_tokens: int = 2

    @property
    def checks(self) -> int:
        """How many lines `certify` gives for a method."""
        return len(self.batches) + len(self.cells)


@dataclass(frozen=True)
class Check:
    """One line of the certificate.

    outcome: passed, near_tie or failed. p_value: of a distribution check, corrected. place, gap:
    the first token that differs, and how close the target's choice was there (`bench.identity`).
    """

    method: str
    check: str
    cell: str
    outcome: str
    compared: str
    p_value: float | None = None
    place: int | None = None
    gap: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Different for every line of a certificate."""
        return self.method, self.check, self.cell

    def data(self) -> dict[str, Any]:
        return asdict(self)


def cells(temperatures: Seq[float], processors: Seq[str]) -> dict[str, SamplingParams]:
    """The named processors at each temperature."""
    return {
        f"T={temperature:g} {name}": SamplingParams(temperature=temperature, **PROCESSORS[name])
        for temperature in temperatures
        for name in processors
    }


def certify(plain: LLM, config: Mapping[str, Any], plan: Plan) -> Iterator[Check]:
    """Check one method on `plain`'s model, one line after the other.

    `plain` decodes plainly, best in float64; `config` is a `speculative_config` that can be built
    more than once (names and paths, no drafter objects).
    """
    for line in lines(config, plan):
        yield checked(plain, config, plan, line)


def lines(config: Mapping[str, Any], plan: Plan) -> list[Check]:
    """The checks of a method, before they are made: without outcomes."""
    method, given = build(config), resolve_tuned(config)
    name, kinds = method.name, method.drafter.kinds
    models = [own for key, own in given.items() if OPTION_ALIASES.get(key, key) == "model"]
    named = [own for own in models if isinstance(own, (str, Path))]
    if name in METHODS and METHODS[name].trained and named:
        name = f"{name} with {Path(named[-1]).name}"
    if "verifier" in given:
        name = f"{name} by {given['verifier']}"
    sampled = "seeded" if kinds <= {Kind.CHOSEN, Kind.AUXILIARY} else "distribution"
    greedy = [Check(name, "greedy", f"batch {batch}", "", "") for batch in plan.batches]
    return [*greedy, *(Check(name, sampled, cell, "", "") for cell in plan.cells)]


def checked(plain: LLM, config: Mapping[str, Any], plan: Plan, line: Check) -> Check:
    """One of the method's `lines` with its outcome."""
    if line.check == "distribution":
        return _distribution(plain, config, plan, plan.cells[line.cell], line)
    if line.check == "seeded":
        params, batch = replace(plan.cells[line.cell], seed=1), max(plan.batches)
    else:
        params, batch = SamplingParams(temperature=0), int(line.cell.removeprefix("batch "))
    params = replace(params, max_tokens=plan.max_tokens, ignore_eos=True)
    return _same(plain, with_method(plain, config, batch), plan.prompts, params, line)


def with_method(plain: LLM, config: Mapping[str, Any], batch: int) -> LLM:
    """`plain`'s model with a method, for so many sequences at a time. Raises `ForetokenError` where
    the model can't be served so."""
    return LLM(
        plain.model,
        tokenizer=plain.tokenizer,
        speculative_config=config,
        max_model_len=plain.engine.target.max_length,
        max_num_seqs=batch,
        trust_remote_code=plain.trust_remote_code,
        eos_ids=plain.engine.eos_ids,
    )


def _same(
    plain: LLM, llm: LLM, prompts: Seq[Seq[int]], params: SamplingParams, line: Check
) -> Check:
    """The worst outcome among the prompts. Raises `ForetokenError` for one that plain decoding
    can't answer: two requests that fail have the same text, and prove nothing."""
    worst, tokens = line, 0
    expected = plain.generate([list(p) for p in prompts], params, raise_on_error=True)
    drafted = llm.generate([list(p) for p in prompts], params)
    for prompt, plainly, other in zip(prompts, expected, drafted, strict=True):
        a, b = plainly.outputs[0].token_ids, other.outputs[0].token_ids
        tokens += len(a)
        outcome, gap = compare(plain, prompt, params, a, b)
        outcome = {"identical": "passed", "different": "failed"}.get(outcome, outcome)
        if _ORDER.index(outcome) > _ORDER.index(worst.outcome or "passed"):
            place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
            worst = replace(worst, outcome=outcome, place=place, gap=gap)
    many = sum(output.stats.drafted for output in drafted)  # without drafts little is shown
    compared = f"{tokens} tokens, {many} drafted"
    return replace(worst, outcome=worst.outcome or "passed", compared=compared)


def _distribution(
    plain: LLM, config: Mapping[str, Any], plan: Plan, params: SamplingParams, line: Check
) -> Check:
    prompt, model, method = plan.prompts[0], plain.model, build(config)
    expected = prefix_bins(model, prompt, params, plan.first_tokens)
    counts = sampled_counts(
        model,
        lambda: build(config).drafter,
        method.verifier,
        prompt,
        params,
        plan.first_tokens,
        plan.samples,
        rows=_ROWS,
        budget=_BUDGET,
        tokenizer=plain.tokenizer,
        trust_remote_code=plain.trust_remote_code,
        wrap=method.wrapped,
    )
    binned: Counter[tuple[int, ...]] = Counter()
    for text, count in counts.items():
        binned[bin_of(text, expected)] += count
    p = min(1.0, chi_square(binned, expected) * len(plan.cells))
    outcome = "failed" if p < THRESHOLD else "passed"
    compared = f"{plan.samples} samples, {len(expected)} bins"
    return replace(line, outcome=outcome, compared=compared, p_value=p)


def prefix_bins(
    model: CausalLM, prompt: Seq[int], params: SamplingParams, tokens: int
) -> dict[tuple[int, ...], float]:
    """Bins for texts of `tokens` tokens: prefix -> probability that it is a text's longest prefix
    here.

    Starts with the empty prefix and splits the likeliest into its likeliest tokens and the rest.
    """
    bins: dict[tuple[int, ...], float] = {(): 1.0}
    open_prefixes: dict[tuple[int, ...], float] = {(): 1.0}  # that may still be split
    while open_prefixes and len(bins) + _CHILDREN <= MOST_BINS:
        prefix = max(open_prefixes, key=lambda prefix: open_prefixes[prefix])
        mass = open_prefixes.pop(prefix)
        text = [*prompt, *prefix]
        distribution = reference_distribution(logits_after(model, text), text, len(prompt), params)
        likely = sorted(range(len(distribution)), key=lambda token: -distribution[token])[
            :_CHILDREN
        ]
        for token in likely:
            bins[(*prefix, token)] = mass * distribution[token]
            if len(prefix) + 1 < tokens:
                open_prefixes[(*prefix, token)] = mass * distribution[token]
        bins[prefix] = mass * max(0.0, 1 - sum(distribution[token] for token in likely))
    return bins


def bin_of(text: tuple[int, ...], bins: Mapping[tuple[int, ...], float]) -> tuple[int, ...]:
    """The longest prefix of `text` that is a bin."""
    return next(text[:end] for end in range(len(text), -1, -1) if text[:end] in bins)
