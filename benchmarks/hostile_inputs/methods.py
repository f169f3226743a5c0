"""`speculative_config`: unknown names, each option of each method with every wrong value, parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from foretoken import LLM, METHODS
from foretoken.config import OPTION_ALIASES, options_of
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.registry import drafter_class, target_class, verifier_names
from hostile_inputs import makings
from hostile_inputs.case import Case, Outcome, shown
from hostile_inputs.stand import GOOD, GREEDY, SLOTS, Stand
from hostile_inputs.values import NOT_NUMBERS, VALUES, Make, kind

NAMES = [
    "PLD", "pld ", " pld", "pld+", "+pld", "pld|", "|", "+", "pld++sps", "pld+sps|suffix",
    "pld|pld", "pld+pld", "pld+prompt_lookup", "auto:", "auto:,", "auto:auto", "auto:pld,pld",
    "auto:ppd",
    "online:", "online:pld", "online:online:sps", "online:auto", "online:pld+sps", "ppd+pld",
    "autoregressive+pld", "nothing", "none", "pld,sps", "os:system", "sys:exit", "builtins:int",
    "builtins:exec", "foretoken.drafters.nothing:Missing", "no.such.module:Class", ":", "a:b:c",
    "shared", "shared.chain", "__init__", "../pld", "foretoken.drafters", "speculative", "eagle4",
    "medusa:", "pld:3", "forced", "either", "merged", "wrapper", "auto+pld", "pld\n", "pld\x00",
    "json:loads", "foretoken:LLM", "foretoken.config:build", "typing:Any", "pld" * 10_000,
    "[pld]", "'pld'", "p l d", "\ud800", "pld+\ud800", "auto:\ud800",
]  # fmt: skip
"""Names of no method, or of none that can be built so. Some of them may be served."""

FOREIGN: dict[str, Any] = {
    "draft_tensor_parallel_size": 2, "max_model_len": -1, "disable_by_batch_size": 4,
    "quantization": "awq", "disable_logprobs": True, "revision": "main", "temperature": 2.0,
    "suffix_decoding_max_cached_requests": 10, "num_lookahead_slots": 4, "speculative_model": "x",
    "ngram_prompt_lookup_max": 4, "acceptance_method": "typical", "rejection_sample_method": "x",
    "num_speculative_token": 4, "Num_Speculative_Tokens": 4, "numspeculativetokens": 4, "": 1,
    "method ": "pld", "self": 1, "cls": 1, "__class__": int, "wants": 1, "kinds": 1, "draft": 1,
    "drafters": [], "names": [], "lenient": True, "costs": {}, "\ud800": 1, "x" * 5000: 1,
}  # fmt: skip
"""Options of other libraries and of none."""

HASHABLE = [
    "None",
    "0",
    "1.5",
    "nan",
    "True",
    "''",
    "'four'",
    "'\\ud800'",
    "'a\\nb\\x1b[31m'",
    "'x' * 100000",
    "b'x'",
    "()",
    "(1, 2)",
    "object()",
    "int",
    "Path('.')",
    "Colour.RED",
]
"""Values that a mapping may have as keys."""

GREY = ("'1'", "'nan'")  # a number may be read from them
SMALL = ("num_speculative_tokens", "tree_nodes", "num_candidates", "window", "top_k", "depth")


def cases(random: Random, count: int) -> Iterator[Case]:
    """A third each: names and whole configs, options of any value, parts and rules."""
    whole = [*_names(), *_configs(), *_foreign(random)]
    parts = [*_parts(), *_rules()]
    share = count // 3
    for group in (whole, parts):
        yield from random.sample(group, min(share, len(group)))
    for given in random.sample(list(_options()), count - 2 * share):
        yield _option(*given)


def _names() -> Iterator[Case]:
    for name in NAMES:
        yield _case(f"method={shown(name)}", {"method": name}, ("method", "drafter", "part"))
        both = {"method": name, "num_speculative_tokens": 3}
        yield _case(f"method={shown(name)}, num…=3", both, ("method", "drafter", "part", "num_"))
    for label, make in VALUES.items():
        names = ("method", "drafter", kind(make()))
        yield _case(f"method={shown(label)}", lambda make=make: {"method": make()}, names)


def _configs() -> Iterator[Case]:
    for label, make in VALUES.items():
        if label != "None":
            names = ("speculative_config", "option", "method", kind(make()))
            yield _case(shown(label), make, names)
    for label in HASHABLE:
        make = VALUES[label]
        config = lambda make=make: {"method": "pld", make(): 3}  # noqa: E731
        yield _case(f"a key {shown(label)}", config, ("option", "key", kind(make())))


def _foreign(random: Random) -> Iterator[Case]:
    for key, value in FOREIGN.items():
        for method in random.sample(list(METHODS), 2):
            config = lambda s, m=method, k=key, v=value: {  # noqa: E731
                "method": m,
                **makings.needed(s, m),
                k: v,
            }
            yield _case(f"{method}, {shown(key)}={shown(value)}", config, (key[:20] or "option",))


def _options() -> Iterator[tuple[str, str, str, str, Make]]:
    """Each option of each method with every value: what `_option` takes."""
    for method in METHODS:
        types = _types(method)
        for option in sorted(options_of(method)):
            for label, make in VALUES.items():
                yield method, option, types.get(option, ""), label, make


def _types(method: str) -> dict[str, str]:
    row = METHODS[method]
    cls: Any = target_class(row.target) if row.target else drafter_class(row.drafter)
    return {field.name: str(field.type) for field in dataclasses.fields(cls)}


def _option(method: str, option: str, given_type: str, label: str, make: Make) -> Case:
    def config(stand: Stand) -> dict[str, Any]:
        return {"method": method, **makings.needed(stand, method), option: make()}

    names = (option, *_also(option), *_value(make()))
    must = _must(option, given_type, label)
    return _case(f"{method}, {option}={shown(label)}", config, names, must)


def _must(option: str, given_type: str, label: str) -> str:
    """What makes no sense for an option of this type."""
    numeric = given_type.split(" | ")[0] in ("int", "float") and "str" not in given_type
    unclear = label.startswith(("Raises", "np.array", "torch")) or label in GREY
    if numeric and label in NOT_NUMBERS and not unclear:
        return "refuse"
    if numeric and label in ("nan", "np.float32(nan)", "Decimal('NaN')", "-inf"):
        return "refuse"
    if given_type.startswith("int") and label in ("1.5", "-0.5", "inf", "torch.tensor(0.5)"):
        return "refuse"
    if option in SMALL and label in ("-1", "-2", "-10**30"):
        return "refuse"
    return ""


def _also(option: str) -> list[str]:
    """The option's names elsewhere, and what it is."""
    others = [other for other, own in OPTION_ALIASES.items() if own == option]
    words = {"model": ["checkpoint", "draft"], "models": ["draft", "model"], "datastore": ["index"]}
    words |= {"checkpoint": ["model"], "drafters": ["part"], "skip": ["layer set"]}
    words |= {"num_assistant_tokens_schedule": ["length rule", "schedule"]}
    return others + words.get(option, [])


def _value(value: object) -> tuple[str, ...]:
    """How an error may name a value itself."""
    try:
        text = repr(value)
    except Exception:
        return ()
    return (text,) if 3 < len(text) < 40 and not isinstance(value, (int, float)) else ()


def _parts() -> Iterator[Case]:
    """Options under a part's name, and methods made of others."""
    for label, make in VALUES.items():
        config = lambda make=make: {"method": "pld+suffix", "pld": make()}  # noqa: E731
        names = ("pld", "option")
        must = "" if label in ("None", "{}", "OrderedDict") else "refuse"
        yield _case(f"pld+suffix, pld={shown(label)}", config, names, must)
        config = lambda make=make: {"method": "pld+suffix", "drafters": make()}  # noqa: E731
        yield _case(f"pld+suffix, drafters={shown(label)}", config, ("drafters", "part", "drafter"))
        config = lambda make=make: {"method": "auto", "names": make()}  # noqa: E731
        yield _case(f"auto, names={shown(label)}", config, ("names", "option", "part"))
    inner: dict[str, Any] = {
        "an unknown option": {"nope": 1},
        "a nested part": {"suffix": {"min_token_prob": 0.5}},
        "a number": {"num_speculative_tokens": "four"},
        "a method": {"method": "pld"},
        "a verifier": {"verifier": "speculative"},
        "itself": {"pld": {}},
    }
    for label, value in inner.items():
        for method in ("pld+suffix", "pld|suffix", "auto:pld,suffix"):
            config = {"method": method, "pld": value}
            names = ("pld", *value)
            yield _case(f"{method}, pld={{{label}}}", config, names, "refuse")
    objects: dict[str, Callable[[], Any]] = {
        "the class": lambda: PromptLookup,
        "an LLM's class": lambda: LLM,
        "one object twice": lambda: [one := PromptLookup(), one],
        "a name": lambda: ["pld"],
        "a method": lambda: PromptLookup().draft,
    }
    for label, make in objects.items():
        names = ("method", "drafter", "class", "PromptLookup", "part")
        yield _case(f"method={label}", lambda make=make: {"method": make()}, names, "refuse")
        config = lambda make=make: {"method": "pld+sps", "drafters": make()}  # noqa: E731
        yield _case(f"drafters={label}", config, names)


def _rules() -> Iterator[Case]:
    for label, make in VALUES.items():
        config = lambda make=make: {"method": "pld", "verifier": make()}  # noqa: E731
        yield _case(f"verifier={shown(label)}", config, ("verifier", kind(make())))
        config = lambda make=make: {"tuned": make()}  # noqa: E731
        yield _case(f"tuned={shown(label)}", config, ("tuned", "tune", "method", kind(make())))
        config = lambda make=make: {"tuned": make(), "method": "pld"}  # noqa: E731
        yield _case(f"tuned={shown(label)}, pld", config, ("tuned", "tune", kind(make())))
    for rule in (*verifier_names(), "Greedy", "greedy ", "os:getcwd", "builtins:dict", ":", "a:b"):
        for method in ("pld", "sps", "mcsd", "medusa", "lookahead", "ppd", "autoregressive"):
            config = lambda s, m=method, r=rule: {  # noqa: E731
                "method": m,
                **makings.needed(s, m),
                "verifier": r,
            }
            yield _case(f"{method}, verifier={rule}", config, ("verifier",))


def _case(label: str, config: Any, names: tuple[str, ...], must: str = "") -> Case:
    """config: a mapping, or what makes it, with a stand or without."""

    def run(stand: Stand, outcome: Outcome) -> None:
        made = _made(config, stand)
        with stand.neighbour(stand.llm(), outcome):
            build = lambda: LLM(  # noqa: E731
                stand.target,
                speculative_config=made,
                tokenizer=stand.letters,
                max_num_seqs=SLOTS,
            )
            llm = outcome.attempt(build)
            if llm is not None:
                _serve(stand, llm, made, outcome)

    return Case(f"speculative_config: {label}", run, names, must)


def _made(config: Any, stand: Stand) -> Any:
    if not callable(config):
        return config
    return config(stand) if config.__code__.co_varnames[:1] in (("s",), ("stand",)) else config()


def _serve(stand: Stand, llm: LLM, config: Any, outcome: Outcome) -> None:
    with llm:
        outputs = outcome.attempt(lambda: llm.generate(GOOD, GREEDY)) or []
    stand.note(outputs, outcome)
    texts = [output.token_ids for output in outputs if output.error is None]
    lossy = isinstance(config, dict) and ("verifier" in config or not _lossless(config))
    if not lossy and any(text not in stand.expected for text in texts):
        outcome.blame("wrong", "it wrote another text than plain decoding")


def _lossless(config: dict[str, Any]) -> bool:
    method = config.get("method")
    row = METHODS.get(method) if isinstance(method, str) else None
    return (row is None or row.lossless) and "tuned" not in config
