"""Conditions of breakpoints: parsing, and that each pauses a process exactly when it holds."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time

import pytest

import raydebug
from gateway_under_test import open_gateway
from raydebug.client.breakpoint_specs import describe, read_break
from raydebug.errors import RaydebugError
from raydebug.worker.breakpoints.compile import compile_with

READ = {
    "train.py:120": ("train.py:120", {}),
    "train.py:120,once": ("train.py:120", {"max": 1}),
    "a.py:f,rank=0-2,rank=7": ("a.py:f", {"rank": [0, 1, 2, 7]}),
    "m:f,step>=3,step<9": ("m:f", {"step": [[">=", 3], ["<", 9]]}),
    "m:f, every=100, max=5, timeout=5m": ("m:f", {"every": 100, "max": 5, "timeout_s": 300.0}),
    "m:f,if=g(a, b)[1, 2] == ',' and x": ("m:f", {"if": "g(a, b)[1, 2] == ',' and x"}),
    'm:f,log="loss={loss:.3f}, lr={lr}"': ("m:f", {"log": "loss={loss:.3f}, lr={lr}"}),
}
REFUSED = {
    "m:f,often": "'often' is not a condition: there are if=, rank=, step>=, every=, once, max=, timeout= and log=",
    "m:f,if=x >": "if=x > is not a Python expression: invalid syntax",
    "m:f,if=(x := 3)": "if=(x := 3) would change the function that it is compiled into",
    "m:f,rank=first": "rank=first names no rank",
    "m:f,every=0": "every=0 is not a whole number from 1 on",
    "m:f,timeout=soon": "timeout=soon is not a time span",
    "m:f,log={": 'log="{" is not a text with {values}: ',
}


@pytest.mark.parametrize("text", READ)
def test_read(text):
    """A breakpoint's text is WHERE and its conditions; commas inside quotes or brackets do not separate."""
    assert read_break(text) == READ[text]
    where, policy = READ[text]
    assert read_break(",".join(filter(None, [where, describe(policy)]))) == READ[text], "described as it can be read"


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    """An invalid condition is refused before a job starts: exit 2, with an example."""
    with pytest.raises(RaydebugError) as refused:
        read_break(text)
    assert refused.value.what == f"--break {text} cannot be read"
    assert refused.value.cause.startswith(REFUSED[text])
    assert refused.value.exit_code == 2


LOOP = """\
def loop(n):
    for i in range(n):
        x = i * 10
        done = i
    return done


class Trainer:
    def __init__(self):
        self.global_steps = 0

    def fit(self, n):
        for step in range(n):
            self.global_steps = step
            loop(1)


if __name__ == "__main__":
    import sys
    exec(sys.argv[1] if len(sys.argv) > 1 else "loop(5)")
    print("done")
"""


def run_with(gateway, *texts, call="loop(5)", **variables):
    definitions = []
    for number, text in enumerate(texts):
        where, policy = read_break(text)
        definitions.append({"id": f"b{number}", "where": where, "file": str(gateway.folder / "program0.py"),
                            "line": int(where.rpartition(":")[2]), "policy": policy})  # fmt: skip
    program = LOOP.replace("loop(5)", call)
    return gateway.start(program, RAYDEBUG_BREAKS=json.dumps(definitions), **variables)


async def values_at_stops(gateway, program, expression, stops):
    """Continue from pause to pause; return the expression's value at each, and the program's output."""
    seen = []
    for _ in range(stops):
        (pause,) = gateway.pauses()
        session, stopped = await gateway.attach(pause["id"])
        frames = (await session.request("stackTrace", {"threadId": stopped["threadId"]}))["stackFrames"]
        value = await session.request("evaluate", {"expression": expression, "frameId": frames[0]["id"]})
        seen.append(value["result"])
        await session.request("continue", {"threadId": stopped["threadId"]})
        await session.close()
    out, err = program.communicate(timeout=60)
    assert out.endswith("done\n"), err
    return seen, err


@pytest.mark.parametrize(
    ("conditions", "values"),
    [
        ("if=i > 3", ["4"]),
        ("once", ["0"]),
        ("max=2", ["0", "1"]),
        ("every=2", ["1", "3"]),
        ("rank=1,if=i == 2", ["2"]),
        ("rank=0", []),
    ],
)
async def test_stops_only_where_it_should(gateway, conditions, values):
    """`if`, `once`, `max`, `every` and `rank` pause the loop exactly at these values of i."""
    program = run_with(gateway, f"program0.py:3,{conditions}", RANK="1")
    assert (await values_at_stops(gateway, program, "i", len(values)))[0] == values


async def test_step(gateway):
    """`step` uses the step counter of the calling trainer."""
    program = run_with(gateway, "program0.py:3,step>=2,step<4", call="Trainer().fit(6)")
    seen, _ = await values_at_stops(gateway, program, "__import__('sys')._getframe(1) and i", 2)
    assert seen == ["0", "0"]


async def test_log_point(gateway):
    """`log` does not pause; it writes a line with the current values to the job's log."""
    program = run_with(gateway, 'program0.py:4,log="x={x:03d}",every=2')
    _, err = await values_at_stops(gateway, program, "i", 0)
    assert [line.rpartition(" ")[2] for line in err.splitlines()] == ["x=010", "x=030"]


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ("if=missing > 3", "NameError: name 'missing' is not defined; it does not stop there (said once)"),
        ("log={missing}", "NameError: name 'missing' is not defined; it does not stop there (said once)"),
        ("rank=0", "this process has no rank (RANK is not set), so rank= never holds here"),
        ("step>=1", "the training step is not known here, so step never holds; use if= on a variable"),
    ],
)
async def test_bad_condition_is_said_once(gateway, conditions, said):
    """A condition that raises is logged once, and the job continues unharmed."""
    program = run_with(gateway, f"program0.py:3,{conditions}")
    _, err = await values_at_stops(gateway, program, "i", 0)
    assert err == f"raydebug: breakpoint program0.py:3: {said}\n"


IN_CODE = """\
import raydebug

def loop(n):
    for i in range(n):
        raydebug.breakpoint({conditions})
    print("done")

loop(6)
"""


@pytest.mark.parametrize(
    ("conditions", "values"),
    [
        ("when=i > 4", ["5"]),
        ("every=3", ["2", "5"]),
        ("when=i > 1, once=True", ["2"]),
        ("max=1", ["0"]),
        ("rank=3", []),
        ("rank=[1, 2], when=i == 3", ["3"]),
        ("log=f'i={i}'", []),
    ],
)
async def test_from_code(gateway, conditions, values):
    """`raydebug.breakpoint()` takes the same conditions."""
    program = gateway.start(IN_CODE.replace("{conditions}", conditions), RANK="1")
    seen, err = await values_at_stops(gateway, program, "i", len(values))
    assert seen == values
    assert ("i=5" in err) == ("log" in conditions)


COUNTED = """\
import raydebug

def alone(n):
    for i in range(n):
        raydebug.breakpoint(every=40, log=f"alone {i}")

def both(n):
    for i in range(n):
        raydebug.breakpoint(every=50, log=f"one {i}")
        raydebug.breakpoint(every=50, log=f"two {i}")

def late(n):
    for i in range(n):
        raydebug.breakpoint(every=60, log=f"first {i}")
        if i >= 30:
            raydebug.breakpoint(every=60, log=f"second {i}")

for loop in (alone, both, late):
    loop(170)
"""


def test_places_are_counted_apart(gateway):
    """Each call site has its own count; a later site with the same N shifts that count, and only once."""
    _, err = gateway.start(COUNTED).communicate(timeout=30)
    said = [line.split(" ", 2)[2] for line in err.splitlines() if "program" in line]
    assert [s for s in said if s.startswith("alone")] == ["alone 39", "alone 79", "alone 119", "alone 159"]
    for name in ("one", "two"):
        assert [s for s in said if s.startswith(name)] == [f"{name} 49", f"{name} 99", f"{name} 149"]
    for name in ("first", "second"):
        at = [int(s.split()[1]) for s in said if s.startswith(name)]
        assert at[0] < 120
        assert all(later - earlier == 60 for earlier, later in itertools.pairwise(at))


def test_from_code_outside_a_cluster(monkeypatch, capsys):
    """Outside a cluster `raydebug.breakpoint()` does nothing at all."""
    assert raydebug.breakpoint() is None
    assert raydebug.breakpoint(when=True, every=1, once=True, timeout=3) is None


def test_timeout(gateway):
    """A pause with a timeout is resumed and logs it in the job; `raydebug paused` shows the remaining time."""
    program = run_with(gateway, "program0.py:3,once,timeout=2s")
    (pause,) = gateway.pauses()
    begin = time.monotonic()
    while pause["expires_in_s"] is None and time.monotonic() < begin + 2:
        (pause,) = gateway.pauses()
    assert 0 < pause["expires_in_s"] <= 2
    out, err = program.communicate(timeout=60)
    assert out == "done\n"
    assert "2 s without a debugger: resumed" in err
    assert gateway.pauses(0) == []


async def test_timeout_waits_for_who_is_attached(gateway):
    """A held pause does not expire; its time starts again when the client detaches."""
    program = run_with(gateway, "program0.py:3,once,timeout=1s")
    (pause,) = gateway.pauses()
    session, _ = await gateway.attach(pause["id"])
    await asyncio.sleep(2)
    assert program.poll() is None
    await session.close()
    assert program.communicate(timeout=60)[0] == "done\n"


LIMIT_S = 60  # the shortest limit that is warned of
SLOW_S = 10.0  # for a busy machine


@pytest.mark.long
@pytest.mark.timeout(150)
def test_f14_expiry(tmp_path, took):
    """F14: a pause is resumed at its limit; the job's log says so, and warns at half time."""
    with open_gateway(tmp_path, "--pause-limit-s", str(LIMIT_S)) as gateway:
        program = gateway.start("breakpoint()\nprint('went on')\n")
        begin = time.monotonic()
        (pause,) = gateway.pauses()
        while pause["expires_in_s"] is None and time.monotonic() < begin + SLOW_S:
            (pause,) = gateway.pauses()
        assert LIMIT_S - SLOW_S < pause["expires_in_s"] <= LIMIT_S
        assert "paused (breakpoint)" in program.stderr.readline()
        warning = program.stderr.readline()
        took("warned after", time.monotonic() - begin, None)
        found = re.search(
            r"/program0.py:1 paused for (\d+) s: it resumes in (\d+) s unless a debugger attaches$", warning
        )
        assert found is not None, warning
        assert int(found[1]) >= LIMIT_S / 2
        assert int(found[1]) + int(found[2]) == LIMIT_S
        assert [one["id"] for one in gateway.pauses()] == [pause["id"]], "still there"
        out, err = program.communicate(timeout=LIMIT_S + SLOW_S)
        took("went on after", time.monotonic() - begin, None)
        assert (out, err.partition("/program0.py:1 ")[2]) == (
            "went on\n",
            f"{LIMIT_S} s without a debugger: resumed\n",
        )
        assert time.monotonic() - begin >= LIMIT_S
        assert gateway.pauses(0) == []


@pytest.mark.parametrize(("options", "limit_s"), [((), 3600), (("--pause-limit-s", "0"), None)], ids=["default", "off"])
def test_f14_limit(tmp_path, options, limit_s):
    """F14: the limit is an hour by default; 0 means none."""
    with open_gateway(tmp_path, *options) as gateway:
        gateway.start("breakpoint()\n")
        gateway.pauses()
        time.sleep(2)
        (pause,) = gateway.pauses()
        if limit_s is None:
            assert pause["expires_in_s"] is None
        else:
            assert limit_s - SLOW_S < pause["expires_in_s"] < limit_s


def test_site_travels_by_value():
    """A breakpoint in a function that Ray sends to a worker has one site in that process."""
    names = {"__name__": "__main__"}
    definition = {"id": "b9", "where": "f.py:2", "line": 2, "policy": {"if": "x > 100"}}
    exec(compile_with(b"def f(x):\n    return x + 1\n", "f.py", [definition]), names)
    arrive, arguments = names["__raydebug_b9__"].__reduce__()
    assert arrive(*arguments) is arrive(*arguments)
    assert arrive(*arguments).spec["where"] == "f.py:2"
