"""Snapshots of crashes: their content, the user's code that is never called, limits, and the way to the gateway."""

# ruff: noqa: F841 - locals are what a snapshot is of
from __future__ import annotations

import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gateway_under_test import GatewayUnderTest
from raydebug.client.gateway_client import fetch_snapshot, fetch_snapshots, save_pause
from raydebug.errors import RaydebugError
from raydebug.protocol.snapshot import FORMAT, MAX_BYTES, MAX_OF_JOB
from raydebug.snapshot.console import exception_lines
from raydebug.worker import crashes, import_hooks, snapshot, tensor_summary
from raydebug.worker.saved_values import Values

LONG = os.environ.get("RAYDEBUG_TEST_LONG") == "1"
SECRET = "correct-horse-battery"


def crash(work: Any, *arguments: Any) -> BaseException:
    """Return the exception that a function raises."""
    try:
        work(*arguments)
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


def saved(error: BaseException) -> dict[str, Any]:
    """Return the document of an exception, after its way through the file."""
    frames = snapshot.frames_of(error)
    document = snapshot.document_of(error, frames, snapshot.summarize(error, frames, "crash"), "MainThread")
    found: dict[str, Any] = json.loads(gzip.decompress(snapshot.compress(document)))
    assert found["format"] == FORMAT
    return found


def local(document: dict[str, Any], name: str, frame: int = 0) -> dict[str, Any]:
    """Return the value of a local."""
    return document["values"][document["frames"][frame]["locals"][name]]  # type: ignore[no-any-return]


def of_job(gateway: GatewayUnderTest, job: str = "j1") -> list[dict[str, Any]]:
    """Return the documents of a job's snapshots."""
    files = [fetch_snapshot(gateway, job, one["id"]) for one in fetch_snapshots(gateway, job)]  # type: ignore[arg-type]
    return [json.loads(gzip.decompress(file)) for file in files]


class Batch:
    __slots__ = ("empty", "size")

    def __init__(self) -> None:
        self.size = 7


def login(token: str, user: str) -> None:
    password, config = SECRET, {"api_key": "k-9f8e7d6c5b", "name": f"{user}:{SECRET}"}
    key, eos_token, tokens = "critic/score", "<eos>", 512
    wandb = "0123456789abcdef0123456789abcdef01234567"
    url = f"https://me:{SECRET}@example.org/x"
    header = "Bearer sk-" + "a1" * 12
    secret = "in source only"
    raise ValueError(f"{SECRET} is refused; api_key=k-9f8e7d6c5b, of {token}")


def compute(batch: Batch, *rest: int, scale: float = 2.0, **options: str) -> None:
    rows = [{"a": 1}, (1, 2), {3}]
    text, data, big = "x" * 1000, b"\x00ab", 1 << 5000
    again = rows
    raise ValueError("bad batch")


def test_frames_and_locals():
    """A frame has its arguments first, its locals by type, shared objects once, and the source around its line."""
    document = saved(crash(compute, Batch(), 5))
    frame = document["frames"][0]
    assert frame["function"] == "compute"
    assert frame["arguments"] == ["batch", "scale", "rest", "options"]
    assert frame["source"][frame["line"] - frame["source_from"]].strip() == 'raise ValueError("bad batch")'
    assert document["values"][local(document, "batch")["attributes"]["size"]]["text"] == "7"
    assert frame["locals"]["rows"] == frame["locals"]["again"]
    assert (local(document, "text")["length"], len(local(document, "text")["text"])) == (1000, 400)
    assert local(document, "big")["text"] == "(a number of 5001 bits)"
    first = document["values"][local(document, "rows")["items"][0]]
    assert [document["values"][one]["text"] for one in first["pairs"][0]] == ["a", "1"]
    (raised,) = document["exceptions"]
    assert (raised["type"], raised["text"], raised["relation"]) == ("ValueError", "bad batch", "raised")
    assert document["summary"]["function"] == "compute"


HOSTILE = """
import hostile_values, sys
from raydebug.worker import snapshot
def work(password="{secret}"):
    values, one, of_meta, kind = hostile_values.ALL, hostile_values.ALL[0], hostile_values.OF_META, hostile_values.Meta
    by_name = dict(enumerate(hostile_values.ALL))
    many = {{number: number for number in range(10**6)}}
    loop = []
    loop.append(loop)
    deep = []
    for _ in range(10**5):
        deep = [deep]
    text = "x" * 200_000_000
    raise hostile_values.Silent("first", hostile_values.ALL[0])
try:
    work()
except hostile_values.Silent as error:
    frames = snapshot.frames_of(error)
    document = snapshot.document_of(error, frames, snapshot.summarize(error, frames, "crash"), "MainThread")
    sys.stdout.buffer.write(snapshot.compress(document))
"""


def test_hostile_values():
    """No code of the user's classes is called; a dict of 10^6, a cycle, a deep list and 200 MB of text do no harm."""
    support = str(Path(__file__).resolve().parents[1] / "support")
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE.format(secret=SECRET)], capture_output=True, timeout=50, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([support, *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(gzip.decompress(done.stdout))
    assert document["exceptions"][0]["text"] == "first, hostile_values.Hostile_object_ends"
    assert (local(document, "many")["length"], local(document, "many")["cut"]) == (10**6, "items")
    assert local(document, "loop")["items"] == [document["frames"][0]["locals"]["loop"]]
    assert local(document, "text")["length"] == 200_000_000
    assert len(done.stdout) < 20_000


def test_chain_and_groups():
    """Cause, context and the members of a group are saved, each with its parent, its frames and its notes."""

    def inner() -> None:
        try:
            {}["missing"]  # type: ignore[index]
        except KeyError as error:
            error.add_note("look at the config")
            raise OSError(2, "No such file", "/data") from error

    def outer() -> None:
        failures = [crash(inner), TypeError("second")]
        raise ExceptionGroup("two failed", failures)  # type: ignore[type-var]

    document = saved(crash(outer))
    found = [(one["type"], one["text"], one["relation"], one.get("parent")) for one in document["exceptions"]]
    assert found == [
        ("ExceptionGroup", "two failed", "raised", None),
        ("FileNotFoundError", "[Errno 2] No such file: '/data'", "member", 0),
        ("TypeError", "second", "member", 0),
        ("KeyError", "missing\nlook at the config", "cause", 1),
    ]
    innermost = document["exceptions"][1]["frames"][0]
    assert document["frames"][innermost]["function"].endswith("inner")


def test_locals_of_a_cause(monkeypatch):
    """Locals of a cause are saved as deep as those of the raised exception; a limit of size cuts the cause first."""

    def inner() -> None:
        rows = {"a": {"b": {"c": 41}}}
        raise OSError("inner")

    def outer() -> None:
        rows = {"a": {"b": {"c": 42}}}
        try:
            inner()
        except OSError as error:
            raise ValueError("outer") from error

    def deepest(document: dict[str, Any], number: int) -> str:
        value = local(document, "rows", document["exceptions"][number]["frames"][0])
        for _ in range(3):
            value = document["values"][value["pairs"][0][1]]
        return str(value["text"])

    error = crash(outer)
    assert [deepest(saved(error), number) for number in (0, 1)] == ["42", "41"]
    monkeypatch.setattr(snapshot, "MAX_VALUE_BYTES", 600)
    document = saved(error)
    assert deepest(document, 0) == "42"
    assert document["frames"][document["exceptions"][1]["frames"][0]]["cut"] == "size"


class Node:
    """Like a node of omegaconf 2.3; each of its methods ends the process."""

    def __init__(self, content: object) -> None:
        name = "_content" if type(content) is dict else "_val"
        self.__dict__ |= {"_metadata": Batch(), "_parent": self, name: content}

    def _end(self, *_: Any) -> Any:
        os._exit(9)

    __len__ = __iter__ = __getattr__ = __getitem__ = __repr__ = __hash__ = _end


def shown(values: Values, index: int) -> Any:
    """Return a saved value with all that is in it, the content of a config in its place."""
    value = values.saved[index]
    assert value.get("attributes", {}).keys() <= {"_content", "_val"}
    for inner in value.get("attributes", {}).values():
        return shown(values, inner)
    pairs = value.get("pairs", ())
    return value.get("text") or value.get("cut") or {shown(values, k): shown(values, v) for k, v in pairs}


def test_a_config_is_as_deep_as_a_dict(monkeypatch):
    """A config of omegaconf is saved as deep as a dict, and without its metadata; no method of it is called."""
    monkeypatch.setattr(Node, "__module__", "omegaconf.dictconfig")

    def config(value: Any) -> Any:
        return Node({key: config(one) for key, one in value.items()} if type(value) is dict else value)

    plain = {"actor": {"optim": {"lr": 1e-6, "betas": {"first": 0.9}}}}
    for depth, deepest in ((3, {"lr": "1e-06", "betas": "depth"}), (2, "depth")):
        values = Values(time.monotonic() + 60, 10**6)
        found = values.add([("plain", plain), ("config", config(plain))], depth)
        assert shown(values, found["plain"]) == {"actor": {"optim": deepest}}
        assert shown(values, found["config"]) == {"actor": {"optim": deepest}}


def test_a_value_that_is_reached_again(monkeypatch):
    """A value that was reached with few levels left is opened further when a later local leads to it."""
    monkeypatch.setattr(Node, "__module__", "omegaconf.dictconfig")
    plain = {"optim": {"lr": 1e-6}}
    config = Node({"optim": Node({"lr": Node(1e-6)})})
    values = Values(time.monotonic() + 60, 10**6)
    values.add([("outer", [plain, config])], 2)
    found = values.add([("plain", plain), ("config", config)], 2)
    assert shown(values, found["plain"]) == shown(values, found["config"]) == {"optim": {"lr": "1e-06"}}


MEMORY = """
import resource, sys
from raydebug.worker import snapshot
def work():
    kept = [bytearray(1000) for _ in range(1000)]
    resource.setrlimit(resource.RLIMIT_AS, (int(open("/proc/self/statm").read().split()[0]) * 4096 + 2_000_000,) * 2)
    more = bytearray(10**9)
try:
    work()
except MemoryError as error:
    frames = snapshot.frames_of(error)
    document = snapshot.document_of(error, frames, snapshot.summarize(error, frames, "crash"), "MainThread")
    sys.stdout.buffer.write(snapshot.compress(document))
"""


def test_no_memory_left():
    """A crash by MemoryError has its snapshot although the process can allocate only 2 MB more."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(gzip.decompress(done.stdout))
    assert (document["exceptions"][0]["type"], local(document, "kept")["length"]) == ("MemoryError", 1000)


def test_limits(monkeypatch):
    """When time or size is used up, inner frames have their values, and outer ones say why they have none."""

    def down(depth: int) -> None:
        rows = [{str(number): "\u2028" * 400 for number in range(16)} for _ in range(16)]
        if depth:
            down(depth - 1)
        raise ValueError

    error = crash(down, 40)
    document = saved(error)
    assert len(json.dumps(document)) <= MAX_BYTES
    assert "cut" not in document["frames"][0]
    assert document["frames"][30]["cut"] == "size"
    monkeypatch.setattr(snapshot, "LIMIT_S", 0.0)
    assert saved(error)["frames"][0]["cut"] == "time"


def test_changed_meanwhile():
    """A container that raises is cut, and the values after it are saved."""
    values = Values(time.monotonic() + 10, 10**6)
    found = values.add([("it", iter([])), ("ok", [1])], 2)
    assert values.saved[found["ok"]]["length"] == 1


def test_secrets(monkeypatch):
    """No secret of a local, a key, a source line, argv, the environment or a text is saved; its name is."""
    monkeypatch.setenv("HF_TOKEN", "hf-from-the-environment")
    monkeypatch.setattr(sys, "orig_argv", ["train.py", "--token", "from-argv-1", f"x={SECRET}", "wandb.api_key=argv-2"])
    error = crash(login, "hf-from-the-environment", "me")
    document = saved(error)
    text = json.dumps(document)
    spilled = (SECRET, "k-9f8e7d6c5b", "from-the-environment", "a1a1a1", "0123456789abcdef", "argv-", "in source only")
    assert [one for one in spilled if one in text] == []
    assert document["exceptions"][0]["text"] == "(hidden) is refused; api_key=(hidden), of (hidden)"
    assert local(document, "password") == {"type": "str", "length": len(SECRET), "redacted": True}
    assert local(document, "key")["text"] == "critic/score"
    assert local(document, "eos_token")["text"] == "<eos>"
    assert document["argv"] == ["train.py", "--token", "(hidden)", "x=(hidden)", "wandb.api_key=(hidden)"]


def test_no_secret_in_the_list(shared_gateway):
    """The message in the list of snapshots, which run.json repeats, has no secret of a local."""
    body = f"def f(password='{SECRET}'):\n    raise ValueError('refused: ' + password)\nf()\n"
    shared_gateway.start(body, RAYDEBUG_JOB="login").communicate(timeout=50)
    (summary,) = fetch_snapshots(shared_gateway, "login")
    assert summary["message"] == "refused: (hidden)"
    assert SECRET not in json.dumps([summary, of_job(shared_gateway, "login")])


CRASHES = {
    "program": ("f()", "ValueError: boom"),
    "thread": ("t = threading.Thread(target=f); t.start(); t.join()", "ValueError: boom"),
    "fork": ("mp.get_context('fork').Process(target=f).start()", "ValueError: boom"),
    "spawn": ("p = mp.get_context('spawn').Process(target=f); p.start(); p.join()", "ValueError: boom"),
    "child": ("subprocess.run([sys.executable, '-c', 'def f(x=41): 1 / 0\\nf()'])", "ZeroDivisionError"),
}
PROGRAM = """
import multiprocessing as mp, subprocess, sys, threading
def f(x=41):
    raise ValueError("boom")
if __name__ == "__main__":
    {}
"""


@pytest.mark.parametrize("mode", ["1", "0", "legacy"])
@pytest.mark.parametrize("kind", CRASHES)
def test_each_kind_of_crash(shared_gateway, kind: str, mode: str):
    """A crash of a program, a thread or a child has a snapshot in every mode; its message is unchanged."""
    body, message = CRASHES[kind]
    job = f"{kind}-{mode}"
    program = shared_gateway.start(PROGRAM.format(body), RAYDEBUG_JOB=job, RAY_DEBUG=mode, RANK="3")
    _, said = program.communicate(timeout=50)
    assert said.count("Traceback") == 1
    assert message in said
    assert "raydebug" not in said
    (document,) = of_job(shared_gateway, job)
    assert document["frames"][0]["function"] == "f"
    assert local(document, "x")["text"] == "41"
    assert (document["summary"]["job"], document["summary"]["rank"]) == (job, 3)


@pytest.mark.parametrize(
    ("body", "variables"),
    [("sys.exit(3)", {}), ("raise KeyboardInterrupt", {}), ("f()", {"RAYDEBUG_SNAPSHOTS": "0"}), ("print('fine')", {})],
)
def test_no_crash(shared_gateway, body: str, variables: dict[str, str]):
    """An exit, an interrupt, a normal end, and a job with RAYDEBUG_SNAPSHOTS=0 have no snapshot."""
    program = shared_gateway.start(PROGRAM.format(body), RAYDEBUG_JOB="none", **variables)
    program.communicate(timeout=50)
    assert of_job(shared_gateway, "none") == []


def test_without_a_gateway(gateway):
    """A program that crashes ends while its gateway still hangs; without a gateway one line says so."""
    os.kill(gateway.process.pid, signal.SIGSTOP)
    try:
        _, said = gateway.start(PROGRAM.format("f()"), RAYDEBUG_JOB="j1").communicate(timeout=50)
        assert said.endswith("ValueError: boom\n")
    finally:
        os.kill(gateway.process.pid, signal.SIGCONT)
    gateway.kill()
    _, said = gateway.start(PROGRAM.format("f()"), RAYDEBUG_JOB="j1").communicate(timeout=50)
    assert said.count("raydebug: no snapshot of this crash: no gateway at") == 1
    assert said.endswith("ValueError: boom\n")


@pytest.fixture
def offer(shared_gateway, monkeypatch):
    """Offer a snapshot to the gateway; True if it is wanted, and then sent."""
    job = f"offers-{time.monotonic_ns()}"
    for name, value in shared_gateway.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RAYDEBUG_JOB", job)

    def hand_over(file: bytes = b"file", **summary: Any) -> bool:
        delivery = crashes._Delivery({"kind": "crash", "same": "s", "message": "", **summary})  # type: ignore[typeddict-item]
        wanted = delivery.is_wanted(10)
        delivery.give(file)
        delivery.wait(10)
        return wanted

    hand_over.job = job  # type: ignore[attr-defined]
    return hand_over


def test_the_first_of_each_kind_and_rank(shared_gateway, offer):
    """The first snapshot of each kind of crash and rank is kept, up to 50 of each job."""
    assert [offer(id="a", rank=0), offer(id="b", rank=0), offer(id="c", rank=1)] == [True, False, True]
    assert [one["id"] for one in fetch_snapshots(shared_gateway, offer.job)] == ["a", "c"]
    wanted = [offer(id=f"n{number}", same=str(number)) for number in range(MAX_OF_JOB)]
    assert wanted.count(True) == MAX_OF_JOB - 2
    assert len(fetch_snapshots(shared_gateway, offer.job)) == MAX_OF_JOB


def test_what_a_process_may_not_send(shared_gateway, offer):
    """A snapshot with a path as its id, a wrong field or too many bytes is refused, and one of a pause unasked."""
    assert not offer(id="../../x")
    assert not offer(id="x", line="3")
    offer(id="large", file=b"x" * 3_000_000)
    assert not offer(id="y", kind="pause")
    assert fetch_snapshots(shared_gateway, offer.job) == []


def test_why_a_snapshot_was_not_sent(monkeypatch):
    """A snapshot that was not sent has a reason, also where the system gives no text."""

    def fail(*_: object) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(crashes.dial_in, "proven_connection", fail)
    reasons: list[str] = []
    delivery = crashes._Delivery({"kind": "pause", "message": ""}, reasons.append)  # type: ignore[typeddict-item]
    delivery.wait(50)
    while not reasons:
        time.sleep(0.01)
    assert reasons == ["ConnectionResetError"]


def test_a_deep_recursion():
    """Both ends of a deep stack are kept, with how many frames are left out; the writer does not recurse itself."""

    def recurse(depth):
        return recurse(depth - 1) if depth else 1 / 0

    document = saved(crash(recurse, 200))
    assert (len(document["frames"]), document["exceptions"][0]["left_out"]) == (60, 142)
    (line,) = exception_lines(document)
    assert line == "ZeroDivisionError (142 frames in the middle are not saved): division by zero"
    assert "left_out" not in saved(crash(recurse, 20))["exceptions"][0]
    endless = saved(crash(recurse, -1))
    assert endless["exceptions"][0]["type"] == "RecursionError"
    assert len(endless["frames"]) == snapshot.MAX_INNER + snapshot.MAX_OUTER
    assert endless["frames"][-1]["function"] == "crash"


@pytest.mark.parametrize("fault", ["import", "ray"])
def test_our_own_failure_is_a_line(monkeypatch, capsys, fault: str):
    """Where raydebug itself fails at a crash, the job goes on with its own error."""
    monkeypatch.setenv("RAYDEBUG_JOB", "j1")
    if fault == "import":  # as where no file descriptor is free
        for name in ("crashes", "pause"):
            monkeypatch.delattr(f"raydebug.worker.{name}", raising=False)
            monkeypatch.setitem(sys.modules, f"raydebug.worker.{name}", None)
        monkeypatch.setenv("RAY_DEBUG_POST_MORTEM", "1")
    else:
        monkeypatch.setitem(sys.modules, "ray.exceptions", object())
    import_hooks.note_uncaught(ValueError("the job's"), None)
    lines = [line.partition(":")[2].partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == [" no snapshot of this crash", " no pause at this error"][: 2 if fault == "import" else 1]


KINDS = """
import os
from raydebug.worker import crashes
def boom(number):
    raise type(f"Kind{number}", (Exception,), {})
def crash(number):
    try:
        boom(number)
    except Exception as error:
        crashes.note_crash(error)
for number in range(crashes.MAX_OF_PROCESS + 2):
    crash(number)
if os.fork() == 0:
    crash(0)
    crash(99)
else:
    os.wait()
"""


def test_crashes_of_a_parent_do_not_count_against_its_forks(gateway):
    """A fork sends the snapshots of its own crashes, however many its parent has sent."""
    gateway.start(KINDS, RAYDEBUG_JOB="j1").communicate(timeout=40)
    kinds = [one["exception"].rpartition(".")[2] for one in fetch_snapshots(gateway, "j1")]
    assert sorted(kinds) == sorted([*(f"Kind{number}" for number in range(crashes.MAX_OF_PROCESS)), "Kind99"])


AT_ONCE = """
import os
from raydebug.worker import crashes, snapshot
crashes.ANSWER_S = crashes.SENT_S = 60.0  # the answer of the gateway decides, not the load of this machine
made, make = [], snapshot.write
snapshot.write = lambda *given: made.append(make(*given)) or made[0]
def boom(number):
    raise ValueError("boom")
read, write = os.pipe()
for number in range({count}):
    if os.fork() == 0:
        os.environ["RANK"] = str(number)
        try:
            boom(number)
        except ValueError as error:
            crashes.note_crash(error)
        os.write(write, b"made\\n" if made else b"refused\\n")
        os._exit(0)
os.close(write)
print(*open(read))
"""


@pytest.mark.timeout(120)
def test_many_at_once(gateway):
    """When 200 ranks crash at once, 50 snapshots are made and kept; the other ranks make none (time: bench/)."""
    count = 200 if LONG else 60
    program = gateway.start(AT_ONCE.format(count=count), RAYDEBUG_JOB="j1")
    said, complaints = program.communicate(timeout=100)
    found = said.split()
    assert (found.count("made"), found.count("refused")) == (MAX_OF_JOB, count - MAX_OF_JOB), complaints
    assert len(fetch_snapshots(gateway, "j1")) == MAX_OF_JOB


PAUSED = """
from raydebug.worker import control_channel
control_channel.open_channel()
def f(loss):
    breakpoint()
def crash(loss):
    raise ValueError("boom")
{}
"""


@pytest.mark.parametrize(("body", "mode"), [("f(2.5)", "0"), ("crash(2.5)", "1")])
def test_of_a_pause(gateway, body: str, mode: str):
    """A snapshot of a pause has the user's frames: those of the thread, or after a crash those of the exception."""
    gateway.start(PAUSED.format(body), RAYDEBUG_JOB="j1", RAY_DEBUG_POST_MORTEM=mode, RAYDEBUG_SNAPSHOTS="0")
    (pause,) = gateway.pauses()
    summary = save_pause(gateway, pause["id"])
    assert summary["kind"] == "pause"
    (document,) = of_job(gateway)
    assert document["frames"][0]["function"] == body.partition("(")[0]
    assert document["frames"][0]["line"] == pause["line"]
    assert local(document, "loss")["text"] == "2.5"
    assert len(document["exceptions"]) == int(mode)
    gateway.pauses()  # it is still paused


@pytest.mark.parametrize(("kind", "shown"), [("f4", "float32"), ("M8[ns]", "datetime64[ns]"), ("U3", "<U3")])
def test_type_of_an_array(kind: str, shown: str) -> None:
    """An array that came from another process, too, has the name of its type, as far as the name says all."""
    numpy = pytest.importorskip("numpy")
    array = pickle.loads(pickle.dumps(numpy.zeros(3, kind)))
    assert tensor_summary.summarize(array, type(array), 8)["dtype"] == shown


WAITS = """
from raydebug.worker import control_channel
control_channel.open_channel()
import threading
def wait(shard):
    print("waits", flush=True)
    threading.Event().wait()
wait(4)
"""


@pytest.mark.timeout(60)
def test_of_a_process_that_waits(gateway):
    """A process that waits in C, where no pause is possible, is saved over its control channel; none is refused."""
    program = gateway.start(WAITS, RAYDEBUG_JOB="j1", RAYDEBUG_SNAPSHOTS="0")
    assert program.stdout.readline() == "waits\n"
    assert save_pause(gateway, f"pid:{program.pid}")["kind"] == "pause"
    (document,) = of_job(gateway)
    (frame,) = [one for one in document["frames"] if one["function"] == "wait" and "program" in one["file"]]
    assert document["values"][frame["locals"]["shard"]]["text"] == "4"
    assert (document["thread"], gateway.pauses(0)) == ("MainThread", [])
    with pytest.raises(RaydebugError, match="process 1 is not a process of a job"):
        save_pause(gateway, "pid:1")
