"""Programs that pause, beside those of tests/jobs: `python jobs.py CASE [FILE]`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import ray


@ray.remote(max_retries=1, retry_exceptions=True)
def retried(file: str) -> None:
    with Path(file).open("a+") as attempts:
        attempts.write("x")
        attempts.seek(0)
        number = len(attempts.read())
    raise ValueError(f"attempt {number}")


@ray.remote
def slow() -> int:
    breakpoint()
    time.sleep(2)
    last = 1
    return last


@ray.remote
def big() -> int:
    value = "x" * (1 << 20)
    breakpoint()
    return len(value)


@ray.remote
def huge() -> int:
    text = "x" * 200_000_000
    items = list(range(1_000_000))
    breakpoint()
    return len(text) + len(items)


@ray.remote
def plain() -> int:
    secret = 41
    breakpoint()
    return secret


def fails(reference: Any) -> str:
    try:
        ray.get(reference)
    except Exception as error:
        return f"failed: {str(error).strip().splitlines()[-1]}"
    return "did not fail"


def main(case: str, *arguments: str) -> Any:
    variables = {"RAY_DEBUG_POST_MORTEM": "1"} if case == "retried" else {}
    variables |= {"RAY_DEBUG": "legacy"} if case == "legacy" else {}
    ray.init(runtime_env={"env_vars": variables})
    if case == "retried":
        return fails(retried.remote(arguments[0]))
    functions: dict[str, Any] = {"slow": slow, "big": big, "huge": huge, "plain": plain, "legacy": plain}
    return ray.get(functions[case].remote())


if __name__ == "__main__":
    print("done:", main(*sys.argv[1:]), flush=True)
