"""Measures what steps cost on this machine, for drafters that decide by costs, and caches it.

The target's pass is timed over 1 to 64 tokens after a short context, in 12 passes, and each part's
step (draft and observe) at two lengths; repeatedly where that takes next to no time, since a fast
model's first passes are several times as slow as the later ones. Measurements are cached in files
under machine, threads, model and drafter: a model's speed is that of its shape, dtype and backend,
whatever its weights are called. A cached measurement must agree with one pass or step made now,
since the machine may have been busy when it was made; else, and where the file is damaged, it is
repeated, as it is each time where no file can be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from foretoken.access import Pass
from foretoken.control.cost_model import CostModel, DraftCost, unmeasured
from foretoken.engine.clock import Clock, TimedDrafter
from foretoken.errors import ForetokenError
from foretoken.files import read_json, write_json
from foretoken.machine import cache_folder, cores, processor
from foretoken.models.model import CausalLM
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Target, Verifier
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.step import prefill, step
from foretoken.tree import DraftTree, Kind

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of one sequence in a pass."""

_TWICE = 16  # passes over at most this many tokens are made twice, and the first doesn't count
_CONTEXT = 64  # tokens
_LENGTHS = (1, 4)  # of drafts that are timed
_ROUNDS = 8  # at most; drafts are timed at least twice, passes at least once
_ENOUGH = 0.2  # seconds, after which no further round begins
_PERIOD = 16  # tokens, after which the text repeats
_PER_LEVEL = 1.5  # a long draft that takes this many times the short one's time costs by the level
_AGREES = 1.5  # the factor by which a time may differ from the cached one
_CHOSEN = frozenset({Kind.CHOSEN, Kind.AUXILIARY})
_PLAIN = (bool, int, float, str, tuple, type(None))

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loop:
    """What real steps are timed with. drafter: the whole one, whose parts are timed one by one."""

    target: Target
    drafter: Drafter
    verifier: Verifier


def price(target: Target, drafter: Drafter, verifier: Verifier) -> None:
    """Give a drafter that decides by costs the means to measure them; others measure nothing."""
    drafter.price(partial(measured, Loop(target, drafter, verifier)))


@torch.inference_mode()
def measured(loop: Loop, parts: Mapping[str, Drafter]) -> CostModel:
    """Costs of the target's passes and of each part's drafts, measured or read from the cache."""
    target = loop.target
    here = [*_machine(target.device), *shape_of(target.model)]
    passes = _cached(here, partial(_passes, target.model), partial(_pass_agrees, target.model))
    drafts: dict[str, DraftCost] = {}
    for name, part in parts.items():
        if _room(target) > 0:
            key, args = [*here, *_identity(part)], (loop, part)
            ms = _cached(key, partial(_draft, *args), partial(_draft_agrees, *args))
            drafts[name] = DraftCost(**ms)
        else:
            drafts[name] = unmeasured(passes["1"], not part.kinds <= _CHOSEN)
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
        self.kv_bytes = context * self._target.cache.token_bytes

    def run(self, width: int) -> Pass:
        """One pass over `width` tokens of each sequence; nothing is committed."""
        batch = len(self._sequences)
        drafted = torch.zeros(batch, width - 1, dtype=torch.long, device=self._target.device)
        return self._target.score(self._sequences, DraftTree(drafted, [width - 1] * batch))


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds that `work` takes, with what it queues on a GPU."""
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


def _pass_agrees(model: CausalLM, cached: dict[str, float]) -> bool:
    """Whether a pass over one token takes the cached time."""
    if cached.keys() != {str(width) for width in WIDTHS}:
        return False
    probe = _probe(model)
    probe.run(1)  # the first one is slow
    return _agree(timed(partial(probe.run, 1), model.device), cached["1"])


def _agree(ms: float, cached: float) -> bool:
    return cached / _AGREES <= ms <= cached * _AGREES


def _passes(model: CausalLM) -> dict[str, float]:
    """Milliseconds of a pass by its tokens."""
    probe = _probe(model)
    for width in WIDTHS:
        if width <= _TWICE:
            probe.run(width)
    rounds = _rounds(lambda: [timed(partial(probe.run, n), model.device) for n in WIDTHS], 1)
    return {str(width): median(times) for width, *times in zip(WIDTHS, *rounds, strict=True)}


def _rounds(work: Callable[[], list[float]], least: int) -> list[list[float]]:
    """The later half of at least `least` and at most `_ROUNDS` rounds: the first ones are slow."""
    began, rounds = perf_counter(), [work() for _ in range(least)]
    while len(rounds) < _ROUNDS and perf_counter() - began < _ENOUGH:
        rounds.append(work())
    return rounds[len(rounds) // 2 :]


def _draft(loop: Loop, part: Drafter) -> dict[str, float]:
    """`DraftCost` of a part, by real steps after a text with something to copy."""
    with _text(loop) as sequence:
        rounds = _rounds(lambda: [x for n in _LENGTHS for x in _step(loop, part, sequence, n)], 2)
    return _line(*map(median, zip(*rounds, strict=True)))


def _draft_agrees(loop: Loop, part: Drafter, cached: dict[str, float]) -> bool:
    """Whether a step of the part takes the cached time."""
    if "call" not in cached or not cached.keys() <= {field.name for field in fields(DraftCost)}:
        return False
    with _text(loop) as sequence:
        _step(loop, part, sequence, max(_LENGTHS))
        levels, ms = _step(loop, part, sequence, max(_LENGTHS))
    return _agree(ms, DraftCost(**cached)(1, levels))


@contextlib.contextmanager
def _text(loop: Loop) -> Iterator[Sequence]:
    """A text with something to copy, read by the target and by the drafter."""
    target, drafter = loop.target, loop.drafter
    context = min(_CONTEXT, _room(target))
    tokens = [i % min(_PERIOD, target.vocab_size) for i in range(context)]
    sequence = Sequence.start(tokens, SamplingParams(temperature=0))
    target.begin(sequence)
    drafter.begin(sequence)
    while target.pending(sequence):
        prefill(target, drafter, [sequence], _CONTEXT)
    yield sequence
    drafter.end([sequence])
    target.end(sequence)


def _room(target: Target) -> int:
    """How long the context may be, so that the timed steps fit after it."""
    return target.max_length - _ROUNDS * sum(1 + nodes for nodes in _LENGTHS) - 1


def _step(loop: Loop, part: Drafter, sequence: Sequence, nodes: int) -> tuple[float, float]:
    """One step: the depth of its draft, and the milliseconds of the drafter's work."""
    clock = Clock()
    timed_part = TimedDrafter(part, clock)
    [done] = step(loop.target, timed_part, loop.verifier, [sequence], [nodes])
    levels = int(done.tree.depths[done.row].max())
    return levels, 1000 * clock.draft


def _line(few: float, short: float, many: float, long: float) -> dict[str, float]:
    """`DraftCost` from the levels and milliseconds of two drafts; it has a cost per level only
    where the deeper draft clearly takes longer."""
    if many <= few or long < _PER_LEVEL * short:
        return {"call": max(short, long)}
    level = (long - short) / (many - few)
    return {"call": max(0.0, short - few * level), "level": level}


def _identity(part: Drafter) -> list[str]:
    """What a drafter's speed depends on: its kind, its options, the models that it runs."""
    given = {key: value for key, value in vars(part).items() if not key.startswith("_")}
    options = [f"{key}={given[key]}" for key in sorted(given) if isinstance(given[key], _PLAIN)]
    # A model that was passed as an object is listed twice, as in the files of earlier versions.
    models = [model for value in given.values() for model in part.small_models if model is value]
    shapes = [line for model in (*models, *part.small_models) for line in shape_of(model)]
    return [type(part).__name__, *options, *shapes]


def _machine(device: torch.device) -> list[str]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    threads = torch.get_num_threads()
    return [processor(), str(cores()), gpu, torch.__version__, f"{threads} threads", str(device)]


def _cached(
    key: Seq[str],
    measure: Callable[[], dict[str, float]],
    agrees: Callable[[dict[str, float]], bool],
) -> dict[str, float]:
    """The file's measurement under this key, or a new one where there is none that agrees."""
    name = hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()[:24]
    path = cache_folder() / "costs" / f"{name}.json"
    cached = _read(path)
    if cached is not None and agrees(cached):
        return cached
    ms = measure()
    try:
        write_json(path, {"of": list(key), "ms": ms})
    except ForetokenError as error:
        _log.warning("%s What steps cost is measured at every start.", error)
    return ms


def _read(path: Path) -> dict[str, float] | None:
    """The measurement in a file; None where there is no file, or a damaged one."""
    with contextlib.suppress(ForetokenError):
        ms = read_json(path, "measured costs").get("ms") if path.exists() else None
        if isinstance(ms, dict) and all(_is_time(value) for value in ms.values()):
            return ms
    return None


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf
