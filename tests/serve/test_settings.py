"""How a server is set up."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.serve.settings import ServerSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"names": ()},
        {"api_keys": ("",)},
        {"api_keys": ("good", "key\n")},
        {"api_keys": ("ü",)},
        {"api_keys": ("key ",)},
        {"request_metrics": "all"},
        {"allow_credentials": True},
        {"tool_call_parser": "herms"},
        {"metrics_prefix": "a-b"},
        {"metrics_prefix": "1x"},
        {"metrics_prefix": ""},
    ],
    ids=str,
)
def test_refusals(wrong: dict[str, Any]) -> None:
    with pytest.raises(ForetokenError):
        ServerSettings(**{"names": ("a",)} | wrong)
