"""`python -m bench.stock_faults [CASE...]`: put stock Ray and debugpy through the faults of docs/faults.toml.

Writes what it saw to stock_faults.json, case by case; docs/faults.toml says it in words. Each case runs on a head of
its own on loopback (those with a cut cable: in network namespaces), without a token and without raydebug's hook; it
ends with the case. Needs an environment that has Ray, debugpy and raydebug, and a checkout: the programs are those of
tests/jobs. F23 and F24 need a Docker engine with raydebug's image core (RAYDEBUG_TEST_IMAGE names another).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "support"))  # its two hosts, and its environments

from bench import measuring  # noqa: E402
from bench.stock import bytes as sent  # noqa: E402
from bench.stock import clients, containers, machine, tasks  # noqa: E402
from bench.stock.head import Head, stock_head  # noqa: E402

RESULTS = Path(__file__).parent / "stock_faults.json"
LIMIT_S = 600.0
Saw = dict[str, Any]

ON_A_HEAD: dict[str, Callable[[Head], Awaitable[Saw]]] = {
    "F8": tasks.cancelled,
    "F9": tasks.killed,
    "F10": tasks.job_stopped,
    "F11": tasks.retried,
    "F12": tasks.two_threads,
    "F13": tasks.thirty_two,
    "F15": tasks.places,
    "F16": tasks.no_debugpy,
    "F17": clients.gone_amid_a_step,
    "F19": clients.second_client,
    "F20": clients.adapter_killed,
    "F25": sent.malformed,
    "F26": sent.endless_header,
    "F29": sent.never_reads,
    "F31": sent.huge_values,
    "F32": sent.never_returns,
    "F62": machine.busy,
    "F63": machine.raylet_killed,
    "S4": machine.folders,
    "S7": clients.listens,
    "S8": tasks.legacy_listens,
}
ALONE: dict[str, Callable[[], Awaitable[Saw]]] = {
    "F18": partial(clients.on_two_hosts, "F18"),
    "F21": partial(clients.on_two_hosts, "F21"),
    "F23": containers.cut_from_the_head,
    "F24": containers.stands_still,
}
LONG = {"F14": tasks.an_hour}  # only when named


async def run(case: str) -> Saw:
    """Run one case on a head of its own."""
    if case in ALONE:
        return await asyncio.wait_for(ALONE[case](), LIMIT_S)
    with stock_head() as head:
        if case in LONG:
            return await LONG[case](head)
        return await asyncio.wait_for(ON_A_HEAD[case](head), LIMIT_S)


def main() -> None:
    """Run the cases and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="which ones (default: all but the hour of F14)")
    wanted = parser.parse_args().cases or [*ON_A_HEAD, *ALONE]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for case in wanted:
        begin = time.monotonic()
        try:
            saw = asyncio.run(run(case))
        except Exception as error:
            saw = {"not measured": f"{type(error).__name__}: {error}"}
        saw = {**saw, "took s": round(time.monotonic() - begin)}
        print(case, json.dumps(saw, indent=1), flush=True)
        _write(case, saw)


def _write(case: str, saw: Saw) -> None:
    """Enter one case among those of earlier runs."""
    document = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"cases": {}}
    document["machine"] = {k: v for k, v in measuring.machine().items() if k != "raydebug"}
    cases = {**document["cases"], case: saw}
    document["cases"] = dict(sorted(cases.items(), key=lambda one: (one[0][0], int(one[0][1:]))))
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
