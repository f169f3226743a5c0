"""A drafter that learns while it serves: one step of distillation at a time, beside decoding.

The weights that learn are a copy of those that serve. When a step is done, what serves is made of
the copy beside decoding too, and taken between two drafts by `turn`, which never waits: a draft is
made by one version's weights from its first token to its last.

Source: Liu et al. 2024 (Online Speculative Decoding), section 3: wrong places, a step every few
requests, AdamW at a constant rate.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from foretoken.access import Access
from foretoken.drafters.shared.mistakes import Buffer, Example, Head, lesson
from foretoken.errors import ForetokenError, unknown
from foretoken.models.drafting.draft_model import as_causal_lm
from foretoken.models.load import build_native, find, read_config
from foretoken.models.model import CausalLM
from foretoken.models.native import backends
from foretoken.trainable.checkpoint import Facts, Trained, weight_of
from foretoken.trainable.losses import Objective
from foretoken.trainable.protocol import Trainable
from foretoken.trainable.small_lm import TrainedLM

_CLIP = 1.0  # longest gradient


class Pupil(Protocol):
    """What of a drafter learns."""

    @property
    def student(self) -> Trained:
        """The copy that learns."""
        ...

    def head(self) -> Head:
        """The target's head, in a form that serves the student's lessons."""
        ...

    def made(self) -> Any:
        """What serves, with the student's present weights; may take long."""
        ...

    def serve(self, made: Any) -> None:
        """From the next draft on; takes no time."""
        ...

    def kept(self) -> Trained:
        """What a checkpoint holds: the student, with the numbers that serve."""
        ...


class Heads:
    """A module of a drafter's own, which serves as it is."""

    def __init__(self, served: Trained, access: Access, dtype: torch.dtype) -> None:
        self.served = served
        self.student: Trained = _learning(copy.deepcopy(served), dtype)
        self._access, self._dtype = access, dtype

    def head(self) -> Head:
        """Its matrix, since gradients must pass through it."""
        like = torch.empty(0, dtype=self._access.dtype, device=self._access.device)
        matrix = weight_of(self._access, self._access.width, like).to(self._dtype)
        return lambda states: states @ matrix.T

    def made(self) -> list[Tensor]:
        pairs = zip(self.student.parameters(), self.served.parameters(), strict=True)
        return [new.detach().to(old.dtype, copy=True) for new, old in pairs]

    def serve(self, made: list[Tensor]) -> None:
        for weight, new in zip(self.served.parameters(), made, strict=True):
            weight.data = new

    def kept(self) -> Trained:
        return self.student


class Changing:
    """A `CausalLM` that may be another one, of the same shape, at every pass."""

    def __init__(self, lm: CausalLM) -> None:
        self.lm = lm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lm, name)


class Small:
    """A small model, which serves in the form that its backend gives to the weights; their
    numbers are rounded as the checkpoint's are, so that this form stays the same."""

    def __init__(self, model: str | Path, access: Access, dtype: torch.dtype) -> None:
        self.served = Changing(as_causal_lm(model, access))
        self.student: TrainedLM = _learning(
            TrainedLM(Facts.of(access), model=str(model)).to(access.device), dtype
        )
        self._access, self._dtype = access, dtype
        stored = getattr(read_config(find(model)), "dtype", None)
        self._stored = stored if isinstance(stored, torch.dtype) else access.dtype

    def head(self) -> Head:
        access = self._access
        return lambda states: access.head(states.to(access.dtype)).to(self._dtype)

    def made(self) -> CausalLM:
        access, lm = self._access, self.student.lm
        weights = {name: w.detach().to(self._stored) for name, w in lm.state_dict().items()}
        linear = backends.split(access.backend)[1]
        backend = linear if backends.known(linear) else "auto"
        return build_native(lm.config, weights.__getitem__, access.dtype, access.device, backend)

    def serve(self, made: CausalLM) -> None:
        self.served.lm = made

    def kept(self) -> Trained:
        return copy.deepcopy(self.student).to(self._stored)


def pupil_of(drafter: Any, access: Access) -> Pupil:
    """Of a drafter that isn't bound yet; it will draft with what the pupil serves.

    Raises `ForetokenError` where it has no weights of its own.
    """
    if not isinstance(drafter, Trainable):
        raise ForetokenError(
            f"{type(drafter).__name__} has no weights that could learn; use 'online' with a small "
            "model, e.g. {'method': 'online', 'model': 'folder-or-hub-id'}, or with a trained "
            "drafter, e.g. 'online:medusa'."
        )
    kind, dtype = drafter.module, torch.float64 if access.dtype == torch.float64 else torch.float32
    if kind is not TrainedLM:
        drafter.model = kind.load(drafter.model, access)
        return Heads(drafter.model, access, dtype)
    if not isinstance(drafter.model, (str, Path)):
        raise ForetokenError(
            "A model that is already loaded can't learn; name its folder, hub id or bundled name."
        )
    small = Small(drafter.model, access, dtype)
    drafter.model = small.served
    return small


def _learning(module: Any, dtype: torch.dtype) -> Any:
    """Without noise or dropout: their random numbers would be those of the whole process."""
    return module.to(dtype).eval().requires_grad_(True)


class Learner:
    """Takes a step every `every` requests. version: of the weights that serve, 0 at first. loss:
    of the last step. frozen: it learns nothing. It is what `Online` shares across requests."""

    def __init__(
        self,
        pupil: Pupil,
        access: Access,
        *,
        every: int,
        lr: float,
        objective: Objective,
        known: float,
        most_bytes: int,
        kept: int,
    ) -> None:
        """known: what a token counts that was right. kept: how many versions `rollback` finds,
        beside the first one."""
        self.pupil, self.version, self.frozen, self.loss = pupil, 0, False, float("nan")
        self._access, self._every, self._lr = access, every, lr
        self._objective, self._known, self._kept = objective, known, kept
        self._buffer = Buffer(most_bytes)
        self._ended = self._last = 0
        self._due = False
        self._job: Future[Any] | None = None
        self._served: list[Any] = []  # what serves, and what did before: a GPU may still be at it
        self._versions = {0: _weights(pupil.student)}
        self._optimizer = self._new_optimizer()
        self._beside = _Beside(access.device)
        self._head: Head | None = None

    def note(self, example: Example | None) -> None:
        """A request has ended; the example is what was wrong in it."""
        if self.frozen:
            return
        if example is not None:
            self._buffer.add(example)
        self._ended += 1
        self._due = self._due or self._ended % self._every == 0

    def turn(self) -> None:
        """Between two drafts: take what is ready, begin what is due. It waits for nothing."""
        if self._job is not None and self._job.done():
            self._take(self._job)
        if self._due and self._job is None and len(self._buffer):
            self._due = False
            self._job = self._beside(self._step, self._buffer.take())

    def _take(self, job: Future[Any]) -> None:
        self._job = None
        try:
            made = job.result()
        except (RuntimeError, ForetokenError) as error:  # torch's out-of-memory is a RuntimeError
            self.frozen = True
            warnings.warn(f"The drafter has stopped learning: {error}", stacklevel=2)
            return
        if made is not None:
            self._serve(made, self._last + 1)
            self._last += 1

    def _step(self, examples: list[Example]) -> Any:
        """On the worker: a step of the optimiser, and what then serves; None where the loss is no
        number."""
        student, access = self.pupil.student, self._access
        self._head = self._head or self.pupil.head()
        weights = list(student.parameters())
        batch = lesson(examples, self._head, access.embed, weights[0].dtype, self._known)
        with torch.enable_grad():
            loss = student(batch, self._objective)
            self.loss = float(loss.detach())
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights, _CLIP)
        if bool(norm.isfinite()):
            self._optimizer.step()
        self._optimizer.zero_grad()
        if not bool(norm.isfinite()):
            return None
        self._versions[self._last + 1] = _weights(student)
        for old in sorted(self._versions)[1 : -self._kept]:
            del self._versions[old]
        return self.pupil.made()

    def _serve(self, made: Any, version: int) -> None:
        self._served = [*self._served[-1:], made]
        self.pupil.serve(made)
        self.version = version

    def _new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.pupil.student.parameters(), self._lr, weight_decay=0.0)

    def settle(self) -> None:
        """Wait for a step that is under way, and take it."""
        if self._job is not None:
            self._job.exception()
            self._take(self._job)

    def freeze(self) -> None:
        """Learn nothing more, once a step that is under way is done."""
        self.settle()
        self.frozen = True

    def thaw(self) -> None:
        """Learn again."""
        self.frozen = False

    def rollback(self, version: int) -> None:
        """Serve an earlier version again and go on from it; the next one gets a new number.

        Raises `ForetokenError` for one that isn't kept.
        """
        self.settle()
        if version not in self._versions:
            raise unknown("version", str(version), [str(each) for each in sorted(self._versions)])
        self.pupil.student.load_state_dict(self._versions[version])
        self._begin_from(version)

    def reset(self) -> None:
        """The weights of the beginning, and no mistakes."""
        self.settle()
        self._buffer.clear()
        self._ended, self._due = 0, False
        if self.version:
            self.rollback(0)

    def save(self, path: str | Path) -> None:
        """The weights that serve, as a checkpoint that any of the drafter's methods takes."""
        self.settle()
        kept = self.pupil.kept()
        kept.save(Path(path), {"online_version": self.version})
        if self._access.tokenizer is not None:
            kept.save_tokenizer(Path(path), self._access.tokenizer)

    def load(self, path: str | Path) -> None:
        """Serve the weights of a checkpoint, as a new version. Raises `ForetokenError` where they
        aren't of this shape."""
        self.settle()
        self.pupil.student.read_weights(Path(path))
        self._last += 1
        self._versions[self._last] = _weights(self.pupil.student)
        self._begin_from(self._last)

    def _begin_from(self, version: int) -> None:
        self._optimizer = self._new_optimizer()
        self._serve(self.pupil.made(), version)


def _weights(module: torch.nn.Module) -> Mapping[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in module.state_dict().items()}


class _Beside:
    """A worker with one thread, on a GPU with a stream of its own. Its priority is decoding's: a
    worker that must wait for a core while it holds the interpreter's lock stops decoding too."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pool = ThreadPoolExecutor(
            1, "foretoken-online", initializer=lambda: torch.set_num_threads(1)
        )

    def __call__(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        if self._stream is None:
            return self._pool.submit(work, *given)
        ready = torch.cuda.current_stream(self._stream.device).record_event()
        return self._pool.submit(self._on_stream, ready, work, *given)

    def _on_stream(self, ready: Any, work: Callable[..., Any], *given: Any) -> Any:
        stream = self._stream
        assert stream is not None
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            result = work(*given)
            stream.synchronize()
        return result
