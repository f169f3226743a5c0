"""What structured output costs, and what it gives back under speculation.

1. A mask: milliseconds of each backend to fill one along valid texts of several schemas, on the
   model's vocabulary, and to compile a grammar; both backends in turn.
2. A step of a tree of 16 nodes with a grammar against one without it: the time outside of the
   model's passes.
3. Extraction: short records to be written as JSON by a schema. Constrained plain decoding against
   constrained speculation (`grammar` alone, composed, with the draft model), greedy, in turn.

Example:

    python benchmarks/grammar.py --model qwen1.5b.gguf --draft-model qwen0.5b.gguf
"""

from __future__ import annotations

import json
import statistics
from argparse import Namespace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from shared import options, save, table

from foretoken import LLM, SamplingParams
from foretoken.errors import ForetokenError
from foretoken.grammar.compiling import BACKENDS, found_backend
from foretoken.grammar.constraint import CompiledGrammar, Constraint
from foretoken.grammar.params import StructuredOutputsParams
from foretoken.progress import track
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string"},
        "family_name": {"type": "string"},
        "year_of_birth": {"type": "integer"},
        "occupation": {"enum": ["engineer", "teacher", "physician", "farmer", "other"]},
        "languages": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {
                "street_and_number": {"type": "string"},
                "postal_code": {"type": "string"},
                "city": {"type": "string"},
            },
            "required": ["street_and_number", "postal_code", "city"],
            "additionalProperties": False,
        },
    },
    "required": [
        "first_name",
        "family_name",
        "year_of_birth",
        "occupation",
        "languages",
        "address",
    ],
    "additionalProperties": False,
}
TEXTS = (
    "Ada Byron, born in 1815, a teacher who speaks English and French, lives at 12 Dorset Street, "
    "W1U 6QA London.",
    "My name is Jan Novak. I was born in 1972 in Brno, where I still live, at Kounicova 7, "
    "602 00. I'm a physician and speak Czech, German and a little Polish.",
    "Farmer Maria Rossi (1958) keeps bees at Via Garibaldi 3, 50123 Firenze; she speaks Italian.",
    "Contact: Kenji Sato, engineer, year of birth 1990, 4-2-8 Shibakoen, 105-0011 Tokyo; "
    "languages: Japanese, English.",
)
RECORDS: dict[str, Any] = {
    "person": {
        "first_name": "Ada",
        "family_name": "Byron",
        "year_of_birth": 1815,
        "occupation": "teacher",
        "languages": ["English", "French"],
        "address": {
            "street_and_number": "12 Dorset Street",
            "postal_code": "W1U 6QA",
            "city": "London",
        },
    },
    "any object": {"title": "A day at the sea", "tags": ["sand", "wind"], "count": 12},
}
FORMS = {"person": {"json": PERSON}, "any object": {"json_object": True}}
MASK_MS, STEP_SHARE, FASTER, ALONE = 0.15, 0.10, 1.5, 1.3
NODES = 16


def masks(llm: LLM, repeats: int) -> dict[str, Any]:
    """Of each backend: median, 90th percentile and most milliseconds of a mask; of compiling."""
    backends = {}
    for name in BACKENDS:
        try:
            make = found_backend(name)
        except ForetokenError as error:
            print(f"{name} is left out: {error}")
            continue
        began = perf_counter()
        made = make(llm.tokenizer, llm.model.vocab_size, llm.engine.eos_ids)
        backends[name] = made, 1000 * (perf_counter() - began)
    times: dict[str, list[float]] = {name: [] for name in backends}
    compiled: dict[str, list[float]] = {name: [] for name in backends}
    for _ in range(repeats):
        for name, (backend, _) in backends.items():
            for kind, form in FORMS.items():
                began = perf_counter()
                start = backend.compile(StructuredOutputsParams(**form))
                compiled[name].append(1000 * (perf_counter() - began))
                times[name] += _along(llm, start(), RECORDS[kind])
    return {
        name: {
            "tokenizer_ms": backends[name][1],
            "compile_ms": statistics.median(compiled[name]),
            "mask_ms": statistics.median(spent),
            "mask_ms_p90": statistics.quantiles(spent, n=10)[-1],
            "mask_ms_most": max(spent),
            "masks": len(spent),
        }
        for name, spent in times.items()
    }


def _along(llm: LLM, matcher: Any, record: Any) -> list[float]:
    """Milliseconds of each mask along a record, as far as the backend accepts its tokens."""
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
    spent = []
    for token in llm.tokenizer(text, add_special_tokens=False)["input_ids"]:
        words = np.zeros(-(-llm.model.vocab_size // 32), np.int32)
        began = perf_counter()
        matcher.fill(words)
        spent.append(1000 * (perf_counter() - began))
        if not matcher.accept(token):
            break
    return spent


@torch.inference_mode()
def tree_step(llm: LLM, repeats: int) -> dict[str, float]:
    """Milliseconds to fold a chain of 16 nodes inside a record, without a grammar and with it, and
    of the pass that scores as many tokens."""
    make = found_backend("auto")
    backend = make(llm.tokenizer, llm.model.vocab_size, llm.engine.eos_ids)
    start = backend.compile(StructuredOutputsParams(json=PERSON))
    grammar = CompiledGrammar("json", llm.model.vocab_size, start)
    text = json.dumps(RECORDS["person"], separators=(",", ":"))
    ids = llm.tokenizer(text, add_special_tokens=False)["input_ids"]
    logits = torch.randn(1, NODES + 1, llm.model.vocab_size)
    spent: dict[str, list[float]] = {"free_ms": [], "grammar_ms": []}
    for repeat in range(repeats + 1):
        for place in range(0, len(ids) - NODES, NODES // 2):
            paths = [ids[place : place + size] for size in range(NODES + 1)]
            for name, given in (("free_ms", None), ("grammar_ms", grammar)):
                params = SamplingParams(temperature=0, structured_outputs=given)
                sequence = Sequence.start([1], params, end_ids=llm.engine.eos_ids)
                sequence.tokens += ids[:place]
                if given is not None:
                    sequence.grammar = Constraint(given, sequence.end_ids)
                    sequence.grammar.places(ids[:place], [()])  # as the step before has left it
                began = perf_counter()
                fold(logits, [sequence], lambda paths=paths: [paths])
                if repeat:
                    spent[name].append(1000 * (perf_counter() - began))
    return {name: statistics.median(values) for name, values in spent.items()}


def extraction(given: Namespace, first: LLM) -> dict[str, Any]:
    """Tokens a second of each method under the schema, and how many times plain decoding's."""
    sps = {"model": given.draft_model, "num_speculative_tokens": 4}
    configs: dict[str, Any] = {
        "autoregressive": None,
        "grammar": {"method": "grammar"},
        "grammar+suffix": {"method": "grammar+suffix"},
        "grammar+sps": {"method": "grammar+sps", **sps},
        "sps": {"method": "sps", **sps},
    }
    llms = {
        name: LLM(first.model, tokenizer=first.tokenizer, speculative_config=c, max_num_seqs=1)
        for name, c in configs.items()
    }
    params = SamplingParams(temperature=0, max_tokens=160, structured_outputs={"json": PERSON})
    asked = "Write the person described here as JSON. "
    prompts = [first.chat_prompt([{"role": "user", "content": asked + t}]) for t in TEXTS]
    times: dict[str, list[float]] = {name: [] for name in llms}
    written: dict[str, list[list[int]]] = {}
    with track("Extraction", given.repeats * len(llms), True) as advance:
        for _ in range(given.repeats):
            for name, llm in llms.items():
                if name not in written:
                    llm.generate(prompts[:1], params)  # a warm-up, which also compiles
                    llm.reset_stats()
                began = perf_counter()
                outputs = llm.generate(prompts, params)
                times[name].append(perf_counter() - began)
                written[name] = [output.token_ids for output in outputs]
                advance()
    plain = written["autoregressive"]
    tokens = sum(map(len, plain))
    base = times["autoregressive"]
    return {
        name: {
            "tokens_per_second": tokens / statistics.median(spent),
            "speedup": statistics.median(a / b for a, b in zip(base, spent, strict=True)),
            "same_texts": sum(a == b for a, b in zip(written[name], plain, strict=True)),
            "acceptance_length": llms[name].stats.mean_acceptance_length,
            "ms_per_step": llms[name].stats.ms_per_step,
        }
        for name, spent in times.items()
    } | {"tokens": tokens, "texts": len(plain)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="of everything (default: 3)")
    given = parser.parse_args()
    llm = LLM(given.model, max_num_seqs=1)
    filled, step = masks(llm, given.repeats), tree_step(llm, given.repeats)
    rows = [["backend", "compile ms", "mask ms", "90 % below", "most"]]
    for name, part in filled.items():
        keys = ("compile_ms", "mask_ms", "mask_ms_p90", "mask_ms_most")
        rows.append([name, *(f"{part[key]:.3f}" for key in keys)])
    table(rows)
    print(f"\nfolding 17 places: {step['free_ms']:.2f} ms, with a grammar {step['grammar_ms']:.2f}")
    served = extraction(given, llm)
    methods = {name: part for name, part in served.items() if isinstance(part, dict)}
    rows = [["method", "tokens/s", "speed-up", "tokens a pass", "same texts"]]
    for name, part in methods.items():
        numbers = [f"{part[k]:.2f}" for k in ("tokens_per_second", "speedup", "acceptance_length")]
        rows.append([name, *numbers, f"{part['same_texts']} of {served['texts']}"])
    table(rows)
    wanted = {
        "mask_ms": MASK_MS,
        "step_share": STEP_SHARE,
        "speedup": FASTER,
        "speedup_of_grammar": ALONE,
    }
    results = {"masks": filled, "step": step, "extraction": served, "wanted": wanted}
    save("grammar", given, {"vocabulary": llm.model.vocab_size, **results})


if __name__ == "__main__":
    main()
