"""What is forgotten together, and what of it is saved."""

from __future__ import annotations

from pathlib import Path

from foretoken.drafters.shared.forgetting import Forgetting


class Noted:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def reset(self) -> None:
        self.asked.append("reset")

    def save(self, path: str | Path) -> None:
        self.asked.append(f"save {path}")

    def load(self, path: str | Path) -> None:
        self.asked.append(f"load {path}")


def test_both_are_forgotten_and_one_is_saved() -> None:
    own, forgotten = Noted(), list[int]()
    shared = Forgetting(own, lambda: forgotten.append(1))
    shared.save("a")
    shared.load("b")
    assert own.asked == ["save a", "load b"] and not forgotten
    shared.reset()
    assert own.asked[2:] == ["reset"] and forgotten == [1]


def test_there_may_be_nothing_to_save() -> None:
    forgotten: list[int] = []
    shared = Forgetting(None, lambda: forgotten.append(1))
    shared.save("a")
    shared.load("b")
    shared.reset()
    assert forgotten == [1]
