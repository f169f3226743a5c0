"""Online learning: training steps on a second thread while decoding continues.

A copy of the weights learns. After a step the weights that serve are built from the copy, on the
same thread, and `turn` installs them between two drafts without waiting: one draft is made by one
version of the weights, from its first token to its last.

Source: Liu et al. 2024 (Online Speculative Decoding), section 3: wrong places, a step every few
requests, AdamW at a constant rate.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from foretoken.access import Access
from foretoken.drafters.shared.mistakes import Buffer, Example, Head, batches, head_of, lesson
from foretoken.errors import ForetokenError, unknown
from foretoken.machine import return_memory
from foretoken.models.load import find, read_config
from foretoken.models.model import CausalLM
from foretoken.models.native import backends
from foretoken.models.native.build import build_native
from foretoken.trainable.checkpoint import Facts, Trained
from foretoken.trainable.losses import Objective
from foretoken.trainable.protocol import Trainable
from foretoken.trainable.small_lm import TrainedLM

_log = logging.getLogger(__name__)

_MAX_GRADIENT_NORM = 1.0


class LearningWeights(Protocol):
    """Two copies of a drafter's weights: those that serve, and the student, which learns."""

    @property
    def student(self) -> Trained: ...

    def head(self) -> Head:
        """The target's head, in a form that the student can learn with."""
        ...

    def build(self) -> Any:
        """The student's present weights in the form that `serve` takes; may take long."""
        ...

    def serve(self, built: Any) -> None:
        """Draft with these weights from the next draft on; takes no time."""
        ...

    def to_save(self) -> Trained:
        """The student, rounded as the weights that serve are, for a checkpoint."""
        ...


class ModuleWeights:
    """`LearningWeights` of a trained module, which serves as it is."""

    def __init__(self, served: Trained, access: Access, dtype: torch.dtype) -> None:
        self.served = served
        self.student: Trained = _ready_to_learn(copy.deepcopy(served), dtype)
        self._access, self._dtype = access, dtype

    def head(self) -> Head:
        return head_of(self._access, self._dtype)

    def build(self) -> list[Tensor]:
        pairs = zip(self.student.parameters(), self.served.parameters(), strict=True)
        return [new.detach().to(old.dtype, copy=True) for new, old in pairs]

    def serve(self, built: list[Tensor]) -> None:
        for weight, new in zip(self.served.parameters(), built, strict=True):
            weight.data = new

    def to_save(self) -> Trained:
        return self.student


class SmallModelWeights:
    """`LearningWeights` of a small model, which serves in its backend's packed form. New weights
    are rounded to the checkpoint's dtype, so that the backend packs them alike."""

    def __init__(
        self,
        model: str | Path,
        serve: Callable[[CausalLM], None],
        access: Access,
        dtype: torch.dtype,
        backend: str | None,
    ) -> None:
        """model: the checkpoint that the drafter serves; serve: makes it draft with another;
        backend: how its linear layers run, None for as the target's do."""
        self._serve, linear = serve, backends.split(backend or access.backend)[1]
        automatic = linear in backends.AUTOMATIC or not backends.known(linear)
        self._backend = "auto" if automatic else linear
        self.student: TrainedLM = _ready_to_learn(
            TrainedLM(Facts.of(access), model=str(model)).to(access.device), dtype
        )
        self._access, self._dtype = access, dtype
        stored = getattr(read_config(find(model)), "dtype", None)
        self._stored = stored if isinstance(stored, torch.dtype) else access.dtype

    def head(self) -> Head:
        access = self._access
        return lambda states: access.head(states.to(access.dtype)).to(self._dtype)

    def build(self) -> CausalLM:
        access, lm = self._access, self.student.lm
        weights = {name: w.detach().to(self._stored) for name, w in lm.state_dict().items()}

        def read(name: str) -> Any:
            return backends.stored(self._backend, weights[name])

        return build_native(lm.config, read, access.dtype, access.device, self._backend)

    def serve(self, built: CausalLM) -> None:
        self._serve(built)

    def to_save(self) -> Trained:
        return copy.deepcopy(self.student).to(self._stored)


@runtime_checkable
class _SmallModelDrafter(Trainable, Protocol):
    """A drafter whose small model can be replaced between two drafts."""

    draft_backend: str | None
    draft_vocab_size: int | None

    def replace_model(self, lm: CausalLM) -> None: ...


def learnable(drafter: Any, access: Access) -> tuple[Any, LearningWeights]:
    """A drafter to bind instead of this one, whose weights can be replaced, and these weights.

    Raises `ForetokenError` where it has no weights that could learn.
    """
    dtype = torch.float64 if access.dtype == torch.float64 else torch.float32
    if isinstance(drafter, _SmallModelDrafter):
        if not isinstance(drafter.model, (str, Path)):
            raise ForetokenError(
                "A model that is already loaded can't learn; name its folder, hub id or bundled "
                "name."
            )
        if drafter.draft_vocab_size is not None:
            raise ForetokenError(
                "A draft model that learns has the whole vocabulary; leave draft_vocab_size out."
            )
        given = drafter.model, drafter.replace_model, access, dtype, drafter.draft_backend
        return drafter, SmallModelWeights(*given)
    if isinstance(drafter, Trainable):
        module = drafter.module.load(drafter.model, access)
        if not module.serves_itself:
            raise ForetokenError(
                f"Method {module.method!r} drafts with a packed copy of its weights, which can't "
                "be exchanged while it serves; learn online with 'online' and a small model."
            )
        return replace(drafter, model=module), ModuleWeights(module, access, dtype)  # type: ignore[type-var]
    raise ForetokenError(
        f"{type(drafter).__name__} has no weights that could learn; use 'online' with a small "
        "model, e.g. {'method': 'online', 'model': 'folder-or-hub-id'}, or with a trained "
        "drafter, e.g. 'online:medusa'."
    )


def _ready_to_learn(module: Any, dtype: torch.dtype) -> Any:
    """A module without noise or dropout, which would use up the process's random numbers."""
    return module.to(dtype).eval().requires_grad_(True)


class Learner:
    """Takes a training step every `every` requests; `Online` shares it across requests.

    version: number of the weights that serve, 0 at first. loss: of the last training step. frozen:
    whether it has stopped learning.
    """

    def __init__(
        self,
        weights: LearningWeights,
        access: Access,
        *,
        every: int,
        lr: float,
        objective: Objective,
        right_weight: float,
        window: int,
        most_bytes: int,
        versions: int,
    ) -> None:
        """right_weight: weight of a token that was drafted right; wrong ones weigh 1. window: how
        many tokens a step learns from at a time. most_bytes: of stored mistakes. versions: how many
        `rollback` can restore in addition to the first."""
        self.weights, self.version, self.frozen, self.loss = weights, 0, False, float("nan")
        self._access, self._every, self._lr = access, every, lr
        self._objective, self._right_weight = objective, right_weight
        self._window, self._most_versions = window, versions
        self._buffer = Buffer(most_bytes)
        self._ended = self._last_version = 0  # requests, and the highest number of a version
        self._due = False  # whether enough requests have ended for a step
        self._job: Future[Any] | None = None
        self._served: list[Any] = []  # the last two; a GPU may still be reading the older one
        self._versions = {0: _copied(weights.student)}
        self._optimizer = self._new_optimizer()
        self._worker = _Worker(access.device)
        self._head: Head | None = None

    def note(self, example: Example | None) -> None:
        """Take in a request that has ended, with its mistakes if there were any."""
        if self.frozen:
            return
        if example is not None:
            self._buffer.add(example)
        self._ended += 1
        self._due = self._due or self._ended % self._every == 0

    def turn(self) -> None:
        """Between two drafts: install a finished step, begin one that is due; never wait."""
        if self._job is not None and self._job.done():
            self._install(self._job)
        ready = self._due and not self.frozen
        if ready and self._job is None and len(self._buffer):
            self._due = False
            self._job = self._worker(self._step, self._buffer.take())

    def _install(self, job: Future[Any]) -> None:
        self._job = None
        try:
            built = job.result()
        except Exception as error:  # whatever it is, requests don't end by it
            self.frozen, why = True, str(error) or type(error).__name__
            _log.warning("The drafter has stopped learning: %s", why)
            return
        if built is not None:
            self._serve(built, self._last_version + 1)
            self._last_version += 1

    def _step(self, examples: list[Example]) -> Any:
        """On the worker: one training step. Returns the weights as `serve` takes them, or None
        where the gradient is not finite."""
        parameters = list(self.weights.student.parameters())
        self._differentiate(examples, parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, _MAX_GRADIENT_NORM)
        finite = bool(norm.isfinite())
        if finite:
            self._optimizer.step()
        self._optimizer.zero_grad()
        if not finite:
            return None
        self._store(self._last_version + 1)
        return self.weights.build()

    def _differentiate(self, examples: list[Example], parameters: list[torch.nn.Parameter]) -> None:
        """The gradient of the examples' mean loss, a window at a time, so that what a step needs
        doesn't grow with the number of mistakes."""
        student, access = self.weights.student, self._access
        head = self._head = self._head or self.weights.head()
        dtype, loss, weight = parameters[0].dtype, 0.0, 0.0
        for few in batches(examples, self._window):
            batch = lesson(few, head, access.embed, dtype, self._right_weight)
            with torch.enable_grad():
                mean = student(batch, self._objective)
                share = student.counted(batch)
                (share * mean).backward()
            loss, weight = loss + share * float(mean.detach()), weight + share
        self.loss = loss / weight
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= weight

    def _store(self, version: int) -> None:
        """Keep the student's weights under this number, and of all others the first and the
        latest."""
        self._versions[version] = _copied(self.weights.student)
        for old in sorted(self._versions)[1 : -self._most_versions]:
            del self._versions[old]

    def _serve(self, built: Any, version: int) -> None:
        self._served = [*self._served[-1:], built]
        self.weights.serve(built)
        self.version = version

    def _new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.weights.student.parameters(), self._lr, weight_decay=0.0)

    def settle(self) -> None:
        """Wait for a step that is under way, and install it."""
        if self._job is not None:
            self._job.exception()
            self._install(self._job)

    def freeze(self) -> None:
        """Learn nothing more, once a step that is under way is done."""
        self.settle()
        self.frozen, self._due = True, False

    def thaw(self) -> None:
        """Learn again."""
        self.frozen = False

    def rollback(self, version: int) -> None:
        """Serve an earlier version again and learn from there; the next one gets a new number.

        Raises `ForetokenError` for one that isn't stored.
        """
        self.settle()
        if version not in self._versions:
            raise unknown("version", str(version), [*map(str, sorted(self._versions))])
        self.weights.student.load_state_dict(self._versions[version])
        self._restart(version)

    def reset(self) -> None:
        """Serve the first version, and forget the mistakes."""
        self.settle()
        self._buffer.clear()
        self._ended, self._due = 0, False
        if self.version:
            self.rollback(0)

    def save(self, path: str | Path) -> None:
        """Write the weights that serve, as a checkpoint for any of the drafter's methods."""
        self.settle()
        module = self.weights.to_save()
        module.save(Path(path), {"online_version": self.version})
        if self._access.tokenizer is not None:
            module.save_tokenizer(Path(path), self._access.tokenizer)

    def load(self, path: str | Path) -> None:
        """Serve the weights of a checkpoint, as a new version. Raises `ForetokenError` where they
        aren't of this shape."""
        self.settle()
        student = self.weights.student
        before = _copied(student)
        try:
            student.read_weights(Path(path))
        except ForetokenError:  # after some of them were read
            student.load_state_dict(before)
            raise
        self._last_version += 1
        self._store(self._last_version)
        self._restart(self._last_version)

    def _restart(self, version: int) -> None:
        """Serve the student's weights under this number, with a new optimiser."""
        self._optimizer = self._new_optimizer()
        self._serve(self.weights.build(), version)


def _copied(module: torch.nn.Module) -> Mapping[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in module.state_dict().items()}


def _on_one_core() -> None:
    torch.get_num_threads()  # whoever asks first gets the process's number, also after setting one
    torch.set_num_threads(1)


class _Worker:
    """One thread, with its own stream on a GPU. Its priority is that of decoding: if it had to wait
    for a core while it holds the interpreter's lock, decoding would stop too."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        cores = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, "foretoken-online")
        self._pool.submit(_on_one_core).result()
        torch.set_num_threads(cores)  # which threads that begin later get

    def __call__(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._stream is None:
            return self._pool.submit(_then_return_memory, work, *args)
        ready = torch.cuda.current_stream(self._stream.device).record_event()
        return self._pool.submit(self._on_stream, ready, work, *args)

    def _on_stream(self, ready: Any, work: Callable[..., Any], *args: Any) -> Any:
        stream = self._stream
        assert stream is not None
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            result = work(*args)
            stream.synchronize()
        return result


def _then_return_memory(work: Callable[..., Any], *args: Any) -> Any:
    """Weights that stay lie between a step's logits, so that the allocator, left to itself, keeps
    what the logits took."""
    result = work(*args)
    return_memory()
    return result
