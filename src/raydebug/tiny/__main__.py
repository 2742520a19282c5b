"""`python -m raydebug.tiny model|dataset DIR`: `raydebug tiny` where the command line is not installed.

An error is one line of JSON on stdout.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from raydebug import render
from raydebug.errors import Exit, RaydebugError


def main() -> int:
    """Build what the command line names, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m raydebug.tiny")
    parser.add_argument("what", choices=("model", "dataset"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--like", type=Path)
    parser.add_argument("--test-like", type=Path)
    parser.add_argument("--rows", type=int, default=16)
    asked = parser.parse_args()
    try:
        if asked.what == "model":
            from raydebug.tiny.model import build_model

            build_model(asked.folder, like=asked.like)
        else:
            from raydebug.tiny.dataset import build_dataset

            build_dataset(asked.folder, like=asked.like, test_like=asked.test_like, rows=asked.rows)
    except RaydebugError as failure:
        render.error(failure, as_json=True)
        return failure.exit_code
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
