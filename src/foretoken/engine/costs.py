"""Measures what steps cost on this machine, for drafters that decide by costs, and caches it.

The target's pass is timed over 1 to 64 tokens, and each part's step (draft and observe) at two
lengths; repeatedly where that takes next to no time, since a fast model's first passes are several
times as slow as the later ones. All of it ends within half a second: what a slow model leaves no
time for is measured at the next start, and until then estimated and corrected by real steps.

Measurements are cached in files under machine, threads, foretoken's version and loops, model and
drafter: a model's speed is that of its shape, dtype and backend, whatever its weights are called. A
file counts while a pass made now takes about as long as it says, since the machine may have been
busy when it was made; one of drafts counts only with that of the passes which it was made with.
Where no file can be written, everything is measured at each start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from foretoken.access import Pass
from foretoken.control.cost_model import CostModel, DraftCost, unmeasured
from foretoken.control.curve import Curve
from foretoken.engine.clock import Clock, TimedDrafter
from foretoken.errors import ForetokenError
from foretoken.files import fingerprint, read_json, write_json
from foretoken.machine import cache_folder, cores, processor
from foretoken.models.gguf import files_of
from foretoken.models.load import find
from foretoken.models.model import CausalLM
from foretoken.models.native.backends import kernels
from foretoken.models.native.transformer import Transformer
from foretoken.models.seq2seq.target import target_for
from foretoken.protocols import Drafter, Target, Verifier
from foretoken.registry import FILES
from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.step import prefill, step
from foretoken.tree import DraftTree, Kind

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of one sequence in a pass."""
WARM = 12
"""Passes before one that counts: a target that fits into a large third-level cache lies there in
decoding, and it takes ten passes until it does (SmolLM2-135M's 98 MB in one of 260: 5.3 ms the
first, 3.3 from the twelfth on)."""
_NAMES = frozenset(map(str, WIDTHS))

_AT_MOST = 0.5  # seconds of measuring at a start
_URGENT = (8, 4, 16, 2, 32, 64)  # widths after the first, those first that say most of the curve
_WARMING = 0.05  # seconds, after which no further pass warms up
_TWICE = 16  # passes over 2 to so many tokens are made twice, and the first doesn't count
_PER_TOKEN = 1 / 16  # of a plain pass: what a token beyond the widest timed pass costs at least
_CONTEXT = 32  # tokens
_LENGTHS = (1, 4)  # of drafts that are timed
_ROUNDS = 8  # at most; drafts are timed at least twice, passes at least once
_ENOUGH = 0.2  # seconds, after which no further round begins
_PERIOD = 16  # tokens, after which the text repeats
# How a draft's cost is found; a file of another way is stale.
_DRAFT = "draft, all levels, early ends by level"
_PER_LEVEL = 1.5  # a long draft that takes this many times the short one's time costs by the level
_AGREES = 1.5  # the factor by which a time may differ from the cached one
_SEEN = 256  # tokens whose embeddings tell a model from others
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
    """Costs of the target's passes and of each part's drafts, measured, read from the cache, or
    estimated."""
    here = [*_machine((model := loop.target.model).device), *shape_of(model)]
    identities = {name: _identity(part) for name, part in parts.items()}  # of a hub's files, too
    known, until = _File.of(here), perf_counter() + _AT_MOST
    timed_passes, pace = _passes(model, known, until)
    passes, drafts, of = completed(timed_passes), dict[str, DraftCost](), dict[str, str]()
    own = _weights(model)
    for name, part in parts.items():
        guess = _estimated(model, part, passes[1])
        file = _File.of([*here, *identities[name], _DRAFT], passes[1])
        drafts[name] = _draft(loop, part, file, until, passes, guess, pace)
        of[name] = "\n".join([*own, *identities[name], *_small(part)])
    packed = isinstance(model, Transformer) and model.packs
    stored = loop.target.budget.dtype or model.dtype
    cell = 2 * model.layers * model.kv_heads * model.head_dim * stored.itemsize
    per_cell = passes[1] * cell / max(1, model.bytes_read)  # as fast as weights are read
    return CostModel(passes, drafts, of=of, per_cell=per_cell, packed=packed)


def completed(known: Mapping[int, float]) -> dict[int, float]:
    """Milliseconds of a pass over each of `WIDTHS` from those of some, the first among them.

    Beyond the widest known they lie on the line through the first and the widest, which is taken
    to rise by at least `_PER_TOKEN` of the first for each token.
    """
    first, widest = known[1], max(known)
    slope = max(first * _PER_TOKEN, (known[widest] - first) / max(1, widest - 1))
    rest = {w: known[widest] + slope * (w - widest) for w in WIDTHS if w > widest}
    curve = Curve({**known, **rest})
    return {width: known.get(width) or curve(width) for width in WIDTHS}


def _estimated(model: CausalLM, part: Drafter, plain_ms: float) -> DraftCost:
    """What a draft costs that was not timed: of a part that runs models, their passes by the bytes
    that they read."""
    if not part.small_models:
        return unmeasured(plain_ms, not part.kinds <= _CHOSEN)
    read = sum(small.bytes_read for small in part.small_models)
    return DraftCost(level=plain_ms * read / max(1, model.bytes_read))


def shape_of(model: CausalLM) -> list[str]:
    """What a model's speed depends on."""
    numbers = (model.layers, model.width, model.vocab_size, model.parameters, model.bytes_read)
    return [type(model).__name__, *map(str, numbers), str(model.dtype), model.backend]


class PassProbe:
    """Sequences of one context, for timing the target's passes over more tokens of each.

    widest: most tokens of a sequence in a pass.
    """

    def __init__(self, model: CausalLM, batch: int, context: int, widest: int) -> None:
        self.widest, self.device = widest, model.device
        self._target = target_for(model, batch, context + 1, nodes=widest)
        tokens = [i % model.vocab_size for i in range(context + 1)]  # the last one is the root
        params = SamplingParams(temperature=0)
        source = tokens if self._target.opening else ()
        self._sequences = [Sequence.start(tokens, params, source=source) for _ in range(batch)]
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
        drafted = torch.zeros(batch, width - 1, dtype=torch.long, device=self.device)
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


def _passes(model: CausalLM, file: _File, until: float) -> tuple[dict[int, float], float]:
    """Milliseconds of a pass by its tokens: of one token in any case, of others as the file has
    them or as there is time before `until`; and the pace of that machine against this one's."""
    began = perf_counter()
    probe = PassProbe(model, 1, 1, max(1, min(max(WIDTHS), model.max_length - 2)))
    _wait(model.device)
    first = 1000 * (perf_counter() - began)  # it has read a token; slow, as it is the first pass
    run = partial(probe.run, 1)
    for number in range(1 + WARM):
        warming = number < 2 or perf_counter() - began < _WARMING
        if warming and _before(until, first):
            first = timed(run, model.device)
    kept = {int(width): ms for width, ms in file.ms.items() if width in _NAMES and ms > 0}
    agrees = 1 in kept and _agree(first, kept[1])
    kept = kept if agrees else {1: first}
    pace = kept[1] / first  # of the machine when the file was made, against now
    wanted = [width for width in (1, *_URGENT) if width <= probe.widest]
    wanted = [width for width in wanted if width not in kept] if agrees else wanted
    now = _timed_widths(probe, wanted, {w: ms / pace for w, ms in kept.items()}, until)
    if now:
        kept |= {width: ms * pace for width, ms in now.items()}
        file.write({str(width): kept[width] for width in sorted(kept)})
    return kept, pace


def _timed_widths(
    probe: PassProbe, wanted: Seq[int], known: Mapping[int, float], until: float
) -> dict[int, float]:
    """Milliseconds of passes over these tokens, as far as there is time before `until`."""
    began, times = perf_counter(), dict[int, list[float]]()
    for number in range(_ROUNDS):
        if number and perf_counter() - began > _ENOUGH:
            break
        for width in wanted:
            for _ in range(1 if number or not 1 < width <= _TWICE else 2):
                latest = {width: of[-1] for width, of in times.items()}
                if _before(until, completed({**known, **latest})[width]):
                    ms = timed(partial(probe.run, width), probe.device)
                    times.setdefault(width, []).append(ms)
    return {width: median(of[len(of) // 2 :]) for width, of in times.items()}


def _agree(ms: float, cached: float) -> bool:
    return cached / _AGREES <= ms <= cached * _AGREES


def _before(until: float, ms: float) -> bool:
    """Whether something that takes so long ends in time."""
    return perf_counter() + ms / 1000 < until


def _rounds(work: Callable[[], list[float]], least: int) -> list[list[float]]:
    """The later half of at least `least` and at most `_ROUNDS` rounds: the first ones are slow."""
    began, rounds = perf_counter(), [work() for _ in range(least)]
    while len(rounds) < _ROUNDS and perf_counter() - began < _ENOUGH:
        rounds.append(work())
    return rounds[len(rounds) // 2 :]


def _draft(
    loop: Loop,
    part: Drafter,
    file: _File,
    until: float,
    passes: Mapping[int, float],
    guess: DraftCost,
    pace: float,
) -> DraftCost:
    """What drafts of a part cost at the passes' pace: as the file has it, or by real steps after a
    text with something to copy, or the guess where there is no time or no room for these."""
    if "call" in file.ms and file.ms.keys() <= {field.name for field in fields(DraftCost)}:
        return DraftCost(**file.ms)
    steps = 2 * sum(passes[4] + guess(1, levels) for levels in _LENGTHS)
    if _room(loop.target) <= 0 or not _before(until, passes[_CONTEXT] + guess(1, 1) + steps):
        return guess
    with _text(loop) as sequence:
        rounds = _rounds(lambda: [x for n in _LENGTHS for x in _step(loop, part, sequence, n)], 2)
    few, short, many, long = map(median, zip(*rounds, strict=True))
    early = many <= few and bool(part.small_models)
    ms = _early(few, max(short, long)) if early else _line(few, short, many, long)
    ms = {name: time * pace for name, time in ms.items()}
    file.write(ms)
    return DraftCost(**ms)


@contextlib.contextmanager
def _text(loop: Loop) -> Iterator[Sequence]:
    """A text with something to copy, read by the target and by the drafter."""
    target, drafter = loop.target, loop.drafter
    context = min(_CONTEXT, _room(target))
    tokens = [i % min(_PERIOD, target.vocab_size) for i in range(context)]
    source = tokens if target.opening else ()
    sequence = Sequence.start(tokens, SamplingParams(temperature=0), source=source)
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
    timed_part = TimedDrafter(part, clock, partial(_wait, loop.target.device))
    [done] = step(loop.target, timed_part, loop.verifier, [sequence], [nodes])
    levels = int(done.tree.depths[done.row].max())
    return levels, 1000 * clock.draft


def _early(levels: float, ms: float) -> dict[str, float]:
    """`DraftCost` of small models that ended a draft at such a level, however many it could have:
    they run for each one, so a deeper draft costs more."""
    return {"call": 0.0, "level": ms / max(1.0, levels)}


def _line(few: float, short: float, many: float, long: float) -> dict[str, float]:
    """`DraftCost` from the levels and milliseconds of two drafts; it has a cost per level only
    where the deeper draft clearly takes longer."""
    if many <= few or long < _PER_LEVEL * short:
        return {"call": max(short, long)}
    level = (long - short) / (many - few)
    return {"call": max(0.0, short - few * level), "level": level}


def _identity(part: Drafter) -> list[str]:
    """What a drafter's speed depends on: its kind, its options, its models or files, its parts."""
    given = {key: value for key, value in vars(part).items() if not key.startswith("_")}
    options = [f"{key}={given[key]}" for key in sorted(given) if isinstance(given[key], _PLAIN)]
    shapes = [line for model in part.small_models for line in shape_of(model)]
    inner = [line for one in part.parts for line in _identity(one)]
    return [type(part).__name__, *options, *(shapes or _contents(given)), *inner]


def _contents(given: Mapping[str, object]) -> list[str]:
    """What tells trained heads and datastores from others, whatever their names."""
    found = []
    for name in map(given.get, FILES):
        with contextlib.suppress(ForetokenError, OSError):  # gone since it was read
            if isinstance(name, (str, Path)):
                place = Path(name) if os.path.exists(name) else find(name)
                found.append(fingerprint(*files_of(place)))
    return found


def _small(part: Drafter) -> list[str]:
    own = [line for model in part.small_models for line in _weights(model)]
    return own + [line for one in part.parts for line in _small(one)]


def _weights(model: CausalLM) -> list[str]:
    """What tells a model from others of its shape: some of its embeddings."""
    step = max(1, model.vocab_size // _SEEN)
    some = model.embed(torch.arange(0, model.vocab_size, step, device=model.device)).float().cpu()
    return [*shape_of(model), hashlib.sha256(some.numpy().tobytes()).hexdigest()]


def _machine(device: torch.device) -> list[str]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    threads = torch.get_num_threads()
    ours = _release(), kernels.checksum() if device.type == "cpu" else ""
    machine = processor(), str(cores()), gpu, torch.__version__, f"{threads} threads", str(device)
    return [*machine, *ours]


def _release() -> str:
    """foretoken's version; none of a checkout that isn't installed."""
    try:
        return version("foretoken")
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class _File:
    """A cached measurement. key: what it depends on. ms: none where there is no file, a damaged
    one, or one that was made with another plain pass than `plain`, where that counts."""

    path: Path
    key: Seq[str]
    ms: Mapping[str, float]
    plain: float | None = None

    @classmethod
    def of(cls, key: Seq[str], plain: float | None = None) -> _File:
        name = hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()[:24]
        path = cache_folder() / "costs" / f"{name}.json"
        with contextlib.suppress(ForetokenError):
            data = read_json(path, "measured costs")
            ms = data.get("ms") if data.get("plain") == plain else None
            if isinstance(ms, dict) and all(_is_time(value) for value in ms.values()):
                return cls(path, key, ms, plain)
        return cls(path, key, {}, plain)

    def write(self, ms: Mapping[str, float]) -> None:
        try:
            write_json(self.path, {"of": list(self.key), "plain": self.plain, "ms": ms})
        except ForetokenError as error:
            _log.warning("%s What steps cost is measured at every start.", error)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf
