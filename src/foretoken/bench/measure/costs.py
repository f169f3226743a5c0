"""Measures what passes cost on this machine: of the target, of draft models, and reading memory.

Every size is timed in turn, round after round, so that a machine whose speed drifts affects all
alike; the median counts, and the first round does not. A pass is `target.score` of a chain after a
given context, which is what the engine's clock calls *verify*. Bandwidth is the size of an array
larger than any cache ÷ the time of summing it, on the target's device and with torch's threads.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, TypedDict

import torch

from foretoken.control.curve import Curve
from foretoken.engine.costs import WARM, WIDTHS, PassProbe
from foretoken.engine.costs import timed as _timed
from foretoken.errors import ForetokenError, one_line
from foretoken.protocols import Drafter
from foretoken.tree import Kind

if TYPE_CHECKING:
    from foretoken.llm import LLM
    from foretoken.models.model import CausalLM

CONTEXT = 128
"""Tokens before those of a timed pass, where nothing is said."""
_MOST_TOKENS = 64  # of a pass, all sequences together, unless each has only a few
_FEW = 8
_ARRAY_BYTES = 512 * 2**20
# Seconds of passes before those that are timed, after which no other begins. A draft model gets one
# pass, not `WARM`: in decoding the target's passes drive it out of the cache each time.
_LONGEST = 0.3

PassCost = Callable[[int, float], float]
"""(sequences, tokens of all of them together) -> milliseconds of a pass."""


class Passes(TypedDict):
    """Milliseconds of a pass over `batch_size` sequences, by tokens of all of them together."""

    batch_size: int
    ms: dict[str, float]


class ModelCosts(TypedDict):
    """One model. weight_bytes: read by a pass whatever its width; kv_bytes: for each sequence."""

    weight_bytes: int
    kv_bytes: int
    passes: list[Passes]


class Costs(TypedDict):
    """`costs` of results.json. drafts: by method; None where it drafts without a model."""

    context: int
    repeats: int
    bandwidth_gb_s: float
    target: ModelCosts
    drafts: dict[str, ModelCosts | None]


def measure_costs(
    llm: LLM,
    methods: Mapping[str, LLM],
    *,
    batch_sizes: tuple[int, ...] = (1,),
    context: int = CONTEXT,
    repeats: int = 5,
) -> Costs:
    """Costs of the target of `llm`, and of whatever drafts for each of the methods.

    A method that drafts with parts of the target or with heads is left out of `drafts`: what its
    drafting costs is not known. `context` shrinks to what the models have room for.
    """
    meter = Meter(llm, methods, batch_sizes, context)
    for _ in range(repeats + 1):
        meter.round()
    return meter.costs()


class Meter:
    """Measures costs round by round, so that other work can be done between rounds."""

    def __init__(
        self,
        llm: LLM,
        methods: Mapping[str, LLM],
        batch_sizes: tuple[int, ...] = (1,),
        context: int = CONTEXT,
    ) -> None:
        drafters = {name: own.engine.drafter for name, own in methods.items()}
        self._drafts = {n: draft_model(d) for n, d in drafters.items() if _known(d)}
        self._model = llm.model
        models = [self._model, *(m for m in self._drafts.values() if m is not None)]
        room = min(model.max_length for model in models) - max(WIDTHS) - 1
        self.context = max(1, min(context, room))
        sizes = sorted({1, *batch_sizes})
        self._cases = {
            id(model): [_PassTimes(model, batch, self.context) for batch in sizes]
            for model in models
        }
        self._reads: list[float] = []
        self._rounds = -1

    @torch.inference_mode()
    def round(self) -> None:
        """Time everything once; the first time does not count."""
        self._rounds += 1
        for case in (case for cases in self._cases.values() for case in cases):
            case.warm(WARM if case.model is self._model else 1)
            for width in case.times:
                ms = case.milliseconds(width)
                if self._rounds:
                    case.times[width].append(ms)
        device = self._model.device
        array = torch.ones(_ARRAY_BYTES // 4, device=device)  # not kept: others measure memory
        ms = _timed(array.sum, device)
        if self._rounds:
            self._reads.append(ms)

    def costs(self) -> Costs:
        """The medians of the rounds so far, of which there must be two."""
        seconds = statistics.median(self._reads) / 1000
        return {
            "context": self.context,
            "repeats": self._rounds,
            "bandwidth_gb_s": _ARRAY_BYTES / seconds / 1e9,
            "target": self._model_costs(self._model),
            "drafts": {
                name: None if model is None else self._model_costs(model)
                for name, model in self._drafts.items()
            },
        }

    def _model_costs(self, model: CausalLM) -> ModelCosts:
        cases = self._cases[id(model)]
        return {
            "weight_bytes": model.bytes_read,
            "kv_bytes": cases[0].kv_bytes,
            "passes": [case.passes() for case in cases],
        }


class _PassTimes:
    """One model and batch size: sequences of the same context, and the times of each width."""

    def __init__(self, model: CausalLM, batch: int, context: int) -> None:
        widths = [w for w in WIDTHS if w <= _FEW or w * batch <= _MOST_TOKENS]
        self.times: dict[int, list[float]] = {width: [] for width in widths}
        self.model, self._batch, self._device = model, batch, model.device
        self._probe = PassProbe(model, batch, context, max(widths))
        self.kv_bytes = self._probe.kv_bytes

    def warm(self, passes: int) -> None:
        """Fill the caches by so many passes over one token, or fewer long ones."""
        began = perf_counter()
        for _ in range(passes):
            self.milliseconds(1)
            if perf_counter() - began > _LONGEST:
                break

    def milliseconds(self, width: int) -> float:
        """The time of one pass over this many tokens of each sequence."""
        return _timed(lambda: self._probe.run(width), self._device)

    def passes(self) -> Passes:
        ms = {str(self._batch * w): statistics.median(times) for w, times in self.times.items()}
        return {"batch_size": self._batch, "ms": ms}


def pass_cost(model: ModelCosts) -> PassCost:
    """What was measured, as a function.

    A batch size that was not measured is served by the next smaller one that was.
    """
    try:
        curves = {
            int(part["batch_size"]): Curve({int(size): ms for size, ms in part["ms"].items()})
            for part in model["passes"]
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ForetokenError(
            f"The costs of these results can't be read ({one_line(error)}); measure again."
        ) from error

    def cost(batch: int, tokens: float) -> float:
        return curves[max(size for size in curves if size <= batch)](tokens)

    return cost


def draft_model(drafter: Drafter) -> CausalLM | None:
    """The model that a drafter runs once for every token it drafts, where there is one."""
    return drafter.small_models[0] if drafter.pass_per_token else None


def _known(drafter: Drafter) -> bool:
    """Whether drafting costs nothing, or one pass of a separate model for each token; and passes
    score drafts alone, as no record counts other nodes."""
    if draft_model(drafter) is not None:
        return True
    drawn = drafter.kinds - {Kind.CHOSEN}
    return (
        not drafter.small_models
        and set(drafter.wants.levels) <= {"a", "b"}
        and not drawn
        and all(_known(part) and draft_model(part) is None for part in drafter.parts)
    )
