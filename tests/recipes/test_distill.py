"""The divergence that the drafter learns by."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from recipe_data import random_llama


def test_chunked_divergence_is_kl() -> None:
    """Loss and gradients are those of torch's KL divergence, with either kernel."""
    import distill

    hidden = torch.randn(9, 8, requires_grad=True)
    head = torch.randn(30, 8, requires_grad=True)
    t_hidden, t_head, weight = torch.randn(9, 6), torch.randn(30, 6), torch.rand(9)
    p = (t_hidden @ t_head.t()).log_softmax(-1)
    q = (hidden @ head.t()).log_softmax(-1)
    wanted = (F.kl_div(q, p, log_target=True, reduction="none").sum(-1) * weight).sum()
    grads = torch.autograd.grad(wanted, (hidden, head))
    teacher = t_hidden @ t_head.t()
    everything = torch.arange(30).expand(9, 30)
    for kernel, known in (
        (distill._kl_kernel, [lambda at: (teacher[at],)]),
        (distill._best_kernel, [everything, p.exp()]),
    ):
        loss = distill._Chunked.apply(kernel, hidden, head, weight, *known)
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(torch.autograd.grad(loss, (hidden, head)), grads)


class Crew:
    """Takes steps of no gradient, and may be killed at one."""

    steps: list[int]

    def __init__(self, kill_at: int | None, draft: Any, *_: Any) -> None:
        self.kill_at, self.draft, self.steps = kill_at, draft, []

    def step(self, batch: Any) -> float:
        if len(self.steps) == self.kill_at:
            raise KeyboardInterrupt
        self.steps.append(1)
        for weight in self.draft.parameters():
            weight.grad = torch.full_like(weight, 0.1)
        return 1.0

    def close(self) -> None: ...


def test_killed_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase has the minutes that were left, one that is finished isn't begun again, and the
    optimisers' numbers are kept."""
    import distill

    monkeypatch.setattr(distill, "SAVE_EVERY", 0.0)
    clock = count()
    ticks = SimpleNamespace(time=lambda: 3.0 * next(clock), strftime=time.strftime)
    monkeypatch.setattr(distill, "time", ticks)  # a step takes three seconds
    sampler = SimpleNamespace(batch=lambda rows: ())
    monkeypatch.setattr(distill.corpus, "load", lambda path: {})
    monkeypatch.setattr(distill, "load_hf", lambda path: random_llama())
    monkeypatch.setattr(distill, "from_embedding", lambda target, config: random_llama(1))
    monkeypatch.setattr(distill, "Sampler", lambda *given, **options: sampler)
    monkeypatch.setattr(distill, "OwnSampler", lambda *given, **options: sampler)
    monkeypatch.setattr(distill.Own, "load", lambda path: None)
    (tmp_path / "own.npz").write_bytes(b"")
    crews: list[Crew] = []

    def main(*kill_at: int | None) -> list[int]:
        """Steps of each phase that was begun."""
        kills, crews[:] = iter(kill_at), []

        def workers(draft: Any, *given: Any) -> Crew:
            crews.append(Crew(next(kills), draft))
            return crews[-1]

        monkeypatch.setattr(distill, "workers", workers)
        ended = pytest.raises(KeyboardInterrupt) if kill_at and kill_at[-1] else nullcontext()
        with ended:
            distill.main()
        return [len(crew.steps) for crew in crews]

    given = ["--target", "target", "--minutes", "1", "--own-minutes", "2"]
    monkeypatch.setattr(sys, "argv", ["distill.py", "--work", str(tmp_path), *given])
    whole = main(None, None)
    assert 19 <= whole[0] <= 21 and 39 <= whole[1] <= 41
    assert (tmp_path / "draft" / "config.json").is_file()
    assert main() == []  # it is finished
    (tmp_path / "draft.pt").unlink()
    first = main(4)
    state = torch.load(tmp_path / "draft.pt", weights_only=True)
    assert state["batches"] == 4 and all(each["state"] for each in state["states"])
    second = main(None, 5)
    third = main(None)
    assert first[0] + second[0] == whole[0]
    assert second[1] + third[0] == whole[1] and len(third) == 1
