"""How much memory the caches of an engine may fill: what was asked for, or what is free; and its
target's weights, where that was asked for.

Ask after the model is loaded, so that what its weights take isn't counted as free.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

import torch

from foretoken.errors import ForetokenError, shown
from foretoken.machine import free_memory
from foretoken.models.budget import CacheBudget
from foretoken.models.model import CausalLM

_log = logging.getLogger("foretoken")

RESERVE = 2**30
"""Bytes that are left free for everything else, where nothing is asked for: at most half."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", re.IGNORECASE)


_SHARE = 0.75
"""Of what caches may fill, how much the target's takes where it is there at once and nobody asked
for a size: drafters' come after it."""

_PROBE = 1024
"""The length of a text, in tokens, from whose memory that of one token is found."""


class Sizes(NamedTuple):
    """How many texts a cache is for, and of how many tokens at most."""

    sequences: int
    length: int


class Open(NamedTuple):
    """Which of the `Sizes` nobody asked for."""

    sequences: bool
    length: bool


class Bound(NamedTuple):
    """What a user asked for. memory: bytes, or as a float the share of what is free; utilization:
    the share of a GPU that the whole process may take; None where nothing was said."""

    memory: int | float | None
    utilization: float | None


def bound_of(memory: int | float | str | None, utilization: float | None) -> Bound:
    """The bound that `kv_cache_memory` ("2GiB" as text) and `gpu_memory_utilization` ask for.
    Raises `ForetokenError` for what is none."""
    if memory is not None and utilization is not None:
        raise ForetokenError(
            "kv_cache_memory and gpu_memory_utilization both bound the caches; give one of them."
        )
    number = _number(memory) if isinstance(memory, str) else memory
    if number is not None and (number <= 0 or (isinstance(number, float) and number > 1)):
        raise _unusable(memory)
    if utilization is not None and not 0 < utilization <= 1:
        raise ForetokenError(
            f"gpu_memory_utilization is {utilization}; it must be above 0 and at most 1."
        )
    return Bound(number, utilization)


def weights_bound(memory: int | str | None) -> int | None:
    """The bytes that `weights_memory` asks for. Raises `ForetokenError` for what is none."""
    if not isinstance(memory, str):
        return memory
    found = _SIZE.fullmatch(memory.strip())
    if found is None or ("." in found[1] and not found[2]):  # a share of what?
        raise ForetokenError(
            f"weights_memory is {shown(memory)}; give bytes, as 4294967296 or '4GiB'."
        )
    return round(float(found[1]) * _UNITS[(found[2] or "").lower()])


def fitting(model: CausalLM, wanted: Sizes, free: Open, bound: Bound, budget: CacheBudget) -> Sizes:
    """The sizes that are wanted; where a cache takes all of its memory at once and these don't fit,
    fewer texts, then shorter ones, as far as they are `free` to be, which the log says. budget:
    for a cache without slots, which is made to see what a text takes."""
    if not any(free):
        return wanted
    tokens = min(_PROBE, wanted.length)
    probe = model.new_cache(0, tokens, budget=budget)  # takes no memory, and has no passes
    lazy, each = budget.lazy, budget.needs(tokens) // tokens
    del probe
    if lazy:
        return wanted
    room = round(_SHARE * _bytes(bound, model.device, 0))
    needs, (sequences, length) = each * wanted.sequences * wanted.length, wanted
    if free.sequences:
        sequences = min(sequences, max(1, room // (each * length)))
    if free.length:
        length = min(length, max(1, room // (each * sequences)))
    if (found := Sizes(sequences, length)) != wanted:
        _log.warning(
            "The cache of %d sequences of %d tokens would take %s on %s, where all of it is there "
            "from the beginning, and %s are left for it: max_num_seqs is %d, and max_model_len %d.",
            *wanted,
            of(needs),
            model.device,
            of(room),
            *found,
        )
    return found


def set_limit(budget: CacheBudget, bound: Bound, device: torch.device, length: int) -> None:
    """Give the budget its limit, once everything that takes memory is loaded, and log it. `length`:
    the longest text. Raises `ForetokenError` where the caches take more already."""
    limit = _bytes(bound, device, 0 if budget.lazy else budget.written)
    if not budget.lazy and budget.written > limit:
        raise ForetokenError(
            f"The caches take {of(budget.written)} on {device} and may fill {of(limit)}; lower "
            "max_model_len or max_num_seqs."
        )
    budget.limit, needs = limit, budget.needs(length)
    _log.info("The caches may fill %s; a text of %d tokens needs %s.", of(limit), length, of(needs))
    if needs > limit:
        _log.warning(
            "The caches may fill %s and a text of the whole context, %d tokens, needs %s: texts "
            "end after %d; raise kv_cache_memory, or lower max_model_len.",
            of(limit),
            length,
            of(needs),
            budget.longest(length),
        )


def _bytes(bound: Bound, device: torch.device, taken: int) -> int:
    """taken: what the caches have of the memory already, which was free before."""
    free, total = _memory(device)
    free += taken
    if bound.utilization is not None:
        return _utilized(bound.utilization, free, total, device)
    if bound.memory is None:
        return max(free - RESERVE, free // 2)
    return round(free * bound.memory) if isinstance(bound.memory, float) else bound.memory


def state(budget: CacheBudget) -> str:
    """What the caches fill, and what they may."""
    most = "" if budget.limit is None else f" of {of(budget.limit)}"
    return of(budget.written) + most


def of(size: int) -> str:
    """Bytes in words."""
    return f"{size / 2**30:.3g} GiB" if size >= 2**28 else f"{size / 2**20:.3g} MiB"


def _utilized(share: float, free: int, total: int, device: torch.device) -> int:
    """What is left of a GPU's share."""
    if device.type != "cuda":
        raise ForetokenError(
            f"gpu_memory_utilization is {share} and the model is on {device}; bound the caches by "
            "kv_cache_memory, as '4GiB' or 0.5."
        )
    left = round(share * total) - (total - free)
    if left <= 0:
        raise ForetokenError(
            f"gpu_memory_utilization is {share} and {(total - free) / total:.0%} of the GPU's "
            "memory is taken before any cache is; raise it."
        )
    return left


def _number(memory: str) -> int | float:
    found = _SIZE.fullmatch(memory.strip())
    if found is None:
        raise _unusable(memory)
    number, unit = float(found[1]), (found[2] or "").lower()
    share = not unit and "." in found[1] and not memory.strip().lower().endswith("b")
    return number if share else round(number * _UNITS[unit])


def _unusable(memory: object) -> ForetokenError:
    return ForetokenError(
        f"kv_cache_memory is {shown(memory)}; give bytes, as 4294967296 or '4GiB', or a share of "
        "the free memory above 0 and up to 1.0."
    )


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes that are free, and all."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps of an earlier cache is free too
        free, total = torch.cuda.mem_get_info(device)
        return free, total
    free = free_memory()
    return free, free
