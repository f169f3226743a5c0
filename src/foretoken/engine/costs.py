"""Measures what steps cost on this machine, for a drafter that decides by it, and keeps it.

The target's pass is timed over 1 to 64 tokens after a short context, in 12 passes, and each part's
step (draft and observe) at two lengths; again and again where that takes next to no time, since a
fast model's first passes are several times as slow as the later ones. What was measured is kept in
the cache folder under machine, threads, model and drafter: a model's speed is that of its shape,
dtype and backend, whatever its weights are called. What is kept must agree with one pass or step
made now, since a machine may have been busy when it was measured; else it is measured anew, as it
is each time where nothing can be kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from functools import partial
from statistics import median
from time import perf_counter
from typing import Protocol, runtime_checkable

import torch

from foretoken.access import Pass
from foretoken.control.cost_model import CostModel, DraftCost, unmeasured
from foretoken.engine.clock import Clock, TimedDrafter
from foretoken.errors import ForetokenError
from foretoken.files import read_json, write_json
from foretoken.machine import cache_folder, cores, processor
from foretoken.models.model import CausalLM
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Verifier
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.step import prefill, step
from foretoken.tree import DraftTree, Kind

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of one sequence in a pass."""

_TWICE = 16  # passes up to so many tokens are made twice, and the first time doesn't count
_CONTEXT = 64
_LENGTHS = (1, 4)  # of drafts that are timed,
_ROUNDS = 8  # each so often,
_BRIEF = 0.2  # at least twice, and then for so many seconds; the same for passes
_PERIOD = 16  # after which the text that they follow comes again
_DEARER = 1.5
_AGREES = 1.5  # times as long, or as short, as what is kept
_CHOSEN = frozenset({Kind.CHOSEN, Kind.AUXILIARY})
_PLAIN = (bool, int, float, str, tuple, type(None))


@runtime_checkable
class Priced(Drafter, Protocol):
    """A drafter that decides by costs; where `costs` is None they are measured, once it is bound.

    names, drafters: its parts.
    """

    names: Seq[str]
    drafters: Seq[Drafter]
    costs: CostModel | None


def price(target: ModelTarget, drafter: Drafter, verifier: Verifier) -> None:
    """Give a drafter that decides by costs what it needs; others cost nothing here."""
    if isinstance(drafter, Priced) and drafter.costs is None:
        drafter.costs = measured(target, drafter, verifier)


@torch.inference_mode()
def measured(target: ModelTarget, drafter: Priced, verifier: Verifier) -> CostModel:
    """Passes of the target and steps of each part, measured now or earlier; serves no request."""
    here = [*_machine(target.device), *shape_of(target.model)]
    passes = _kept(here, partial(_passes, target.model), partial(_still, target.model))
    drafts: dict[str, DraftCost] = {}
    for name, part in zip(drafter.names, drafter.drafters, strict=True):
        if _room(target) > 0:
            tried = target, drafter, part, verifier
            found = _kept([*here, *_identity(part)], partial(_draft, *tried), partial(_so, *tried))
            drafts[name] = DraftCost(**found)
        else:
            drafts[name] = unmeasured(passes["1"], not part.kinds <= _CHOSEN)
    if drafter.shared is not None:
        drafter.shared.reset()  # what was drafted for was no text
    return CostModel({int(size): ms for size, ms in passes.items()}, drafts)


def shape_of(model: CausalLM) -> list[str]:
    """What a model's speed depends on."""
    numbers = (model.layers, model.width, model.vocab_size, model.parameters, model.bytes_read)
    return [type(model).__name__, *map(str, numbers), str(model.dtype), model.backend]


class PassProbe:
    """Sequences of one context, for timing the target's passes over more tokens of each.

    widest: most tokens of a sequence in a pass.
    """

    def __init__(self, model: CausalLM, batch: int, context: int, widest: int) -> None:
        self._target = ModelTarget(model, batch, context + 1, nodes=widest)
        tokens = [i % model.vocab_size for i in range(context + 1)]  # the last one is the root
        params = SamplingParams(temperature=0)
        self._sequences = [Sequence.start(tokens, params) for _ in range(batch)]
        for sequence in self._sequences:
            self._target.begin(sequence)
        first, *others = self._sequences
        with torch.inference_mode():
            self._target.prefill([first], context)
            for other in others:
                self._target.fork(first, other)
        self.kv_bytes = context * self._target.cache.data[:, :, 0, :, 0].nbytes

    def run(self, width: int) -> Pass:
        """One pass over so many tokens of each sequence; nothing is committed."""
        batch = len(self._sequences)
        drafted = torch.zeros(batch, width - 1, dtype=torch.long, device=self._target.device)
        return self._target.score(self._sequences, DraftTree(drafted, [width - 1] * batch))


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds, queued work included."""
    _wait(device)
    began = perf_counter()
    work()
    _wait(device)
    return 1000 * (perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _probe(model: CausalLM) -> PassProbe:
    context = max(1, min(_CONTEXT, model.max_length - max(WIDTHS) - 1))
    return PassProbe(model, 1, context, max(WIDTHS))


def _still(model: CausalLM, kept: dict[str, float]) -> bool:
    """Whether a pass over one token takes what is kept."""
    probe = _probe(model)
    probe.run(1)  # the first one is slow
    return _agree(timed(partial(probe.run, 1), model.device), kept["1"])


def _agree(ms: float, kept: float) -> bool:
    return kept / _AGREES <= ms <= kept * _AGREES


def _passes(model: CausalLM) -> dict[str, float]:
    probe = _probe(model)
    for width in WIDTHS:
        if width <= _TWICE:
            probe.run(width)
    rounds = _rounds(lambda: [timed(partial(probe.run, n), model.device) for n in WIDTHS], 1)
    return {str(width): median(each) for width, *each in zip(WIDTHS, *rounds, strict=True)}


def _rounds(work: Callable[[], list[float]], least: int) -> list[list[float]]:
    """Of at most `_ROUNDS` rounds in a short time the later half: the first ones are slow."""
    began, found = perf_counter(), [work() for _ in range(least)]
    while len(found) < _ROUNDS and perf_counter() - began < _BRIEF:
        found.append(work())
    return found[len(found) // 2 :]


def _draft(
    target: ModelTarget, whole: Drafter, part: Drafter, verifier: Verifier
) -> dict[str, float]:
    """`DraftCost` of a part, by real steps after a text with something to copy."""
    with _text(target, whole) as sequence:
        rounds = _rounds(
            lambda: [x for n in _LENGTHS for x in _step(target, part, verifier, sequence, n)], 2
        )
    return _line(*map(median, zip(*rounds, strict=True)))


def _so(
    target: ModelTarget, whole: Drafter, part: Drafter, verifier: Verifier, kept: dict[str, float]
) -> bool:
    """Whether a step takes what is kept."""
    with _text(target, whole) as sequence:
        _step(target, part, verifier, sequence, max(_LENGTHS))
        levels, ms = _step(target, part, verifier, sequence, max(_LENGTHS))
    return _agree(ms, DraftCost(**kept)(1, levels))


@contextlib.contextmanager
def _text(target: ModelTarget, whole: Drafter) -> Iterator[Sequence]:
    """A text with something to copy, read by the target and by the drafter."""
    context = min(_CONTEXT, _room(target))
    tokens = [i % min(_PERIOD, target.vocab_size) for i in range(context)]
    sequence = Sequence.start(tokens, SamplingParams(temperature=0))
    target.begin(sequence)
    whole.begin(sequence)
    while target.pending(sequence):
        prefill(target, whole, [sequence], _CONTEXT)
    yield sequence
    whole.end([sequence])
    target.end(sequence)


def _room(target: ModelTarget) -> int:
    """Tokens of context that leave enough for the timed steps."""
    return target.max_length - _ROUNDS * sum(1 + nodes for nodes in _LENGTHS) - 1


def _step(
    target: ModelTarget, part: Drafter, verifier: Verifier, sequence: Sequence, nodes: int
) -> tuple[float, float]:
    """How deep the draft was, and the milliseconds of the drafter's own work."""
    clock = Clock()
    [done] = step(target, TimedDrafter(part, clock), verifier, [sequence], [nodes])
    levels = int(done.tree.depths[done.row].max())
    return levels, 1000 * clock.draft


def _line(few: float, short: float, many: float, long: float) -> dict[str, float]:
    """Levels count where a deeper draft clearly takes longer."""
    if many <= few or long < _DEARER * short:
        return {"call": max(short, long)}
    level = (long - short) / (many - few)
    return {"call": max(0.0, short - few * level), "level": level}


def _identity(part: Drafter) -> list[str]:
    """What a drafter's speed depends on: its kind, its options, the models that it runs."""
    own = {key: value for key, value in vars(part).items() if not key.startswith("_")}
    options = [f"{key}={own[key]}" for key in sorted(own) if isinstance(own[key], _PLAIN)]
    return [type(part).__name__, *options, *_models(part)]


def _models(part: object) -> list[str]:
    """The shapes of the models that an object holds, itself or one step away."""
    found = []
    for value in vars(part).values():
        for each in (value, getattr(value, "lm", None)):
            if each is not None and hasattr(each, "bytes_read"):
                found += shape_of(each)
    return found


def _machine(device: torch.device) -> list[str]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    threads = torch.get_num_threads()
    return [processor(), str(cores()), gpu, torch.__version__, f"{threads} threads", str(device)]


def _kept(
    key: Seq[str],
    measure: Callable[[], dict[str, float]],
    agrees: Callable[[dict[str, float]], bool],
) -> dict[str, float]:
    """What was measured under this key, now if it never was or doesn't agree any more."""
    name = hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()[:24]
    path = cache_folder() / "costs" / f"{name}.json"
    try:
        kept: dict[str, float] = read_json(path, "measured costs")["ms"]
        if agrees(kept):
            return kept
    except (ValueError, LookupError, TypeError):
        pass  # nothing is kept, or it is damaged
    found = measure()
    with contextlib.suppress(ForetokenError):  # the cache may be read-only
        write_json(path, {"of": list(key), "ms": found})
    return found
