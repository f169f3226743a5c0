"""What makes a drafter trainable."""

from __future__ import annotations

from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.drafters.nothing import Nothing
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.protocol import Trainable


def test_a_trained_module_is_of_its_drafter() -> None:
    """It names its method."""
    assert issubclass(Medusa.module, Trained) and Medusa.module.method == "medusa"


def test_classes_and_drafters_are_told_apart() -> None:
    """A drafter with a module is trainable, and so is its class; others are not."""
    assert isinstance(Medusa, Trainable) and issubclass(Medusa.module, MedusaHeads)
    assert not isinstance(Nothing, Trainable) and not isinstance(Nothing(), Trainable)
