"""Mistakes in what is learned and estimated that once no test noticed; for `source_mutants.py`."""

from __future__ import annotations

from mutation import Mutant

LOSSES = "foretoken.trainable.losses"
BY_HAND = "trainable/test_small_lm.py::test_the_loss_by_hand"
DRAWN = "trainable/test_losses.py::test_siblings_drawn_without_replacement"

LEARNING: dict[str, Mutant] = {
    "a small model learns what follows the next token": Mutant(
        "foretoken.trainable.small_lm:TrainedLM.loss",
        "lesson.hidden[-1][row, token - 1]",
        "lesson.hidden[-1][row, token]",
        (BY_HAND,),
    ),
    "a prompt's tokens count as an answer's": Mutant(
        "foretoken.trainable.small_lm:TrainedLM.loss",
        "lesson.weight[row, token]",
        "torch.ones_like(lesson.weight[row, token])",
        (BY_HAND,),
    ),
    "a token counts by what is missed after it": Mutant(
        "foretoken.train.boost:EarlierDrafters.weigh",
        "model.token_acceptance(lesson, before)[:, :-1]",
        "model.token_acceptance(lesson, before)[:, 1:]",
        ("train/test_boost.py::test_what_several_know",),
    ),
    "heads unlearn": Mutant(
        "foretoken.train.joint:JointModule.forward",
        "distillation + weight * self.heads(new, objective)",
        "distillation - weight * self.heads(new, objective)",
        ("train/test_joint.py::test_the_loss_of_both",),
    ),
    "every step's states count alike": Mutant(
        "foretoken.trainable.eagle:EagleModule._feature_loss",
        "decay**i",
        "decay",
        ("trainable/test_eagle.py::test_the_loss_counts_states_of_the_same_text",),
    ),
    "the last key that a part sees is left out": Mutant(
        "foretoken.trainable.masked_attention:_seen",
        "int(keys[-1]) + 1",
        "int(keys[-1])",
        ("trainable/test_masked_attention.py::test_attention_by_hand",),
    ),
    "gradients that are none": Mutant(
        "foretoken.train.loop:_clip",
        "not math.isfinite(float(norm))",
        "False",
        ("train/test_loop.py::test_gradients_that_are_none",),
    ),
    "every process computes all states": Mutant(
        "foretoken.train.stored_states:stored_states",
        "processes.is_mine(number)",
        "True",
        ("train/test_stored_states.py::test_each_process_writes_its_share",),
    ),
    "drawn siblings may repeat": Mutant(
        f"{LOSSES}:sibling_chances",
        "left.scatter(-1, drawn.view(own.shape), 0.0)",
        "left",
        (DRAWN,),
    ),
    "a sibling is tried whether those before it are rejected or not": Mutant(
        f"{LOSSES}:sibling_chances",
        "reached * chance",
        "reached",
        (DRAWN,),
    ),
    "a second drafter's token as if nothing had been rejected": Mutant(
        f"{LOSSES}:chances_in_turn",
        "reached * owed",
        "reached",
        ("trainable/test_losses.py::test_drafts_of_several_in_turn",),
    ),
    "a drawn tree of one node too many": Mutant(
        "foretoken.trainable.rank_trees:drawn_tree_acceptance",
        "place < max_nodes",
        "place <= max_nodes",
        ("trainable/test_rank_trees.py::test_a_tree_of_drawn_siblings",),
    ),
}
