"""Held-out loss per task, and how many tokens a pass of the target yields with the drafter.

`python evaluate.py --work WORK --target FOLDER [--draft FOLDER]`. Acceptance is counted on the
target's own greedy answers: the drafter's first choice at each place either equals the target's
or not, and a pass takes as many drafted tokens as agree in a row, at most gamma, plus one. Answers
that loop are easily drafted, so their number and the lengths without them are given too.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import corpus
import numpy as np
import torch
from corpus import Packed
from model import Llama, chunked_loss, load_hf
from sample import in_batches
from tokenizer import ASSISTANT_ID

from foretoken.repetition import DISTINCT_4, distinct_4

SIX = ("chat", "translation", "summarization", "qa", "math", "rag")
GAMMA = 4


@torch.inference_mode()
def task_loss(model: Llama, sources: list[Packed], longest: int, each: int) -> float:
    """Mean loss of answer tokens (of all tokens where there are no answers)."""
    total, count = 0.0, 0.0
    for source in sources:
        for at in range(min(each, len(source.starts) - 1)):
            lo = int(source.starts[at])
            hi = min(int(source.starts[at + 1]), lo + longest)
            ids = torch.from_numpy(source.tokens[lo:hi].astype(np.int64))[None]
            weight = torch.from_numpy(source.answer[lo:hi].astype(np.float32))
            weight = weight if source.answer.any() else torch.ones(hi - lo)
            hidden = model(ids[:, :-1])[0]
            _, losses = chunked_loss(hidden, model.embed_tokens.weight, ids[0, 1:], weight[1:])
            total += float((losses * weight[1:]).sum())
            count += float(weight[1:].sum())
    return total / max(count, 1.0)


def losses(model: Llama, data: dict[str, Packed], each: int) -> dict[str, float]:
    """By task, over at most `each` records of each source."""
    by_task: dict[str, list[Packed]] = {}
    for packed in data.values():
        by_task.setdefault(packed.task, []).append(packed)
    longest = model.config.max_len
    return {task: task_loss(model, some, longest, each) for task, some in sorted(by_task.items())}


def prompts_of(data: dict[str, Packed], task: str, count: int, longest: int) -> list[list[int]]:
    """Held-out (or training) records of a task, each cut before its first answer."""
    prompts: list[list[int]] = []
    sources = [p for n, p in sorted(data.items()) if p.task == task]
    for at in range(max(len(p.starts) for p in sources) - 1):
        for p in sources:
            if at >= len(p.starts) - 1:
                continue
            ids = p.tokens[p.starts[at] : p.starts[at + 1]].tolist()
            end = ids.index(ASSISTANT_ID) + 1 if ASSISTANT_ID in ids else longest
            if end < longest:
                prompts.append(ids[:end])
            if len(prompts) == count:
                return prompts
    return prompts


def chain(agree: list[bool], gamma: int = GAMMA) -> tuple[int, int]:
    """Tokens and passes when a pass takes the agreeing run, at most gamma, and one token more."""
    at = passes = 0
    while at < len(agree):
        run = 0
        while run < gamma and at + run < len(agree) and agree[at + run]:
            run += 1
        at, passes = min(at + run + 1, len(agree)), passes + 1
    return at, passes


@torch.inference_mode()
def acceptance(
    target: Llama, draft: Llama, prompts: list[list[int]], limit: int = 128
) -> dict[str, float]:
    tokens = passes = agreed = looping = telling_tokens = telling_passes = 0
    for i, answer, _, _ in in_batches(target, prompts, limit):
        whole = torch.tensor([prompts[i] + answer])
        start = len(prompts[i]) - 1
        choice = draft.logits(whole[:, :-1])[0, start:].argmax(-1)
        agree = (choice == torch.tensor(answer)).tolist()
        t, p = chain(agree)
        tokens, passes, agreed = tokens + t, passes + p, agreed + sum(agree)
        if distinct_4(answer) < DISTINCT_4:
            looping += 1
        else:
            telling_tokens, telling_passes = telling_tokens + t, telling_passes + p
    return {
        "agreement": agreed / tokens,
        "mean_acceptance_length": tokens / passes,
        "tokens": tokens,
        "looping": looping,
        "without_loops": telling_tokens / max(1, telling_passes),
    }


def cost(work: Path) -> dict[str, str]:
    """Tokens and minutes of training by model, from its checkpoint; a drafter's last phase."""
    places = {"mini": ("checkpoint.pt", "total"), "mini-draft": ("draft.pt", "minutes")}
    spent = {}
    for name, (file, clock) in places.items():
        if (work / file).exists():
            state = torch.load(work / file, weights_only=True, map_location="cpu")
            if clock in state:
                spent[name] = (
                    f"{state['tokens'] / 1e6:.1f} million tokens in {state[clock]:.0f} minutes"
                )
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--prompts", type=int, default=48, help="prompts a task")
    parser.add_argument("--each", type=int, default=12, help="records a source, for the loss")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    data, target = corpus.load(args.work / "heldout.npz"), load_hf(args.target)
    result: dict[str, object] = {"loss": losses(target, data, args.each)}
    for task, loss in result["loss"].items():  # type: ignore[attr-defined]
        print(f"{task:14} loss {loss:.3f} perplexity {math.exp(loss):.2f}", flush=True)
    if args.draft:
        draft = load_hf(args.draft)
        result["draft_loss"] = losses(draft, data, args.each)
        figures = {}
        for task in SIX:
            prompts = prompts_of(data, task, args.prompts, longest=2300)
            figures[task] = acceptance(target, draft, prompts)
            print(f"{task:14} {figures[task]}", flush=True)
        result["acceptance"] = figures
    result["cost"] = cost(args.work)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
