"""The choice of drafter and length: against every fixed choice in made-up worlds, and its limits.

In a world, what would be accepted at a place of the text is decided beforehand, so that all choices
meet the same luck. Time is what the world's own costs say.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from foretoken.control.choice import Choice, Row
from foretoken.control.controller import Controller
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.control.rates import History, Rates, Shape, chain, expected

MOST = 16
FLAT = {1: 10.0, 64: 11.0}
CPU = {1: 10.0, 2: 10.5, 4: 11.5, 8: 13.0, 16: 17.0, 32: 26.0, 64: 45.0, 128: 90.0}
STEEP = {1: 10.0, 2: 19.0, 4: 36.0, 8: 70.0, 64: 540.0}


@dataclass(frozen=True)
class Computes:
    """Node d of its draft is accepted with chances[d]; the last one goes on."""

    chances: tuple[float, ...]
    level: float = 1.0
    call: float = 0.0


@dataclass(frozen=True)
class Copies:
    """Speaks now and then, and is right at a place with chances[whether it was right before]. sure:
    it says nothing where it would be wrong at once."""

    speaks: float
    chances: tuple[float, float]
    call: float = 0.05
    level: float = 0.0
    sure: bool = False


Part = Computes | Copies


@dataclass
class World:
    """rows sequences of `tokens` tokens; from `turn` on the parts are `later`. packed: whether
    padding costs nothing."""

    curve: dict[int, float]
    parts: Seq[Part]
    rows: int = 1
    tokens: int = 3000
    later: Seq[Part] = ()
    turn: int = 10**9
    packed: bool = False
    right: list[list[list[bool]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        random = np.random.default_rng(0)
        size = len(self.parts), self.rows, 2 * self.tokens + 2 * MOST
        self._luck = random.random(size).tolist()
        self._talk = random.random(size).tolist()
        for part in range(len(self.parts)):
            self.right.append([self._run(part, row) for row in range(self.rows)])
        drafts = {str(i): DraftCost(p.call, p.level) for i, p in enumerate(self.parts)}
        self.costs = CostModel(self.curve, drafts, packed=self.packed, fixed=True)
        self.passes = self.costs.passes(self.rows, MOST)

    def at(self, part: int, place: int) -> Part:
        return (self.later if place >= self.turn else self.parts)[part]

    def _run(self, part: int, row: int) -> list[bool]:
        """Where a part that copies is right."""
        found = [False]
        for place, luck in enumerate(self._luck[part][row]):
            own = self.at(part, place)
            found.append(luck < own.chances[found[-1]] if isinstance(own, Copies) else False)
        return found[1:]

    def copy(self, part: int, row: int, place: int) -> list[int]:
        """The tokens that it proposes after `place` tokens: numbers of places, -1 where wrong."""
        own, right = self.at(part, place), self.right[part][row]
        assert isinstance(own, Copies)
        if not (place and right[place - 1]) and self._talk[part][row][place] > own.speaks:
            return []
        end = next((i for i in range(place, place + MOST) if not right[i]), place + MOST)
        if own.sure and end == place:
            return []
        return [i if i < end else -1 for i in range(place, place + MOST)]

    def computed(self, part: int, row: int, place: int, nodes: int) -> int:
        """How many of so many nodes are accepted."""
        chances, luck = self.at(part, place).chances, self._luck[part][row]
        for depth in range(nodes):
            if luck[place + depth] >= chances[min(depth, len(chances) - 1)]:
                return depth
        return nodes


def fixed(world: World, part: int | None, nodes: int) -> float:
    """Tokens a millisecond of one part with one length."""
    ms, places = 0.0, [0] * world.rows
    while sum(places) < world.rows * world.tokens:
        own = None if part is None else world.parts[part]
        drafted = [0] * world.rows
        for row, place in enumerate(places):
            kept = 0
            if isinstance(own, Copies) and part is not None:
                draft = world.copy(part, row, place)[:nodes]
                kept, drafted[row] = sum(token >= 0 for token in draft), len(draft)
            elif part is not None:
                kept, drafted[row] = world.computed(part, row, place, nodes), nodes
            places[row] += kept + 1
        ms += world.costs.curve(world.costs.size(drafted))
        if own is not None:
            ms += own.call * world.rows + own.level * max(drafted)
    return sum(places) / ms


@dataclass
class Played:
    """Tokens a millisecond, the choices that were made, milliseconds lost by trials."""

    speed: float
    choices: list[Choice]
    controller: Controller


def play(world: World, share: float = 0.01) -> Played:
    """The controller in this world."""
    computing = [i for i, part in enumerate(world.parts) if isinstance(part, Computes)]
    names = [str(i) for i in range(len(world.parts))]
    control = Controller(names, computing, world.costs, most=MOST, share=share)
    histories = [[History() for _ in names] for _ in range(world.rows)]
    ms, places, choices = 0.0, [0] * world.rows, []
    text = list(range(2 * world.tokens + 2 * MOST))
    while sum(places) < world.rows * world.tokens:
        asked = control.copiers_to_query(world.rows)
        said = [{p: world.copy(p, row, place) for p in asked} for row, place in enumerate(places)]
        found = [{p: chain(len(d)) for p, d in own.items() if d} for own in said]
        choice = control.choose([Row(64, v, f) for v, f in zip(histories, found, strict=True)])
        kept = []
        for row, place in enumerate(places):
            taker, nodes = choice.takers[row], choice.nodes[row]
            for part, draft in said[row].items():
                histories[row][part].remember(draft, chain(len(draft)), place, taker == part)
            kept.append(0)
            if taker in computing:
                assert taker is not None
                kept[row] = world.computed(taker, row, place, nodes)
            elif taker is not None:
                kept[row] = sum(token >= 0 for token in said[row][taker][:nodes])
            places[row] += kept[row] + 1
            for part, history in enumerate(histories[row]):
                rates = control.rates[part]
                if part not in computing:
                    history.compare(rates, text[: places[row]])
                elif part == taker:
                    path = range(1, kept[row] + 1)
                    history.record_pass(rates, chain(nodes), nodes, path)
                else:
                    history.last_right = False
        control.record_step(choice, asked, kept)
        choices.append(choice)
        ms += world.costs.curve(world.costs.size(choice.nodes))
        ms += sum(world.parts[p].call * world.rows for p in asked)
        levels = [n for n, t in zip(choice.nodes, choice.takers, strict=True) if t in computing]
        for part in {t for t in choice.takers if t in computing}:
            assert part is not None
            ms += world.parts[part].level * max(levels)
    return Played(sum(places) / ms, choices, control)


@cache
def best(world: str) -> float:
    made = WORLDS[world]
    lengths = (1, 2, 3, 4, 6, 8, 12, 16)
    return max(
        fixed(made, None, 0),
        *(fixed(made, p, n) for p, n in product(range(len(made.parts)), lengths)),
    )


GOOD, DEAR, POOR = Computes((0.8,)), Computes((0.8,), 4.0), Computes((0.45,))
HEADS, WRONG = Computes((0.8, 0.6, 0.4, 0.2, 0.0), 0.3), Computes((0.0,), 3.0)
LOOKUP, CHATTER = Copies(0.4, (0.5, 0.9)), Copies(1.0, (0.02, 0.3))

PARTS: dict[str, list[Part]] = {
    "good": [GOOD],
    "dear": [DEAR],
    "poor": [POOR],
    "heads": [HEADS],
    "lookup": [LOOKUP],
    "wrong": [WRONG, CHATTER],
    "both": [LOOKUP, GOOD],
    "many": [LOOKUP, CHATTER, DEAR, HEADS],
}
WORLDS = {
    f"{curve}-{parts}-{rows}": World(costs, own, rows, 3600 // rows)
    for (curve, costs), (parts, own), rows in product(
        {"flat": FLAT, "cpu": CPU, "steep": STEEP}.items(), PARTS.items(), (1, 4)
    )
}
WORLDS |= {
    f"packed-{name}-{parts}": World(curve, PARTS[parts], 4, 900, packed=True)
    for (name, curve), parts in product(
        {"cpu": CPU, "steep": STEEP}.items(), ("good", "lookup", "wrong", "both", "many")
    )
}


@pytest.mark.parametrize("world", WORLDS)
def test_regret_against_the_best_fixed_choice(world: str) -> None:
    """At most 2 %, the time of all trials included, whatever drafts and whatever passes cost."""
    assert play(WORLDS[world]).speed >= 0.98 * best(world)


def test_what_is_always_wrong_costs_little() -> None:
    """Drafters without any use: 0.98 of plain decoding within a few hundred tokens, too."""
    for curve, tokens in product((FLAT, CPU, STEEP), (200, 2000)):
        world = World(curve, [WRONG, Copies(1.0, (0.0, 0.0))], tokens=tokens)
        assert play(world).speed >= 0.98 * fixed(world, None, 0)


@pytest.mark.parametrize("before", [WRONG, GOOD])
def test_a_world_that_changes(before: Part) -> None:
    """What turns good is found, what turns bad is left, each in time."""
    after = GOOD if before is WRONG else Computes((0.0,), 1.0)
    before = Computes(before.chances, 1.0)  # type: ignore[arg-type]
    world = World(CPU, [before], tokens=8000, later=[after], turn=4000)
    halves = [fixed(World(CPU, [p]), 0, n) for p, n in ((GOOD, 4), (WRONG, 0))]
    ideal = 2 / sum(1 / speed for speed in halves)  # knows when it changes
    assert play(world).speed >= 0.95 * ideal


def test_trials_stay_within_their_share() -> None:
    """A useless part is tried now and then, and no more often than is paid for."""
    world = World(CPU, [Computes((0.0,), 3.0)], tokens=4000)
    for share in (0.0, 0.01, 0.04):
        played = play(world, share)
        trials = [choice for choice in played.choices if choice.trial]
        assert bool(trials) == (share > 0)
        lost = sum(choice.ms - world.passes[0] for choice in trials)
        assert lost <= share / 2 * sum(choice.ms for choice in played.choices)


def rates(*chances: float, count: float = 1000.0) -> Rates:
    """Rates of a part that is well known."""
    known = Rates()
    for evidence in range(0, len(known.tested), 4):  # whatever a draft's size, of rank 0
        known.tested[evidence] = [count] * len(chances)
        known.accepted[evidence] = [count * chance for chance in chances]
    return known


def choosing(costs: CostModel, parts: Seq[Rates], computing: Seq[int]) -> Controller:
    control = Controller([str(i) for i in range(len(parts))], computing, costs, most=MOST)
    control.rates = list(parts)
    return control


def test_drafts_shrink_as_the_batch_grows() -> None:
    """The budget is shared: with more sequences each drafts less, at last nothing."""
    costs = CostModel(CPU, {"0": DraftCost(level=0.2)}, fixed=True)
    lengths = []
    for size in (1, 2, 4, 8, 16, 32, 64):
        control = choosing(costs, [rates(*[0.8] * MOST)], [0])
        choice = control.choose([Row(64, [History()]) for _ in range(size)])
        assert len({*choice.nodes}) == 1
        lengths.append(choice.nodes[0])
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] >= 4 and lengths[-1] <= 1


def speed(control: Controller, rows: Seq[Row], copied: int, computed: int) -> float:
    """Tokens a millisecond where each row takes the better of a copy and what part 1 computes."""
    tokens = float(len(rows))
    for row in rows:
        copy = expected(
            row.copies.get(0, chain(0)), control.rates[0], row.histories[0], copied=True
        )
        own = expected(chain(6), control.rates[1], row.histories[1])
        tokens += max(copy[min(copied, len(copy) - 1)], own[min(computed, len(own) - 1)])
    passes = control.costs.passes(len(rows), MOST)
    return float(
        tokens / (passes[max(copied, computed)] + control.costs.drafts["1"](len(rows), computed))
    )


def test_the_choice_is_the_fastest_of_all() -> None:
    """Against every combination of lengths, for three sequences with different copies."""
    random = np.random.default_rng(3)
    for _ in range(40):
        curve = {1: 10.0, 8: 10 + 8 * random.random(), 48: 30 + 40 * random.random()}
        drafts = {"0": DraftCost(call=0.01), "1": DraftCost(level=2 * random.random())}
        costs = CostModel(curve, drafts, fixed=True)
        control = choosing(costs, [rates(*random.random(6)), rates(*[random.random()] * 6)], [1])
        rows = []
        for length in map(int, random.integers(0, 6, 3)):
            found = {0: chain(length)} if length else {}
            rows.append(Row(6, [History(), History()], found))
        choice = control.choose(rows)
        mine = [n for n, t in zip(choice.nodes, choice.takers, strict=True) if t == 1]
        fastest = max(speed(control, rows, a, b) for a, b in product(range(7), range(7)))
        assert speed(control, rows, max(choice.nodes), max(mine, default=0)) >= 0.999 * fastest


def test_nobody_computes_twice_in_a_step() -> None:
    """Two small models in one step would both have to be waited for by all."""
    world = World(CPU, [GOOD, Computes((0.82,), 1.1), LOOKUP], rows=4, tokens=400)
    for choice in play(world).choices:
        assert len({t for t in choice.takers if t in (0, 1)}) <= 1
        assert all(
            bool(n) == (t is not None) for n, t in zip(choice.nodes, choice.takers, strict=True)
        )


def test_rooms_are_kept() -> None:
    """No draft is longer than what may still be written."""
    costs = CostModel(FLAT, {"0": DraftCost(), "1": DraftCost(level=0.01)}, fixed=True)
    for known in ((0.9, 0.1), (0.1, 0.9)):
        control = choosing(costs, [rates(*[p] * MOST) for p in known], [1])
        rows = [Row(room, [History(), History()], {0: chain(9)}) for room in (0, 1, 5, 64)]
        choice = control.choose(rows)
        assert all(n <= row.room for n, row in zip(choice.nodes, rows, strict=True))
        assert choice.nodes[0] == 0 and choice.nodes[1] == 1


def test_reset_forgets_rates_and_keeps_costs() -> None:
    """As the benchmark wants it between answers."""
    played = play(World(CPU, [GOOD], tokens=300))
    control = played.controller
    assert any(map(any, control.rates[0].tested))
    control.reset()
    assert (
        not any(map(any, control.rates[0].tested)) and control.costs.drafts["0"].level == GOOD.level
    )


def considered(control: Controller, steps: int) -> list[int]:
    """The steps in which a trial was considered."""
    due = []
    for step in range(steps):
        choice = control.choose([Row(64, [History()])])
        control.record_step(choice, [], [0])
        if choice.due:
            due.append(step)
    return due


def test_trials_that_are_not_made_back_off() -> None:
    """Each that doesn't pay doubles the pause before the next one, up to a limit."""
    costs = CostModel(CPU, {"0": DraftCost(level=50.0)}, fixed=True)
    steps = considered(choosing(costs, [rates(0.0)], [0]), 200)
    pauses = [late - early for early, late in pairwise(steps)]
    assert len(pauses) > 3 and 1.8 * steps[0] < min(pauses) <= max(pauses) < 2.2 * steps[0]


def test_a_copier_that_saves_nothing_is_queried_by_its_budget() -> None:
    """What its queries cost comes out of their share of the time, and no more often."""
    control = choosing(CostModel(FLAT, {"0": DraftCost(call=1.0)}, fixed=True), [rates(0.0)], [])
    control._savings = [0.0]
    queries = 0
    for _ in range(1000):
        asked = control.copiers_to_query(1)
        queries += len(asked)
        control.record_step(control.choose([Row(64, [History()])]), asked, [0])
    assert 0.8 * 50 <= queries <= 50  # half a per cent of 1000 plain passes of 10 ms


def test_a_query_costs_what_the_longest_draft_does() -> None:
    """Also of a copier that takes longer for a longer one: it isn't asked for nothing."""
    costs = CostModel({1: 1.0, 64: 1.1}, {"0": DraftCost(level=0.05)})
    control = choosing(costs, [rates(0.0)], [])
    asked = []
    for _ in range(1000):
        asked.append(control.copiers_to_query(1))
        control.record_step(control.choose([Row(64, [History()])]), asked[-1], [0])
    assert len([some for some in asked[500:] if some]) < 10
    assert asked[0] == [0] and any(asked[500:])  # within its budget it is


def slowed(level: float, accepted: int, steps: int) -> tuple[list[Choice], float, CostModel]:
    """Steps with a part that was learned to take five times as long as was measured, 3 ms a level,
    and takes `level` ms now. What the drafts lost, in ms, given that so many tokens of each are
    accepted."""
    costs = CostModel({1: 10.0, 64: 12.0}, {"0": DraftCost(level=3.0)})
    for _ in range(200):
        costs.record_pass_time(5, 10.1)
        costs.record_draft_time("0", 1, 4, 60.0)
    assert costs.drafts["0"].level > 12
    control, choices, lost = choosing(costs, [rates(*[0.8] * MOST)], [0]), [], 0.0
    for _ in range(steps):
        choice = control.choose([Row(64, [History()])])
        nodes, extra = choice.nodes[0], 0.0
        if nodes:
            extra = costs.extra_ms("0", 1, nodes, level * nodes)
            lost += choice.ms + extra - (1 + accepted) * costs.curve(1)
        control.record_step(choice, [], [accepted if nodes else 0], extra)
        costs.record_pass_time(1 + nodes, costs.curve(1 + nodes))
        costs.record_draft_time("0", 1, nodes, level * nodes)
        choices.append(choice)
    return choices, lost, costs


def test_what_was_dear_for_a_while_is_tried_again() -> None:
    """Else it would be left for ever: what a draft costs shows in drafts only."""
    choices, _, costs = slowed(3.0, 1, 8000)
    usual = [choice for choice in choices[-1000:] if choice.nodes[0] and not choice.trial]
    assert len(usual) > 900
    assert costs.drafts["0"].level == pytest.approx(3.0, rel=0.1)


def test_what_stays_dear_is_tried_within_the_budget() -> None:
    choices, lost, costs = slowed(15.0, 0, 20_000)
    drafts = [choice for choice in choices if choice.nodes[0]]
    assert drafts and all(choice.trial for choice in drafts)
    assert lost <= 0.005 * sum(choice.ms for choice in choices)
    assert costs.drafts["0"].level > 12


def test_a_query_must_save_more_than_it_costs() -> None:
    """Half as much again, as drafts look better than they are; else it comes out of the budget."""
    control = choosing(CostModel(FLAT, {"0": DraftCost(call=1.0)}, fixed=True), [rates(0.5)], [])
    for saved, queried in ((1.3, []), (1.6, [0])):
        control._savings = [saved]
        assert control.copiers_to_query(1) == queried
        control._savings = [saved * 7]
        assert control.copiers_to_query(7) == queried


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rows", [2, 3, 8])
def test_what_a_query_saves(packed: bool, rows: int) -> None:
    """The time that its tokens would take without it, less that of their places in the pass, of
    every row."""
    costs = CostModel(CPU, {"0": DraftCost(call=0.1)}, packed=packed, fixed=True)
    control = choosing(costs, [rates(*[0.9] * MOST)], [])
    choice = control.choose([Row(64, [History()], {0: chain(2)}) for _ in range(rows)])
    assert choice.nodes == [2] * rows
    gained = rows * expected(chain(2), control.rates[0], History(), copied=True)[2]
    widened = choice.ms - costs.curve(rows)
    saved = gained * costs.curve(rows) / rows - widened
    assert choice.saved[0] == pytest.approx(saved) and saved > 0


@pytest.mark.parametrize("call", [0.5, 1.5])
def test_a_query_that_seldom_finds_much_is_worth_its_cost(call: float) -> None:
    """In one place of ten ten tokens begin that can be copied; a query takes up to a seventh of a
    pass, as it does for a small target."""
    world = World(FLAT, [Copies(1.0, (0.1, 0.9), call, sure=True)])
    always = fixed(world, 0, MOST)
    assert always > 1.4 * fixed(world, None, 0)
    assert play(world).speed >= 0.95 * always


def test_what_a_query_saves_beside_a_good_drafter() -> None:
    """What is copied would else be drafted, which takes less time than plain decoding."""
    costs = CostModel(FLAT, {"0": DraftCost(call=0.1), "1": DraftCost(level=0.2)}, fixed=True)
    control = choosing(costs, [rates(*[0.9] * MOST), rates(*[0.8] * MOST)], [1])
    row = Row(64, [History(), History()])
    saved = []
    for _ in range(200):
        choice = control.choose([replace(row, copies={0: chain(MOST)})])
        assert choice.takers == [0]
        saved.append(choice.saved[0])
        assert control.choose([row]).takers == [1]
    faster = control._uncopied
    assert 2 < faster < 6
    assert saved[-1] == pytest.approx(saved[0] / faster, rel=0.05)


def test_reading_a_prompt_must_pay() -> None:
    """A part that computes reads it where it will draft and saves more than the reading takes."""
    costs = CostModel(CPU, {"0": DraftCost(level=1.0)}, fixed=True)
    control = choosing(costs, [rates(*[0.8] * MOST)], [0])
    assert control.reads(0, 1, 100, 64) and control.reads(0, 1, 100, None)
    assert not control.reads(0, 1, 100, 1)  # the answer is over before it has saved that much
    assert not control.reads(0, 1, 10_000, 64)
    assert not choosing(costs, [rates(0.0)], [0]).reads(0, 1, 10, 64)  # it would not draft
    assert not choosing(costs, [rates(0.0)], [0]).reads(0, 4, 10, 64)
    two = CostModel(CPU, {name: DraftCost(level=1.0) for name in "01"}, fixed=True)
    better = choosing(two, [rates(*[0.8] * MOST), rates(0.0)], [0, 1])
    assert [better.reads(part, 1, 10, 64) for part in (0, 1)] == [True, False]
    dear = CostModel(CPU, {"0": DraftCost(level=20.0)}, fixed=True)
    assert not choosing(dear, [rates(*[0.8] * MOST)], [0]).reads(0, 1, 1, 64)


def test_what_a_part_missed_counts() -> None:
    """It drafts although it has a few tokens to read, and not where it has a whole prompt."""
    costs = CostModel(CPU, {"0": DraftCost(level=1.0)}, fixed=True)
    taken = []
    for unread in (1, 8, 20_000):
        control = choosing(costs, [rates(*[0.8] * MOST)], [0])
        choice = control.choose([Row(64, [History()], {}, {0: unread})])
        taken.append(choice.takers[0])
        if unread == 8:  # as much as the target's pass over so many is longer, over eight drafts
            nodes = choice.nodes[0]
            assert choice.ms == pytest.approx(costs.passes(1, MOST)[nodes] + nodes + 0.3 / 8)
    assert taken == [0, 0, None]
    control = choosing(costs, [rates(*[0.8] * MOST)], [0])
    rows = [Row(64, [History()], {}, {0: unread}) for unread in (1, 20_000)]
    assert control.choose(rows).takers == [None, None]  # all wait for the one that reads


def test_no_trial_reads_what_it_cannot_pay() -> None:
    """A part that never read the prompt is tried only once its reading has been saved up for."""
    costs = CostModel(CPU, {"0": DraftCost(level=1.0)}, fixed=True)
    tried = []
    for unread in (1, 150):
        control = choosing(costs, [rates(0.2, count=4.0)], [0])
        for _ in range(120):
            choice = control.choose([Row(64, [History()], {}, {0: unread})])
            control.record_step(choice, [], [0])
            tried += [unread] if choice.trial else []
    assert {*tried} == {1}


def test_a_trial_that_reads_a_long_prompt_is_saved_up_for() -> None:
    """However much it costs, and no sooner than its share of the time suffices."""
    costs = CostModel(CPU, {"0": DraftCost(level=1.0)}, fixed=True)
    control = choosing(costs, [rates(0.2, count=4.0)], [0])
    passed, lost = 0.0, 0.0
    while not lost:
        choice = control.choose([Row(64, [History()], {}, {0: 800})])
        control.record_step(choice, [], [0])
        passed += choice.ms
        assert passed < 30_000
        lost = choice.ms - costs.passes(1, MOST)[0] if choice.trial else 0.0  # less the reading
    assert passed > 150 * (lost + 40.0)


def test_drafts_that_end_early_cost_less() -> None:
    """A part that is asked for sixteen tokens and stops after three is not charged for sixteen."""
    costs = CostModel(FLAT, {"0": DraftCost(level=1.0)}, fixed=True)
    control = choosing(costs, [rates(*[0.95] * 3, *[0.5] * (MOST - 3))], [0])
    rows = [Row(64, [History()])]
    first = control.choose(rows)
    for _ in range(200):
        asked = Choice([0, 0], [2, MOST], 0.0)  # the longest of a batch counts
        control.record_step(asked, [], [1, 2], 0.0, [1, 3])
    second = control.choose(rows)
    assert second.nodes[0] > first.nodes[0]
    assert second.ms == pytest.approx(costs.passes(1, MOST)[second.nodes[0]] + 3.0, rel=0.02)


def test_a_decision_that_took_long_is_followed_by_plain_steps() -> None:
    """As many as it takes to make it a hundredth of all time, up to 128; not after a draft."""
    costs = CostModel({1: 10.0, 64: 600.0}, {"sps": DraftCost(level=1.0)}, fixed=True)
    for ms, steps in ((0.1, 16), (5.0, 50), (1000.0, 128)):
        control = Controller(["sps"], [0], costs)
        choice = control.choose([Row(8, [History()])])
        assert choice.nodes == [0]
        control.charge(choice, ms)
        assert control.idle_steps(1) == steps
    control.charge(Choice([0], [2], 20.0), 1000.0)
    control.idled(1, 128)
    assert control.idle_steps(1) == 0
    greedy = Controller(["sps"], [0], costs, share=0.0)
    greedy.charge(greedy.choose([Row(8, [History()])]), 1000.0)
    assert greedy.idle_steps(1) == 16


def test_one_copy_alone_is_chosen_as_among_others() -> None:
    """The short way to a choice finds what the long one does, at every length and belief."""
    costs = CostModel(CPU, {"suffix": DraftCost(0.1)}, per_cell=0.001)
    alone, usual = (Controller(["suffix"], [], costs) for _ in range(2))
    random = np.random.default_rng(0)
    drafted = set()
    for step in range(400):
        size = int(random.integers(1, MOST + 1))
        right = bool(random.integers(2))
        room = int(random.integers(1, MOST + 3))
        rows = [
            Row(room, [History(last_right=right)], {0: chain(size)}, length=step) for _ in range(2)
        ]
        short = alone.choose(rows[:1])
        rows[1].gains = {0: usual._expected(rows[1], 0, chain(size))}
        gains = [rows[1].gains[0]]
        best = usual._best(rows[1:], gains, ())
        long = usual._assigned(rows[1:], gains, best)
        assert (short.takers, short.nodes) == (long.takers, long.nodes)
        assert short.ms == pytest.approx(long.ms)
        assert short.saved[0] == pytest.approx(long.saved[0])
        drafted.add(short.nodes[0])
        tests = [(d, 0, bool(random.random() < 0.6)) for d in range(min(3, size))]
        for control in (alone, usual):
            control.rates[0].note(tests, 2 * 4 + right)
    assert len(drafted) > 4
    assert alone._promised == pytest.approx(usual._promised)


def test_the_shape_of_trees() -> None:
    """The largest of several; one that fills its room is the last, and one without a node that may
    be accepted is none."""
    control = Controller(["a", "b"], [0, 1], CostModel(FLAT, {n: DraftCost(1.0) for n in "ab"}))
    tree, larger = Shape.of([0, 0]), Shape.of([0, 0, 1])
    for shape in (chain(0), Shape.of([-1, -1, -1])):
        control.learn_shape(0, shape, 8)
        assert control.shapes[0] == chain(MOST) and control.unshaped(0)
    for shape, known in ((tree, tree), (larger, larger), (tree, larger)):
        control.learn_shape(0, shape, 8)
        assert control.shapes[0] == known and control.unshaped(0)
    for _ in range(5):
        control.learn_shape(0, tree, 8)
    assert not control.unshaped(0) and control.unshaped(1)
    control.learn_shape(1, larger, 3)
    assert not control.unshaped(1)
    control.reset()
    assert control.unshaped(1) and control.shapes[1] == chain(MOST)


def test_a_computed_draft_costs_each_sequence_its_call() -> None:
    """And its levels once for the whole batch."""
    costs = CostModel(FLAT, {"0": DraftCost(call=0.5, level=0.2)}, fixed=True)
    control = choosing(costs, [rates(*[0.9] * MOST)], [0])
    choice = control.choose([Row(64, [History()]) for _ in range(4)])
    nodes = choice.nodes[0]
    assert choice.takers == [0] * 4
    assert choice.ms == pytest.approx(costs.passes(4, MOST)[nodes] + 4 * 0.5 + nodes * 0.2)


def test_copiers_that_do_not_pay_take_turns() -> None:
    """Where the budget is enough for one of them at a time."""
    costs = CostModel(FLAT, {name: DraftCost(call=1.0) for name in "01"}, fixed=True)
    control = choosing(costs, [rates(0.0), rates(0.0)], [])
    control._savings, asked = [0.0, 0.0], list[int]()
    for _ in range(400):
        queried = control.copiers_to_query(1)
        asked += queried
        control.record_step(control.choose([Row(64, [History(), History()])]), queried, [0])
    assert len(asked) > 10 and abs(asked.count(0) - asked.count(1)) <= 1


def test_plain_steps_until_a_query_is_paid_for() -> None:
    """So many are made without a decision, and each earns its share."""
    costs = CostModel(FLAT, {"0": DraftCost(call=1.0)}, fixed=True)
    control = choosing(costs, [rates(0.0)], [])
    control._savings = [0.0]
    assert control.copiers_to_query(1) == [] and control.idle_steps(1) == 20
    control.idled(1, 10)
    assert control.copiers_to_query(1) == [] and control.idle_steps(1) == 10
    control.idled(1, 11)
    assert control.copiers_to_query(1) == [0]
    control.idled(1, 10**6)  # saved up is the time of four plain passes, no more
    assert [len(control.copiers_to_query(1)) for _ in range(50)] == [1] * 40 + [0] * 10


def test_plain_steps_without_a_decision_bring_the_next_trial_nearer() -> None:
    costs = CostModel(CPU, {"0": DraftCost(level=50.0)}, fixed=True)
    control = choosing(costs, [rates(0.0)], [0])
    control.charge(Choice([None], [0], 10.0), 1000.0)
    assert control.idle_steps(1) == 128
    control.idled(1, 20)
    assert control.idle_steps(1) == 0
    assert control.choose([Row(64, [History()])]).due


def test_what_computes_is_compared_more_often() -> None:
    """Trials that were not made put off the next one only until a part computes."""
    costs = CostModel(CPU, {"0": DraftCost(level=1.0)}, fixed=True)
    control = choosing(costs, [rates(0.0)], [0])
    rare = considered(control, 200)
    control.rates, often = [rates(*[0.8] * MOST)], list[int]()
    for step in range(200):
        choice = control.choose([Row(64, [History()])])
        control.record_step(choice, [], [choice.nodes[0]])
        often += [step] if choice.due else []
    pauses = [late - early for early, late in pairwise(often)]
    assert max(pauses) < 1.3 * rare[0] < rare[-1] - rare[-2]


def test_a_decision_on_a_trial_is_paid_for() -> None:
    """Out of the trials' share, so that one that took long puts off the next."""
    costs = CostModel(CPU, {"0": DraftCost(level=50.0)}, fixed=True)
    control, due = choosing(costs, [rates(0.0)], [0]), list[int]()
    for step in range(400):
        choice = control.choose([Row(64, [History()])])
        control.record_step(choice, [], [0])
        if choice.due:
            control.charge(choice, 5.0)
            due.append(step)
    assert min(late - early for early, late in pairwise(due)) > 80  # a step earns 0.05 ms


def test_a_sampled_texts_prompt_is_judged_by_sampled_ones() -> None:
    """It isn't read where drafts are accepted in greedy texts only."""
    costs = CostModel(CPU, {"0": DraftCost(level=1.0)}, fixed=True)
    control = choosing(costs, [Rates()], [0])
    for sampled, path in ((False, [1, 2, 3, 4]), (True, [])):
        for _ in range(100):
            History(sampled).record_pass(control.rates[0], chain(4), 4, path)
    assert control.reads(0, 1, 100, 64) and not control.reads(0, 1, 100, 64, sampled=True)


def test_after_a_reset_it_chooses_as_a_new_one() -> None:
    """How many levels drafts had is forgotten, and what a step without copies yields."""
    costs = CostModel(FLAT, {"0": DraftCost(call=0.1), "1": DraftCost(level=0.2)}, fixed=True)
    used, new = (choosing(costs, [Rates(), rates(*[0.8] * MOST)], [1]) for _ in range(2))
    row = Row(64, [History(), History()])
    for _ in range(100):
        choice = used.choose([row])
        used.record_step(choice, [], [1], 0.0, [min(1, choice.nodes[0])])
    used.reset()
    for control in (used, new):
        control.rates = [rates(*[0.9] * MOST), rates(*[0.8] * MOST)]
    for copies in ({}, {0: chain(MOST)}):
        one, other = (control.choose([replace(row, copies=copies)]) for control in (used, new))
        assert (one.takers, one.nodes) == (other.takers, other.nodes)
        assert one.ms == pytest.approx(other.ms) and one.saved == pytest.approx(other.saved)


def test_the_copy_that_yields_most_is_taken() -> None:
    """Not the longest one, and no more of it than there is."""
    costs = CostModel(FLAT, {name: DraftCost(call=0.01) for name in "01"}, fixed=True)
    for sure, other, taken in ((0.95, 0.5, 0), (0.5, 0.9, 1)):
        known = [rates(*[chance] * MOST) for chance in (sure, other)]
        control = choosing(costs, known, [])
        histories = [History(), History()]
        rows = [Row(64, histories, {0: chain(2), 1: chain(6)}), Row(64, histories, {0: chain(1)})]
        choice = control.choose(rows)
        assert choice.takers == [taken, 0]
        assert choice.nodes == [(2, 6)[taken], 1]


def test_copies_of_the_same_tokens_count_once() -> None:
    """For the copier from which more is expected; and what is drafted instead of a copy, never."""
    costs = CostModel(FLAT, {name: DraftCost(call=0.01) for name in "01"}, fixed=True)
    for first in (0, 1):
        control = choosing(costs, [rates(*[0.8] * MOST) for _ in range(2)], [])
        histories = [History(), History()]
        for _ in range(2):  # of two copies, and one sequence alone would take the short way
            control.choose([Row(64, histories, {first: chain(4)}) for _ in range(2)])
        both = {0: chain(4), 1: chain(4)}
        saved = control.choose([Row(64, histories, both) for _ in range(2)]).saved
        assert saved[first] > 0 and saved[1 - first] == 0
        longer = {first: chain(2), 1 - first: chain(4)}  # which counts for what it has beyond
        saved = control.choose([Row(64, histories, longer) for _ in range(2)]).saved
        gains = expected(chain(4), control.rates[0], History(), copied=True)
        share = (gains[4] - gains[2]) / gains[2]
        assert saved[1 - first] / saved[first] == pytest.approx(share)
    costs = CostModel(FLAT, {"0": DraftCost(call=0.1), "1": DraftCost(level=0.01)}, fixed=True)
    control = choosing(costs, [rates(*[0.2] * MOST), rates(*[0.9] * MOST)], [1])
    choice = control.choose([Row(64, [History(), History()], {0: chain(4)})])
    assert choice.takers == [1] and choice.saved == {0: 0.0}
