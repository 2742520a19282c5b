"""Format a value inside the paused process, for `p EXPR` and `full EXPR`; sent as source."""

from __future__ import annotations

import json
import sys
from typing import Any


def shown(value: Any, limit: int) -> str:
    """Return the repr of a value, cut at `limit` characters, with a note on the rest.

    A long text or list is cut before its repr is made.
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
    """Keep the whole repr of a value in sys, to be fetched in pieces; return its length, as JSON."""
    text = repr(value)[:most]
    sys.__dict__.setdefault("_raydebug_packed", {})[key] = text
    return json.dumps(len(text))
