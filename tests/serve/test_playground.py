"""The playground in a browser, as its user sees it: headless Chromium, wide and light, and narrow
and dark."""

from __future__ import annotations

import json
import re
import time
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from browsing import SCREENSHOTS, SIZES, Watched
from foretoken.engine.engine import Engine
from foretoken.serve.playground import page as written
from served import Served, serving, toy

ANSWERED = "#send:enabled"
MARKDOWN = files("foretoken.serve").joinpath("page", "markdown.js").read_text(encoding="utf-8")


def opened(browser: Any, served: Served, size: str = "wide", scheme: str = "light") -> Watched:
    watched = Watched(browser, f"{served.url}/", size, scheme)
    watched.page.set_default_timeout(60_000)
    watched.page.wait_for_selector(ANSWERED)
    return watched


def configure(page: Any, **settings: str) -> None:
    page.click("#set")
    for name, value in settings.items():
        page.fill(f"[data-set={name}]", value)
        page.dispatch_event(f"[data-set={name}]", "change")
    page.get_by_role("button", name="Close").click()


def send(page: Any, text: str = "hello", wait: str = ANSWERED) -> None:
    page.fill("#said", text)
    page.keyboard.press("Enter")
    page.wait_for_selector("article.assistant")
    page.wait_for_selector(wait)


def kept(page: Any) -> list[Any]:
    """The conversations that the browser keeps, the oldest first."""
    stored = page.evaluate("Object.entries(localStorage)")
    found = [json.loads(text) for key, text in stored if key.startswith("foretoken.conversation")]
    return sorted(found, key=lambda one: one["made"])


def answers(page: Any) -> list[Any]:
    """The assistant's messages of the newest, all branches, in the order of writing."""
    return [node for node in kept(page)[-1]["nodes"] if node["role"] == "assistant"]


def slowed(monkeypatch: pytest.MonkeyPatch, seconds: float, after: int = 0) -> None:
    """Each step after the first ones takes so much longer."""
    quick, steps = Engine.step, count()

    def slow(engine: Engine) -> Any:
        if next(steps) >= after:
            time.sleep(seconds)
        return quick(engine)

    monkeypatch.setattr(Engine, "step", slow)


@pytest.mark.parametrize(("size", "scheme"), [("wide", "light"), ("narrow", "dark")])
def test_chat_hover_and_race(browser: Any, served: Served, size: str, scheme: str) -> None:
    """No console message, no request elsewhere, nothing wider than the screen, axe-core finds
    nothing, and both racers write what the model writes."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    watched = opened(browser, served, size, scheme)
    page = watched.page
    configure(page, max_tokens="24")
    page.fill("#temperature", "0")
    send(page)
    lost = page.locator(".strip button:has(.rejected[style*='px'])").nth(2)
    lost.hover()
    assert page.locator("#tip del").count() > 0
    assert page.locator(".t.on, .strip .on").count() >= 1
    page.screenshot(path=SCREENSHOTS / f"playground-{size}-{scheme}-hover.png")
    assert not watched.violations()
    page.check("#race")
    page.get_by_role("button", name="Regenerate").click()
    page.wait_for_selector(".verdict")
    page.wait_for_selector(ANSWERED)
    assert page.inner_text(".verdict").startswith("The same text")
    assert "from memory: race a new prompt" in page.inner_text(".verdict")
    shown = page.locator(".racer .text").all_inner_texts()
    assert shown[0] == shown[1] != ""
    page.screenshot(path=SCREENSHOTS / f"playground-{size}-{scheme}-race.png")
    assert not watched.violations()
    assert page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0]
    assert not watched.said
    expected = {"/", "/v1/models", "/v1/chat/completions"}
    assert {url.removeprefix(served.url) for url in watched.asked} == expected
    plain, raced = answers(page)[1]["plain"], answers(page)[1]["run"]
    assert plain["text"] == raced["text"] == answers(page)[0]["content"]
    assert all(block["draft"] == [] for block in plain["blocks"]) and len(plain["blocks"]) == 24
    assert len(raced["blocks"]) < 24
    for number, block in enumerate(raced["blocks"]):
        tokens = page.locator(f".racer:nth-child(2) .t[data-block='{number}']")
        assert "".join(tokens.all_text_contents()) == "".join(block["texts"])
        kept = page.locator(f".racer:nth-child(2) .t.accepted[data-block='{number}']")
        texts = block["texts"][: block["accepted"]]
        assert "".join(kept.all_text_contents()) == "".join(texts)
    page.close()


def race(browser: Any, server: Served) -> Any:
    """A page with a race at temperature 1, whose seed ends no answer early."""
    page = opened(browser, server).page
    configure(page, max_tokens="40", seed="1")
    page.fill("#temperature", "1")
    page.check("#race")
    send(page)
    return page


def test_a_race_of_drawn_drafts_says_where_texts_differ(browser: Any, served: Served) -> None:
    """They keep the distribution only."""
    page = race(browser, served)
    [node] = answers(page)
    assert node["plain"]["text"] != node["run"]["text"]
    assert page.inner_text(".verdict").startswith("The texts differ from character")
    page.get_by_role("button", name="Replay").click()
    begun = page.locator(".racer .text").first.filter(has_text=re.compile("^.{0,9}$", re.DOTALL))
    begun.wait_for(state="attached")
    page.close()


def test_a_race_of_chosen_drafts_has_one_text(browser: Any) -> None:
    """By one seed for both, at a temperature too. A draft with branches is shown as a tree."""
    with serving(toy(speculative_config={"method": "token_recycling"})) as server:
        page = race(browser, server)
        page.keyboard.press("Alt+r")  # now the method knows tokens that follow others
        page.wait_for_selector(ANSWERED)
        assert page.inner_text(".verdict").startswith("The same text")
        [_, node] = answers(page)
        branched = [
            number
            for number, block in enumerate(node["run"]["blocks"])
            if any(parent != place for place, (_, parent, _) in enumerate(block["draft"]))
        ]
        page.locator(f".racer:nth-child(2) .strip button[data-block='{branched[0]}']").hover()
        nodes = node["run"]["blocks"][branched[0]]["draft"]
        assert page.locator("#tip li").count() == len(nodes)
        inner = page.locator("#tip li li").count()
        assert inner == sum(parent != 0 for _, parent, _ in nodes)
        page.screenshot(path=SCREENSHOTS / "playground-wide-light-tree.png")
        page.close()


def test_a_race_is_not_written_from_memory(browser: Any) -> None:
    """The method writes first, as `suffix` would copy what plain decoding has written."""
    with serving(toy(speculative_config={"method": "suffix"})) as server:
        page = race(browser, server)
        [node] = answers(page)
        assert node["run"]["text"] == node["plain"]["text"]
        assert len(node["run"]["blocks"]) > len(node["plain"]["blocks"]) / 2
        page.close()


def test_a_race_stopped_early(
    browser: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written counts, though the other racer wrote nothing."""
    slowed(monkeypatch, 1, after=4)
    page = opened(browser, served).page
    configure(page, seed="1")
    page.check("#race")
    send(page, wait=".strip button:nth-child(3)")
    page.keyboard.press("Escape")
    page.wait_for_selector(ANSWERED)
    [node] = answers(page)
    assert node["content"] == node["run"]["text"] != ""
    assert (node["run"]["finish"], node["plain"]["finish"]) == ("stopped", "stopped")
    page.close()


def test_an_answer_outlives_its_page(
    browser: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is saved while it grows and when the page goes; the next page shows it as stopped."""
    slowed(monkeypatch, 1, after=4)
    page = opened(browser, served).page
    configure(page, seed="1")
    send(page, wait=".strip button:nth-child(2)")
    for _ in range(600):
        if answers(page)[-1]["content"]:
            break
        page.wait_for_timeout(100)
    assert page.is_visible("#stop") and answers(page)[-1]["content"]
    page.wait_for_selector(".strip button:nth-child(4)")
    page.reload()
    page.wait_for_selector(ANSWERED)
    assert page.locator(".strip button").count() >= 4
    assert "stopped" in page.inner_text(".numbers:not(.legend)")
    assert page.inner_text("article.assistant .text") != ""
    page.close()


def test_a_growing_answer_is_drawn_now_and_then(
    browser: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each of its tokens."""
    slowed(monkeypatch, 0.05)
    page = opened(browser, served).page
    configure(page, max_tokens="40", seed="1")
    page.select_option("#method", "plain decoding")
    page.evaluate("""() => {
      window.pictures = 0;
      const count = (changes) => {
        if (changes.some(({ target }) => target.tagName === "ARTICLE")) window.pictures++;
      };
      new MutationObserver(count).observe(document.getElementById("log"), {
        childList: true, subtree: true,
      });
    }""")
    send(page)
    assert len(answers(page)[0]["run"]["blocks"]) == 40
    assert 1 <= page.evaluate("window.pictures") <= 20
    page.close()


def test_stop(browser: Any, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is stays, and the server writes no further."""
    slowed(monkeypatch, 1, after=4)  # sixty blocks take longer than a busy browser is waited for
    watched = opened(browser, served)
    page = watched.page
    configure(page, seed="1")  # of another, one answer in forty ends before its third block
    send(page, wait=".strip button:nth-child(3)")
    page.click("#stop")
    page.wait_for_selector(ANSWERED)
    assert "stopped" in page.inner_text(".numbers:not(.legend)")
    [node] = answers(page)
    assert node["content"] == node["run"]["text"] != "" and 3 <= len(node["run"]["blocks"]) < 60
    for _ in range(200):
        if httpx.get(f"{served.url}/load").json()["server_load"] == 0:
            break
        time.sleep(0.05)
    else:
        pytest.fail("The request goes on.")
    assert not watched.said
    page.close()


def test_branches(browser: Any, served: Served) -> None:
    """Another answer and an edit are siblings; both stay, also in a new page."""
    page = opened(browser, served).page
    configure(page, max_tokens="6")
    send(page)
    page.keyboard.press("Alt+r")
    page.wait_for_selector(".actions >> text=2/2")
    page.wait_for_selector(ANSWERED)
    first, second = (node["content"] for node in answers(page))
    assert first != second  # each with a seed of its own
    page.get_by_role("button", name="Earlier branch").click()
    page.keyboard.press("Alt+e")
    assert page.input_value("#said") == "hello"
    send(page, "goodbye", wait="article.user >> text=2/2")
    page.wait_for_selector(ANSWERED)
    assert page.locator("article").count() == 2
    page.reload()
    page.wait_for_selector(ANSWERED)
    assert page.inner_text("article.user .body") == "goodbye"
    page.locator("article.user").get_by_role("button", name="Earlier branch").click()
    assert page.inner_text("article.user .body") == "hello"
    assert page.locator("article.assistant >> text=2/2").count() == 1
    page.keyboard.press("Alt+n")
    assert page.locator("article").count() == 0
    page.get_by_role("button", name="Delete goodbye").click()
    assert kept(page) == []
    page.close()


def test_an_edit_ends_with_its_conversation(browser: Any, served: Served) -> None:
    """What is sent after New, after another one was opened or one was deleted replaces nothing."""
    watched = opened(browser, served)
    page = watched.page
    configure(page, max_tokens="4", seed="1")  # of another, an answer may be empty
    send(page, "one")
    page.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="New", exact=True).click()
    assert page.input_value("#said") == ""
    send(page, "two")
    page.keyboard.press("Alt+e")
    page.get_by_role("button", name="one", exact=True).click()
    send(page, "three", wait="article.user >> text=three")
    page.wait_for_selector(ANSWERED)
    assert page.locator("article").count() == 4
    page.keyboard.press("Alt+e")
    page.get_by_role("button", name="Delete one").click()
    send(page, "four", wait="article.user >> text=four")
    page.wait_for_selector(ANSWERED)
    assert page.locator("article.user .body").all_inner_texts() == ["two", "four"]
    assert not watched.said
    page.close()


def test_tabs_keep_each_others_conversations(browser: Any, served: Served) -> None:
    """And show them; what one of them deletes is gone in both."""
    context = browser.new_context()
    tabs = [context.new_page() for _ in range(2)]
    for page in tabs:
        page.goto(f"{served.url}/")
        page.wait_for_selector(ANSWERED)
    first, second = tabs
    configure(first, max_tokens="4", seed="1")
    second.reload()  # with these settings
    second.wait_for_selector(ANSWERED)
    for page, text in ((first, "one"), (second, "two"), (first, "three"), (second, "four")):
        send(page, text, wait=f"article.user >> text={text}")
        page.wait_for_selector(ANSWERED)
    assert [one["title"] for one in kept(first)] == ["one", "two"]
    assert [len(one["nodes"]) for one in kept(first)] == [4, 4]
    second.get_by_role("button", name="one", exact=True).click()
    send(second, "five", wait="article.user >> text=five")
    second.wait_for_selector(ANSWERED)
    first.wait_for_selector("article.user >> text=five")
    second.get_by_role("button", name="Delete one").click()
    first.wait_for_selector("article.user >> text=two")
    first.reload()
    first.wait_for_selector(ANSWERED)
    assert [one["title"] for one in kept(first)] == ["two"]
    context.close()


def test_method_and_temperature_of_a_message(browser: Any, served: Served) -> None:
    page = opened(browser, served).page
    configure(page, max_tokens="12", seed="5")
    page.select_option("#method", "plain decoding")
    page.fill("#temperature", "0.75")
    page.fill("#said", "hello")
    page.click("#send")  # the browser checks the fields, unlike at Enter
    page.wait_for_selector(".strip")
    page.wait_for_selector(ANSWERED)
    page.keyboard.press("Alt+n")
    page.fill("#temperature", "0")
    send(page)
    page.select_option("#method", "sps")
    page.keyboard.press("Alt+r")
    page.wait_for_selector(".actions >> text=2/2")
    page.wait_for_selector(ANSWERED)
    plain, drafted = answers(page)
    assert plain["content"] == drafted["content"] == offline(served)
    assert (len(plain["run"]["blocks"]), plain["run"]["temperature"]) == (12, 0)
    assert len(drafted["run"]["blocks"]) < 12
    page.close()


def offline(served: Served) -> str:
    from foretoken import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=12)
    return str(served.llm.chat([{"role": "user", "content": "hello"}], params)[0].text)


def test_the_strip_by_keyboard(browser: Any, served: Served) -> None:
    page = opened(browser, served).page
    configure(page, max_tokens="12", seed="0")
    page.fill("#temperature", "0")
    send(page)
    page.focus(".strip button")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tip").startswith("Block 2:")
    page.keyboard.press("Escape")
    assert not page.is_visible("#tip")
    page.close()


def test_settings_and_side_are_accessible(browser: Any, served: Served) -> None:
    watched = opened(browser, served, "narrow", "dark")
    watched.page.click("#menu")
    assert watched.page.is_visible("#side") and not watched.violations()
    watched.page.keyboard.press("Alt+s")
    assert watched.page.is_visible("#settings") and not watched.violations()
    watched.page.screenshot(path=SCREENSHOTS / "playground-narrow-dark-settings.png")
    watched.page.close()


def test_errors_are_told(browser: Any, served: Served) -> None:
    page = opened(browser, served).page
    configure(page, presence_penalty="1e9")
    send(page)
    assert "presence_penalty is" in page.inner_text("[role=alert]")
    configure(page, presence_penalty="", max_tokens="4", seed="1")
    page.fill("#said", "and then?")
    page.keyboard.press("Enter")
    assert "No message can follow an empty answer" in page.inner_text("#notice")
    assert page.input_value("#said") == "and then?"
    assert [node["content"] for node in kept(page)[-1]["nodes"]] == ["hello", ""]
    page.keyboard.press("Alt+r")
    page.wait_for_selector(".strip")
    page.wait_for_selector(ANSWERED)
    send(page, "and then?", wait="article.user >> text=and then?")
    page.wait_for_selector(ANSWERED)
    assert len(kept(page)[-1]["nodes"]) == 5
    page.close()


def test_copying_needs_a_secure_page(browser: Any, served: Served) -> None:
    """Where the browser has no clipboard for the page, that is said."""
    page = opened(browser, served).page
    configure(page, max_tokens="4")
    send(page)
    page.evaluate("""() => {
      Object.defineProperty(navigator, "clipboard", { value: undefined });
      Object.defineProperty(window, "isSecureContext", { value: false });
    }""")
    page.get_by_role("button", name="Copy").click()
    page.locator("#notice", has_text="select the text instead").wait_for()
    page.close()


def test_a_key_is_asked_for(browser: Any) -> None:
    with serving(toy(), api_keys=("secret",)) as guarded:
        page = Watched(browser, f"{guarded.url}/", "wide", "light").page
        page.locator("#notice", has_text="API key").wait_for()
        assert page.is_disabled("#send")
        configure(page, key="secret", max_tokens="4")
        page.wait_for_selector(ANSWERED)
        send(page)
        assert len(answers(page)[0]["run"]["blocks"]) >= 1
        page.close()


def test_the_page_is_whole(served: Served) -> None:
    """One file that names no other, and runs nothing that isn't in it."""
    answer = httpx.get(f"{served.url}/")
    text, policy = written()
    assert answer.text == text and answer.headers["content-security-policy"] == policy
    assert not re.findall(r"(?:src|href)=\"(?!data:)|@import|url\(|innerHTML|https?://\w", text)
    assert "/*script*/" not in text and "<!--style-->" not in text
    assert "unsafe" not in policy and "connect-src 'self'" in policy


HTML = {
    "**b** and *i* `c<i>`": "<p><strong>b</strong> and <em>i</em> <code>c&lt;i&gt;</code></p>",
    "# T\ntext": "<h2>T</h2><p>text</p>",
    "```py\n<b>*x*\n```\nz": "<pre><code>&lt;b&gt;*x*</code></pre><p>z</p>",
    "```\nopen": "<pre><code>open</code></pre>",
    '```python title="a.py"\nx = 1\n```\nz': "<pre><code>x = 1</code></pre><p>z</p>",
    "~~~ a `b`\n```\n~~~": "<pre><code>```</code></pre>",
    "```one``` line": "<p><code>one</code> line</p>",
    "- a\n- b\n  - c": "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "> q\n> r": "<blockquote><p>q\nr</p></blockquote>",
    "|a|b|\n|-|-|\n|1| *2* |": (
        "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td><em>2</em></td></tr></table>"
    ),
    "---": "<hr>",
    "2 * 3 * 4 snake_case_name \\*no\\*": "<p>2 * 3 * 4 snake_case_name *no*</p>",
    "<img src=x onerror=alert(1)>": "<p>&lt;img src=x onerror=alert(1)&gt;</p>",
    "[x](javascript:alert(1))": "<p>[x](javascript:alert(1))</p>",
    "[x](http://127.0.0.1/a)": (
        '<p><a href="http://127.0.0.1/a" rel="noopener noreferrer" target="_blank">x</a></p>'
    ),
    "** * _ ` ~~ [": "<p>** * _ ` ~~ [</p>",
}


def test_markdown(browser: Any) -> None:
    """Written as elements; what the model writes is never HTML."""
    page = browser.new_page()
    script = """source => {
      const holder = document.createElement("div");
      holder.append(markdown(source, (from, to) => [source.slice(from, to)]));
      holder.normalize();
      return holder.innerHTML;
    }"""
    page.evaluate(f"() => {{ {MARKDOWN}; window.markdown = markdown; }}")
    for source, expected in HTML.items():
        made = page.evaluate(script, source)
        assert made == expected
    for mark in (">", "- ", "1. > "):  # as deep as a model that loops may write
        made = page.evaluate(script, mark * 20_000 + "deep")
        assert made.count("<blockquote>") + made.count("<li>") == 51 and "deep</" in made
    for cut in range(len(source := "\n".join(HTML))):  # as it grows, nothing raises
        page.evaluate(script, source[:cut])
    page.close()


def test_the_files_are_in_the_package() -> None:
    folder = Path(str(files("foretoken.serve").joinpath("page")))
    assert {path.suffix for path in folder.iterdir()} == {".html", ".css", ".js"}
