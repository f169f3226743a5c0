"""Tokenizers from metadata: transformers' ids, special tokens and chat template."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
from transformers import AutoTokenizer

import gguf_files
from foretoken.errors import ForetokenError
from foretoken.models.gguf import config, tokenizer, vocabulary
from foretoken.models.gguf.reader import GGUFFile
from foretoken.models.load import load_tokenizer

TEXTS = (
    "the cat in the hat",
    " a  b\n\n\tif x == 10:\r\n    y = 'don't'",
    "Straße, naïve, 東京, हिन्दी, 👩‍👩‍👧 and <|turn|>the<|end|>",
    "12345 6.7e-8 ▁▁ ",
    "",
)
PIECES = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "ab", "▁ab", "  ", "aba", "▁aba", "<img>"]
BYTES = [f"<0x{i:02X}>" for i in range(256)]
TYPES = [2, 3, 3, *[1] * 9, 4, *[6] * 256]


def pieces(**others: Any) -> dict[str, Any]:
    """The metadata of a SentencePiece vocabulary."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": PIECES + BYTES,
        "tokenizer.ggml.scores": [-float(i % 5) for i in range(len(PIECES + BYTES))],
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": None,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": None,
        **{f"tokenizer.ggml.{name}": value for name, value in others.items()},
    }


def both(path: Path, architecture: str = "llama", **metadata: Any) -> tuple[Any, Any]:
    """Our tokenizer of a file, and transformers'."""
    gguf_files.written(path / "a.gguf", architecture, also=metadata)
    ours = tokenizer.read(GGUFFile(path / "a.gguf"))
    return ours, AutoTokenizer.from_pretrained(path, gguf_file="a.gguf")


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen": ("qwen2", {}),
    "gpt-2": ("llama", {"tokenizer.ggml.pre": "smollm"}),
    "llama 3": ("llama", {"tokenizer.ggml.pre": "llama-bpe"}),
    "tekken": ("llama", {"tokenizer.ggml.pre": "tekken"}),
    "gpt-4o": ("llama", {"tokenizer.ggml.pre": "gpt-4o"}),
    "falcon 3": ("llama", {"tokenizer.ggml.pre": "falcon3"}),
    "a beginning": ("llama", {"tokenizer.ggml.add_bos_token": True}),
    "sentencepiece": ("llama", pieces()),
    "no beginning": ("llama", pieces(add_bos_token=False)),
    "an end": ("llama", pieces(add_eos_token=True)),
    "gemma": ("gemma3", pieces(add_bos_token=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, metadata = CASES[case]
    ours, theirs = both(tmp_path, architecture, **metadata)
    spaced = architecture == "llama" and "tokenizer.ggml.scores" in metadata
    for text in (*TEXTS, "aba ab  aba<img>" if spaced else "aba ab  aba<img>a</s>"):
        ids = theirs(text)["input_ids"]
        assert ours(text)["input_ids"] == ids, text
        assert ours.decode(ids) == theirs.decode(ids)
        bare = ours(text, add_special_tokens=False)["input_ids"]
        assert bare == theirs(text, add_special_tokens=False)["input_ids"]
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "chat_template"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("case", ["qwen", "gemma"])
def test_it_is_made_once(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not copied, which takes a large vocabulary seconds, and as much memory again."""
    seen: list[Any] = []
    keep_whole = tokenizer._keep_whole

    def noted(made: Any, *rest: Any) -> None:
        seen.append(made)
        keep_whole(made, *rest)

    monkeypatch.setattr(tokenizer, "_keep_whole", noted)
    ours, _ = both(tmp_path, CASES[case][0], **CASES[case][1])
    assert ours.backend_tokenizer is seen[0]
    ours.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [again(text)["input_ids"] for text in TEXTS] == [
        ours(text)["input_ids"] for text in TEXTS
    ]


def test_a_conversation_in_the_file_s_template(tmp_path: Path) -> None:
    ours, _ = both(tmp_path)
    ids = ours.apply_chat_template([{"role": "user", "content": "the"}], return_dict=False)
    assert ours.convert_ids_to_tokens(ids) == ["the", "<|turn|>"]


def test_a_template_for_tools(tmp_path: Path) -> None:
    """Hermes 2 Pro's files, for one, have it beside the plain one, under a name."""
    named = {"default": "<|turn|>", "tool_use": "{{ tools[0]['function']['name'] }}"}
    also = {"tokenizer.chat_template": named["default"], "tokenizer.chat_templates": ["tool_use"]}
    also["tokenizer.chat_template.tool_use"] = named["tool_use"]
    made = tokenizer.read(GGUFFile(gguf_files.written(tmp_path / "a.gguf", also=also)))
    assert made.chat_template == named
    turns = [{"role": "user", "content": "the"}]
    tools = [{"type": "function", "function": {"name": "the", "parameters": {}}}]
    assert made.apply_chat_template(turns, tokenize=False) == "<|turn|>"
    assert made.apply_chat_template(turns, tools=tools, tokenize=False) == "the"
    pairs = vocabulary.metadata(made, gguf_files.VOCAB)
    assert {key: pairs[key] for key in also} == also
    no_other = also | {"tokenizer.chat_template": None, "tokenizer.chat_template.rag": "a"}
    alone = tokenizer.read(GGUFFile(gguf_files.written(tmp_path / "b.gguf", also=no_other)))
    assert alone.chat_template is None, "no one can talk plainly by it"


def test_no_space_is_put_before_a_text_where_the_file_says_so(tmp_path: Path) -> None:
    """Which transformers' reader leaves out."""
    path = gguf_files.written(tmp_path / "a.gguf", also=pieces(add_space_prefix=False))
    made = tokenizer.read(GGUFFile(path))
    assert made.convert_ids_to_tokens(made("ab")["input_ids"]) == ["<s>", "ab"]
    assert made.decode(made(" ab", add_special_tokens=False)["input_ids"]) == " ab"


@pytest.mark.parametrize("prefix", [True, False])
def test_a_space_before_what_follows_a_special_token(prefix: bool, tmp_path: Path) -> None:
    """As the makers of Llama 2 and Mistral write their chats, and llama.cpp; transformers' reader
    puts it before the whole text alone. A space that is there is not doubled, as in transformers;
    llama.cpp doubles it."""
    path = gguf_files.written(tmp_path / "a.gguf", also=pieces(add_space_prefix=prefix))
    made = tokenizer.read(GGUFFile(path))
    ids = made("<s>ab</s>ab<img>a</s> ab", add_special_tokens=False)["input_ids"]
    ab, a = ("▁ab", "▁a") if prefix else ("ab", "a")
    assert made.convert_ids_to_tokens(ids) == ["<s>", ab, "</s>", ab, "<img>", a, "</s>", "▁ab"]
    written = vocabulary.metadata(made, len(PIECES + BYTES))
    assert written["tokenizer.ggml.add_space_prefix"] == prefix


def test_phi_3_puts_a_space_before_one(tmp_path: Path) -> None:
    """As transformers reads it; it has Llama's vocabulary, whose texts get none there."""
    for architecture, count in (("phi3", 3), ("llama", 2)):
        (folder := tmp_path / architecture).mkdir()
        writer = gguf.GGUFWriter(folder / "a.gguf", architecture)
        for key, value in pieces().items():
            if value is not None:
                gguf_files.add(writer, key, value)
        gguf_files.finish(writer)
        ours = load_tokenizer(folder / "a.gguf")
        theirs = AutoTokenizer.from_pretrained(folder, gguf_file="a.gguf")
        for text in ("ab", " ab", "  ab", "a  ab", *TEXTS):
            ids = theirs(text)["input_ids"]
            assert ours(text)["input_ids"] == ids, text
            assert ours.decode(ids) == theirs.decode(ids)
        read = ours.convert_ids_to_tokens(ours("  ab", add_special_tokens=False)["input_ids"])
        assert read == [*["▁"] * (count - 1), "▁ab"]


def test_phi_3_strips_what_follows_a_special_token(tmp_path: Path) -> None:
    """Line ends of its chat template, which no metadata say; but not after the tokens that begin
    and end whole texts, and not in Phi 4's files, which are byte-level."""
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "phi3")
    tokens = [*PIECES[:-1], "<|user|>", "<|endoftext|>", *BYTES[1:]]
    given = pieces(tokens=tokens, token_type=[2, 3, 3, *[1] * 9, 3, 3, *[6] * 255])
    for key, value in given.items():
        if value is not None:
            gguf_files.add(writer, key, value)
    gguf_files.finish(writer)
    made = load_tokenizer(tmp_path / "a.gguf")
    for text, expected in (
        ("<|user|>\nab", ["<|user|>", "▁ab"]),
        ("ab</s>\nab", ["▁ab", "</s>", "▁ab"]),
        ("<|endoftext|>\nab", ["<|endoftext|>", "▁", "<0x0A>", "ab"]),
    ):
        ids = made(text, add_special_tokens=False)["input_ids"]
        assert made.convert_ids_to_tokens(ids) == expected, text


def test_ids_of_tokens_that_there_are_not(tmp_path: Path) -> None:
    """Some converters write -1 for padding, without its sign; llama.cpp runs such files."""
    also = pieces(padding_token_id=2**32 - 1, unknown_token_id=2**32 - 1)
    file = GGUFFile(gguf_files.written(tmp_path / "a.gguf", also=also))
    made = tokenizer.read(file)
    assert made.pad_token is None and made.unk_token is None and made("ab")["input_ids"]
    assert config.read(file).pad_token_id is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"tokenizer.ggml.model": "bert"}, "tokenizer is of kind 'bert'"),
    "other words": ({"tokenizer.ggml.pre": "chameleon"}, "cutting text, 'chameleon', isn't known"),
    "a merge of nothing": ({"tokenizer.ggml.merges": ["zz zz"]}, "its tokenizer can't be made"),
    "too few scores": (pieces(scores=[0.0]), "tokens and 1 scores"),
    "an id that is none": ({"tokenizer.ggml.bos_token_id": 9999}, "its bos_token is 9999"),
    "kinds that are none": ({"tokenizer.ggml.token_type": 3}, "its tokenizer can't be made"),
    "kinds that are texts": ({"tokenizer.ggml.token_type": ["a"]}, "no list of as many types"),
    "too few kinds": ({"tokenizer.ggml.token_type": [1, 1]}, "no list of as many types"),
    "a template that is none": ({"tokenizer.chat_template": 3}, "chat_template is 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_tokenizer_is_refused(case: str, tmp_path: Path) -> None:
    metadata, message = REFUSED[case]
    file = GGUFFile(gguf_files.written(tmp_path / "a.gguf", also=metadata))
    with pytest.raises(ForetokenError, match=message):
        tokenizer.read(file)


def test_words_are_those_of_transformers() -> None:
    """Every way of cutting text that its reader knows, but those of models that run by its code."""
    from transformers.integrations.gguf import gguf_tokenizer_mapping as theirs

    known = theirs.GGUF_PRE_TOKENIZER_SPLITS
    theirs_alone = tokenizer._THEIRS
    assert {name: tokenizer.WORDS.get(name) for name in known if name not in theirs_alone} == {
        name: split for name, split in known.items() if name not in theirs_alone
    }


@pytest.mark.parametrize("kind", [3, 1])
def test_control_tokens_outside_ascii(kind: int, tmp_path: Path) -> None:
    """DeepSeek's marks are single tokens of the file's own ids, and are written as they are; where
    transformers gives them ids beyond the vocabulary. One with a part of its own is such a mark,
    whatever its type."""
    begin, user = "<｜begin▁of▁sentence｜>", "<｜User｜>"
    tokens = [*gguf_files.tokens()[:-2], begin, user]
    count = len(tokens)
    also = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (count - 2) + [kind, 3],
        "tokenizer.ggml.pre": "deepseek-r1-qwen",
        "tokenizer.ggml.bos_token_id": count - 2,
        "tokenizer.ggml.eos_token_id": count - 2,
        "tokenizer.ggml.eot_token_id": None,
        "tokenizer.ggml.add_bos_token": True,
    }
    made = tokenizer.read(GGUFFile(gguf_files.written(tmp_path / "a.gguf", also=also)))
    ids = made(f"{user}the")["input_ids"]
    assert ids[:2] == [count - 2, count - 1] and max(ids) < count
    assert made.bos_token_id == count - 2 and len(made) == count
    assert made.decode(ids) == f"{begin}{user}the"
    assert made.decode(ids, skip_special_tokens=True) == "the"


def test_added_tokens_outside_ascii(tmp_path: Path) -> None:
    """Tokens that a model's makers added are written as they are, and never cut; where transformers
    takes them for bytes."""
    added = ["東京", "  two", "<tool>"]
    tokens = [*gguf_files.tokens()[:-2], *added, "<|end|>"]
    end = len(tokens) - 1
    also = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (end - 3) + [4, 4, 4, 3],
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.eot_token_id": None,
    }
    made = tokenizer.read(GGUFFile(gguf_files.written(tmp_path / "a.gguf", also=also)))
    text = "the東京  two<tool>in"
    ids = made(text)["input_ids"]
    assert made.convert_ids_to_tokens(ids) == ["the", *added, "in"]
    assert made.decode(ids) == made.decode(ids, skip_special_tokens=True) == text
    assert vocabulary.metadata(made, len(tokens))["tokenizer.ggml.tokens"] == tokens


def test_an_added_token_that_pairs_make(tmp_path: Path) -> None:
    """It is one of the vocabulary's, written in another way."""
    tokens = gguf_files.tokens()
    place = tokens.index("Ġthe")
    kinds = [4 if i == place else 1 for i in range(len(tokens) - 2)]
    tokens[place] = " the"
    also = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [*kinds, 3, 3]}
    ours, theirs = both(tmp_path, **also)
    assert ours("in the")["input_ids"] == theirs("in the")["input_ids"]
    assert place in ours("in the")["input_ids"]


def test_a_token_too_long_to_cut(tmp_path: Path) -> None:
    """Merges that a file doesn't list are found by cutting each token at each place."""
    given = pieces()
    tokens = [*given["tokenizer.ggml.tokens"][:-1], "a" * 2_000_000]
    path = gguf_files.written(tmp_path / "a.gguf", also=given | {"tokenizer.ggml.tokens": tokens})
    with pytest.raises(ForetokenError, match="token of 2000000 characters"):
        tokenizer.read(GGUFFile(path))


def with_tokens(*more: str, words: str | None) -> dict[str, Any]:
    """The metadata of a vocabulary with more tokens, in two parts where a merge makes them, which
    is cut in this way."""
    common, ends = gguf_files.tokens()[:-2], gguf_files.tokens()[-2:]
    tokens = [*common, *(token.replace(" ", "") for token in more), *ends]
    at = {"bos": len(tokens) - 2, "eos": len(tokens) - 2, "eot": len(tokens) - 1}
    return {
        "tokenizer.ggml.pre": words,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [3, 3],
        "tokenizer.ggml.merges": [*gguf_files.MERGES, *(token for token in more if " " in token)],
        **{f"tokenizer.ggml.{name}_token_id": i for name, i in at.items()},
    }


def cut(path: Path, text: str, architecture: str = "llama", **metadata: Any) -> list[str]:
    """The tokens of a text by a file's tokenizer."""
    made = tokenizer.read(GGUFFile(gguf_files.written(path, architecture, also=metadata)))
    tokens: list[str] = made.convert_ids_to_tokens(made(text)["input_ids"])
    return tokens


@pytest.mark.parametrize(
    ("words", "kept"), [*((words, True) for words in tokenizer.DIGITS), ("gpt-2", False)]
)
def test_spaces_and_line_ends_before_a_number(words: str, kept: bool, tmp_path: Path) -> None:
    """SmolLM's makers cut out each digit first, so that what stands before it stays together, as in
    front of a list's "1."; transformers' reader takes GPT-2's way for it."""
    also = with_tokens("Ċ Ċ", "Ġ Ġ", words=words)
    expected = ["ĊĊ", "1", "2", "ĠĠ", "3"] if kept else ["Ċ", "Ċ", "1", "2", "Ġ", "Ġ", "3"]
    assert cut(tmp_path / "a.gguf", "the\n\n12  3", **also) == ["the", *expected]


@pytest.mark.parametrize("words", [*tokenizer.WHOLE, "smaug-bpe", "qwen2", "gpt-4o", "smollm"])
def test_a_word_that_no_merges_make(words: str, tmp_path: Path) -> None:
    """In vocabularies that have such, it is the token that it is, as llama.cpp and the makers of
    these models have it; transformers' reader leaves that out."""
    also = with_tokens("Ġinin", words=words)
    found = cut(tmp_path / "a.gguf", "the inin ininin", **also)
    word = ["Ġinin"] if words in tokenizer.WHOLE else ["Ġ", "in", "in"]
    assert found == ["the", *word, "Ġ", "in", "in", "in"]


def test_a_file_that_names_no_way_of_cutting_text(tmp_path: Path) -> None:
    """Files didn't before May 2024. A family whose models have one way has it; another is refused:
    by GPT-2's way it would get other ids at every empty line."""
    named, unnamed = (with_tokens("Ċ Ċ", words=words) for words in ("qwen2", None))
    for number, also in enumerate((named, unnamed)):
        found = cut(tmp_path / f"{number}.gguf", "the\n\nin", "qwen2", **also)
        assert found == ["the", "ĊĊ", "in"]
    with pytest.raises(ForetokenError, match=r"way of cutting text .*May 2024; give the model's"):
        cut(tmp_path / "a.gguf", "the", **unnamed)


def test_the_tokenizer_of_an_architecture_that_transformers_reads(tmp_path: Path) -> None:
    """A byte-level one is read here: a way of cutting text that transformers' reader doesn't know
    it takes for GPT-2's."""

    def read(words: str) -> Any:
        path = tmp_path / f"{words}.gguf"
        writer = gguf.GGUFWriter(path, "starcoder2")
        for key, value in (gguf_files.VOCABULARY | with_tokens("Ċ Ċ", words=words)).items():
            gguf_files.add(writer, key, value)
        gguf_files.finish(writer)
        return load_tokenizer(path)

    for words in ("starcoder", "stablelm2"):
        made = read(words)
        assert made.convert_ids_to_tokens(made("the\n\n1")["input_ids"]) == ["the", "ĊĊ", "1"]
    with pytest.raises(ForetokenError, match="its way of cutting text, 'falcon', isn't known"):
        read("falcon")


OPENING = "llama3 llama-v3 llama-bpe pixtral falcon3 falcon-h1 midm-2.0 lfm2 jina-v5-nano tekken"


@pytest.mark.parametrize("words", OPENING.split())
def test_texts_whose_beginning_the_file_does_not_say(words: str, tmp_path: Path) -> None:
    """Those of these ways of cutting text have one, as llama.cpp takes it; others have none."""
    for named, begins in ((words, True), ("qwen2", False)):
        also = {"tokenizer.ggml.pre": named, "tokenizer.ggml.add_bos_token": None}
        path = gguf_files.written(tmp_path / "a.gguf", also=also)
        made = tokenizer.read(GGUFFile(path))
        assert (made("the")["input_ids"][0] == made.bos_token_id) is begins


def test_merges_hold_the_vocabularys_own_texts() -> None:
    """Half a million pairs of a Gemma's would have a million texts of their own."""
    vocabulary = {"ab": 0, "cd": 1, "abcd": 2}
    [(left, right, made)] = tokenizer._pairs(vocabulary)
    one, other, _ = vocabulary
    assert left is one and right is other and made == 2


def test_of_merges_that_are_as_good_those_with_a_longer_left_part_come_first() -> None:
    vocabulary = {token: i for i, token in enumerate(("a", "b", "c", "ab", "bc", "abc"))}
    file: Any = SimpleNamespace(metadata={})
    found = tokenizer._merges(file, vocabulary, [0.0] * 6)
    assert found == [("ab", "c"), ("a", "bc"), ("a", "b"), ("b", "c")]
    by_place = tokenizer._merges(file, vocabulary, None)
    assert by_place == [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]


def test_gemmas_merges_follow_from_its_vocabularys_order(tmp_path: Path) -> None:
    """Whatever the scores that a converter wrote."""
    tokens = [*PIECES[:8], "bb", *PIECES[9:], *BYTES]
    scores = [-9.0 * (token == "ab") for token in tokens]
    also = pieces(tokens=tokens, scores=scores)
    assert cut(tmp_path / "a.gguf", "abb", "gemma3", **also) == ["<s>", "ab", "b"]


def test_what_gemma_has_no_bytes_for(tmp_path: Path) -> None:
    """It is written as the unknown token."""
    also = pieces(tokens=PIECES, scores=[0.0] * len(PIECES), token_type=TYPES[: len(PIECES)])
    assert cut(tmp_path / "a.gguf", "acb", "gemma3", **also) == ["<s>", "a", "<unk>", "b"]


def test_tokenizers_that_transformers_reads() -> None:
    """Those of models that run by its code."""
    for words, ours in (("qwen2", True), ("not known", True), ("qwen35", False)):
        pairs = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": words}
        file: Any = SimpleNamespace(architecture="qwen2", metadata=pairs)
        assert tokenizer.serves(file) is ours
