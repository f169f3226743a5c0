"""Mistakes in going on from earlier texts, each with the tests that notice it."""

from __future__ import annotations

from mutation import Mutant

CACHE = "foretoken.models.cache:KVCache"
PREFIXES = "foretoken.engine.prefixes:Prefixes"
DRAFT = "foretoken.models.drafting.draft_model:DraftModel"
HERE = "engine/test_prefixes.py"
SEEDED = "test_prefix_caching.py::test_the_same_seeded_text_with_and_without"

GOING_ON: dict[str, Mutant] = {
    "a token more in common": Mutant(
        "foretoken.models.warm:common_length",
        "return low",
        "return min(low + 1, len(one), len(other))",
        ("models/test_warm.py::test_the_common_beginning", f"{HERE}::test_any_history"),
    ),
    "the root is taken too": Mutant(
        f"{PREFIXES}.offer",
        "len(sequence.tokens) - 1 - self._kept_back()",
        "len(sequence.tokens) - self._kept_back()",
        (f"{HERE}::test_at_most_the_token_before_the_root",),
    ),
    "salts are ignored": Mutant(
        "foretoken.models.warm:Text.common",
        "self.salt == other.salt",
        "True",
        (
            "models/test_warm.py::test_a_sequence_that_shares_nothing_has_no_text",
            f"{HERE}::test_salts_keep_users_apart",
        ),
    ),
    "nothing makes room": Mutant(
        "foretoken.models.budget:CacheBudget.make_room",
        "self.reserved + self.warm > self.limit",
        "self.reserved > self.limit",
        ("models/test_budget.py::test_what_is_warm_makes_room", f"{HERE}::test_little_memory"),
    ),
    "what is warm is reserved": Mutant(
        "foretoken.models.budget:CacheBudget.fits",
        "self.reserved + self.needs(tokens)",
        "self.warm + self.reserved + self.needs(tokens)",
        ("models/test_budget.py::test_what_is_warm_makes_room",),
    ),
    "a rejected draft is kept": Mutant(
        f"{DRAFT}.keep",
        "max(0, min(self._cache.lengths[slot], tokens))",
        "max(0, min(self._cache.lengths[slot], tokens + 1))",
        (f"{HERE}::test_a_draft_model_goes_on_too",),
    ),
    "a draft model's cache isn't looked up": Mutant(
        f"{DRAFT}.begin",
        "self._cache.acquire(sequence.id, Text.of(sequence), sequence.reusable)",
        "self._cache.acquire(sequence.id, Text.of(sequence))",
        (f"{HERE}::test_a_draft_model_goes_on_too",),
    ),
    "the rest of a text stays": Mutant(
        f"{CACHE}._fill",
        "self._cut(slot, length)",
        "None",
        (f"{HERE}::test_one_slot",),
    ),
    "what is after an exchanged text stays": Mutant(
        f"{CACHE}._clear_around",
        "self._clear_after(slot, length)",
        "None",
        ("models/test_cache.py::test_a_warm_text_and_a_running_one_change_places",),
    ),
    "what is before an exchanged window stays": Mutant(
        f"{CACHE}._clear_around",
        "before.start < start",
        "False",
        ("models/test_cache.py::test_a_warm_text_and_a_running_one_change_places",),
    ),
    "an overwritten text stays": Mutant(
        f"{CACHE}._overwrite",
        "self._cells.zero(slot, kept)",
        "None",
        ("models/test_cache.py::test_the_oldest_text_is_overwritten",),
    ),
    "what is after an overwritten text stays": Mutant(
        f"{CACHE}._overwrite",
        "self._clear_after(slot, kept)",
        "None",
        ("models/test_cache.py::test_the_oldest_text_is_overwritten",),
    ),
    "another conversation's slot is taken": Mutant(
        f"{CACHE}._fill",
        "length == self.lengths[source]",
        "True",
        (f"{HERE}::test_two_conversations_by_turns",),
    ),
    "the latest is forgotten first": Mutant(
        f"{CACHE}._oldest",
        "self._texts[slot].used",
        "-self._texts[slot].used",
        (f"{HERE}::test_the_oldest_is_forgotten",),
    ),
    "a window's beginning is taken": Mutant(
        f"{CACHE}._known",
        "length and self.keeps(slot, length)",
        "length",
        (f"{HERE}::test_windows_that_have_passed_a_beginning",),
    ),
    "what failed is kept": Mutant(
        "foretoken.sampling.sequence:Sequence.spoil",
        "self.salt = None",
        "pass",
        (f"{HERE}::test_a_failure_leaves_nothing",),
    ),
    "states of the prompt are missing": Mutant(
        f"{PREFIXES}._kept_back",
        "self._target.max_length if wants.last is None else wants.last",
        "1",
        (f"{HERE}::test_states_of_the_whole_prompt",),
    ),
    "the last state is missing": Mutant(
        f"{PREFIXES}._kept_back",
        "self._target.max_length if wants.last is None else wants.last",
        "0",
        (f"{HERE}::test_states_of_the_last_token",),
    ),
    "what runs is kept after a reset": Mutant(
        f"{CACHE}.forget",
        "self._texts.clear()",
        "None",
        (f"{HERE}::test_what_is_forgotten",),
    ),
}

PREDICTIONS = "foretoken.engine.predictions"
THERE = "engine/test_predictions.py"

PREDICTING: dict[str, Mutant] = {
    "a copied draft is the served drafter's": Mutant(
        f"{PREDICTIONS}:Predicting.observe",
        "replace(s, drafted=0)",
        "s",
        (f"{THERE}::test_no_copied_token_is_the_served_drafters",),
    ),
    "what was rejected isn't counted": Mutant(
        "foretoken.engine.stats:AcceptanceStats.record",
        "drafted - accepted",
        "0",
        (f"{THERE}::test_right_predictions_are_fast_and_both_counts_add_up",),
    ),
    "another request's draft counts": Mutant(
        "foretoken.engine.engine:Engine._count",
        "done.row in self._drafts.rows",
        "bool(self._drafts.rows)",
        (f"{THERE}::test_others_are_drafted_for_as_before",),
    ),
    "approximate rules take predictions": Mutant(
        "foretoken.engine.checks:_check_rule",
        "verifier.exact and Kind.CHOSEN in verifier.kinds",
        "Kind.CHOSEN in verifier.kinds",
        (f"{THERE}::test_rules_that_a_prediction_would_change",),
    ),
    "a replaced token is the end": Mutant(
        f"{PREDICTIONS}:_Copier._found",
        "best if self._alike(output, best) > before else replaced",
        "best",
        (f"{THERE}::test_where_the_output_goes_on",),
    ),
    "the farthest place": Mutant(
        f"{PREDICTIONS}:_Copier._found",
        "-abs(place - self._next)",
        "abs(place - self._next)",
        (f"{THERE}::test_where_the_output_goes_on",),
    ),
    "wrong predictions are drafted at length": Mutant(
        f"{PREDICTIONS}:_Copier.note",
        "self._missed + 1",
        "0",
        (
            f"{THERE}::test_a_wrong_prediction_costs_little",
            f"{THERE}::test_how_long_drafts_are",
        ),
    ),
    "a place that looks alike is trusted like the one before": Mutant(
        f"{PREDICTIONS}:_Copier.draft",
        "self._alike(output, self._next)",
        "self._followed",
        (f"{THERE}::test_how_long_drafts_are",),
    ),
}
