"""Several drafters: at every step each sequence takes the most promising draft: `a+b`.

The choice is made before anything is drawn. It follows from the acceptance rate of each drafter's
earlier drafts in this sequence, and from the length of the present draft where a drafter chooses
its tokens (prompt lookup: whether it found a match); such drafters draft first. A drafter that
draws drafts only for the sequences that take it. Where a draft is auxiliary nodes alone, which make
the next one, the part's last draft counts: this step is the price of it. Hybrids of this kind:
Oliaro et al. 2025 (SuffixDecoding, by the score of its own draft), Hu et al. 2025 (SAM-Decoding, by
the length of its match). Departure: the drafts are compared by expected speed (Leviathan et al.
2023, theorem 3.8).

Legend: B sequences, P parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from foretoken.drafters.shared.mistakes import refused
from foretoken.drafters.shared.wrapper import Wrapper
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.length import speedup
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, Kind
from foretoken.trees.join import assemble

_CHOSEN = frozenset({Kind.CHOSEN, Kind.AUXILIARY})


@dataclass
class _Record:
    """One part's results in one sequence. accepted, tested: tokens, older ones weighing less;
    barren: drafts of auxiliary nodes alone that were taken, older ones weighing less; depth: of its
    last other draft; used: whether the last step took its draft; asked: whether a draft was asked
    of it that it may not have had."""

    accepted: float = 0.0
    tested: float = 0.0
    barren: float = 0.0
    depth: int = 4
    used: bool = False
    asked: bool = False


@dataclass(eq=False)
class Either(Wrapper):
    """drafters: the parts; of equally good drafts the first part's is taken. level_cost: of one
    level of a drawn draft, as a share of the target's pass (chosen tokens count as free). rate: the
    acceptance rate assumed at first; weight: how many tested tokens that counts as. decay: factor
    by which earlier results lose weight at each step, so that a part is tried again in time."""

    level_cost: float = 0.1
    rate: float = 0.7
    weight: float = 2.0
    decay: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(0, math.inf, level_cost=self.level_cost)
        if not 0 < self.weight < math.inf:
            raise ForetokenError(f"weight is {self.weight}; it must be above 0.")
        check_range(0, 1, rate=self.rate, decay=self.decay)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        known = {
            number: part.draft(sequences, budgets, draws).trim(budgets)
            for number, part in enumerate(self.drafters)
            if part.kinds <= _CHOSEN
        }
        rows_of = self._choose(sequences, budgets, known)
        pieces = []
        for number, rows in rows_of.items():
            if number in known:
                pieces.append((rows, known[number].take(rows)))
            else:
                drafting, limits = [sequences[row] for row in rows], [budgets[row] for row in rows]
                tree = self.drafters[number].draft(drafting, limits, draws.take(rows))
                pieces.append((rows, tree.trim(limits)))
        return assemble(pieces, len(sequences), self._device)

    def _choose(
        self, sequences: Seq[Sequence], budgets: Seq[int], known: dict[int, DraftTree]
    ) -> dict[int, list[int]]:
        """Part -> the rows that take its draft; a row takes none where drafting doesn't pay."""
        rows_of: dict[int, list[int]] = {}
        for row, sequence in enumerate(sequences):
            records = self._records(sequence)
            speeds = []
            for number, record in enumerate(records):
                if number in known:
                    speeds.append(self._known_speed(record, known[number], row))
                else:
                    depth = min(record.depth, budgets[row])
                    speeds.append(speedup(self._acceptance(record), depth, self.level_cost))
                record.used = False
            if max(speeds) >= 1:
                best = speeds.index(max(speeds))
                records[best].used = True
                records[best].asked = best not in known and budgets[row] > 0
                rows_of.setdefault(best, []).append(row)
        return rows_of

    def _known_speed(self, record: _Record, tree: DraftTree, row: int) -> float:
        """What a draft of chosen tokens promises. One of auxiliary nodes alone promises what its
        part's next one does, the less, the more often none has come of such a draft."""
        _, depth = tree.offered[row]
        if depth or not tree.counts[row]:
            return speedup(self._acceptance(record), depth, 0.0)
        later = replace(record, tested=record.tested + record.barren)
        return speedup(self._acceptance(later), record.depth, 0.0)

    def _records(self, sequence: Sequence) -> list[_Record]:
        records: list[_Record] | None = sequence.state.get(self)
        if records is None:
            records = sequence.state[self] = [_Record() for _ in self.drafters]
        return records

    def _acceptance(self, record: _Record) -> float:
        accepted = self.rate * self.weight + record.accepted
        return accepted / (self.weight + record.tested)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        records = [self._records(sequence) for sequence in sequences]
        for number, part in enumerate(self.drafters):
            # A part must not take another part's draft for its own.
            told = [
                step if mine[number].used else replace(step, drafted=0)
                for mine, step in zip(records, steps, strict=True)
            ]
            part.observe(sequences, told)
        for mine, step in zip(records, steps, strict=True):
            if step.tokens:
                self._note(mine, step)

    def _note(self, records: list[_Record], step: Step) -> None:
        for record in records:
            record.accepted *= self.decay
            record.tested *= self.decay
            record.barren *= self.decay
            if record.used and step.drafted:
                _, depth = step.tree.offered[step.row]
                record.depth = depth or record.depth
                record.accepted += len(step.path)
                record.tested += len(step.path) + refused(step)
                record.barren += not depth
            elif record.used and record.asked:
                record.tested += 1  # it had none: as if its first token had been refused
            record.used = record.asked = False
