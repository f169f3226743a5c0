"""Turns the command line of `foretoken bench` into what is measured: targets, methods, prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.cli import measuring
from foretoken.cli.bench_methods import configs, drafts, names
from foretoken.cli.bench_options import BenchOptions
from foretoken.cli.options import ModelOptions, numbers
from foretoken.errors import ForetokenError, unknown
from foretoken.repetition import DISTINCT_4

if TYPE_CHECKING:
    from foretoken.bench.plan import Configs, Plan
    from foretoken.bench.record import Results
    from foretoken.bench.run.server import Server
    from foretoken.bench.suites.suite import Prompt, Suite

_ENGINES = ("foretoken", "openai")
_OURS = (
    "method_config",
    "draft_model",
    "num_speculative_tokens",
    "inflate",
    "dtypes",
    "template",
)
_RUNNING = (
    "dtype",
    "device",
    "backend",
    "threads",
    "kv_cache_memory",
    "weights_memory",
    "trust_remote_code",
    "speculative_config",
)
_SERVERS = ("base_url", "baseline_url", "tokenizer")


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
    """A whole command. plan: what all parts share; model, name and methods are each part's."""

    settings: BenchOptions
    suite: Suite
    prompts: list[Prompt]
    parts: list[_Part]
    plan: Plan
    threads: int | None = None

    def record(self, shard: str | None) -> dict[str, Any]:
        """The contents of plan.json: all settings that decide what is measured."""
        from foretoken.bench.run.resume import COUNT

        settings, plan = self.settings, self.plan
        return {
            "suite": self.suite.name,
            "sha256": self.suite.sha256,
            "tasks": settings.tasks,
            "limit": settings.limit,
            COUNT: len(self.prompts),
            "engine": settings.engine,
            "base_url": _without_secrets(settings.base_url),
            "baseline_url": _without_secrets(settings.baseline_url),
            "tokenizer": settings.tokenizer,
            "targets": [
                {"model": p.model, "shape": p.shape, "dtype": p.dtype, "methods": p.configs}
                for p in self.parts
            ],
            "temperatures": list(plan.temperatures),
            "batch_sizes": list(plan.batch_sizes),
            "lenient": plan.lenient,
            "max_tokens": plan.max_tokens,
            "max_model_len": plan.max_model_len,
            "repeats": plan.repeats,
            "seed": plan.seed,
            "own_history": plan.own_history,
            "warm": plan.warm,
            "shard": shard,
            **self._contents,
            **({} if plan.template is None else {"template": plan.template}),
            **({"keep_loops": True} if settings.keep_loops else {}),
            **({} if plan.device == "auto" else {"device": plan.device}),
            **({} if plan.backend == "auto" else {"backend": plan.backend}),
            **{name: value for name, value in self._of_machine.items() if value is not None},
        }

    @property
    def _contents(self) -> dict[str, str]:
        """What the models' files hold; a server keeps its own to itself."""
        from foretoken.bench.run.contents import contents

        own = [] if self.settings.remote else self.parts
        return {k: v for p in own for k, v in contents(p.model, p.configs.values()).items()}

    @property
    def _of_machine(self) -> dict[str, Any]:
        """What decides speeds, and None where nothing was asked for."""
        memory = {"kv_cache_memory": self.plan.kv_cache_memory}
        return {"threads": self.threads, **memory, "weights_memory": self.plan.weights_memory}

    def run(self) -> list[Results]:
        """Measure what is not in the folder yet."""
        from foretoken.bench.plan import shard_of
        from foretoken.bench.record import read_results
        from foretoken.bench.run.resume import Samples, write_plan
        from foretoken.bench.run.session import measure
        from foretoken.files import write_json

        out, shard = self.settings.out, self.settings.shard
        numbers = shard_of(shard) if shard else (1, 1)
        write_plan(out, self.record(shard))
        samples, resuming = Samples(out), True
        measured: list[Results] = []
        for part in self.parts:
            file = out / part.file
            resuming = resuming and file.is_file()  # parts are measured in their order
            if resuming:
                measured.append(read_results(file))
                continue
            with measuring.placed(part.model, part.configs, part.shape) as (place, methods):
                server = self._server(part, place, methods)
                results = measure(server, self.suite, self.prompts, samples, shard=numbers)
            if part.left_out:
                results["not_run"] = {**part.left_out, **results.get("not_run", {})}
            write_json(file, results)
            measured.append(results)
        return measured

    def _server(self, part: _Part, place: str | Path, methods: Configs) -> Server:
        from foretoken.bench.run.runner import Runner

        remote = self.settings.remote
        plan = dataclasses.replace(
            self.plan,
            model=place,
            name=part.model if remote else self._name(part),
            methods=methods,
            dtype=part.dtype,
            inflated=None if part.shape == measuring.AS_IT_IS else part.shape,
        )
        return _remote_server(self.settings, plan) if remote else Runner(plan)

    def _name(self, part: _Part) -> str:
        """A target's name in results. A GGUF file that runs as it lies has its whole name beside
        another target of the same one: answers are known by name and precision, and the precision
        in which both compute is the same."""
        from foretoken.models.load import find

        name = measuring.target_name(part.model, part.shape)
        alike = [p for p in self.parts if measuring.target_name(p.model, p.shape) == name]
        return find(part.model).name if part.dtype == "auto" and len(alike) > 1 else name


def make_job(settings: BenchOptions, running: ModelOptions) -> Job:
    """A command with its lists read and its names looked up; nothing is loaded or written yet."""
    from foretoken.bench.plan import Plan, select, shard_of
    from foretoken.bench.suites.suite import find_suite

    running.check_no_gguf_file()
    running.check_no_draft_backend()
    if settings.engine not in _ENGINES:
        raise unknown("engine", settings.engine, _ENGINES)
    if settings.remote:
        _check_remote(settings, running)
    elif servers := _changed(settings, _SERVERS):
        raise ForetokenError(f"{servers[0]} is for --engine openai; give both or neither.")
    if settings.ray_address is not None and settings.ray is None:
        raise ForetokenError("--ray-address names a cluster for --ray; give both or neither.")
    if settings.shard is not None:
        shard_of(settings.shard)
    temperatures = numbers(settings.temperatures, float, "--temperatures")
    batch_sizes = numbers(settings.batch_sizes, int, "--batch-sizes")
    plan = Plan(
        model="",
        name="",
        methods={},
        # 0 and 0.0 are one, and no line of samples is there twice.
        temperatures=tuple(dict.fromkeys(temperatures)),
        batch_sizes=tuple(dict.fromkeys(batch_sizes)),
        lenient=settings.methods == "all",
        max_tokens=settings.max_tokens,
        max_model_len=running.max_model_len or Plan.max_model_len,
        kv_cache_memory=running.kv_cache_memory,
        weights_memory=running.weights_memory,
        repeats=settings.repeats,
        seed=settings.seed,
        own_history=settings.own_history,
        warm=settings.warm,
        template=settings.template,
        distinct_4=0.0 if settings.keep_loops else DISTINCT_4,
        device=running.device,
        backend=running.backend,
        trust_remote_code=running.trust_remote_code,
    )
    parts = _remote_parts(settings) if settings.remote else _parts(settings, running)
    suite = find_suite(settings.suite)
    tasks = names(settings.tasks) if settings.tasks else None
    prompts = select(suite, tasks, settings.limit)
    return Job(settings, suite, prompts, parts, plan, running.threads)


def _check_remote(settings: BenchOptions, running: ModelOptions) -> None:
    """Refuse options that only a server's owner can set."""
    from foretoken.bench.plan import Plan

    if settings.base_url is None:
        raise ForetokenError("--engine openai needs the server's address; give --base-url.")
    if settings.ray is not None:
        raise ForetokenError(
            "--engine openai asks one process at a time, as others would ask the same servers "
            "meanwhile; leave out --ray."
        )
    fixed = [*_changed(settings, _OURS), *_changed(running, _RUNNING)]
    if running.max_model_len not in (None, Plan.max_model_len):
        fixed.append("--max-model-len")
    if fixed:
        raise ForetokenError(
            f"--engine openai measures a server as it runs, so {fixed[0]} can't be obeyed; leave "
            "it out."
        )


def _without_secrets(url: str | None) -> str | None:
    from foretoken.bench.remote.address import public

    return None if url is None else public(url)


def _changed(settings: BenchOptions | ModelOptions, names: Collection[str]) -> list[str]:
    """The options among `names` whose values are not the defaults, as typed."""
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    changed = [name for name in names if vars(settings)[name] != defaults[name]]
    return [f"--{name.replace('_', '-')}" for name in changed]


def _remote_parts(settings: BenchOptions) -> list[_Part]:
    """The only part of a remote server: one target, with the server's method."""
    from foretoken.bench.record import BASELINE

    label = "server" if settings.methods == "all" else settings.methods
    if label == BASELINE and settings.baseline_url is not None:
        raise ForetokenError(
            f"{BASELINE} is plain decoding, which the server of --baseline-url does; give "
            "--methods what the other one does."
        )
    return [_Part(settings.model, {label: {}}, {}, measuring.AS_IT_IS, "auto", "results.json")]


def _parts(settings: BenchOptions, running: ModelOptions) -> list[_Part]:
    """Every model in every shape at every precision."""
    models, shapes = names(settings.model), names(settings.inflate)
    measuring.check_shapes(shapes)
    parts: dict[str, _Part] = {}
    for model, own in zip(models, drafts(settings.draft_model, models), strict=True):
        for shape in shapes:
            methods, left_out = configs(settings, running, own, shape != measuring.AS_IT_IS)
            for dtype in (_dtype(name, model, running) for name in _dtypes(settings, running)):
                name = f"{measuring.target_name(model, shape)}-{dtype}"
                if name in parts:
                    raise ForetokenError(f"{name} would be measured twice; name each target once.")
                file = f"results-{name}.json" if parts else "results.json"
                parts[name] = _Part(model, methods, left_out, shape, dtype, file)
    return list(parts.values())


def _dtypes(settings: BenchOptions, running: ModelOptions) -> list[str]:
    """The values of --dtypes, or else of --dtype."""
    if running.dtype == "auto":
        return [_known(name) for name in names(settings.dtypes)]
    if settings.dtypes != "auto":
        raise ForetokenError("--dtypes is the list of --dtype; give one of the two.")
    return [running.dtype]


def _known(name: str) -> str:
    """A value of --dtypes. Raises `ForetokenError` for another one."""
    from foretoken.models.placement import DTYPES

    if name not in ("auto", *DTYPES):
        raise unknown("precision in --dtypes", name, ["auto", *DTYPES])
    return name


def _dtype(name: str, model: str, running: ModelOptions) -> str:
    """The precision that a name stands for with this model on its device; "auto" of a GGUF file is
    one of its own."""
    from foretoken.models import gguf
    from foretoken.models.load import find, read_config
    from foretoken.models.placement import pick_device, pick_dtype

    place = find(model)
    if name == "auto" and gguf.is_named(place):
        return name
    config = read_config(place, running.trust_remote_code)
    dtype = pick_dtype(name, config, pick_device(running.device), place)
    return str(dtype).removeprefix("torch.")


def _remote_server(settings: BenchOptions, plan: Plan) -> Server:
    """The runner for a remote server."""
    from foretoken.bench.remote.openai import Endpoint
    from foretoken.bench.remote.runner import RemoteRunner
    from foretoken.models.load import load_tokenizer

    assert settings.base_url is not None
    plain = Endpoint(settings.baseline_url, plan.name) if settings.baseline_url else None
    tokenizer = load_tokenizer(settings.tokenizer, False) if settings.tokenizer else None
    return RemoteRunner(plan, Endpoint(settings.base_url, plan.name), plain, tokenizer)
