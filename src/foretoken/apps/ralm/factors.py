"""What guessing documents gains, and what drafting tokens gains on top of it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from foretoken.apps.ralm.outputs import RalmOutput
from foretoken.apps.ralm.ralm import Ralm
from foretoken.errors import ForetokenError
from foretoken.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Factors:
    """Seconds of all prompts: in the plain loop with plain decoding, with guessed documents, and
    with guessed documents and drafted tokens. different: prompts whose token ids differ from the
    plain loop's in one of the others. match_rate, mean_acceptance_length: of the last."""

    plain_time: float
    guessed_time: float
    drafted_time: float
    different: int
    match_rate: float
    mean_acceptance_length: float

    @property
    def retrieval(self) -> float:
        """How many times as fast guessed documents make the plain loop."""
        return self.plain_time / self.guessed_time

    @property
    def decoding(self) -> float:
        """How many times as fast drafted tokens make that."""
        return self.guessed_time / self.drafted_time

    @property
    def total(self) -> float:
        """Both: their product."""
        return self.plain_time / self.drafted_time

    def __str__(self) -> str:
        return (
            f"{self.total:.2f}× in all: retrieval {self.retrieval:.2f}× (match rate "
            f"{self.match_rate:.2f}), decoding {self.decoding:.2f}× (mean acceptance length "
            f"{self.mean_acceptance_length:.2f}); {self.different} texts differ"
        )


def factors(plain: Ralm, drafting: Ralm, prompts: Seq[str], params: SamplingParams) -> Factors:
    """Serve each prompt in three ways in turn and compare their times.

    plain: with an `LLM` that decodes plainly. drafting: the same with a method; both should have
    been called once before, so that nothing is loaded meanwhile. Times include the retrievals and
    the passes over documents. Raises `ForetokenError` without a prompt, and for options that
    differ.
    """
    if not prompts:
        raise ForetokenError("There are no prompts to measure; give at least one.")
    if plain.options != drafting.options:
        raise ForetokenError(
            "The two to be compared have different options; give both the same, so that only the "
            "decoding method differs."
        )
    ways = (plain.generate_plain, plain.generate, drafting.generate)
    served: list[list[RalmOutput]] = [[], [], []]
    for number, prompt in enumerate(prompts):
        for turn in range(len(ways)):
            way = (number + turn) % len(ways)  # nobody is always the first
            served[way].append(ways[way](prompt, params))
    plain_time, guessed_time, drafted_time = (
        sum(out.stats.total_time for out in outputs) for outputs in served
    )
    ids = [[tuple(out.token_ids) for out in outputs] for outputs in served]
    stats = [out.stats for out in served[-1]]
    matched, wrong = sum(s.matched for s in stats), sum(s.wrong for s in stats)
    return Factors(
        plain_time,
        guessed_time,
        drafted_time,
        different=sum(len({*texts}) > 1 for texts in zip(*ids, strict=True)),
        match_rate=matched / max(1, matched + wrong),
        mean_acceptance_length=(
            sum(s.decoding.tokens for s in stats) / sum(s.decoding.passes for s in stats)
        ),
    )
