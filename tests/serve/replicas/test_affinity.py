"""Where prompts go."""

from __future__ import annotations

from foretoken.serve.replicas.affinity import BLOCK, MOST, Affinity

LONG = "".join(chr(65 + i * 7 % 26) + str(i) for i in range(200))


def _two(imbalance: int = 4) -> Affinity[str]:
    """One replica that has read a text, one that has read another."""
    affinity: Affinity[str] = Affinity(imbalance)
    for replica, text in (("a", LONG), ("b", LONG[::-1])):
        affinity.begun(replica, text)
        affinity.ended(replica)
    return affinity


def test_a_prompt_goes_where_it_was_read() -> None:
    affinity = _two()
    for _ in range(20):
        assert affinity.order(["a", "b"], LONG + "and more") == ["a", "b"]
        assert affinity.order(["a", "b"], LONG[::-1] + "and more") == ["b", "a"]


def test_only_a_beginning_counts() -> None:
    """Not what stands elsewhere in a text."""
    affinity = _two()
    affinity.begun("b", "x" * 400)
    assert affinity.order(["a", "b"], "y" * BLOCK + LONG)[0] == "a"  # which has read less


def test_a_block_stands_for_all_before_it() -> None:
    """What was read after another beginning is not in the cache after this one."""
    affinity: Affinity[str] = Affinity(9)
    begins, other, middle, rest = ("p" * 32, "s" * 32, "q" * 32, "r" * 32)
    affinity.begun("a", begins + middle)
    affinity.begun("b", begins)
    affinity.begun("b", other + middle + rest)
    assert affinity.order(["a", "b"], begins + middle + rest)[0] == "a"


def test_an_unknown_prompt_goes_to_the_one_that_has_read_least() -> None:
    """Also one of which less than a tenth is known."""
    affinity = _two()
    affinity.begun("a", "z" * 5 * BLOCK + LONG)
    affinity.ended("a")
    for text in ("q" * 200, LONG[: 2 * BLOCK] + "q" * 19 * BLOCK):
        assert affinity.order(["a", "b"], text)[0] == "b"
    assert affinity.order(["a", "b"], LONG[: 2 * BLOCK] + "q" * 17 * BLOCK)[0] == "a"


def test_loads_that_differ_come_first() -> None:
    """Above the imbalance, not at it."""
    affinity = _two(imbalance=3)
    for _ in range(3):
        affinity.begun("a", LONG)
    assert affinity.order(["a", "b"], LONG)[0] == "a"
    affinity.begun("a", LONG)
    assert affinity.order(["a", "b"], LONG)[0] == "b"
    affinity.ended("a")
    assert affinity.order(["a", "b"], LONG)[0] == "a"


def test_who_has_gone_is_forgotten() -> None:
    affinity = _two()
    affinity.keep(["b", "c"])
    affinity.begun("b", "w" * 100)
    affinity.begun("c", "w" * 10)
    assert affinity.order(["b", "c"], LONG)[0] == "c"


def test_requests_of_who_has_gone_are_no_load() -> None:
    affinity = _two()
    for _ in range(3):
        affinity.begun("a", LONG)
    affinity.keep(["b"])
    affinity.begun("b", "")
    assert affinity.order(["a", "b"], "")[0] == "a"  # which is there again


def test_what_is_remembered_is_bounded() -> None:
    """The oldest is forgotten first."""
    affinity: Affinity[str] = Affinity(9)
    affinity.begun("a", LONG)
    affinity.begun("a", "".join(f"{i:016d}" for i in range(MOST // BLOCK)))
    affinity.begun("b", "v" * 64)
    assert affinity.order(["a", "b"], LONG)[0] == "b"


def test_what_was_read_again_is_remembered() -> None:
    affinity: Affinity[str] = Affinity(9)
    affinity.begun("a", LONG)
    others = MOST // BLOCK - len(LONG) // BLOCK
    for text in ("".join(f"{i:016d}" for i in range(others)), LONG, "u" * 9 * BLOCK):
        affinity.begun("a", text)
    affinity.begun("b", "v" * 64)
    assert affinity.order(["a", "b"], LONG)[0] == "a"


def test_a_request_without_a_text_goes_to_the_less_loaded() -> None:
    affinity = _two()
    affinity.begun("a", "")
    assert {affinity.order(["a", "b"], "")[0] for _ in range(20)} == {"b"}
    assert sorted(affinity.order(["a", "b", "c"], "")) == ["a", "b", "c"]
