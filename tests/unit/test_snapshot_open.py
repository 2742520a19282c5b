"""`raydebug open`: the console, lists, the page, and the adapter for editors; without Ray or torch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
import typer

from raydebug.cli.open import snapshot
from raydebug.client import gateway_client
from raydebug.cluster import find
from raydebug.dap import DapSession, RequestFailed
from raydebug.editors import adapter as editors_adapter
from raydebug.editors.vscode import configuration_for_snapshot
from raydebug.errors import RaydebugError
from raydebug.protocol.snapshot import FORMAT
from raydebug.report.crash import crash_page
from raydebug.runs.folder import DOCUMENT
from raydebug.snapshot.values import REFUSED
from snapshot_files import SOURCE, crashed_reward, write

RAY_WORKER = "/env/lib/python3.11/site-packages/ray/_private/workers/default_worker.py"
BLOCKED = ("ray", "torch", "numpy", "vllm", "verl", "debugpy")
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({BLOCKED})); from raydebug.cli import main; main()"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "run" / "snapshots", crashed_reward())


@pytest.fixture
def run(tmp_path: Path, file: Path) -> Path:
    """The folder of a run in which four ranks crashed in the same way, and a fifth in another way."""
    folder = file.parent
    file.unlink()
    for rank in range(4):
        write(folder, crashed_reward(id=f"z{rank}", rank=rank, at=1_790_000_000.0 + rank), f"z{rank}")
    late = {"exception": "KeyError", "message": "<b>'x'</b>", "same": "k", "function": "look_up", "line": 3}
    write(folder, crashed_reward(id="k7", rank=7, at=1_790_000_100.0, **late), "k7")
    document = {"version": 1, "id": "raydebug-0629", "status": "failed", "command": ["python", "train.py"]}
    (folder.parent / DOCUMENT).write_text(json.dumps(document))
    return folder.parent


def raydebug(*arguments: object, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a Python in which ray, torch and numpy cannot be imported."""
    argv = [sys.executable, "-c", WITHOUT, *map(str, arguments)]
    return subprocess.run(
        argv, input=stdin, capture_output=True, text=True, env={**os.environ, "COLUMNS": "60", **variables}, timeout=60
    )


def poisoned(value: Any, mark: str) -> Any:
    """Return a document in which every text ends with this."""
    if isinstance(value, dict):
        return {key: poisoned(item, mark) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, mark) for item in value]
    return value + mark if isinstance(value, str) else value


OPENING = """\
crash in reward
  ZeroDivisionError: float division by zero
  caused by KeyError: 'gsm8k'
  raised while handling ray.exceptions.RayTaskError: look_up()
  /workspace/reward.py:45
  rank 0, actor Judge math, pid 7318,
  node f1633e03 at 10.0.0.4, job 04000000,
  step 12, 3 frames, 2026-09-21 14:13:20 UTC

  41     def reward(batch, config, scores):
  42         weights = batch.weights
  43         total = 0.0
  44         for score in scores:
  45  ->         total += score / weights[0]
  46         return total

"""


def test_opening_in_a_narrow_terminal(file: Path) -> None:
    """The chain of exceptions, the process and the source come first; the lines of raydebug fit 60 columns."""
    done = raydebug("open", file)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", OPENING)
    assert max(map(len, done.stdout.splitlines()[4:])) <= 60


def test_a_long_text_does_not_hide_the_chain(file: Path) -> None:
    """A long exception text is cut, so the rest of the chain stays visible; `exceptions` shows all of it."""
    document = crashed_reward()
    document["exceptions"][0]["text"] = "\n".join(f"line {number}" for number in range(50))
    document["exceptions"][1]["text"] = "a\nb"
    write(file.parent, document)
    shown = raydebug("open", file).stdout.splitlines()
    assert [one.strip() for one in shown[1:13]] == [
        "ZeroDivisionError: line 0", *(f"line {number}" for number in range(1, 9)),
        "... (`exceptions` shows all of it)", "caused by KeyError: a",
        "raised while handling ray.exceptions.RayTaskError: look_up()",
    ]  # fmt: skip
    assert "line 49\n1  caused by KeyError: a\nb\n" in raydebug("open", file, "-x", "exceptions").stdout


def test_commands_of_the_live_console(file: Path) -> None:
    """w, u, d, l, ll, a, p, tensor, tensors and exceptions show the snapshot as the live console shows a process."""
    script = ["w", "a", "p batch.weights.shape", "u", "l", "w all", "d", "l 43,44", "ll", "tensor view", "tensors",
              "exceptions", "exceptions 1", "p key", "score", "exceptions 0", "score"]  # fmt: skip
    done = raydebug("open", file, stdin="\n".join(script[:14]) + "\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == OPENING + (
        "  ... 1 frame of Ray (`w all` shows them)\n"
        "  /workspace/train.py:12 Trainer.step\n"
        "      loss = reward(batch, config, scores)\n"
        "> /workspace/reward.py:45 reward\n"
        "->    total += score / weights[0]\n"
        "batch = <verl.protocol.Batch weights=<torch.Tensor  [4x8]  float32  cpu  min -1.5  max 2  mean 0.25  NaN 3>,"
        " name='gsm8k'>\n"
        "config = {'lr': 1e-06, 'actor': {'clip': 0.2}}\n"
        "scores = [0.5, 1.5]\n"
        "torch.Size([4, 8])\n"
        "> /workspace/train.py:12 Trainer.step\n"
        "->     loss = reward(batch, config, scores)\n"
        "  12  ->     loss = reward(batch, config, scores)\n"
        "  /venv/site-packages/ray/_private/worker.py:900 main_loop\n"
        "> /workspace/train.py:12 Trainer.step\n"
        "->    loss = reward(batch, config, scores)\n"
        "  /workspace/reward.py:45 reward\n"
        "      total += score / weights[0]\n"
        "> /workspace/reward.py:45 reward\n"
        "->         total += score / weights[0]\n"
        "  43         total = 0.0\n"
        "  44         for score in scores:\n"
        + "".join(f"  {at} {' ->' if at == 45 else '   '} {line}\n" for at, line in enumerate(SOURCE, start=41))
        + "torch.nn.parameter.Parameter  [32]  float32  cpu  requires_grad\n"
        "  min -1.5  max 2  mean 0.25\n"
        "  NaN 3  Inf 0  (the line above is of the 29 finite values)\n"
        "  first [nan, 0.5, 1, ...]\n"
        "  shares memory with weights\n"
        "weights  torch.Tensor  [4x8]  float32  cpu  min -1.5  max 2  mean 0.25  NaN 3\n"
        "view  torch.nn.parameter.Parameter  [32]  float32  cpu  min -1.5  max 2  mean 0.25  NaN 3\n"
        "0  ZeroDivisionError: float division by zero\n"
        "1  caused by KeyError: 'gsm8k'\n"
        "2  raised while handling ray.exceptions.RayTaskError: look_up()\n"
        "> /workspace/table.py:3 look_up\n"
        "->     return {}[key]\n"
        "'gsm8k'\n"
    )


REMOTE = """\
no frames of it are saved
the remote traceback, from Ray:
Traceback of the other node \\x1b]0;owned\\x07\\u202egnp.exe"""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("p score + 1", REFUSED),
        ("import os", "SyntaxError: invalid syntax"),
        ("n", "'n' needs a live process; a snapshot has none"),
        ("continue", "'c' needs a live process; a snapshot has none"),
        ("b 12", "'b' needs a live process; a snapshot has none"),
        ("p", "p needs EXPR: p EXPR"),
        ("d", "Newest frame"),
        ("l 1,5", "the source is known from line 41"),
        ("tensor scores", "not a tensor or an array: list"),
        ("exceptions 7", "there are exceptions 0 to 2"),
        ("exceptions 2", REMOTE),
        ("h nope", "No help for 'nope'"),
    ],
)
def test_a_script_ends_at_the_first_failure(file: Path, command: str, said: str) -> None:
    """As in `attach -x`, nothing is printed at first, and the first command that fails ends the script with code 1."""
    done = raydebug("open", file, "-x", "p total", "-x", command, "-x", "p score")
    assert (done.returncode, done.stdout, done.stderr) == (1, "0.0\n", f"*** {said}\n")


def test_a_script_that_works(file: Path) -> None:
    """`-x` prints the output of its commands, also of several in one line; `q` ends it; the exit code is 0."""
    done = raydebug("open", file, "-x", "p total;; p score", "-x", "q", "-x", "p nope")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0.0\n0.5\n", "")
    shown = raydebug("open", file, "-x", "h").stdout
    assert [line.split()[0] for line in shown.splitlines()] == [
        "w", "u", "d", "l", "ll", "p", "tensor", "a", "locals", "pp", "tensors", "exceptions", "h", "q",
    ]  # fmt: skip


def test_nothing_of_a_job_reaches_the_terminal(file: Path) -> None:
    """Every command escapes control and bidi characters in names, values, texts and files."""
    document = poisoned(crashed_reward(), "\x1b]0;owned\x07\x9b2J\u202e")
    document["format"] = FORMAT
    write(file.parent, document, "evil")
    looks = ("w", "w all", "l", "ll", "a", "locals", "p batch", "pp batch", "tensor weights", "tensors", "exceptions")
    commands = ";;".join([*looks, "u", "locals", "pp cycle"])
    done = raydebug("open", file.parent.parent, "--pick", "2", stdin=commands)
    assert done.returncode == 0, done.stderr
    listed = raydebug("open", f"{file.parent}/", "--list")
    shown = done.stdout + done.stderr + listed.stdout + listed.stderr
    assert not re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert r"\x1b]0;owned\x07" in shown


# Runs


def test_list_of_a_run(run: Path) -> None:
    """`--list` has a row for each kind of crash, with its ranks in short form, the first in time marked."""
    done = raydebug("open", "--list", f"{run}/")
    rows = [line.split() for line in done.stdout.splitlines() if line[:2].strip().isdigit()]
    assert [" ".join(row) for row in rows] == [
        "1 ZeroDivisionError reward.py:45 reward Judge ranks 0-3 2026-09-21 14:13:20 UTC first z0",
        "2 KeyError reward.py:3 look_up Judge rank 7 2026-09-21 14:15:00 UTC k7",
    ]
    assert (done.returncode, done.stderr) == (0, f"next: raydebug open {run}/\n")
    document = json.loads(raydebug("open", f"{run}/", "--list", "--json").stdout)
    assert [*document] == ["version", "snapshots"]
    assert document["snapshots"][0] == {
        "file": f"{run}/snapshots/z0.snapshot.gz", "exception": "ZeroDivisionError", "function": "reward", "line": 45,
        "rank": 0, "pid": 7318, "at": 1_790_000_000.0, "same": "z",
    }  # fmt: skip
    assert len(document["snapshots"]) == 5


def test_opening_of_a_run(run: Path) -> None:
    """Opening a run lists all its crashes and opens the first; `--pick` opens another."""
    done = raydebug("open", f"{run}/")
    assert done.stdout == raydebug("open", run / "snapshots" / "z0.snapshot.gz").stdout
    assert done.stderr.endswith("opened: z0; --pick opens another\n")
    assert raydebug("open", f"{run}/", "--pick", "2").stdout.splitlines()[5].startswith("  rank 7, ")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ("open RUN --pick zz", 2, "'RUN' has no snapshot 'zz'"),
        ("open RUN other", 2, "open takes one snapshot or run"),
        ("open RUN a b --html", 2, "open takes one snapshot or run"),
        ("open nope", 2, "no run is recorded"),
        ("open nope.snapshot.gz", 2, "the snapshot cannot be read"),
        ("open RUNrun.json", 2, "this file is not a snapshot of raydebug"),
        ("open RUNempty", 1, "'RUNempty' has no snapshot"),
        ("open RUN --html RUN", 2, "the page cannot be written"),
    ],
)
def test_usage(run: Path, tmp_path: Path, arguments: str, code: int, error: str) -> None:
    """A target that cannot be opened is an error in three lines with exit code 2; a run without a crash has code 1."""
    (run / "empty").mkdir()
    done = raydebug(*arguments.replace("RUN", f"{run}/").split(), XDG_STATE_HOME=str(tmp_path / "state"))
    assert (done.returncode, done.stdout) == (code, "")
    lines = done.stderr.splitlines()
    assert lines[0] == f"error: {error.replace('RUN', f'{run}/')}"
    assert [line.partition(":")[0] for line in lines] == ["error", "cause", "fix"]


def test_the_prompt(file: Path, tmp_path: Path) -> None:
    """At the prompt an error does not end the session, an empty line repeats, Ctrl-C and `q` work as in pdb."""
    plain = {"TERM": "xterm", "NO_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1", "XDG_STATE_HOME": str(tmp_path)}
    child = pexpect.spawn(
        sys.executable, ["-c", WITHOUT, "open", str(file)], env={**os.environ, **plain}, encoding="utf-8",
        timeout=20, dimensions=(40, 60),
    )  # fmt: skip
    child.expect_exact("(snapshot 0)")
    child.sendline("p nope")
    child.expect_exact("NameError: 'nope'")
    child.expect_exact("(snapshot 0)")
    child.sendline("p config.actor")
    child.expect_exact("{'clip': 0.2}")
    child.expect_exact("(snapshot 0)")
    child.sendcontrol("c")
    child.expect_exact("(snapshot 0)")
    child.sendline("")
    child.expect_exact("{'clip': 0.2}")
    child.expect_exact("(snapshot 0)")
    child.sendline("q")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


# Pages


def test_page_of_a_crash(file: Path) -> None:
    """`--html` writes one page, readable by its owner only: chain, frames, locals, tensors; it has no script."""
    done = raydebug("open", file, "--html")
    path = Path(done.stdout.rstrip("\n"))
    assert path == file.with_name("c1.html")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    page = path.read_text(encoding="utf-8")
    assert "<script" not in page
    for text in ("caused by KeyError: &#x27;gsm8k&#x27;", "Trainer.step", "45 -&gt;", "[4x8] float32", "\\x1b]0;owned"):
        assert text.replace("&#x27;", "'") in page, text
    elsewhere = file.parent / "other.html"
    assert raydebug("open", file, "--html", elsewhere).stdout == f"{elsewhere}\n"
    assert elsewhere.read_text() == page


@pytest.mark.parametrize(
    ("record", "argv", "command"),
    [
        ({"id": "raydebug-0629", "command": ["bash", "train.sh"]}, ["python", RAY_WORKER], "bash train.sh"),
        ({"id": "another", "command": ["bash", "train.sh"]}, ["python", RAY_WORKER], None),
        ({"id": "raydebug-0629", "command": 5}, ["python", RAY_WORKER], None),
        (None, ["python", "-m", "my.train", "a b"], "python -m my.train 'a b'"),
    ],
    ids=["run", "worker", "damaged", "program"],
)  # fmt: skip
def test_command_on_the_page(file: Path, record: dict[str, Any] | None, argv: list[str], command: str | None) -> None:
    """The page has the command of the run, else that of the process; the command line of Ray's worker is left out."""
    write(file.parent, {**crashed_reward(), "argv": argv})
    if record is not None:
        (file.parent.parent / DOCUMENT).write_text(json.dumps({"version": 1, **record}))
    page = Path(raydebug("open", file, "--html").stdout.rstrip("\n")).read_text(encoding="utf-8")
    assert re.findall("<dt>command</dt><dd><code>(.*?)</code>", page) == ([command] if command else [])
    assert "default_worker" not in page


def test_page_of_the_last_run(run: Path, tmp_path: Path) -> None:
    """`--html OUT` alone opens the last run."""
    runs = tmp_path / "state" / "raydebug" / "runs"
    runs.mkdir(parents=True)
    run.rename(runs / "raydebug-0629")
    done = raydebug("open", "--html", tmp_path / "out.html", XDG_STATE_HOME=str(tmp_path / "state"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/out.html\n"), done.stderr


def test_text_of_a_job_stays_text_on_the_page() -> None:
    """Markup in names, values, sources and texts of exceptions is shown as text."""
    mark = '"><script>alert(1)</script><img src=x onerror=alert(1)>'

    document = poisoned(crashed_reward(), mark)
    document["frames"][0]["locals"][mark] = 0
    document["versions"][mark] = mark
    page = crash_page(document)
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") > 50


def test_the_report_links_the_crashes(run: Path) -> None:
    """The page of a run lists its crashes, the first one marked, each with the command that opens it."""
    done = raydebug("report", f"{run}/")
    page = Path(done.stdout.rstrip("\n")).read_text(encoding="utf-8")
    assert "2 kinds of crashes." in page
    assert "ranks 0-3" in page
    assert "2026-09-21 14:13:20 UTC, first" in page
    assert "raydebug open raydebug-0629 --pick 1" in page
    assert "KeyError</span>: &lt;b&gt;'x'&lt;/b&gt;" in page


# Editors


@contextlib.asynccontextmanager
async def adapter(
    *argv: object, attach: dict[str, Any] | None = None, request: str = "attach"
) -> AsyncIterator[DapSession]:
    """Start an adapter as an editor does, and attach; it has to exit after a disconnect."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *map(str, argv), stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    session = DapSession(process.stdout, process.stdin)
    try:
        await session.request("initialize", {"adapterID": "debugpy"})
        await session.request(request, attach or {})
        yield session
        await session.request("disconnect")
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        await session.close()
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("way", ["attach", "launch", "path"])
def test_a_debug_session(file: Path, way: str) -> None:
    """The adapter shows a snapshot as a stopped program that cannot run: threads, frames, a tree of values, source."""
    argv: tuple[object, ...] = ("-c", WITHOUT, "adapter", "--snapshot", file)
    if way == "path":
        asyncio.run(look(adapter(editors_adapter.__file__, attach={"snapshot": str(file)})))
    else:
        asyncio.run(look(adapter(*argv, request=way)))


async def look(opened: contextlib.AbstractAsyncContextManager[DapSession]) -> None:
    async with opened as session:
        await session.next_event("initialized", timeout_s=10)
        breakpoints = await session.request(
            "setBreakpoints", {"source": {"path": "x.py"}, "breakpoints": [{"line": 1}]}
        )
        assert breakpoints["breakpoints"][0]["verified"] is False
        await session.request("setExceptionBreakpoints", {"filters": []})
        await session.request("configurationDone")
        stopped = (await session.next_event("stopped", timeout_s=10))["body"]
        assert (stopped["reason"], stopped["text"]) == ("exception", "ZeroDivisionError: float division by zero")
        threads = (await session.request("threads"))["threads"]
        assert threads == [
            {"id": 1, "name": "ZeroDivisionError: float division by zero"},
            {"id": 2, "name": "caused by KeyError: 'gsm8k'"},
        ]
        stack = await session.request("stackTrace", {"threadId": 1, "startFrame": 0, "levels": 2})
        assert [(one["name"], one["line"]) for one in stack["stackFrames"]] == [("reward", 45), ("Trainer.step", 12)]
        assert stack["totalFrames"] == 3
        frame = stack["stackFrames"][0]
        source = await session.request(
            "source", {"source": frame["source"], "sourceReference": frame["source"]["sourceReference"]}
        )
        assert source["content"].split("\n")[40:] == SOURCE
        [scope] = (await session.request("scopes", {"frameId": frame["id"]}))["scopes"]
        variables = await inside(session, scope["variablesReference"])
        assert variables["total"]["value"] == "0.0"
        assert (await inside(session, variables["scores"]["variablesReference"]))["[1]"]["value"] == "1.5"
        weights = (await inside(session, variables["batch"]["variablesReference"]))["weights"]
        facts = await inside(session, weights["variablesReference"])
        assert (facts["shape"]["value"], facts["nan"]["value"]) == ("torch.Size([4, 8])", "3")
        value = await session.request(
            "evaluate", {"expression": "config.actor", "frameId": frame["id"], "context": "watch"}
        )
        assert value["result"] == "{'clip': 0.2}"
        assert (await inside(session, value["variablesReference"]))["['clip']"]["value"] == "0.2"
        with pytest.raises(RequestFailed, match="code cannot run in a snapshot"):
            await session.request("evaluate", {"expression": "score + 1", "frameId": frame["id"], "context": "repl"})
        about = await session.request("exceptionInfo", {"threadId": 2})
        assert (about["exceptionId"], about["details"]["message"]) == ("KeyError", "'gsm8k'")
        for command in ("continue", "next", "stepIn", "stepOut", "pause", "restartFrame"):
            with pytest.raises(RequestFailed, match="a snapshot does not run: it has no process"):
                await session.request(command, {"threadId": 1})
        for command in ("stackTrace", "scopes", "variables", "evaluate", "exceptionInfo", "source"):
            for arguments in (
                {"threadId": 99, "frameId": 99, "variablesReference": 10**9},
                {"threadId": "x", "breakpoints": 5},
            ):
                with pytest.raises(RequestFailed):
                    await session.request(command, arguments | {"expression": 5, "sourceReference": -1})


async def inside(session: DapSession, reference: int) -> dict[str, dict[str, Any]]:
    found = await session.request("variables", {"variablesReference": reference})
    return {one["name"]: one for one in found["variables"]}


def test_a_session_says_what_cannot_be_opened(tmp_path: Path) -> None:
    """An attach to a snapshot that is damaged is refused with cause and fix."""
    path = tmp_path / "x.snapshot.gz"
    path.write_bytes(b"")

    async def attach() -> None:
        async with adapter("-c", WITHOUT, "adapter", attach={"snapshot": str(path)}):
            raise AssertionError

    with pytest.raises(RequestFailed, match=r"this file is not a snapshot of raydebug: .*: it is empty; name a file"):
        asyncio.run(attach())


def test_source_of_this_machine(tmp_path: Path) -> None:
    """The editor opens the local file if it still has the saved lines, otherwise the saved source."""
    from raydebug.snapshot.session import SnapshotSession

    path = tmp_path / "reward.py"
    document = crashed_reward()
    document["frames"][0]["file"] = str(path)
    request = {"seq": 1, "command": "stackTrace", "arguments": {"threadId": 1}}

    def reference() -> object:
        [answer] = SnapshotSession(document).answer(request)  # type: ignore[arg-type]
        return answer["body"]["stackFrames"][0]["source"].get("sourceReference")

    assert reference() == 1
    path.write_text("\n" * 40 + "\n".join(SOURCE))
    assert reference() is None
    path.write_text("\n" * 41 + "\n".join(SOURCE))
    assert reference() == 1


def test_launch_json_for_a_crash(file: Path, tmp_path: Path) -> None:
    """`vscode --snapshot` writes a configuration without a cluster, with the absolute path of a file."""
    done = raydebug("vscode", "--snapshot", "last", "--print")
    configuration = json.loads(done.stdout)
    assert (configuration["name"], configuration["snapshot"], configuration["request"]) == (
        "raydebug: crash",
        "last",
        "attach",
    )
    assert "cluster" not in configuration
    assert configuration_for_snapshot(os.path.relpath(file))["snapshot"] == str(file)


# The real writer

CRASH = """
import asyncio, collections, dataclasses, sys
from pathlib import Path
from raydebug.worker import snapshot

@dataclasses.dataclass
class Batch:
    ids: list
    loss: float = 0.5

class Slots:
    __slots__ = ("inner", "never")
    def __init__(self, inner): self.inner = inner

def look_up(key, *rest, table=None):
    batch, pair = Batch([1, 2]), (1,)
    slots, order = Slots(batch), collections.OrderedDict(a=1)
    text, many, data, big = "x" * 5000, list(range(1000)), b"ab", 1 << 5000
    hf_token = "hf_" + "a" * 30
    odd = "\\x1b]0;owned\\x07"
    batch.ids.append(batch)
    try:
        fail()
    except ExceptionGroup as error:
        raise KeyError(key) from error

def fail():
    raise ExceptionGroup("two", [ValueError("first"), TypeError("second")])

try:
    look_up("gsm8k", 1, 2)
except BaseException as error:
    frames = snapshot.frames_of(error)
    document = snapshot.document_of(error, frames, snapshot.summarize(error, frames, "crash"), "MainThread")
    Path(sys.argv[1]).write_bytes(snapshot.compress(document))
"""


def test_what_a_worker_writes(tmp_path: Path) -> None:
    """A file of the real writer opens: chain, group, frames, dataclass, slots, redacted and cut values, no escape."""
    path = tmp_path / "w.snapshot.gz"
    program = tmp_path / "crash.py"
    program.write_text(CRASH)
    subprocess.run([sys.executable, str(program), str(path)], check=True, timeout=60)
    looks = [
        *("p key", "p rest", "p batch.ids[1]", "p slots.inner.loss", "p order['a']", "p len(text)", "p len(many)"),
        *("p data", "p big", "p hf_token", "p odd", "p pair", "pp batch", "exceptions", "exceptions 1"),
    ]
    done = raydebug("open", path, *(word for look in looks for word in ("-x", look)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "'gsm8k'", "(1, 2)", "2", "0.5", "1", "5000", "1000", "b'ab'", "(a number of 5001 bits)", "<redacted>",
        r"'\x1b]0;owned\x07'", "(1,)",
        "<__main__.Batch ids=[1, 2, ...], loss=0.5>",
        "  .ids = [1, 2, <__main__.Batch ids=..., loss=0.5>]",
        "  .loss = 0.5",
        "0  KeyError: gsm8k",
        "1  caused by ExceptionGroup: two",
        "2  in the group: ValueError: first",
        "3  in the group: TypeError: second",
        f"> {program}:28 fail",
        '->     raise ExceptionGroup("two", [ValueError("first"), TypeError("second")])',
    ]  # fmt: skip
    opened = raydebug("open", path).stdout
    assert opened.startswith("crash in look_up\n  KeyError: gsm8k\n  caused by ExceptionGroup: two\n")


def test_snapshot_of_all_pauses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    """`snapshot all` saves every pause that it can, names each that it cannot, then exits 1; --pid names a process."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(find, "load_cluster", lambda name: None)
    monkeypatch.setattr(gateway_client, "fetch_pauses", lambda cluster: [{"id": one} for one in "123"])
    monkeypatch.setattr(gateway_client, "fetch_snapshot", lambda cluster, job, saved: b"")

    def save(cluster: object, pause_id: str) -> dict[str, str]:
        if pause_id != "3":
            raise RaydebugError(f"pause {pause_id} is gone", cause="x", fix="y", code="pause.unknown")
        return {"id": f"c{pause_id}", "job": "raydebug-1"}

    monkeypatch.setattr(gateway_client, "save_pause", save)
    with pytest.raises(typer.Exit) as left:
        snapshot("all", None, None, "default")
    shown = capsys.readouterr()
    assert left.value.exit_code == 1
    assert shown.out == f"{tmp_path}/raydebug/runs/raydebug-1/snapshots/c3.snapshot.gz\n"
    assert [line for line in shown.err.splitlines() if "error" in line] == [
        "error: pause 1 is gone",
        "error: pause 2 is gone",
    ]
    with pytest.raises(RaydebugError, match="pause 1 is gone"):
        snapshot("1", None, None, "default")
    with pytest.raises(RaydebugError, match=r"pause pid:7@10\.0\.0\.2 is gone"):
        snapshot(None, None, "7@10.0.0.2", "default")
    with pytest.raises(RaydebugError, match="--pid seven names no process"):
        snapshot(None, None, "seven", "default")
