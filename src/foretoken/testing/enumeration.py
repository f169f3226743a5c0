"""Every random outcome of the code that runs, one after the other.

A run follows a script of random outcomes; where the script ends, the run takes the first possible
outcome and notes the others as scripts to run later.

Legend: B rows, M places, K outcomes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from foretoken.draws import Draws, KeyedDraws, Purpose, draft_index

Numbers = dict[float, list[list[float]]]
"""Random number -> the distributions in which it decided between several outcomes."""

_NEVER = 1e-14  # outcomes less likely than this are rounding, not possibilities


@dataclass(eq=False)
class Script:
    """The random outcomes of one row's run: `chosen` so far, and the runs that branch off it."""

    chosen: list[int]
    at: int = 0
    weight: float = 1.0
    others: list[list[int]] = field(default_factory=list)

    def choose(self, probabilities: Seq[float]) -> int:
        """The next outcome, by the script or the first possible one."""
        total = sum(probabilities)
        possible = [i for i, p in enumerate(probabilities) if p > _NEVER * total]
        if len(possible) == 1:
            return possible[0]
        if self.at == len(self.chosen):
            self.others += [[*self.chosen, other] for other in possible[1:]]
            self.chosen.append(possible[0])
        outcome = self.chosen[self.at]
        self.at += 1
        self.weight *= probabilities[outcome] / total
        return outcome


class EnumeratedDraws:
    """`Draws` of a step that follow a script for each row.

    They keep the keys that requests draw by. Two outcomes of a step that would share their number
    raise `AssertionError`: enumeration takes them for independent, and they wouldn't be.
    """

    def __init__(
        self,
        scripts: Seq[Script],
        keyed: KeyedDraws | None = None,
        used: Seq[Numbers] | None = None,
    ) -> None:
        """keyed: what draws in a request's place; used: each row's numbers in this step so far, and
        what tokens were drawn from by them."""
        rows = [0] * len(scripts)
        self._scripts = list(scripts)
        self._keyed = keyed or KeyedDraws(rows, rows, torch.device("cpu"))
        self._used = used or [{} for _ in scripts]

    def accept(self, probability: Tensor, tests: Tensor | None = None) -> Tensor:
        sure = probability.nan_to_num(0.0).clamp(0, 1)
        index = torch.arange(sure.shape[1]) if tests is None else tests.cpu()
        noise = self._keyed.noise(Purpose.ACCEPT, index=index)
        return self._unshared(torch.stack((1 - sure, sure), -1), noise).bool()

    def pick(self, distribution: Tensor, depths: Tensor) -> Tensor:
        """Of the slots of one place only one counts, and a slot may be asked again: these share
        their number."""
        outcomes, decided = self._each(distribution, self._keyed.noise(Purpose.TOKEN, depths.cpu()))
        for used, numbers in zip(self._used, decided, strict=True):
            for number in used.keys() & numbers.keys():
                if numbers[number][0] not in used[number]:
                    raise AssertionError("Two tokens of one step share their random number.")
            used.update(numbers)
        return outcomes

    def draft(self, distribution: Tensor, depth: int, sibling: int = 0) -> Tensor:
        noise = self._keyed.noise(Purpose.DRAFT, index=draft_index(depth, sibling))
        return self._unshared(distribution[:, None], noise)[:, 0]

    def take(self, rows: Seq[int]) -> Draws:
        scripts = [self._scripts[row] for row in rows]
        used = [self._used[row] for row in rows]
        return EnumeratedDraws(scripts, self._keyed.take(rows), used)

    def inner(self, part: int, starts: Seq[int] | None = None) -> Draws:
        return EnumeratedDraws(self._scripts, self._keyed.inner(part, starts), self._used)

    def _unshared(self, distributions: Tensor, noise: Tensor) -> Tensor:
        """As `_each`, where no number may decide twice."""
        outcomes, decided = self._each(distributions, noise)
        for used, numbers in zip(self._used, decided, strict=True):
            if used.keys() & numbers.keys() or any(len(own) > 1 for own in numbers.values()):
                raise AssertionError("Two draws of one step share their random number.")
            used.update(numbers)
        return outcomes

    def _each(self, distributions: Tensor, noise: Tensor) -> tuple[Tensor, list[Numbers]]:
        """[B, M, K] -> [B, M] outcomes, place by place; and what the numbers [B, M] decided."""
        outcomes, decided = [], []
        rows = zip(self._scripts, distributions.tolist(), noise.tolist(), strict=True)
        for script, row, numbers in rows:
            deciding: Numbers = {}
            for distribution, number in zip(row, numbers, strict=True):
                before = script.at
                outcomes.append(script.choose(distribution))
                if script.at > before:
                    deciding.setdefault(number, []).append(distribution)
            decided.append(deciding)
        found = torch.tensor(outcomes, device=distributions.device)
        return found.view(distributions.shape[:2]), decided
