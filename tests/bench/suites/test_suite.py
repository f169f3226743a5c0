"""Suites: by name, by path, described in YAML, downloaded; and what is wrong with each, by line."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken import ForetokenError
from foretoken.bench.suites import data, suite
from foretoken.bench.suites.description import read_description
from foretoken.bench.suites.suite import Prompt, find_suite, load_suite, room_left
from suite_files import OWN, describe, write

TEXTS = data.folder()

needs_texts = pytest.mark.skipif(TEXTS is None, reason="FORETOKEN_DATA names no folder of texts")

ASKED, RULES = {"role": "user", "content": "a"}, {"role": "system", "content": "s"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
OFFICIAL_TASKS = ["mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"]


def official() -> list[dict[str, Any]]:
    """A small file of Spec-Bench's form, one question a category."""
    names = [name for own in spec_bench().tasks.values() for name in own]
    return [
        {"question_id": i, "category": name, "turns": ["One?", "Two?"], "reference": ["1", "2"]}
        for i, name in enumerate(names)
    ]


def spec_bench() -> Any:
    return read_description(Path(suite.__file__).parent / "spec-bench.yaml")


def test_a_prompt_needs_three_things() -> None:
    """The category is the task where none is given."""
    prompt = Prompt("1", "qa", ("Who?",))
    assert (prompt.category, prompt.reference, prompt.stop) == ("qa", (), ())
    assert Prompt("1", "mt_bench", ("Who?",), "stem").category == "stem"


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_room(prompt: int, context: int) -> None:
    """Never negative, and what the prompt leaves of the context."""
    left = room_left(prompt, context)
    assert left >= 0 and (left == 0 or prompt + left == context)


def test_room_of_256_is_the_least() -> None:
    """256 tokens are enough and 255 are not."""
    assert room_left(1792, 2048) == suite.LEAST_ROOM and room_left(1793, 2048) < suite.LEAST_ROOM


def test_own_format(tmp_path: Path) -> None:
    """Ids, categories and references are the row's; the name and the sha256 are the file's."""
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


def test_prompts_of_other_spellings(tmp_path: Path) -> None:
    """Without id and task, with either, and of every form; answers are the target's to write."""
    rows = [
        {"prompt": "Hi"},
        {"turns": ["Hi", "So?"], "category": "chat"},
        {"messages": [RULES, RULES, ASKED, {"role": "assistant", "content": "b"}, ASKED]},
        {"system": "s", "conversations": [{"from": "human", "value": "a"}], "id": "x", "task": "t"},
        {"turns": [ASKED], "question_id": 81},
        {"instruction": "Add.", "input": "3 + 4", "output": "7"},
    ]
    assert find_suite(write(tmp_path / "mine.jsonl", rows)).prompts == (
        Prompt("1", "mine", ("Hi",)),
        Prompt("2", "chat", ("Hi", "So?"), "chat"),
        Prompt("3", "mine", ("a", "a"), system="s\ns"),
        Prompt("x", "t", ("a",), system="s"),
        Prompt("81", "mine", ("a",)),
        Prompt("6", "mine", ("Add.\n\n3 + 4",)),
    )


def test_a_prompt_a_line(tmp_path: Path) -> None:
    """Text as an editor may leave it: with a mark at its beginning, blank lines, Windows' ends."""
    path = tmp_path / "mine.txt"
    path.write_bytes("\ufeffHello\u2028there.\r\n\r\n  3 + 4?\n".encode())
    assert find_suite(path).prompts == (
        Prompt("1", "mine", ("Hello\u2028there.",)),
        Prompt("3", "mine", ("  3 + 4?",)),
    )
    path.write_bytes(b"\xff\n")
    with pytest.raises(ForetokenError, match=r"mine\.txt is not text in UTF-8"):
        find_suite(path)
    path.write_bytes(b"\n \n")
    with pytest.raises(ForetokenError, match=r"mine\.txt holds no prompts"):
        find_suite(path)


BAD_LINES = [
    ("{", "line 2: not JSON"),
    ("[1]", "line 2: not a JSON object"),
    ({"id": "b", "task": "qa"}, 'line 2: it has none of "turns", "messages"'),
    ({**OWN, "id": "b", "turns": []}, r"line 2: the turns are \[\]"),
    ({**OWN, "id": "b", "turns": ["x", 3]}, "line 2: A turn is 3"),
    ({**OWN, "id": "b", "turns": "x"}, "line 2: the turns are 'x'"),
    ({"text": "x"}, "line 2: nobody asks anything"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "line 2: nobody asks anything"),
    ({"messages": [ASKED, {"role": "tool", "content": "9"}]}, "line 2: a turn is of role 'tool'"),
    ({"messages": [ASKED, RULES, ASKED]}, "line 2: a turn is of role 'system'"),
    ({"messages": [ASKED], "tools": [TOOL]}, "line 2: it declares tools"),
    ({**OWN, "id": None}, "line 2: id is None"),
    ({**OWN, "id": True}, "line 2: id is True"),
    ({**OWN, "id": "b", "task": []}, r"line 2: task is \[\]"),
    ({**OWN, "id": "b", "category": 3}, "line 2: category is 3"),
    ({**OWN, "id": "b", "turns": ["x", "y"], "reference": ["1", "2", "3"]}, "line 2: .*3 entries"),
    ({**OWN, "id": "b", "reference": {"x": 1}}, "line 2: reference is"),
    (OWN, "line 2: the id 'a' is that of line 1 too"),
]


@pytest.mark.parametrize(("row", "message"), BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, row: Any, message: str) -> None:
    """With its number and what is wrong with it."""
    path = write(tmp_path / "some.jsonl", [OWN, row])
    with pytest.raises(ForetokenError, match=r"some\.jsonl, " + message):
        find_suite(path)


def test_an_unknown_name_names_the_nearest() -> None:
    """And which paths could be given instead."""
    with pytest.raises(ForetokenError, match=r"'spec-bensh'. Did you mean 'spec-bench'\?.*\.jsonl"):
        find_suite("spec-bensh")


def test_rows_without_their_text_are_refused(tmp_path: Path) -> None:
    """A publisher's placeholder is no prompt; complete rows are read."""
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


@needs_texts
def test_the_official_file() -> None:
    """Spec-Bench: 480 questions, 560 turns, six tasks."""
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
    """Its sha256 is not the published one."""
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


def test_packaged_descriptions_are_sound() -> None:
    """Each can be read, and a file with an address has its sha256."""
    names = suite.packaged()
    assert {"bundled", "spec-bench", "mt-bench", "gsm8k", "humaneval"} <= set(names)
    for name in names:
        found = read_description(Path(suite.__file__).parent / f"{name}.yaml")
        assert found.name == name and found.source is not None
        assert found.source.url is None or len(found.source.sha256 or "") == 64
        assert found.source.url is None or "//raw.githubusercontent.com/" in found.source.url


def test_bundled() -> None:
    """The package's own prompts."""
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
    """One row of each published form becomes the prompt that it should."""
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
    """A few keys are enough for files of other benchmarks."""
    source = {"file": f"eval/{file}.jsonl"}  # in the folder of texts
    path = describe(tmp_path / "x.yaml", name="x", source=source, id="{line}", **keys)
    found = find_suite(path).prompts
    assert len(found) == prompts and sum(len(p.turns) for p in found) == turns
    assert sum(bool(p.reference) for p in found) == references


def test_tasks_of_different_sizes_take_turns(tmp_path: Path) -> None:
    """And none of the larger one's prompts is left out."""
    rows = [{"id": f"{i}", "task": task, "turns": ["x"]} for i, task in enumerate("aaab")]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = load_suite(tmp_path / "own.jsonl", "own")
    assert [prompt.id for prompt in found.round_robin()] == ["0", "3", "1", "2"]
    assert [prompt.id for prompt in found.round_robin(2)] == ["0", "3", "1"]
