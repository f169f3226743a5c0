"""Damaged checkpoints: each is refused in one sentence, or served as transformers reads it.

Tiny models of the native families are written, damaged one way at a time (shapes, dtypes, names,
files, numbers and types in JSON; GGUF files: see `damaged_gguf.py`) and loaded in other processes,
by both implementations, GGUF files also as their blocks lie. What is served must have the logits of
transformers' own model of the same files. Nothing may crash, take long or fill memory, and no other
exception than `ForetokenError` may come out.

    python benchmarks/fuzz_checkpoints.py --count 200 --seed 0
    python benchmarks/fuzz_checkpoints.py --families gguf
    python benchmarks/fuzz_checkpoints.py --asan    # with the loops built under AddressSanitizer

The second needs gcc's libasan. The exit status is 1 where something else happened.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import damaged_gguf

RESULTS = Path(__file__).parent / "results"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "tied", "sharded")
SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 5,
}
MORE: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": 6},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "gemma2": {"sliding_window": 6, "tie_word_embeddings": False},
    "gemma3_text": {"sliding_window": 6, "tie_word_embeddings": False},
    "tied": {"tie_word_embeddings": True},
}
PROMPT = [(7 * i + 3) % 97 for i in range(16)]
LIMIT = 600  # seconds for the checkpoints of one process
SECONDS, BYTES = 30, 2**30  # that one of them may take
Change = Callable[[Path], None]


# What is damaged.


def write_family(family: str, folder: Path) -> None:
    if family in damaged_gguf.FAMILIES:
        damaged_gguf.write_family(family, folder, write_family)
        return
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    name = {"tied": "llama", "sharded": "llama"}.get(family, family).removesuffix("_text")
    kind = f"{name.capitalize()}{'Text' * family.endswith('_text')}Config"
    config = getattr(transformers, kind)(**SHAPE, **MORE.get(family, {}))
    torch.manual_seed(0)
    model = getattr(transformers, f"{name.capitalize()}ForCausalLM")(config)
    for weight in model.parameters():
        weight.data.normal_(1.0 if weight.ndim == 1 else 0.0, 0.1)
    model.save_pretrained(folder, max_shard_size="60KB" if family == "sharded" else "1GB")


def changed_tensors(change: Callable[[dict[str, Any]], None]) -> Change:
    """Of the file that holds most."""

    def apply(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        file = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)
        tensors = load_file(file)
        change(tensors)
        save_file({k: v.clone().contiguous() for k, v in tensors.items()}, file, {"format": "pt"})

    return apply


def changed_json(name: str, change: Callable[[dict[str, Any]], None]) -> Change:
    def apply(folder: Path) -> None:
        file = folder / name
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data))

    return apply


def written(name: str, content: str | bytes) -> Change:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return apply


SHAPES: dict[str, Callable[[Any], Any]] = {
    "a row more": lambda x: _torch().cat((x, x[:1])),
    "rows doubled": lambda x: _torch().cat((x, x)),
    "64 rows more": lambda x: _torch().cat((x, x.new_ones(64, *x.shape[1:]))),
    "a row less": lambda x: x[:-1],
    "half the rows": lambda x: x[: len(x) // 2],
    "one row": lambda x: x[:1],
    "no rows": lambda x: x[:0],
    "a column more": lambda x: _torch().cat((x, x[..., :1]), -1),
    "half the columns": lambda x: x[..., : x.shape[-1] // 2],
    "transposed": lambda x: x.t() if x.ndim == 2 else x[None],
    "flat": lambda x: x.flatten(),
    "one dimension more": lambda x: x[None],
    "a scalar": lambda x: x.flatten()[0],
}
DTYPES = ("float64", "bfloat16", "float16", "int64", "int8", "uint8", "bool", "float8_e4m3fn")
PARTS = (
    "embed_tokens",
    "lm_head",
    "model.norm",
    "input_layernorm",
    "post_attention_layernorm",
    "q_norm",
    "q_proj.weight",
    "k_proj.weight",
    "v_proj.weight",
    "o_proj.weight",
    "q_proj.bias",
    "k_proj.bias",
    "gate_proj",
    "up_proj",
    "down_proj",
)
COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "sliding_window",
)
VALUES: tuple[Any, ...] = (
    -1, 0, 1, 2, 3, 5, 8, 16, 31, 33, 64, 10**5, 10**8, 2**31, 2**63, 10**30,
    1.5, "4", "four", None, True, [], [4], {}, "",
)  # fmt: skip
FIELDS: dict[str, tuple[Any, ...]] = {
    "rms_norm_eps": (-1.0, "x", None, 1e30, float("nan"), [], 0.5, 0),
    "tie_word_embeddings": (True, False, "yes", 1, None),
    "attention_bias": (True, False, "yes", None),
    "mlp_bias": (True, "no"),
    "hidden_act": ("relu", "nothing", None, 3),
    "model_type": ("mistral", "qwen3", "llama", "nothing", None, 3, "gpt2", "bloom"),
    "architectures": (None, [], ["Nothing"], "x"),
    "layer_types": ([], ["full_attention"], ["full_attention"] * 9, ["x", "y"], "x", {}, 3,
                    ["sliding_attention", "full_attention"]),
    "rope_parameters": (None, [], {}, "x", {"rope_type": "default"}, {"rope_type": "x"},
                        {"rope_type": "default", "rope_theta": -1.0},
                        {"rope_type": "default", "rope_theta": 0},
                        {"rope_type": "default", "rope_theta": "x"},
                        {"rope_type": "default", "rope_theta": float("inf")},
                        {"rope_type": "linear", "rope_theta": 1e4},
                        {"rope_type": "linear", "rope_theta": 1e4, "factor": 0},
                        {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
                        {"rope_type": "yarn", "rope_theta": 1e4, "factor": "x"},
                        {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0},
                        {"rope_type": "default", "rope_theta": 1e4,
                         "partial_rotary_factor": 0.5},
                        {"rope_type": ["default"], "rope_theta": 1e4}),
    "rope_scaling": ({"type": "linear", "factor": 2.0}, {"rope_type": "yarn"}, "x", [1]),
    "rope_theta": (1e6, -3, "x"),
    "eos_token_id": (-1, "x", [1, "x"], 10**9, [[1]], {}, 1.5),
    "dtype": ("float16", "nothing", 3, None),
    "quantization_config": ({"quant_method": "x"}, "x", {}),
    "layer_cycle": (-1, 0, 1, 2, "x", 1.5, 10**9),
    "use_sliding_window": ("x", True, None),
    "max_window_layers": (-1, 10**9, "x"),
    "text_config": ({"num_hidden_layers": 10**9}, [], "x"),
    "auto_map": ({"AutoConfig": "x.Y"}, "x", []),
}  # fmt: skip
TEXTS: dict[str, str | bytes] = {
    "empty": "",
    "a list": "[]",
    "a string": '"x"',
    "a number": "7",
    "null": "null",
    "half of it": '{"model_type": "lla',
    "not UTF-8": b"\xff\xfe{}",
    "no fields": "{}",
    "deep": "[" * 100_000,
    "deep inside": '{"x":' * 50_000 + "1" + "}" * 50_000,
    "a long number": '{"eos_token_id": ' + "9" * 5000 + "}",
}


def _torch() -> Any:
    import torch

    return torch


def _reshaped(name: str, part: str, how: str) -> Change:
    def change(tensors: dict[str, Any]) -> None:
        key = name if name in tensors else next(iter(tensors))
        tensors[key] = SHAPES[how](tensors[key])

    return changed_tensors(change)


def _cast(name: str, dtype: str) -> Change:
    def change(tensors: dict[str, Any]) -> None:
        tensors[name] = tensors[name].to(getattr(_torch(), dtype))

    return changed_tensors(change)


def _renamed(old: str, new: str) -> Change:
    def change(tensors: dict[str, Any]) -> None:
        tensors[new] = tensors.pop(old)

    return changed_tensors(change)


def _added(old: str, new: str, scale: float = 1.0) -> Change:
    def change(tensors: dict[str, Any]) -> None:
        tensors[new] = tensors[old] * scale

    return changed_tensors(change)


def _without(name: str) -> Change:
    def change(tensors: dict[str, Any]) -> None:
        del tensors[name]

    return changed_tensors(change)


def _set(field: str, value: Any, file: str = "config.json") -> Change:
    def change(data: dict[str, Any]) -> None:
        data[field] = value

    return changed_json(file, change)


def _unset(field: str) -> Change:
    return changed_json("config.json", lambda data: data.pop(field, None) and None)


def _prefixes(add: bool) -> Change:
    def change(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            if add:
                tensors[f"model.{name}"] = tensors.pop(name)
            elif name.startswith("model."):
                tensors[name.removeprefix("model.")] = tensors.pop(name)

    return changed_tensors(change)


def _cut(share: float) -> Change:
    def apply(folder: Path) -> None:
        file = max(folder.glob("*.safetensors"))
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * share)])

    return apply


def _patched(at: int, content: bytes) -> Change:
    def apply(folder: Path) -> None:
        file = max(folder.glob("*.safetensors"))
        data = bytearray(file.read_bytes())
        data[at : at + len(content)] = content
        file.write_bytes(bytes(data))

    return apply


def _index(value: Any) -> Change:
    """The first tensor's file."""

    def change(data: dict[str, Any]) -> None:
        data["weight_map"][next(iter(data["weight_map"]))] = value

    return changed_json("model.safetensors.index.json", change)


def _without_file(pattern: str) -> Change:
    return lambda folder: max(folder.glob(pattern)).unlink()


def damages(names: dict[str, list[str]]) -> Iterator[tuple[str, str, Change]]:
    """Every (family, what, change) that there is; names: of each family's tensors."""
    for family in ("llama", "qwen2", "qwen3", "gemma3_text", "tied"):
        for part in PARTS:
            found = [name for name in names[family] if part in name]
            for name in {*found[:1], *found[-1:]}:
                for how in SHAPES:
                    yield family, f"{name}: {how}", _reshaped(name, part, how)
                for dtype in DTYPES:
                    yield family, f"{name}: as {dtype}", _cast(name, dtype)
                yield family, f"{name}: gone", _without(name)
                yield family, f"{name}: renamed", _renamed(name, name.replace("_", "-"))
                yield family, f"{name}: also as x", _added(name, "x")
                yield (
                    family,
                    f"{name}: prefix changed",
                    _renamed(
                        name, name.removeprefix("model.") if "model." in name else f"model.{name}"
                    ),
                )
                yield family, f"{name}: twice", _added(name, f"model.{name}", 2.0)
                yield family, f"{name}: negative", _added(name, name, -1.0)
        yield family, "no prefixes", _prefixes(False)
        yield family, "two prefixes", _prefixes(True)
        yield (
            family,
            "a layer more",
            _added("model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.up_proj.weight"),
        )
        for n, scale in (("equal", 1.0), ("other", 3.0)):
            yield family, f"{n} head", _added("model.embed_tokens.weight", "lm_head.weight", scale)
        yield family, "the head only", _renamed("model.embed_tokens.weight", "lm_head.weight")
    for family in ("llama", "mistral", "qwen2", "qwen3", "gemma2"):
        for field in COUNTS:
            for value in VALUES:
                yield family, f"{field} = {value!r}", _set(field, value)
            yield family, f"no {field}", _unset(field)
        for field, values in FIELDS.items():
            for value in values:
                yield family, f"{field} = {value!r}", _set(field, value)
            yield family, f"no {field}", _unset(field)
    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
        for what, text in TEXTS.items():
            yield "llama", f"{file}: {what}", written(file, text)
        yield "llama", f"{file}: gone", _without_file(file)
    for what, text in TEXTS.items():
        yield "sharded", f"index: {what}", written("model.safetensors.index.json", text)
        yield "qwen2", f"tokenizer.json: {what}", written("tokenizer.json", text)
    for value in FIELDS["eos_token_id"]:
        yield (
            "llama",
            f"generation: eos_token_id = {value!r}",
            _set("eos_token_id", value, "generation_config.json"),
        )
    for value in ("../x.safetensors", "/etc/passwd", "x", "", 3, None, [], ".", "..", "a/b", {}):
        yield "sharded", f"index: file {value!r}", _index(value)
    for weight_map in ({}, [], None, "x", 3):
        yield (
            "sharded",
            f"index: weight_map {weight_map!r}",
            _set("weight_map", weight_map, "model.safetensors.index.json"),
        )
    yield "sharded", "a shard is gone", _without_file("*.safetensors")
    yield "sharded", "the index is gone", _without_file("*index.json")
    for share in (0.0, 0.001, 0.01, 0.3, 0.9, 0.999):
        for family in ("llama", "sharded"):
            yield family, f"cut at {share}", _cut(share)
    for at, content in ((0, b"\xff" * 8), (0, b"\0" * 8), (8, b"\0" * 9), (8, b"[[[["), (60, b"9")):
        yield "llama", f"header: {content!r} at {at}", _patched(at, content)
    yield "llama", "NaN", _patched(-4000, b"\xff" * 400)
    yield from damaged_gguf.damages(names)


def chosen(every: list[tuple[str, str, Change]], count: int, seed: int) -> list[Any]:
    """`count` of them, those that once broke something first, as many GGUF files as folders."""
    first = [d for d in every if d[1] in KNOWN]
    rest = [d for d in every if d[1] not in KNOWN]
    random.Random(seed).shuffle(rest)
    sorts = [[d for d in rest if (d[0] in damaged_gguf.FAMILIES) == sort] for sort in (False, True)]
    mixed = [d for pair in itertools.zip_longest(*sorts) for d in pair if d is not None]
    return (first + mixed)[:count] if count else every


KNOWN = {
    "model.layers.1.self_attn.q_proj.weight: 64 rows more",
    "model.layers.1.self_attn.q_proj.weight: rows doubled",
    "num_attention_heads = -1",
    "max_position_embeddings = 100000000",
    "num_hidden_layers = 100000000",
    "vocab_size = 100000000",
    "other head",
    "no prefixes",
    "sliding_window = -1",
}


# What is done with them, in another process.


IMPLS: dict[str, dict[str, Any]] = {
    "auto": {},
    "transformers": {"model_impl": "transformers"},
    "as it lies": {"backend": "blocks"},
}


def place_of(folder: Path) -> Path:
    """What is given for it: a GGUF file or the folder."""
    file = folder / damaged_gguf.NAME
    return file if file.exists() else folder


def impls_of(folder: Path) -> list[str]:
    return [*IMPLS][: 2 if place_of(folder) == folder else 3]


def attempt(folder: Path, impl: str) -> dict[str, Any]:
    """What happens to one checkpoint, and whether it took too much."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    served = tried(folder, impl)
    took = time.monotonic() - began
    grew = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if took > SECONDS or grew > BYTES:
        return {"outcome": "too much", "said": f"{took:.0f} s, {grew / 2**20:.0f} MiB"}
    return served


def tried(folder: Path, impl: str) -> dict[str, Any]:
    import torch

    from foretoken import LLM, SamplingParams
    from foretoken.errors import ForetokenError
    from foretoken.testing import logits_after

    try:
        dtype = "auto" if impl == "as it lies" else "float32"
        sizes = {"max_model_len": 32, "max_num_seqs": 2}
        llm = LLM(place_of(folder), device="cpu", dtype=dtype, **sizes, **IMPLS[impl])
        params = SamplingParams(temperature=0, max_tokens=4)
        outputs = llm.generate([PROMPT, PROMPT[:5], PROMPT[3:9]], params)
        if errors := [out.error for out in outputs if out.error]:
            return {"outcome": "refused", "said": f"in use: {errors[0]}"}
        mine = logits_after(llm.model, PROMPT)
    except ForetokenError as error:
        said = str(error)
        bad = "\n" in said or len(said) > 700
        return {"outcome": "unclear" if bad else "refused", "said": said}
    except Exception as error:
        return {"outcome": "raised", "said": f"{type(error).__name__}: {error}"[:600]}
    if impl == "as it lies":  # whose rounding is its own
        return {"outcome": "served", "said": ""}
    theirs = reference(folder)
    if theirs is None:
        return {"outcome": "served", "said": "in a type that transformers doesn't read"}
    if isinstance(theirs, str):
        return {"outcome": "served alone", "said": theirs}
    if theirs.isnan().any() and mine.isnan().any():  # how far it spreads is the order's of sums
        return {"outcome": "served", "said": "as NaN, by transformers too"}
    same = mine.shape == theirs.shape and torch.allclose(
        mine, theirs, rtol=2e-3, atol=2e-3, equal_nan=True
    )
    if not same and mine.shape == theirs.shape:
        return {"outcome": "differs", "said": f"by {(mine - theirs).abs().max():.3g}"}
    return {"outcome": "served" if same else "differs", "said": ""}


def reference(folder: Path) -> Any:
    """transformers' logits after the prompt, or why there are none; None where it has no way to
    read what is of no consequence: float64 in a GGUF file, a text that nobody asks for."""
    import torch
    from transformers import AutoModelForCausalLM

    given: dict[str, Any] = {}
    try:
        if place_of(folder) != folder:
            given = damaged_gguf.reading(folder)
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, **given
        )
        if report["missing_keys"]:
            return f"transformers misses {sorted(report['missing_keys'])[0]}"
        with torch.inference_mode():
            return model(torch.tensor([PROMPT])).logits[0, -1]
    except NotImplementedError:
        return None
    except Exception as error:
        if place_of(folder) != folder and isinstance(error.__context__, UnicodeDecodeError):
            return None
        return f"transformers: {type(error).__name__}: {error}"[:300]


def child(folders: list[str], asan: bool) -> None:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    if asan:
        sanitize()
    for folder in folders:
        for impl in impls_of(Path(folder)):
            print(json.dumps({"began": folder, "impl": impl}), flush=True)
            print(json.dumps(attempt(Path(folder), impl)), flush=True)


def sanitize() -> None:
    """Build this process's loops under AddressSanitizer."""
    from foretoken.models.native.backends import kernels

    kernels._FLAGS = (*kernels._FLAGS, "-fsanitize=address", "-fno-omit-frame-pointer", "-g")
    assert kernels.library() is not None, "the loops can't be built"


# What starts those processes and counts.


def outcomes(folders: list[Path], asan: bool, home: Path) -> list[dict[str, Any]]:
    """Of every folder and implementation, in processes that are begun again where one ends."""
    done: list[dict[str, Any]] = []
    todo = [str(folder) for folder in folders]
    while todo:
        many = todo[:60]
        printed, ended = ran(many, asan, home)
        lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        begun = [line for line in lines if "began" in line]
        ends = [line for line in lines if "outcome" in line]
        done += [{**where, **end} for where, end in zip(begun, ends, strict=False)]
        if len(ends) == sum(len(impls_of(Path(folder))) for folder in many):
            todo = todo[len(many) :]
            continue
        if not begun:
            raise SystemExit(f"No checkpoint was tried: {ended}")
        done.append({**begun[-1], "outcome": "crashed", "said": ended})
        todo = todo[todo.index(begun[-1]["began"]) + 1 :]
    return done


def ran(folders: list[str], asan: bool, home: Path) -> tuple[str, str]:
    """What a process prints about these, and how it ended."""
    command = [sys.executable, __file__, "--child", *folders, *(["--asan"] if asan else [])]
    env = surroundings(asan, home)
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(), f"not done after {LIMIT} s"
    summary = [line for line in done.stderr.splitlines() if line.startswith("SUMMARY")]
    return done.stdout, f"{done.returncode}: {summary[0] if summary else done.stderr[-500:]}"


def surroundings(asan: bool, home: Path, more: tuple[str, ...] = ()) -> dict[str, str]:
    """The processes' environment: offline, one thread, and a cache of kernels of their own. more:
    libraries of gcc's that are loaded first too."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if not asan:
        return env
    compiler = shutil.which("gcc")
    if compiler is None:
        raise SystemExit("--asan needs gcc.")
    # libstdc++ too: without it an exception that torch throws would end the process.
    names = ("libasan.so", *more, "libstdc++.so.6")
    commands = [[compiler, f"-print-file-name={name}"] for name in names]
    found = [subprocess.run(c, capture_output=True, text=True, check=True) for c in commands]
    return env | {
        "FORETOKEN_CACHE": str(home),
        "LD_PRELOAD": " ".join(str(Path(each.stdout.strip()).resolve()) for each in found),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=0:exitcode=99",
        "CXX": "g++",
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=240, help="checkpoints; 0: every one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", default="", help="only those whose names begin so")
    parser.add_argument("--asan", action="store_true", help="build the loops with it")
    parser.add_argument("--out", type=Path, help="a JSON file for the record")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = parsed()
    if given.child:
        child(given.child, given.asan)
        return
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        names = {}
        for family in (*FAMILIES, *damaged_gguf.FAMILIES):
            write_family(family, place / family)
            names[family] = held_by(place / family)
        every = [each for each in damages(names) if each[0].startswith(given.families)]
        many = chosen(every, given.count, given.seed)
        folders = []
        for number, (family, what, change) in enumerate(many):
            folder = place / f"{number:04d}"
            shutil.copytree(place / family, folder)
            try:
                change(folder)
            except (OSError, LookupError, RuntimeError, TypeError, ValueError):
                shutil.rmtree(folder)  # there is nothing to damage so
                continue
            (folder / "what").write_text(f"{family}: {what}")
            folders.append(folder)
        done = outcomes(folders, given.asan, place / "cache")
        report(done, given)


def held_by(folder: Path) -> list[str]:
    """The names of a checkpoint's tensors, of a GGUF file's keys too."""
    from foretoken.models.checkpoint import Checkpoint
    from foretoken.models.gguf.reader import GGUFFile

    if place_of(folder) == folder:
        return list(Checkpoint(folder).headers)
    file = GGUFFile(place_of(folder))
    return [*file.metadata, *file.tensors]


def report(done: list[dict[str, Any]], given: argparse.Namespace) -> None:
    for each in done:
        each["what"] = Path(each.pop("began"), "what").read_text()
    counts = Counter((each["impl"], each["outcome"]) for each in done)
    for (impl, outcome), count in sorted(counts.items()):
        print(f"{impl:>14} {outcome:<14} {count}")
    wrong = [each for each in done if each["outcome"] not in ("refused", "served")]
    for each in wrong:
        print(f"\n{each['impl']}: {each['what']}\n  {each['outcome']}: {each['said']}")
    if given.out:
        record = {"seed": given.seed, "asan": given.asan, "tried": len(done)}
        counted = {f"{impl} {outcome}": n for (impl, outcome), n in sorted(counts.items())}
        given.out.write_text(json.dumps({**record, "outcomes": counted, "wrong": wrong}, indent=1))
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
