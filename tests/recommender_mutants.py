"""Mistakes with which `recommend` would name a method that does not pay; each with its test."""

from __future__ import annotations

from mutation import Mutant

RECOMMENDER = "foretoken.recommender"

RECOMMENDING: dict[str, Mutant] = {
    "an interval that includes 1 pays": Mutant(
        f"{RECOMMENDER}.verdict:Row.pays",
        "round(self.low, 2) > 1",
        "self.speedup > 1",
        ("recommender/test_verdict.py::test_an_interval_that_includes_1",),
    ),
    "the best of many is no luckier": Mutant(
        f"{RECOMMENDER}.verdict:rows",
        "joint_interval(compared.answers, compared.plain, len(candidates))",
        "joint_interval(compared.answers, compared.plain, 1)",
        ("recommender/test_verdict.py::test_the_best_of_many_is_lucky",),
    ),
    "few groups are enough": Mutant(
        f"{RECOMMENDER}.verdict:Row.enough",
        "self.groups >= LEAST",
        "True",
        ("recommender/test_verdict.py::test_too_few_groups",),
    ),
    "a method's groups are paired with others of plain decoding": Mutant(
        "foretoken.bench.measure.metrics:_totals",
        "of_plain.get(group, [])",
        "[*of_plain.values()][-1 - [*of_plain].index(group)]",
        ("recommender/test_served.py::test_the_interval_is_of_pairs",),
    ),
    "plain decoding of other units counts": Mutant(
        f"{RECOMMENDER}.served:Served.compared",
        "{answer.id for answer in answered}",
        "{answer.id for answer in answers}",
        ("recommender/test_served.py::test_only_units_that_both_answered",),
    ),
    "a disturbed serving counts": Mutant(
        f"{RECOMMENDER}.servings:_faster",
        "seconds[0] <= seconds[1]",
        "True",
        ("recommender/test_servings.py::test_a_disturbed_unit_is_served_again",),
    ),
    "drafting is charged as a whole for each token": Mutant(
        f"{RECOMMENDER}.prediction:_machine",
        'own["ms_per_step"]["draft"] / passes',
        'own["ms_per_step"]["draft"]',
        ("recommender/test_prediction.py::test_its_own_length",),
    ),
    "cells are served one after the other": Mutant(
        f"{RECOMMENDER}.race:Timing._next",
        "self._spent.__getitem__",
        "self._longest.__getitem__",
        ("recommender/test_race.py::test_cells_share_the_time",),
    ),
}
"""What would name a method that doesn't pay."""
