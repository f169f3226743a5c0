"""The training loop: a budget, and resuming from where it was killed."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Clock:
    """A clock on which every look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


class Killed(Exception):
    pass


def trained(path: Path, killed_at: int | None = None) -> tuple[nn.Module, list[int]]:
    """A small model after half a minute of steps, and which steps were run."""
    from loop import Budget, train

    torch.manual_seed(0)
    model, steps = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), []

    def loss_of(step: int, batch: int) -> Tensor:
        assert batch == step
        if step == killed_at:
            raise Killed
        steps.append(step)
        x = torch.randn(16, 6)  # of the step's own seed
        return (model(x) - x[:, :3].sin()).square().mean()

    train(model, loss_of, count, Budget(0.5), path)
    return model, steps


def test_killed_and_resumed_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import loop

    monkeypatch.setattr(loop, "time", Clock())
    monkeypatch.setattr(loop, "SAVE_EVERY", 5.0)
    whole, steps = trained(tmp_path / "whole.pt")
    assert steps == list(range(len(steps))) and len(steps) > 20
    with pytest.raises(Killed):
        trained(tmp_path / "killed.pt", killed_at=13)
    again, later = trained(tmp_path / "killed.pt")
    assert 0 < later[0] <= 13 and later[-1] == steps[-1]
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    done, more = trained(tmp_path / "killed.pt")  # nothing is left to do
    assert more == []
    for a, b in zip(again.parameters(), done.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_time_suspended_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour between two steps costs ten seconds of the budget."""
    import loop

    class Suspended(Clock):
        def monotonic(self) -> float:
            self.now += 3600.0 if self.now == 5.0 else 0.0
            return super().monotonic()

    monkeypatch.setattr(loop, "time", Suspended())
    _, steps = trained(tmp_path / "a.pt")
    assert len(steps) in (21, 22)  # and 30 or 31 without it


def test_it_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import loop

    monkeypatch.setattr(loop, "time", Clock())
    monkeypatch.setattr(loop, "SAVE_EVERY", 1e9)
    torch.manual_seed(1)
    x = torch.randn(200, 6)
    model, _ = trained(tmp_path / "a.pt")
    torch.manual_seed(0)
    new: Any = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    losses = [(m(x) - x[:, :3].sin()).square().mean() for m in (model, new)]
    assert losses[0] < 0.7 * losses[1]


def test_the_rate_rises_and_falls() -> None:
    from loop import rate

    assert rate(0.0) == 0.02 and rate(0.015) == 0.5 and rate(0.2) == 1.0 == rate(0.5)
    assert rate(0.75) == pytest.approx(0.51) and rate(1.0) == pytest.approx(0.01)


def test_what_each_optimizer_learns() -> None:
    """Muon has the matrices between hidden states, AdamW the rest; what is frozen has none."""
    import loop

    model = nn.ModuleDict(
        {
            "shared": nn.Embedding(3, 4),
            "relative_attention_bias": nn.Embedding(3, 2),
            "up": nn.Linear(4, 4),
            "lm_head": nn.Linear(4, 3, bias=False),
            "frozen": nn.Linear(4, 4).requires_grad_(False),
        }
    )
    names = {id(p): name for name, p in model.named_parameters()}
    muon, adam = loop.optimizers(model, loop.Budget(1.0, 0.02, 0.003))
    learned = [[names[id(p)] for p in opt.param_groups[0]["params"]] for opt in (muon, adam)]
    assert learned[0] == ["up.weight"]
    rest = ["shared.weight", "relative_attention_bias.weight", "up.bias", "lm_head.weight"]
    assert learned[1] == rest
    assert [opt.param_groups[0]["lr"] for opt in (muon, adam)] == [0.02, 0.003]


def test_rates_and_workers_that_follow() -> None:
    import loop

    assert loop.for_rows(1e-3, 64) == 1e-3 and loop.for_rows(1e-3, 256) == 2e-3
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [loop.workers_of(None, device) for device in (cpu, gpu)] == [0, 3]
    assert loop.workers_of(0, gpu) == 0 and loop.workers_of(2, cpu) == 2


def test_a_loss_that_is_no_number_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is stored."""
    import loop

    monkeypatch.setattr(loop, "time", Clock())
    model = nn.Linear(2, 2)

    def loss_of(step: int, batch: int) -> Tensor:
        return model(torch.full((1, 2), float("nan"))).sum()

    with pytest.raises(SystemExit, match=r"a\.pt"):
        loop.train(model, loss_of, count, loop.Budget(0.5), tmp_path / "a.pt")
    assert not (tmp_path / "a.pt").exists()


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import loop

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loop.device_of("auto").type == "cpu" == loop.device_of("cpu").type
    with pytest.raises(SystemExit, match="--device cpu"):
        loop.device_of("cuda")
