"""The first cause of a failure: of all errors the one that the others follow from, told by all in the same words."""

from __future__ import annotations

import html
import re

import pytest
from test_failures import CASES, HEALTHY, say

from raydebug.diagnose.answer import FAILURE, LoggedError, error_of, headline
from raydebug.diagnose.cause import USER_CODE, diagnose
from raydebug.diagnose.events import EXCEPTION, read_events
from raydebug.diagnose.read import Line, last_words, read_lines
from raydebug.diagnose.run_diagnosis import failure_lines
from raydebug.report.run import run_page
from raydebug.runs.record import read_document
from run_documents import failed_run


def errors(text: str) -> list[LoggedError]:
    """Return the errors in a text."""
    return find_errors([*read_lines(text.splitlines(), "driver")])


def find_errors(lines: list[Line]) -> list[LoggedError]:
    """Return the exceptions in some lines."""
    return [error_of(lines, event, event.type) for event in read_events(lines) if event.kind == EXCEPTION]


def shown(text: str) -> list[str]:
    """Return what is known of each error in a text."""
    return [f"{error.title} | {error.who} | {error.place}" for error in errors(text)]


def test_plain_traceback():
    """A traceback is one error, with the innermost line that is the user's own."""
    text = """before
Traceback (most recent call last):
  File "/work/train.py", line 3, in main
    step()
  File "/venv/lib/python3.11/site-packages/verl/x.py", line 9, in step
    raise KeyError(name)
KeyError: 'raw_prompt'
after
"""
    assert shown(text) == ["KeyError: 'raw_prompt' | driver | /work/train.py:3"]


def test_a_line_of_source():
    """The line of source of an error is the one below its place in the traceback, where there is one."""
    text = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in main\n%sKeyError: 1\n'
    assert [errors(text % line)[0].source_line for line in ("    step(x)\n    ^^^^^^^\n", "")] == ["step(x)", ""]


def test_error_that_travelled():
    """Of an error that two tasks handed on, the one that the innermost raised is reported, with its task and pid."""
    text = """Traceback (most recent call last):
  File "/work/train.py", line 30, in <module>
ray.exceptions.RayTaskError(ValueError): \x1b[36mray::Runner.run()\x1b[39m (pid=5, ip=10.0.0.1, actor_id=a)
  File "/work/train.py", line 12, in run
ray.exceptions.RayTaskError(ValueError): \x1b[36mray::WorkerDict.update()\x1b[39m (pid=6, ip=10.0.0.1, actor_id=b)
           ^^^^^^^^
  File "/work/train.py", line 9, in update
    raise ValueError("NaN at rank 1")
ValueError: NaN at rank 1
"""
    assert shown(text) == ["ValueError: NaN at rank 1 | WorkerDict.update, pid 6 | /work/train.py:9"]


def test_lines_of_several_processes_lie_between_one_another():
    """Prefixes tell whose a line is, doubled ones and a logger's own too."""
    text = """(A pid=1) Traceback (most recent call last):
(B pid=2) (EngineCore_DP0 pid=3) ERROR 11-21 19:41:51 [core.py:7] Traceback (most recent call last):
(A pid=1)   File "/work/a.py", line 1, in f
(B pid=2) (EngineCore_DP0 pid=3) ERROR 11-21 19:41:51 [core.py:7]   File "/work/b.py", line 2, in g
(A pid=1) RuntimeError: a
(B pid=2) (EngineCore_DP0 pid=3) ERROR 11-21 19:41:51 [core.py:7] ValueError: no KV cache
[rank0]: Traceback (most recent call last):
[rank0]:   File "/work/c.py", line 4, in h
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB
"""
    assert shown(text) == [
        "RuntimeError: a | A, pid 1 | /work/a.py:1",
        "ValueError: no KV cache | EngineCore_DP0, pid 3 | /work/b.py:2",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB | rank0 | /work/c.py:4",
    ]


def test_cause_before_what_follows_it() -> None:
    """Of a chain the cause is first; the ends of others, lost connections and the engine's front are a cascade."""
    text = """ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
Traceback (most recent call last):
  File "/work/a.py", line 1, in f
ValueError: it is empty.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/work/a.py", line 2, in g
RuntimeError: Engine core initialization failed. See root cause above.
ConnectionResetError: [Errno 104] Connection reset by peer
"""
    lines = [*read_lines(text.splitlines(), "driver")]
    answer = diagnose(lines)
    first = answer.diagnoses[0]
    record = first.as_first_error()
    assert (record["kind"], record["text"], record["class"]) == ("ValueError", "it is empty.", "user-code")
    assert first.error is not None
    assert (first.error.file, first.error.line, first.error.traceback[-1]) == ("driver", 2, "ValueError: it is empty.")
    kinds = [each.kind for each in find_errors(lines) if each != first.error]
    assert kinds == ["ActorDiedError", "RuntimeError", "ConnectionResetError"]
    assert diagnose([]).first is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Fatal Python error: Segmentation fault", "Fatal Python error"),
        ("*** SIGSEGV received at time=1 on cpu 6 ***", "SIGSEGV"),
        ("(raylet) x.cc:3041: 1 Workers (tasks / actors) killed due to memory pressure (OOM) at", "memory"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_errors_of_one_line(line: str, name: str) -> None:
    """Crashes, the raylet's memory monitor, and a traceback's last line without its beginning count too."""
    first = diagnose([*read_lines([line])]).first
    assert first is not None
    assert first.error is not None
    assert name in first.error.title


@pytest.mark.parametrize(
    "line",
    ["step:1 - loss:0.5", "WARNING: Error bars are off", "error_rate: 0.1", "no Error: here", "a: b"],
)
def test_what_is_no_error(line: str) -> None:
    """Words of healthy runs are no errors."""
    assert errors(line) == []
    assert diagnose([*read_lines([line])]).diagnoses == []


def test_only_followers() -> None:
    """Where nobody tells a cause, an end is shown; without any error nothing is."""
    first = diagnose([*read_lines(["ray.exceptions.ActorDiedError: The actor died.", "EOFError: it closed"])]).first
    assert first is not None
    assert first.evidence[0].number == 1


def test_endless_traceback() -> None:
    """Of a traceback that never ends the last lines are shown."""
    found = errors(
        "\n".join(["Traceback (most recent call last):", *["  x"] * 100_000, "KeyError: 1", "ValueError: read"])
    )
    assert [(error.title, len(error.traceback)) for error in found] == [("KeyError: 1", 400), ("ValueError: read", 1)]


def test_last_words() -> None:
    """The last line that is not blank is without its prefix."""
    assert last_words("a\n(W pid=1) it ends\n\n") == "it ends"
    assert last_words("\n") == "(it printed nothing)"


ECHOES = """\
(RewardLoopWorker pid=1) Traceback (most recent call last):
(RewardLoopWorker pid=1)   File "/opt/venv/lib/python3.11/site-packages/verl/reward_loop.py", line 9, in f
(RewardLoopWorker pid=1)   File "/home/me/reward.py", line 2, in compute_score
(RewardLoopWorker pid=1) ValueError: no answer in it
(TaskRunnerV1 pid=2) Traceback (most recent call last):
(TaskRunnerV1 pid=2)   File "/opt/venv/lib/python3.11/site-packages/verl/replay_buffer.py", line 510, in f
(TaskRunnerV1 pid=2) RuntimeError: Sync replay buffer selected terminal groups with no materializable trajectories.
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 1055, in get_objects
ray.exceptions.RayTaskError(RuntimeError): ray::TaskRunnerV1.run() (pid=2, ip=127.0.0.1)
  File "/opt/venv/lib/python3.11/site-packages/verl/replay_buffer.py", line 510, in f
RuntimeError: Sync replay buffer selected terminal groups with no materializable trajectories.
"""
CAUGHT = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/other/optional.py", line 3, in <module>
ModuleNotFoundError: No module named 'optional'
(WorkerDict pid=3) Traceback (most recent call last):
(WorkerDict pid=3)   File "/opt/venv/lib/python3.11/site-packages/torch/nn.py", line 7, in forward
(WorkerDict pid=3) torch.OutOfMemoryError: CUDA out of memory.
ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.update() (pid=3, ip=127.0.0.1)
  File "/opt/venv/lib/python3.11/site-packages/torch/nn.py", line 7, in forward
torch.OutOfMemoryError: CUDA out of memory.
"""
ENGINE = """\
(EngineCore pid=5) ERROR 11-21 20:37:58 [core.py:700] Traceback (most recent call last):
(EngineCore pid=5) ERROR 11-21 20:37:58 [core.py:700]   File "/v/site-packages/vllm/v1/worker/utils.py", line 367, in f
(EngineCore pid=5) ERROR 11-21 20:37:58 [core.py:700] ValueError: No common block size for 7.
Traceback (most recent call last):
  File "/v/site-packages/vllm/v1/engine/core_client.py", line 1, in f
RuntimeError: Engine core initialization failed. See root cause above.
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (ECHOES, ("ValueError: no answer in it", "/home/me/reward.py:2")),
        (
            CAUGHT,
            ("OutOfMemoryError: CUDA out of memory.", "/opt/venv/lib/python3.11/site-packages/torch/nn.py:7"),
        ),
        (ENGINE, ("ValueError: No common block size for 7.", "/v/site-packages/vllm/v1/worker/utils.py:367")),
        ("all is well\n", None),
    ],
    ids=["the user's own before its echoes", "what ended the job before what was caught", "the engine's own", "none"],
)
def test_first_cause(log: str, cause: tuple[str, str] | None) -> None:
    """Of all that a log reports, the exception that the others come of is named, with its line."""
    first = diagnose([*read_lines(log.splitlines())]).first
    assert (first and first.error and (first.error.title, first.error.place)) == cause


# One answer


def plain(page: str) -> str:
    """Return the text of a page."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["class"] != HEALTHY])
def test_one_answer(name: str) -> None:
    """`run` and the report say of each recorded failure what `diagnose` says."""
    answer = say(name)
    assert answer.status == FAILURE
    first = answer.diagnoses[0]
    record = first.as_first_error()
    words = "".join(headline(record))
    assert failure_lines(first)[0] == (record["cause"] if first.name == USER_CODE else words)
    assert f"First error{words}" in plain(run_page(read_document({**failed_run(), "first_error": record})))
    who = f"raised by {record['who']}" if record["kind"] != first.name else f"in {record['who']}"
    text = "\n".join(failure_lines(first))
    assert who in text
    assert record["place"] in text


def test_record_of_an_older_version() -> None:
    """The first error in the record of an older version, and of a check, is shown as before."""
    old = {"kind": "ValueError", "text": "no", "who": "W rank 1", "place": "/x.py:3"}
    assert "First errorValueError: noraised by W rank 1, at /x.py:3" in plain(
        run_page(read_document({**failed_run(), "first_error": old}))
    )
