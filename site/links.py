"""Links of the pages that leave docs/, to records and sources, lead to the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any
from urllib.parse import urlsplit

_TARGET = re.compile(r"(?<=\]\()[^)\s]+(?=\))")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """mkdocs calls this for each page's text."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")
    return _TARGET.sub(lambda link: whole(link[0], folder, config.extra["repository"]), markdown)


def whole(link: str, folder: str, repository: str) -> str:
    """The link as it is, or if it leads out of docs/ its address in the repository. folder: the
    page's own, from the repository's root on."""
    if urlsplit(link).scheme or link.startswith("#"):
        return link
    place = posixpath.normpath(posixpath.join(folder, link))
    return link if place.startswith("docs/") else repository + place
