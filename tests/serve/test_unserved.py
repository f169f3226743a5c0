"""Fields that are known and not served."""

from __future__ import annotations

import pytest

from foretoken.serve.errors import ApiError
from foretoken.serve.schema import ChatBody, CompletionBody
from foretoken.serve.unserved import UNSERVED, without_unserved


def test_values_that_ask_for_nothing() -> None:
    given = {"user": "x", "suffix": "", "functions": [], "n": 2}
    assert without_unserved(given) == {"n": 2}


@pytest.mark.parametrize("name", [name for names in UNSERVED for name in names.split()])
def test_each_is_told_or_does_nothing(name: str) -> None:
    try:
        assert without_unserved({name: object()}) == {}
    except ApiError as error:
        assert error.param == name and error.message.startswith(f"{name} isn't served: ")


def test_the_effort_of_reasoning_is_a_templates() -> None:
    with pytest.raises(ApiError, match="give it in chat_template_kwargs"):
        without_unserved({"reasoning_effort": "low"})


def test_no_field_is_both_served_and_not() -> None:
    served = set(ChatBody.model_fields) | set(CompletionBody.model_fields)
    assert not served & {name for names in UNSERVED for name in names.split()}
