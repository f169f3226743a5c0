"""From the command line of `foretoken bench` to what is measured: targets, methods, prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from foretoken.cli import measuring
from foretoken.errors import ForetokenError, unknown

if TYPE_CHECKING:
    from foretoken.bench.plan import Configs, Plan
    from foretoken.bench.record import Results
    from foretoken.bench.run.server import Server
    from foretoken.bench.suites.suite import Prompt, Suite

_T = TypeVar("_T")
_ENGINES = ("foretoken", "openai")
_BUNDLED = {"mini": "mini-draft"}


@dataclass(frozen=True)
class _Part:
    """One target at one precision, and the file of its results.

    left_out: the methods that can't be built, and why.
    """

    model: str
    configs: Configs
    left_out: dict[str, str]
    shape: str
    dtype: str
    file: str


@dataclass(frozen=True)
class Job:
    """A whole command. `settings` are the plan's that all parts share."""

    given: dict[str, Any]
    suite: Suite
    prompts: list[Prompt]
    parts: list[_Part]
    settings: dict[str, Any]

    @property
    def out(self) -> Path:
        out: Path = self.given["out"]
        return out

    def plan(self, shard: str | None) -> dict[str, Any]:
        """What plan.json says: all that decides what is measured."""
        keys = ("tasks", "limit", "engine", "base_url", "baseline_url", "tokenizer")
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in self.settings.items()}
        return {
            "suite": self.suite.name,
            "sha256": self.suite.sha256,
            **{key: self.given[key] for key in keys},
            "targets": [
                {"model": p.model, "shape": p.shape, "dtype": p.dtype, "methods": p.configs}
                for p in self.parts
            ],
            **settings,
            "shard": shard,
        }

    def run(self) -> list[Results]:
        """Measure what the folder doesn't hold yet."""
        from foretoken.bench.plan import shard_of
        from foretoken.bench.record import read_results
        from foretoken.bench.run.resume import Samples, write_plan
        from foretoken.bench.run.session import measure
        from foretoken.files import write_json

        shard = self.given["shard"]
        numbers = shard_of(shard) if shard else (1, 1)
        write_plan(self.out, self.plan(shard))
        samples, found, going_on = Samples(self.out), [], True
        for part in self.parts:
            file = self.out / part.file
            going_on = going_on and file.is_file()  # parts are measured in their order
            if going_on:
                found.append(read_results(file))
                continue
            with measuring.placed(part.model, part.configs, part.shape) as (place, methods):
                server = self._server(part, place, methods)
                results = measure(server, self.suite, self.prompts, samples, shard=numbers)
            if part.left_out:
                results["not_run"] = {**part.left_out, **results.get("not_run", {})}
            write_json(file, results)
            found.append(results)
        return found

    def _server(self, part: _Part, place: str | Path, methods: Configs) -> Server:
        from foretoken.bench.plan import Plan
        from foretoken.bench.run.runner import Runner

        remote = self.given["engine"] == "openai"
        name = part.model if remote else measuring.target_name(part.model, part.shape)
        plan = Plan(
            model=place,
            name=name,
            methods=methods,
            dtype=part.dtype,
            inflated=None if part.shape == measuring.AS_IT_IS else part.shape,
            **self.settings,
        )
        return _remote(self.given, plan) if remote else Runner(plan)


def make_job(given: dict[str, Any]) -> Job:
    """A command with its lists read and its names looked up; nothing is loaded or written yet."""
    from foretoken.bench.plan import Plan, select, shard_of
    from foretoken.bench.suites.suite import find_suite

    if given["engine"] not in _ENGINES:
        raise unknown("engine", given["engine"], _ENGINES)
    if given["engine"] == "openai" and given["base_url"] is None:
        raise ForetokenError("--engine openai needs the server's address; give --base-url.")
    if given["shard"] is not None:
        shard_of(given["shard"])
    settings = {
        "temperatures": tuple(_numbers(given, "temperatures", float)),
        "batch_sizes": tuple(_numbers(given, "batch_sizes", int)),
        "lenient": given["methods"] == "all",
    }
    same = ("max_tokens", "max_model_len", "repeats", "seed", "own_history", "warm")
    settings |= {name: given[name] for name in same}
    Plan(model="", name="", methods={}, **settings)  # what can't go together is refused here
    parts = _remote_parts(given) if given["engine"] == "openai" else _parts(given)
    suite = find_suite(given["suite"])
    tasks = given["tasks"] and _names(given["tasks"])
    prompts = select(suite, tasks, given["limit"])
    return Job(given, suite, prompts, parts, settings)


def _remote_parts(given: dict[str, Any]) -> list[_Part]:
    """A server is one target with one method, its own."""
    label = "server" if given["methods"] == "all" else given["methods"]
    return [_Part(given["model"], {label: {}}, {}, measuring.AS_IT_IS, "auto", "results.json")]


def _parts(given: dict[str, Any]) -> list[_Part]:
    """Every model in every shape at every precision."""
    models, shapes, dtypes = (_names(given[k]) for k in ("model", "inflate", "dtypes"))
    measuring.check_shapes(shapes)
    parts: dict[str, _Part] = {}
    for model, draft in zip(models, _drafts(given["draft_model"], models), strict=True):
        configs, left_out = _configs(given, draft)
        for shape in shapes:
            for dtype in (_dtype(name, model) for name in dtypes):
                name = f"{measuring.target_name(model, shape)}-{dtype}"
                if name in parts:
                    raise ForetokenError(f"{name} would be measured twice; name each target once.")
                file = f"results-{name}.json" if parts else "results.json"
                parts[name] = _Part(model, configs, left_out, shape, dtype, file)
    return list(parts.values())


def _dtype(name: str, model: str) -> str:
    """The precision that a name comes to for this model on this machine."""
    from foretoken.models.load import find, pick_device, pick_dtype, read_config

    found = pick_dtype(name, read_config(find(model)), pick_device("auto"))
    return str(found).removeprefix("torch.")


def _drafts(given: str | None, models: list[str]) -> list[str | None]:
    """Each model's draft model; the bundled target has a bundled one."""
    if given is None:
        return [_BUNDLED.get(model) for model in models]
    drafts: list[str | None] = [*_names(given)]
    if len(drafts) not in (1, len(models)):
        raise ForetokenError(
            f"There are {len(drafts)} draft models for {len(models)} models; give one, or one each."
        )
    return drafts * len(models) if len(drafts) == 1 else drafts


def _configs(given: dict[str, Any], draft: str | None) -> tuple[Configs, dict[str, str]]:
    """The methods' configs by label, and why others are left out."""
    from foretoken.bench.plan import BASELINE, every_method, method_config
    from foretoken.config import build

    tokens, reasons = given["num_speculative_tokens"], dict[str, str]()
    if given["methods"] == "all":
        configs, reasons = every_method(draft, tokens)
    else:
        names = _names(given["methods"])
        configs = {name: method_config(name, draft, tokens) for name in names}
    configs.pop(BASELINE, None)  # it is always there
    configs |= _own_configs(given["method_config"])
    if BASELINE in configs:
        raise ForetokenError(f"{BASELINE} is plain decoding; give your method another label.")
    for config in configs.values():
        build(config)
    return configs, {name: why for name, why in reasons.items() if name not in configs}


def _own_configs(given: str | None) -> Configs:
    """--method-config, from JSON or from a file of YAML."""
    import yaml

    if given is None:
        return {}
    try:
        found = yaml.safe_load(given if given.lstrip().startswith("{") else Path(given).read_text())
    except (OSError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ForetokenError(f"--method-config can't be read: {reason}.") from error
    if not isinstance(found, dict) or not all(isinstance(x, dict) for x in found.values()):
        raise ForetokenError(
            '--method-config must map labels to objects, e.g. {"mine": {"method": "pld"}}.'
        )
    return {str(label): dict(config) for label, config in found.items()}


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _numbers(given: dict[str, Any], option: str, kind: Callable[[str], _T]) -> list[_T]:
    try:
        found = [kind(name) for name in _names(given[option])]
    except ValueError:
        found = []
    if not found:
        name = option.replace("_", "-")
        raise ForetokenError(f"--{name} is {given[option]!r}; it must be numbers, by comma.")
    return found


def _remote(given: dict[str, Any], plan: Plan) -> Server:
    """Somebody else's server."""
    from foretoken.bench.remote.openai import Endpoint
    from foretoken.bench.remote.runner import RemoteRunner
    from foretoken.models.load import load_tokenizer

    plain = given["baseline_url"] and Endpoint(given["baseline_url"], plan.name)
    tokenizer = given["tokenizer"] and load_tokenizer(given["tokenizer"], False)
    return RemoteRunner(plan, Endpoint(given["base_url"], plan.name), plain, tokenizer)
