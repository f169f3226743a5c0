"""Which methods can be trained, and with what."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken import ForetokenError
from foretoken.drafters.medusa import Medusa
from foretoken.train.drafter import DrafterTraining, merged, trainable
from foretoken.train.job import Job
from foretoken.train.recipe import read_recipe


def test_methods_with_nothing_to_train() -> None:
    """They are refused with the list of those that can be trained."""
    with pytest.raises(ForetokenError, match=r"nothing to train for method 'pld'.*medusa"):
        trainable("pld")
    assert trainable("medusa") is Medusa


def test_only_small_models_learn_after_others(tmp_path: Path) -> None:
    """Before anything is loaded."""
    job = Job("medusa", "no-such-model", [], read_recipe("medusa"), tmp_path, after=["one"])
    with pytest.raises(ForetokenError, match="use method 'sps' with after"):
        DrafterTraining.check(job)


def test_several_are_served_in_one_tree() -> None:
    """A chain of each, of the same depth."""
    config = merged([Path("one"), "two"], 3)
    assert config["models"] == ["one", "two"] and config["widths"] == (1, 1, 1)
