"""The loops for blocks of weights on matrices of any shape, built under AddressSanitizer and UBSan.

Formats, outputs, inputs (whole blocks, and models' odd widths 576, 896, 1,536, 4,864 and 8,960),
rows, threads, biases and parts are drawn; products, embeddings' rows and dequantised numbers must
have the bits of torch's slow way (`blocks_by_torch.py`), but for the sign of 0. Each of the CPU's
instruction sets that the loops know is built and tried in a process of its own.

    python benchmarks/fuzz_blocks.py --check               # 300 matrices each; some minutes
    python benchmarks/fuzz_blocks.py --count 2000 --seed 1

The exit status is 1 where a bit differs or a process ends; needs gcc's libasan.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuzz_checkpoints import surroundings
from shared import RESULTS

from foretoken.bench.measure.environment import environment
from foretoken.files import write_json

PATHS = {
    "as the CPU is": (),
    "in 256 bits": ("-DLANES=8",),
    "AVX-512 without VNNI": ("-march=x86-64-v4",),
    "AVX2 alone": ("-march=x86-64-v3",),
}
"""Flags of the compiler, after its own; those that the CPU can't run are left out by --paths."""
SANITIZERS = ("-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g", "-O1")
WIDTHS = (576, 896, 1536, 4864, 8960)
LIMIT = 3000.0  # seconds a path


def child(name: str, count: int, seed: int) -> None:
    """Try so many matrices, printing each before it is begun."""
    import torch

    from foretoken.models.native.backends import kernels, pages

    kernels._FLAGS = (*kernels._FLAGS, *PATHS[name], *SANITIZERS)
    pages._OWN_MAP = 2**40  # so that all memory is the allocator's, whose ends are watched
    loops = kernels.library()
    assert loops is not None and loops.has_blocks(), "the loops can't be built"
    draw = random.Random(seed)
    for number in range(count):
        case = drawn(draw)
        print(json.dumps({"number": number, **case}), flush=True)
        torch.set_num_threads(case["threads"])
        torch.manual_seed(number)
        print(json.dumps({"differs": tried(case)}), flush=True)


def drawn(draw: random.Random) -> dict[str, Any]:
    from foretoken.models.native.backends.blocks import ALL, VALUES

    kind = draw.choice(ALL)
    values = VALUES[kind]
    some = draw.choice(WIDTHS) if draw.random() < 0.2 else draw.randint(1, 1200)
    inputs = max(values, some // values * values)
    if draw.random() < 0.3:  # the last block reaches beyond
        inputs -= draw.randint(1, values - 1)
    most = max(1, 400_000 // inputs)
    return {
        "kind": kind,
        "inputs": inputs,
        "outputs": [draw.randint(1, min(most, 300)) for _ in range(draw.choice((1, 1, 1, 2, 3)))],
        "rows": draw.choice((1, 2, 3, 4, 5, 8, 9, 16, 17, draw.randint(1, 70))),
        "threads": draw.choice((1, 2)),
        "bias": draw.random() < 0.5,
    }


def tried(case: dict[str, Any]) -> list[str]:
    """What differs."""
    import torch

    from foretoken.models.native.backends import blocks, blocks_by_torch

    kind, inputs = case["kind"], case["inputs"]
    weights = [matrix(kind, outputs, inputs) for outputs in case["outputs"]]
    bias = torch.randn(sum(case["outputs"])) if case["bias"] else None
    x = torch.randn(case["rows"], inputs) * 10 ** torch.randint(-3, 4, (case["rows"], 1))
    slow = [blocks_by_torch.Matrix(w.data, kind, inputs) for w in weights]
    expected = blocks_by_torch.Product(slow, inputs, bias)(x)
    wrong = [] if same(blocks.product(weights, bias)(x), expected) else ["product"]
    [first, own] = weights[0], slow[0]
    head, embedding = blocks.tied(first)
    rows = torch.randint(0, len(first), (case["rows"],))
    alone = blocks_by_torch.Product([own], inputs, None)(x)
    wrong += [] if same(head(x), alone) else ["head"]
    wrong += [] if same(embedding(rows), own(rows)) else ["embedding"]
    wrong += [] if same(first(rows), own(rows)) else ["numbers"]
    return wrong


def matrix(kind: str, outputs: int, inputs: int) -> Any:
    """By our own quantiser where it writes the format, else bytes of noise with small scales."""
    import torch
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    from foretoken.models.native.backends import quantise
    from foretoken.models.native.backends.blocks import VALUES, Blocks

    if kind in quantise.WRITTEN:
        return quantise.quantised(torch.randn(outputs, inputs), kind)
    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    count = -(-inputs // VALUES[kind])
    raw = torch.randint(0, 256, (outputs, count, size), dtype=torch.uint8)
    scales = {"Q6_K": [208], "Q4_1": [0, 2], "Q5_K": [0, 2]}[kind]
    for at in scales:
        small = torch.empty(outputs, count, 1).uniform_(0.002, 0.02).half()
        raw[..., at : at + 2] = small.view(torch.uint8)
    return Blocks(raw.flatten(1), kind, inputs)


def same(one: Any, two: Any) -> bool:
    import torch

    return one.shape == two.shape and torch.equal(one, two)


def path(name: str, given: argparse.Namespace, home: Path) -> dict[str, Any]:
    """What became of the matrices on one path."""
    command = [sys.executable, __file__, "--child", name]
    command += ["--count", str(given.count), "--seed", str(given.seed)]
    env = surroundings(True, home, ("libubsan.so",)) | {"UBSAN_OPTIONS": "print_stacktrace=1"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT)
        printed, ended, said = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as late:
        printed, ended, said = (late.stdout or b"").decode(), -1, f"not done after {LIMIT:g} s"
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    cases = [line for line in lines if "number" in line]
    ends = [line for line in lines if "differs" in line]
    wrong = [{**case, **end} for case, end in zip(cases, ends, strict=False) if end["differs"]]
    reports = [line for line in said.splitlines() if "runtime error" in line or "SUMMARY" in line]
    if ended or len(ends) < given.count:
        wrong.append({**(cases[-1] if cases else {}), "ended": f"{ended}: {said[-400:]}"})
    return {"path": name, "tried": len(ends), "wrong": wrong, "reports": sorted(set(reports))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, help="matrices on each path (300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the record goes")
    parser.add_argument("--check", action="store_true", help="fail where something is wrong")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.count, given.seed)
        return
    with tempfile.TemporaryDirectory() as home:
        found = [path(name, given, Path(home)) for name in given.paths]
    for each in found:
        print(f"{each['path']}: {each['tried']} matrices, {len(each['wrong'])} wrong")
        for line in (*each["wrong"], *each["reports"]):
            print(f"  {line}")
    record = {"benchmark": "fuzz-blocks", "environment": environment(), "seed": given.seed}
    write_json(given.out / "fuzz-blocks.json", {**record, "count": given.count, "paths": found})
    if given.check and any(each["wrong"] or each["reports"] for each in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
