"""How much memory an object holds, with all that it refers to."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_NOT_HELD = (type, ModuleType, BuiltinFunctionType, FrameType, torch.dtype, torch.device)


def held_bytes(root: object) -> int:
    """Bytes of the object and of all that hangs on it: containers, tensors, arrays, closures. What
    belongs to modules of Python is left out; a storage counts once."""
    seen: dict[int, Any] = {}  # kept alive, so that no address is used twice
    storages: dict[int, int] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _NOT_HELD):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Tensor):
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif isinstance(thing, FunctionType):
            waiting += [cell.cell_contents for cell in thing.__closure__ or ()]
        else:
            waiting += gc.get_referents(thing)
    plain = (t for t in seen.values() if not isinstance(t, (Tensor, nn.Module)))
    return sum(storages.values()) + sum(map(_size, plain))


def _size(thing: Any) -> int:
    return thing.nbytes if isinstance(thing, np.ndarray) else sys.getsizeof(thing, 0)
