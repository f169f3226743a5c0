"""Mistakes in how a grammar is followed; each once made an engine write what it must not."""

from __future__ import annotations

from mutation import Mutant

CONSTRAINT = "foretoken.grammar.constraint:Constraint"
UNIT, SERVED = "grammar/test_constraint.py::test_{}", "engine/test_grammars.py::test_{}"
PLACES = "constraint.places(output, paths)"

MASKING: dict[str, Mutant] = {
    "the bonus token of a whole draft is free": Mutant(
        "foretoken.grammar.constraint:mask",
        PLACES,
        f"{PLACES}[:-1] + [_FREE]",
        (SERVED.format("the_bonus_token_obeys_the_grammar_after_a_forbidden_draft"),),
    ),
    "masks are shifted by a row": Mutant(
        "foretoken.grammar.constraint:mask",
        PLACES,
        f"{PLACES}[1:] + {PLACES}[:1]",
        (UNIT.format("invalid_draws_are_rejected_by_the_rule"),),
    ),
    "the state stays where a draft was": Mutant(
        f"{CONSTRAINT}._match",
        "self._matcher.rollback(len(matched) - same)",
        "None",
        (UNIT.format("each_place_has_the_mask_of_its_own_path"),),
    ),
    "what was known of a rejected branch is kept": Mutant(
        f"{CONSTRAINT}._go_to",
        "path[: len(added)] == added",
        "True",
        (UNIT.format("the_state_follows_the_text_wherever_it_goes"),),
    ),
    "another text is taken for the same one": Mutant(
        f"{CONSTRAINT}._go_to",
        "self._known if follows else {}",
        "self._known",
        (UNIT.format("the_state_follows_the_text_wherever_it_goes"),),
    ),
    "the end is always allowed": Mutant(
        f"{CONSTRAINT}._place",
        "complete = self._matcher.complete",
        "complete = True",
        (
            UNIT.format("each_place_has_the_mask_of_its_own_path"),
            SERVED.format("the_end_of_text_comes_where_the_text_is_whole_only"),
        ),
    ),
    "a marker in the draft is not seen": Mutant(
        f"{CONSTRAINT}._constrained",
        "marker.after(text, len(self._output))",
        "marker.after(self._output, len(self._output))",
        (
            UNIT.format("reasoning_that_ends_inside_a_block"),
            SERVED.format("reasoning_may_end_anywhere_in_an_accepted_block"),
        ),
    ),
    "a text that left the grammar is free": Mutant(
        f"{CONSTRAINT}._place",
        "len(self._matched) < len(text) - len(path)",
        "False",
        (UNIT.format("a_text_that_is_none_of_the_grammars_has_no_distribution"),),
    ),
    "unreachable places are masked to nothing": Mutant(
        f"{CONSTRAINT}._place",
        "if text is None: return _FREE",
        "if text is None: return Place(np.zeros(1, np.int32))",
        (UNIT.format("places_that_cannot_be_reached_stay_as_they_are"),),
    ),
    "a whole text goes on": Mutant(
        f"{CONSTRAINT}.finished",
        "self.places(output, [()])[0].finished",
        "False",
        (SERVED.format("the_end_of_the_grammar_ends_the_request"),),
    ),
    "what waits for its grammar holds up the others": Mutant(
        "foretoken.engine.request:admissible",
        "not sample.ended and (grammar is None or grammar.pending.settled)",
        "not sample.ended",
        (SERVED.format("compiling_holds_up_its_own_request_only"),),
    ),
    "drafters learn what a grammar left": Mutant(
        "foretoken.drafters.token_recycling:TokenRecycling.observe",
        "scores.logits[rows[own]]",
        "scores.probs[rows[own]]",
        (SERVED.format("what_is_learned_of_a_constrained_request_is_the_models_own"),),
    ),
}
