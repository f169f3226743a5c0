"""Suites: by name, by path, described in YAML, downloaded; and what is wrong with each, by line."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken import ForetokenError
from foretoken.bench.suites import data, suite
from foretoken.bench.suites.description import read_description
from foretoken.bench.suites.suite import Prompt, find_suite, load_suite, room_left

TEXTS = data.folder()
needs_texts = pytest.mark.skipif(TEXTS is None, reason="FORETOKEN_DATA names no folder of texts")

OFFICIAL_TASKS = ["mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"]
OWN = {"id": "a", "task": "qa", "turns": ["Who?"]}


def write(path: Path, rows: list[Any]) -> Path:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def describe(path: Path, **keys: Any) -> Path:
    path.write_text(json.dumps(keys))  # every JSON text is YAML
    return path


def official() -> list[dict[str, Any]]:
    """A small file of Spec-Bench's form, one question a category."""
    names = [name for own in spec_bench().tasks.values() for name in own]
    return [
        {"question_id": i, "category": name, "turns": ["One?", "Two?"], "reference": ["1", "2"]}
        for i, name in enumerate(names)
    ]


def spec_bench() -> Any:
    return read_description(Path(suite.__file__).parent / "spec-bench.yaml")


# --- the prompts ---------------------------------------------------------------------------------


def test_a_prompt_needs_three_things() -> None:
    prompt = Prompt("1", "qa", ("Who?",))
    assert (prompt.category, prompt.reference, prompt.stop) == ("qa", (), ())
    assert Prompt("1", "mt_bench", ("Who?",), "stem").category == "stem"


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_room(prompt: int, context: int) -> None:
    left = room_left(prompt, context)
    assert left >= 0 and (left == 0 or prompt + left == context)


def test_room_of_256_is_the_least() -> None:
    assert room_left(1792, 2048) == suite.LEAST_ROOM and room_left(1793, 2048) < suite.LEAST_ROOM


def test_own_format(tmp_path: Path) -> None:
    rows = [
        {**OWN, "turns": ["Who\u2028is it?"], "reference": ["Ann", "Anna"]},  # no line ends there
        {"id": 7, "task": "chat", "category": "small talk", "turns": ["Hi", "So?"]},
        {"id": "c", "task": "chat", "turns": ["Hi", "So?"], "reference": [["x", "y"], ""]},
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n\n", "utf-8")
    one, two, three = find_suite(path).prompts
    assert one.turns == ("Who\u2028is it?",) and one.reference == (("Ann", "Anna"),)
    assert (two.id, two.category, two.reference) == ("7", "small talk", ())
    assert three.reference == (("x", "y"), ())
    found = load_suite(path, "named")
    assert (found.name, find_suite(path).name) == ("named", "mine")
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


BAD_LINES = [
    ("{", "line 2: not JSON"),
    ("[1]", "line 2: not a JSON object"),
    ({"task": "qa", "turns": ["x"]}, "line 2: there is no 'id'"),
    ({"id": "b", "turns": ["x"]}, "line 2: there is no 'task'"),
    ({"id": "b", "task": "qa"}, "line 2: there is no 'turns'"),
    ({**OWN, "id": "b", "turns": []}, r"line 2: the turns are \[\]"),
    ({**OWN, "id": "b", "turns": ["x", 3]}, "line 2: the turns are"),
    ({**OWN, "id": "b", "turns": "x"}, "line 2: the turns are 'x'"),
    ({**OWN, "id": None}, "line 2: id is None"),
    ({**OWN, "id": "b", "category": 3}, "line 2: category is 3"),
    ({**OWN, "id": "b", "turns": ["x", "y"], "reference": ["1", "2", "3"]}, "line 2: .*3 entries"),
    ({**OWN, "id": "b", "reference": {"x": 1}}, "line 2: reference is"),
    (OWN, "line 2: the id 'a' is that of line 1 too"),
]


@pytest.mark.parametrize(("row", "message"), BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, row: Any, message: str) -> None:
    path = write(tmp_path / "some.jsonl", [OWN, row])
    with pytest.raises(ForetokenError, match=r"some\.jsonl, " + message):
        find_suite(path)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(json.dumps(OWN).encode() + b'\n{"id": "\xff"}')
    with pytest.raises(ForetokenError, match=r"some\.jsonl, line 2: not JSON"):
        find_suite(path)


def test_no_file_no_prompts(tmp_path: Path) -> None:
    with pytest.raises(ForetokenError, match=r"none\.jsonl can't be read: No such file"):
        find_suite(tmp_path / "none.jsonl")
    with pytest.raises(ForetokenError, match=r"some\.jsonl holds no prompts"):
        find_suite(write(tmp_path / "some.jsonl", ["", " "]))
    (tmp_path / "some.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(ForetokenError, match=r"some\.jsonl\.gz can't be unpacked"):
        find_suite(tmp_path / "some.jsonl.gz")


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ForetokenError, match=r"'spec-bensh'. Did you mean 'spec-bench'\?.*\.jsonl"):
        find_suite("spec-bensh")


# --- descriptions --------------------------------------------------------------------------------


def test_a_description_says_which_field_is_what(tmp_path: Path) -> None:
    rows = [
        {"q": "Who {is} it?", "answers": {"text": ["Ann", "Anna"]}, "kind": "who"},
        {"q": "How many?", "answers": {"text": [3]}, "kind": "number"},
    ]
    write(tmp_path / "questions.jsonl", rows)
    path = describe(
        tmp_path / "mine.yaml",
        name="mine",
        source={"file": "questions.jsonl"},
        id="q-{line}",
        task="qa",
        category="kind",
        template="{{In a word}} {q} ({answers.text.0})",
        reference="answers.text",
        system="You know {kind}.",
        stop=["\n"],
        max_tokens=5,
    )
    assert find_suite(path).prompts == (
        Prompt(
            "q-1",
            "qa",
            ("{In a word} Who {is} it? (Ann)",),
            "who",
            (("Ann", "Anna"),),
            ("\n",),
            5,
            "You know who.",
        ),
        Prompt(
            "q-2",
            "qa",
            ("{In a word} How many? (3)",),
            "number",
            (("3",),),
            ("\n",),
            5,
            "You know number.",
        ),
    )


def test_messages_are_turns(tmp_path: Path) -> None:
    said = [
        {"role": r, "content": c} for r, c in [("user", "a"), ("assistant", "b"), ("user", "c")]
    ]
    write(tmp_path / "chats.jsonl", [{**OWN, "messages": said}])
    path = describe(
        tmp_path / "c.yaml",
        name="c",
        source={"file": "chats.jsonl"},
        turns="messages",
        reference="messages.1.content",
    )
    [prompt] = find_suite(path).prompts
    assert prompt.turns == ("a", "c") and prompt.reference == (("b",), ())


BAD_DESCRIPTIONS = [
    ({"templat": "x"}, r"Unknown key 'templat'\. Did you mean 'template'"),
    ({"source": {"fil": "x"}}, "Unknown key 'fil'. Did you mean 'file'"),
    ({"source": None}, "source must be given as keys"),
    ({"source": {}}, "either a file or a dataset"),
    ({"source": {"file": "x", "dataset": "y", "split": "z"}}, "either a file or a dataset"),
    ({"source": {"file": "x", "url": "https:x"}}, "url without a sha256"),
    ({"source": {"file": "x", "url": "ftp:x", "sha256": "0"}}, "starts with https:"),
    ({"source": {"file": "x", "split": "test"}}, "go with a dataset"),
    ({"source": {"dataset": "x"}}, "needs a split"),
    ({"name": 3}, "name is 3; it must be text"),
    ({"max_tokens": 0}, "max_tokens is 0; it must be a number of 1 or more"),
    ({"max_tokens": True}, "max_tokens is True"),
    ({"stop": "\n"}, "must be a list of texts"),
    ({"tasks": {"a": "b"}}, "each with a list of its categories"),
    ({"tasks": {"a": ["b"]}, "task": "a"}, "either task or tasks"),
    ({"template": "{x}", "turns": "x"}, "either template or turns"),
    ({"template": "def f(): {"}, "braces that hold no field"),
    ({"template": '{"a": 1}'}, "braces that hold no field"),
    ({"template": "{}"}, "braces that hold no field"),
]


@pytest.mark.parametrize(("keys", "message"), BAD_DESCRIPTIONS)
def test_a_bad_description_is_one_sentence(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    given = {"name": "mine", "source": {"file": "x.jsonl"}, **keys}
    with pytest.raises(ForetokenError, match=r"mine\.yaml: .*" + message):
        find_suite(describe(tmp_path / "mine.yaml", **given))


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "is not YAML: .*line 1"), ("- a", "must be given as keys"), ("{}", "needs a name")],
)
def test_what_is_no_description(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ForetokenError, match=message):
        find_suite(tmp_path / "x.yaml")
    with pytest.raises(ForetokenError, match=r"y\.yaml can't be read"):
        find_suite(tmp_path / "y.yaml")


def test_fields_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", [{**OWN, "answer": "Ann"}])
    given: dict[str, Any] = {"name": "mine", "source": {"file": "x.jsonl"}}
    with pytest.raises(ForetokenError, match=r"x\.jsonl, line 1: there is no 'question'"):
        find_suite(describe(tmp_path / "a.yaml", **given, template="{question}"))
    with pytest.raises(ForetokenError, match=r"No row of .*x\.jsonl has a 'answr'"):
        find_suite(describe(tmp_path / "b.yaml", **given, reference="answr"))
    with pytest.raises(ForetokenError, match=r"line 1: turns is \['Who\?'\]; it must be text"):
        find_suite(describe(tmp_path / "c.yaml", **given, template="{turns}"))
    given["source"] = {"file": "nowhere.jsonl"}
    with pytest.raises(ForetokenError, match=r"There is no file .*nowhere\.jsonl"):
        find_suite(describe(tmp_path / "d.yaml", **given))


def test_rows_without_their_text_are_refused(tmp_path: Path) -> None:
    masked = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
    rows = [
        {"question_id": str(i), "category": "rag", "turns": turns}
        for i, turns in enumerate([["Who?"], ["Who?", masked], [masked + "\n\n{question}"]])
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ForetokenError, match=r"2 of the 3 rows .*speed-bench-qualitative=PATH"):
        find_suite(f"speed-bench-qualitative={path}")
    [prompt] = find_suite(f"speed-bench-qualitative={write(path, rows[:1])}").prompts
    assert (prompt.id, prompt.task, prompt.turns) == ("0", "rag", ("Who?",))


# --- the hub -------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A datasets library that notes how it is called and has two rows."""
    calls: list[Any] = []

    def load_dataset(*args: Any, **options: Any) -> list[dict[str, Any]]:
        calls.append((args, options))
        if args[0] == "gone":
            raise ConnectionError("no route")
        return [{**OWN, "id": i} for i in (1, 2)]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_a_hub_dataset(tmp_path: Path, hub: list[Any]) -> None:
    source = {"dataset": "who/what", "config": "small", "split": "test", "revision": "1234"}
    found = find_suite(describe(tmp_path / "h.yml", name="h", source=source))
    assert hub == [(("who/what", "small"), {"split": "test", "revision": "1234"})]
    assert [p.id for p in found.prompts] == ["1", "2"] and len(found.sha256) == 64
    source["dataset"] = "gone"
    with pytest.raises(ForetokenError, match="The dataset gone can't be read: no route"):
        find_suite(describe(tmp_path / "h.yml", name="h", source=source))


def test_a_parquet_file(tmp_path: Path, hub: list[Any]) -> None:
    with pytest.raises(ForetokenError, match=r"There is no file .*x\.parquet"):
        find_suite(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").touch()
    assert len(find_suite(tmp_path / "x.parquet").prompts) == 2


def test_the_hub_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ForetokenError, match="pip install datasets"):
        find_suite("speed-bench-throughput")


# --- downloading ---------------------------------------------------------------------------------


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, bytes]]]:
    """A web server on this machine: its address and the files that it has."""
    files: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in files else 404)
            self.end_headers()
            self.wfile.write(files.get(self.path, b""))

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
    server.server_close()


def test_a_file_is_downloaded_once(tmp_path: Path, home: tuple[str, dict[str, bytes]]) -> None:
    address, files = home
    content = files["/q.jsonl.gz"] = gzip.compress(json.dumps(OWN).encode())
    sha256 = hashlib.sha256(content).hexdigest()
    source = {"file": "q.jsonl.gz", "url": f"{address}/q.jsonl.gz", "sha256": sha256}
    path, cache = describe(tmp_path / "d.yaml", name="d", source=source), tmp_path / "cache"
    with pytest.raises(ForetokenError, match="downloading it is switched off"):
        find_suite(path, cache=cache, download=False)
    found = find_suite(path, cache=cache)
    assert found.sha256 == sha256 and [p.id for p in found.prompts] == ["a"]
    assert [p.name for p in (cache / "suites").iterdir()] == [f"{sha256[:16]}-q.jsonl.gz"]
    files.clear()
    assert find_suite(path, cache=cache, download=False) == found


def test_a_wrong_download_leaves_nothing(
    tmp_path: Path, home: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, files = home
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    source = {"file": "q.jsonl", "url": f"{address}/q.jsonl", "sha256": "0" * 64}
    path = describe(tmp_path / "d.yaml", name="d", source=source)
    with pytest.raises(ForetokenError, match=r"can't be downloaded .*Not Found.*NAME=PATH"):
        find_suite(path)
    files["/q.jsonl"] = json.dumps(OWN).encode()
    with pytest.raises(ForetokenError, match=r"q\.jsonl has the sha256 .* published file has 0000"):
        find_suite(path)
    assert not (tmp_path / "cache").exists()


# --- the official file ---------------------------------------------------------------------------


@needs_texts
def test_the_official_file() -> None:
    found = find_suite("spec-bench", download=False)
    assert len(found.prompts) == 480
    assert sum(len(p.turns) for p in found.prompts) == 560
    assert len({p.category for p in found.prompts}) == 13
    assert Counter(p.task for p in found.prompts) == dict.fromkeys(OFFICIAL_TASKS, 80)
    assert [p.id for p in found.prompts] == [str(i) for i in range(81, 561)]
    assert sum(any(p.reference) for p in found.prompts) == 359
    assert all(len(p.reference) in (0, len(p.turns)) for p in found.prompts)
    assert [p.task for p in found.round_robin(1)] == OFFICIAL_TASKS
    longest = max((p for p in found.prompts if p.task == "rag"), key=lambda p: len(p.reference[0]))
    assert len(longest.reference[0]) == 9  # the right answers of one turn, not a turn each


@needs_texts
def test_every_reference_of_the_official_file_scores() -> None:
    """An answer that is the reference itself gets full marks."""
    from foretoken.bench.measure.scores import score

    best = {"accuracy": 1, "bleu": 100, "rouge_l": 1}
    counts: Counter[str] = Counter()
    for prompt in find_suite("spec-bench", download=False).prompts:
        for turn, right in enumerate(prompt.reference):
            found = score(prompt, turn, right[0] if right else "")
            assert bool(found) == bool(right)
            assert found == pytest.approx({name: best[name] for name in found})
            counts.update((prompt.task, name) for name in found)  # type: ignore[misc]
    assert counts == {
        ("mt_bench", "rouge_l"): 63,
        ("mt_bench", "accuracy"): 7,
        ("translation", "bleu"): 80,
        ("summarization", "rouge_l"): 80,
        ("math_reasoning", "accuracy"): 80,
        ("rag", "accuracy"): 80,
        ("rag", "rouge_l"): 80,
    }


@needs_texts
def test_a_changed_official_file_is_reported(tmp_path: Path) -> None:
    assert TEXTS is not None
    rows = (TEXTS / "spec_bench" / "question.jsonl").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "question.jsonl"

    def read(changed: list[str]) -> None:
        find_suite(f"spec-bench={write(path, changed)}")

    with pytest.raises(ForetokenError, match=r"question\.jsonl has the sha256 .*4b6d33e7"):
        read(rows[:-1])
    with pytest.raises(ForetokenError, match=r"question\.jsonl, line 300: not JSON"):
        read([*rows[:299], rows[299][:-9], *rows[300:]])
    with pytest.raises(ForetokenError, match=r"question\.jsonl, line 480: the id '83' .* line 3 "):
        read([*rows[:479], rows[2]])
    with pytest.raises(ForetokenError, match=r"question\.jsonl, line 81: .*category 'sums'"):
        read([*rows[:80], rows[80].replace('"translation"', '"sums"'), *rows[81:]])


def test_files_of_the_official_form(tmp_path: Path) -> None:
    """The same without the data: a small file has every category and only its sha256 is wrong."""
    rows = official()
    path = write(tmp_path / "question.jsonl", rows)
    with pytest.raises(ForetokenError, match=r"question\.jsonl has the sha256"):
        find_suite(f"spec-bench={path}")
    write(path, [*rows, {**rows[0], "question_id": 99, "category": "maths"}])
    message = r"line 14: Unknown category 'maths'\. Did you mean 'math'"
    with pytest.raises(ForetokenError, match=message):
        find_suite(f"spec-bench={path}")
    del rows[3]["category"]
    with pytest.raises(ForetokenError, match=r"line 4: there is no 'category'"):
        find_suite(f"spec-bench={write(path, rows)}")


# --- the others ----------------------------------------------------------------------------------


def test_packaged_descriptions_are_sound() -> None:
    names = suite.packaged()
    assert {"bundled", "spec-bench", "mt-bench", "gsm8k", "humaneval"} <= set(names)
    for name in names:
        found = read_description(Path(suite.__file__).parent / f"{name}.yaml")
        assert found.name == name and found.source is not None
        assert found.source.url is None or len(found.source.sha256 or "") == 64


def test_bundled() -> None:
    from foretoken import zoo

    found = find_suite("bundled")
    assert found.prompts == load_suite(zoo.prompts_path(), "bundled").prompts
    assert len({p.task for p in found.prompts}) == 7


@pytest.mark.parametrize(
    ("name", "row", "prompt"),
    [
        (
            "gsm8k",
            {"question": "How many?", "answer": "1+1=2\n#### 2"},
            Prompt(
                "gsm8k-1",
                "math_reasoning",
                ("How many?",),
                reference=(("1+1=2\n#### 2",),),
                max_tokens=512,
            ),
        ),
        (
            "humaneval",
            {"task_id": "HumanEval/0", "prompt": "def f():\n"},
            Prompt(
                "HumanEval/0",
                "coding",
                (
                    "Complete this Python function. Answer with the whole function and nothing "
                    "else."
                    "\n\n```python\ndef f():\n```",
                ),
                max_tokens=512,
            ),
        ),
        (
            "mt-bench",
            {"question_id": 81, "category": "stem", "turns": ["a", "b"]},
            Prompt("81", "mt_bench", ("a", "b"), "stem", max_tokens=1024),
        ),
    ],
)
def test_rows_of_published_files(
    tmp_path: Path, name: str, row: dict[str, Any], prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "one.jsonl", [row])
    with pytest.raises(ForetokenError, match="has the sha256"):
        find_suite(f"{name}={path}")
    monkeypatch.setattr(suite, "check_sha256", lambda *_: None)
    assert find_suite(f"{name}={path}").prompts == (prompt,)


@needs_texts
@pytest.mark.parametrize(
    ("file", "keys", "prompts", "turns", "references"),
    [
        (
            "gsm8k_test",
            {"template": "{messages.0.content}", "reference": "messages.1.content"},
            1319,
            1319,
            1319,
        ),
        ("humaneval", {"template": "{text}"}, 164, 164, 0),
        ("mt_bench_questions", {"turns": "messages"}, 80, 160, 0),
    ],
)
def test_files_in_another_form_take_a_short_description(
    tmp_path: Path, file: str, keys: dict[str, Any], prompts: int, turns: int, references: int
) -> None:
    source = {"file": f"eval/{file}.jsonl"}  # in the folder of texts
    path = describe(tmp_path / "x.yaml", name="x", source=source, id="{line}", **keys)
    found = find_suite(path).prompts
    assert len(found) == prompts and sum(len(p.turns) for p in found) == turns
    assert sum(bool(p.reference) for p in found) == references
