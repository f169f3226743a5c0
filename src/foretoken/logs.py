"""What the library tells by `logging`, under the logger "foretoken" and below it.

Warnings and errors are shown as Python shows them, or as an application has set it up. With
FORETOKEN_LOG = error, warning, info or debug what is at least of this level goes to standard error:
info is what was loaded and how, debug each request and the tracebacks of what became one sentence.
"""

from __future__ import annotations

import logging

from foretoken.errors import shown

VARIABLE = "FORETOKEN_LOG"
LEVELS = ("debug", "info", "warning", "error")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure(level: str) -> None:
    """Show what is at least of this level on standard error. A level that there isn't is told by a
    warning, as it comes from the environment and not from a call that could be refused."""
    log = logging.getLogger("foretoken")
    if level.lower() not in LEVELS:
        log.warning(
            "%s is %s, so nothing is logged but warnings; it must be one of: %s.",
            VARIABLE,
            shown(level),
            ", ".join(LEVELS),
        )
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    log.addHandler(handler)
    log.setLevel(level.upper())
