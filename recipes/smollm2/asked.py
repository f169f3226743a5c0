"""Writes prompts that the target makes up itself: what it continues its chat template with, where a
user's turn begins (Xu et al. 2024, Magpie, section 2.1).

    python recipes/smollm2/asked.py --target model.gguf --count 9000 --out asked.jsonl

Killed, it goes on where it was: what is written so far is kept in OUT.parts until all is there.
Some of the conversations have a second turn, which asks to change the first answer. Turns that
don't end within 160 tokens, those of fewer than four words, and those that came before are left
out, so that fewer are written than are begun.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from foretoken import LLM, SamplingParams
from foretoken.files import read_json, write_file, write_json

BLOCK = 512  # turns that are begun at once, and kept together
_LONGEST = 160  # tokens of a turn
_PLACE = "\x00"  # stands for a turn, to see what the template writes before it
FOLLOWING = (
    "Make it shorter.",
    "Now say the same in simple words, as for a child.",
    "Rewrite your answer as a list.",
    "Can you give me an example?",
    "Why is that so?",
    "What would change if it were the other way round?",
    "Rewrite it in a more formal tone.",
    "Turn your answer into a short poem.",
    "What are the weak points of your answer?",
    "Translate your answer into German.",
    "Explain the first point in more detail.",
    "Write it again without using the letter e at the beginning of a sentence.",
    "How could I check whether that is true?",
    "Give your answer as JSON.",
    "Is there a faster way to do it?",
    "Summarize what you said in one sentence.",
    "Now write it from the point of view of somebody else.",
    "What should I do next?",
    "Compare it with an alternative.",
    "Could you correct any mistakes in what you wrote?",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="its GGUF file")
    parser.add_argument("--count", type=int, default=9000, help="turns that are begun")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--followed", type=float, default=0.2, help="share with a second turn")
    parser.add_argument("--sequences", type=int, default=64, help="written side by side")
    given = parser.parse_args()
    llm = LLM(given.target, max_num_seqs=given.sequences, max_model_len=512)
    parts = given.out.with_name(f"{given.out.name}.parts")
    begin(parts, given)
    turns = written(llm, given.count, given.seed, parts)
    told = conversations(turns, given.seed, given.followed)
    lines = (json.dumps(each, ensure_ascii=False) for each in told)
    write_file(given.out, "".join(f"{line}\n" for line in lines))
    shutil.rmtree(parts)


def begin(parts: Path, given: argparse.Namespace) -> None:
    """Note what decides the turns. Ends the program where other ones are kept there."""
    note, asked = parts / "asked.json", {"target": given.target, "seed": given.seed}
    before = read_json(note, "what was asked for") if note.exists() else asked
    if before != asked:
        raise SystemExit(f"{parts} has turns of {before}, not {asked}; delete it.")
    write_json(note, asked)


def written(llm: LLM, count: int, seed: int, parts: Path) -> Iterator[str]:
    """Whole turns, read where they are kept and else written, block by block."""
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        part = parts / f"{start:06d}-{stop:06d}.json"
        if not part.exists():
            write_json(part, {"turns": list(block(llm, range(start, stop), seed))})
        yield from read_json(part, "turns")["turns"]


def block(llm: LLM, numbers: range, seed: int) -> Iterator[str]:
    params = [
        SamplingParams(temperature=1.0, top_p=0.95, max_tokens=_LONGEST, seed=(seed << 24) + i)
        for i in numbers
    ]
    for output in llm.generate([begun(llm)] * len(numbers), params):
        if not output.error and output.outputs[0].finish_reason == "stop":
            yield output.text.strip()


def conversations(turns: Iterable[str], seed: int, followed: float) -> Iterator[dict[str, object]]:
    """As `foretoken train` reads them; no turn comes twice."""
    rng, known = random.Random(seed), set[str]()
    for turn in turns:
        if len(turn.split()) > 3 and turn not in known:
            known.add(turn)
            more = [rng.choice(FOLLOWING)] if rng.random() < followed else []
            yield {"task": "asked", "turns": [turn, *more]}


def begun(llm: LLM) -> list[int]:
    """The ids of the chat template up to where a user's turn begins."""
    whole = llm.tokenizer.apply_chat_template(
        [{"role": "user", "content": _PLACE}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = llm.tokenizer.encode(whole[: whole.index(_PLACE)], add_special_tokens=False)
    return ids


if __name__ == "__main__":
    main()
