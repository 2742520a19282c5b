"""What `p EXPR` and `full EXPR` run inside the paused process: the source of this module is sent as it stands."""

from __future__ import annotations

import json
import sys
from typing import Any


def shown(value: Any, limit: int) -> str:
    """Return a value's repr, at most `limit` characters of it, with a word on what is left out.

    A text of 200 MB or a list of a million items is cut before its repr is made.
    """
    if type(value) in (str, bytes, bytearray) and len(value) > limit:
        return repr(value[:limit]) + f" ... the first {limit:,} of {len(value):,}; `full` shows all"
    if type(value) in (list, tuple) and len(value) > limit:
        text = repr(value[: limit // 3 + 1])  # an item takes three characters at least
        return text[:limit] + f" ... the first of {len(value):,} items; `full` shows all"
    text = repr(value)
    if len(text) <= limit:
        return text
    return text[:limit] + f" ... the first {limit:,} of {len(text):,} characters; `full` shows all"


def keep_text(value: Any, key: str, most: int) -> str:
    """Keep a value's whole repr in sys, to be fetched from there in pieces, and return how long it is, as JSON."""
    text = repr(value)[:most]
    sys.__dict__.setdefault("_raydebug_packed", {})[key] = text
    return json.dumps(len(text))
