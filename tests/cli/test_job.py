"""From the options of `foretoken bench` to what is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gguf_files
from foretoken import ForetokenError
from foretoken.cli.bench_options import BenchOptions
from foretoken.cli.job import Job, make_job
from foretoken.cli.measuring import placed
from foretoken.cli.options import ModelOptions
from foretoken.files import read_json


def test_every_target_in_every_shape_and_precision(checkpoints: tuple[Path, Path]) -> None:
    """Each has a file of its own, the first one results.json; all share the plan."""
    given = BenchOptions(
        suite="bundled",
        model=",".join(map(str, checkpoints)),
        methods="pld",
        inflate="none,135m",
        dtypes="float32,float64",
        temperatures="0.5",
        batch_sizes="1,2",
    )
    job = make_job(given, ModelOptions(device="cpu", max_model_len=99))
    assert [(part.shape, part.dtype) for part in job.parts] == 2 * [
        ("none", "float32"),
        ("none", "float64"),
        ("135m", "float32"),
        ("135m", "float64"),
    ]
    files = [part.file for part in job.parts]
    assert files[0] == "results.json" and len({*files}) == 8
    assert files[-1] == "results-draft-135m-float64.json"
    assert job.plan.temperatures == (0.5,) and job.plan.batch_sizes == (1, 2)
    assert (job.plan.max_model_len, job.plan.device, job.plan.lenient) == (99, "cpu", False)


def test_a_number_in_two_ways_is_one(checkpoints: tuple[Path, Path]) -> None:
    """Nothing is measured twice and counted as two."""
    given = BenchOptions(
        model=str(checkpoints[0]), methods="pld", temperatures="0,0.0,1", batch_sizes="2,02"
    )
    plan = make_job(given, ModelOptions(device="cpu")).plan
    assert (plan.temperatures, plan.batch_sizes) == ((0.0, 1.0), (2,))


def test_the_record_tells_what_decides(checkpoints: tuple[Path, Path]) -> None:
    """Lists as JSON has them; device and backend only where they were chosen."""
    given = BenchOptions(suite="bundled", model=str(checkpoints[0]), methods="pld", limit=1)
    plain = make_job(given, ModelOptions()).record(None)
    chosen = make_job(given, ModelOptions(device="cpu", backend="plain")).record("1/2")
    assert plain["temperatures"] == [0.0, 1.0] and plain["shard"] is None
    assert plain["targets"][0]["methods"] == {"pld": {"method": "pld"}}
    assert not {"device", "backend"} & {*plain}
    assert len(plain[f"contents of {checkpoints[0]}"]) == 16
    assert chosen == {**plain, "shard": "1/2", "device": "cpu", "backend": "plain"}
    options = {"threads": 1, "kv_cache_memory": "1GiB", "weights_memory": "2GiB"}
    placed = make_job(given, ModelOptions(**options))  # type: ignore[arg-type]
    assert placed.record(None) == {**plain, **options}
    kept = make_job(replace(given, keep_loops=True), ModelOptions())
    assert kept.record(None) == {**plain, "keep_loops": True} and kept.plan.distinct_4 == 0
    asked = make_job(replace(given, template="vicuna"), ModelOptions())
    assert asked.record(None) == {**plain, "template": "vicuna"}


@pytest.mark.parametrize(
    ("running", "option"),
    [
        (ModelOptions(dtype="float32"), "--dtype"),
        (ModelOptions(device="cpu"), "--device"),
        (ModelOptions(backend="plain"), "--backend"),
        (ModelOptions(threads=1), "--threads"),
        (ModelOptions(trust_remote_code=True), "--trust-remote-code"),
        (ModelOptions(speculative_config="{}"), "--speculative-config"),
        (ModelOptions(max_model_len=300), "--max-model-len"),
    ],
    ids=str,
)
def test_a_server_runs_as_it_runs(running: ModelOptions, option: str) -> None:
    """What it can't be told is refused by the option's name."""
    given = BenchOptions(suite="bundled", engine="openai", base_url="http://localhost/v1")
    with pytest.raises(ForetokenError, match=f"so {option} can't be obeyed"):
        make_job(given, running)
    job = make_job(given, ModelOptions(max_model_len=4096))
    assert [*job.parts[0].configs] == ["server"]
    with pytest.raises(ForetokenError, match="asks one process at a time"):
        make_job(replace(given, ray=2), ModelOptions())


def test_a_server_beside_its_baseline_has_another_label() -> None:
    """Else one of the two would be asked in the place of both."""
    urls = {"base_url": "http://localhost:1/v1", "baseline_url": "http://localhost:2/v1"}
    given = BenchOptions(suite="bundled", engine="openai", methods="autoregressive", **urls)
    with pytest.raises(ForetokenError, match="autoregressive is plain decoding"):
        make_job(given, ModelOptions())
    alone = replace(given, baseline_url=None)
    assert [*make_job(alone, ModelOptions()).parts[0].configs] == ["autoregressive"]


def test_targets_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """A GGUF file as it lies and in float32: answers of both are in one file."""
    path = gguf_files.written(tmp_path / "tiny.gguf")
    settings = BenchOptions(suite="bundled", model=str(path), methods="pld", dtypes="auto,float32")
    job = make_job(settings, ModelOptions(device="cpu"))
    targets = [job._server(part, part.model, part.configs).target for part in job.parts]
    keys = [(target["name"], target["dtype"]) for target in targets]
    assert keys == [("tiny.gguf", "float32"), ("tiny", "float32")]
    [alone] = make_job(replace(settings, dtypes="auto"), ModelOptions(device="cpu")).parts
    assert replace(job, parts=[alone])._name(alone) == "tiny"


def test_a_gguf_file_has_a_precision_of_its_own(tmp_path: Path) -> None:
    """Weights in float16 and products in float32: "float32" would be another model."""
    path = gguf_files.written(tmp_path / "tiny.gguf")
    settings = BenchOptions(suite="bundled", model=str(path), methods="pld", dtypes="auto,float32")
    parts = make_job(settings, ModelOptions(device="cpu")).parts
    assert [part.dtype for part in parts] == ["auto", "float32"]
    inflated = BenchOptions(suite="bundled", model=str(path), methods="pld", inflate="135m")
    [part] = make_job(inflated, ModelOptions(device="cpu")).parts
    with (
        pytest.raises(ForetokenError, match="is a GGUF file, and this takes a folder"),
        placed(part.model, part.configs, part.shape),
    ):
        pass


@pytest.mark.parametrize("name", ["float31", "x" * 5000])
def test_an_unknown_precision(checkpoints: tuple[Path, Path], name: str) -> None:
    """It is told by the option, also where there is no room for the name."""
    settings = BenchOptions(suite="bundled", model=str(checkpoints[0]), dtypes=name)
    with pytest.raises(ForetokenError, match="Unknown precision in --dtypes"):
        make_job(settings, ModelOptions(device="cpu"))


def test_what_is_measured_is_read_again(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a part before it has to be measured, for which the answers of later ones are cut off.
    Methods that couldn't be built or served are named together."""
    models = ",".join(map(str, checkpoints))
    given = BenchOptions(suite="bundled", model=models, methods="pld", limit=1, out=tmp_path)
    job = make_job(given, ModelOptions(device="cpu"))
    without = {"sps": "no draft model", "sam": "not built"}
    job = replace(job, parts=[replace(part, left_out=without) for part in job.parts])
    measured: list[str] = []

    def measure(server: Any, *given: Any, shard: tuple[int, int]) -> dict[str, Any]:
        measured.append(server)
        return {"of": server, "not_run": {"sam": "not served", "pld": "nor this"}}

    monkeypatch.setattr(Job, "_server", lambda job, part, place, methods: part.file)
    monkeypatch.setattr("foretoken.bench.run.session.measure", measure)
    monkeypatch.setattr("foretoken.bench.record.read_results", lambda file: read_json(file, "it"))
    first, second = (part.file for part in job.parts)
    for gone, expected in (([], [first, second]), ([], []), ([first], [first, second])):
        for file in gone:
            (tmp_path / file).unlink()
        results: list[Any] = job.run()
        assert measured == expected and [each["of"] for each in results] == [first, second]
        for each in results:
            assert each["not_run"] == {**without, "sam": "not served", "pld": "nor this"}
        measured.clear()
    (tmp_path / second).unlink()
    job.run()
    assert measured == [second]
