"""Trains a target whose few layers are run in cycles, as method `speed` needs it.

`python recipes/speed/train.py --data train.jsonl.gz --minutes 20 --out FOLDER`. The layers begin as
some of a teacher's (a Llama), the embedding, norm and head as the teacher's, and the states after
every cycle learn the teacher's distribution at every place of the text: those after the last cycle
because they are the output, the others because they are the drafts. Source of the architecture:
Hooper et al. 2023 (SPEED); that the drafts are trained too, and from a teacher, is this recipe's.

Resumes from FOLDER/state.pt if there is one, and may be killed at any time. The result is an
ordinary checkpoint in which layers repeat. At the end it answers the bundled prompts;
FOLDER/figures.json has what the pipeline saved.

Legend: B rows, T places, D width, C cycles.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM

from foretoken import LLM, SamplingParams, zoo
from foretoken.bench.suites.suite import load_suite
from foretoken.files import replacing
from foretoken.models.load import find, load_model
from foretoken.models.native.check import CYCLE
from foretoken.train.batches import Batches
from foretoken.train.data import read_conversations
from foretoken.train.frozen import FrozenTarget
from foretoken.train.turns import fixed
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import chunked, kl_div
from foretoken.trainable.packed_attention import Packed, attending

WARM = 0.05  # of the time: the rate rises; then it falls to 0
SAVE_EVERY = 60.0  # seconds


def cyclic(teacher: LlamaForCausalLM, cycle: int, cycles: int) -> LlamaForCausalLM:
    """`cycle` of its layers, evenly spread, each a module that stands there `cycles` times."""
    config, old = copy.deepcopy(teacher.config), teacher.model.layers
    config.num_hidden_layers, config.layer_types = cycle * cycles, None
    setattr(config, CYCLE, cycle)
    student = LlamaForCausalLM(config)
    student.load_state_dict(teacher.state_dict(), strict=False)
    places = [round(i * (len(old) - 1) / max(1, cycle - 1)) for i in range(cycle)]
    own = student.model.layers[:cycle]
    for layer, place in zip(own, places, strict=True):
        layer.load_state_dict(old[place].state_dict())
    student.model.layers = nn.ModuleList([own[i % cycle] for i in range(cycle * cycles)])
    return student.train()


def loss_of(student: LlamaForCausalLM, lesson: Lesson, early: float) -> Tensor:
    """Forward KL after every cycle, a mean over places; `early`: weight of all but the last."""
    inner, cycle = student.model, getattr(student.config, CYCLE)
    with attending(inner):
        out = inner(
            input_ids=lesson.tokens,
            position_ids=lesson.positions,
            use_cache=False,
            output_hidden_states=True,
            among=Packed(lesson).attend,
        )
    after = [
        inner.norm(out.hidden_states[i])
        for i in range(cycle, inner.config.num_hidden_layers, cycle)
    ]
    after.append(out.last_hidden_state)
    row, place = (lesson.records >= 0).nonzero(as_tuple=True)
    teacher, head = lesson.hidden[-1][row, place], student.lm_head
    shares = [early / max(1, len(after) - 1)] * (len(after) - 1) + [1.0]

    def measure(at: slice, *parts: Tensor) -> Tensor:
        distribution = lesson.head(teacher[at])
        losses = [s * kl_div(head(x), distribution) for s, x in zip(shares, parts, strict=True)]
        return torch.stack(losses).sum() / len(teacher)

    return chunked(measure, [states[row, place] for states in after], [head.weight])


def write(student: LlamaForCausalLM, teacher: str, folder: Path) -> None:
    """Each layer as often as it is run through, in float16."""
    whole = LlamaForCausalLM(student.config)
    whole.load_state_dict(student.state_dict())
    whole.half().save_pretrained(folder)
    AutoTokenizer.from_pretrained(find(teacher)).save_pretrained(folder)


def measure(folder: Path, limit: int) -> dict[str, float]:
    """What the pipeline saves on the bundled prompts, one by one, at temperature 0."""
    llm = LLM(folder, max_num_seqs=1, speculative_config={"method": "speed"})
    asked = load_suite(zoo.prompts_path(), "bundled prompts").round_robin(limit)
    talks = [[{"role": "user", "content": prompt.turns[0]}] for prompt in asked]
    llm.chat(talks, SamplingParams(temperature=0, max_tokens=64))
    counts: Any = llm.engine.target.pipeline  # type: ignore[attr-defined]
    names = ("match_rate", "passes_per_token", "extra_compute")
    return {"tokens": counts.tokens, **{name: round(getattr(counts, name), 4) for name in names}}


def save(path: Path, state: dict[str, Any]) -> None:
    with replacing(path) as file:
        torch.save(state, file)


def train(given: argparse.Namespace) -> LlamaForCausalLM:
    teacher = LlamaForCausalLM.from_pretrained(find(given.teacher), dtype=torch.float32)
    student = cyclic(teacher, given.cycle, given.cycles)
    frozen = FrozenTarget(load_model(given.teacher, backend="plain"))
    llm = LLM(given.teacher)
    texts = [talk for path in given.data for talk in read_conversations(path)][:: given.stride]
    records = fixed(llm, texts, given.length)
    batches = Batches(records, given.rows, given.length, seed=0, prompt_weight=1.0)
    optimizer = torch.optim.AdamW(student.parameters(), given.lr, betas=(0.9, 0.95))
    path, step, spent = given.out / "state.pt", 0, 0.0
    if path.exists():
        state = torch.load(path, weights_only=True)
        student.load_state_dict(state["weights"])
        optimizer.load_state_dict(state["optimizer"])
        step, spent = state["step"], state["spent"]
    saved = reported = clock = time.monotonic()
    while spent < given.minutes:
        done = spent / given.minutes
        for group in optimizer.param_groups:
            group["lr"] = given.lr * min(max(done / WARM, 0.02), (1 - done) / (1 - WARM))
        loss = loss_of(student, frozen.lesson(batches.batch(step), (-1,)), given.early)
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        now, step = time.monotonic(), step + 1
        spent, clock = spent + (now - clock) / 60, now
        if now - reported > 10:
            print(f"step {step}, {spent:.1f}/{given.minutes:.0f} min, loss {loss:.3f}", flush=True)
            reported = now
        if now - saved > SAVE_EVERY:
            save(
                path,
                {
                    "weights": student.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                    "spent": spent,
                },
            )
            saved = now
    return student


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", default="mini", help="a Llama: folder, hub id or bundled name")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help=".jsonl files of texts")
    parser.add_argument("--stride", type=int, default=1, help="take every n-th of their lines")
    parser.add_argument("--cycle", type=int, default=2, help="layers of a cycle")
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--early", type=float, default=1.0, help="weight of the earlier cycles")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--limit", type=int, default=20, help="prompts of each task at the end")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    write(train(given).cpu(), given.teacher, given.out)
    figures = measure(given.out, given.limit)
    (given.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(figures)


if __name__ == "__main__":
    main()
