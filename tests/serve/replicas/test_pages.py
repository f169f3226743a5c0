"""Metrics of several replicas on one page."""

from __future__ import annotations

from foretoken.serve.replicas.pages import merged

PAGE = b"""# HELP f:tokens_total Tokens.
# TYPE f:tokens_total counter
f:tokens_total{engine="0"} 3.0
# HELP f:time Time.
# TYPE f:time histogram
f:time_bucket{engine="0",le="+Inf"} 2.0
f:time_count{engine="0"} 2.0
f:time_sum{engine="0"} 1.5
"""


def test_all_samples_under_one_description() -> None:
    page = merged([PAGE, PAGE.replace(b'"0"', b'"1"').replace(b"3.0", b"4.0")]).decode()
    assert page.count("# TYPE f:tokens_total counter") == page.count("# TYPE f:time histogram") == 1
    for sample in ('f:tokens_total{engine="0"} 3.0', 'f:tokens_total{engine="1"} 4.0'):
        assert sample in page
    assert (
        page.count("f:time_bucket") == 2
        and len(page.splitlines()) == 2 * len(PAGE.splitlines()) - 4
    )


def test_one_page_is_itself() -> None:
    assert merged([PAGE]) == PAGE and merged([]) == b""
