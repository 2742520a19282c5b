"""`raydebug diagnose`: reading logs, the rules, and the first cause."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from raydebug.cli import app as cli
from raydebug.diagnose import scan
from raydebug.diagnose.answer import FAILURE, NO_FAILURE, UNKNOWN, Answer
from raydebug.diagnose.cause import diagnose
from raydebug.diagnose.events import EXCEPTION, read_events
from raydebug.diagnose.inputs import until
from raydebug.diagnose.prefilter import _linear, clauses
from raydebug.diagnose.read import read_lines
from raydebug.diagnose.rules import PLACEHOLDERS, ROLES, Rule, load_rules, prefilter
from raydebug.diagnose.run_diagnosis import diagnose_words
from raydebug.diagnose.scan import AROUND, MAX_OF_PATTERN, Kept, read_log
from raydebug.errors import RaydebugError

# Harmless lines of healthy runs, written by hand after what these programs print.
HEALTHY = """\
+ export NCCL_SOCKET_IFNAME=eth0 TORCH_NCCL_ASYNC_ERROR_HANDLING=1 HF_HUB_OFFLINE=1
+ python3 -m verl.trainer.main_ppo data.train_files=/d/train.parquet data.train_batch_size=8 data.truncation=error
2026-01-02 10:20:30,123\tINFO worker.py:1888 -- Started a local Ray instance.
(TaskRunner pid=71) {'actor_rollout_ref': {'actor': {'ppo_mini_batch_size': 8, 'use_dynamic_bsz': False}}}
(TaskRunner pid=71)  'data': {'train_files': '/d/train.parquet', 'truncation': 'error', 'train_batch_size': 1024},
(WorkerDict pid=72) Total parameters: 0.49B
(vLLMHttpServer pid=73) INFO 01-02 10:20:31 [kv_cache_utils.py:900] GPU KV cache size: 24,576 tokens
(TaskRunner pid=71) step:1 - actor/pg_loss:0.01 - actor/grad_norm:0.3 - critic/rewards/mean:0.5
(TaskRunner pid=71) step:2 - actor/pg_loss:0.02 - actor/grad_norm:0.2 - critic/rewards/mean:0.6
(TaskRunner pid=71) Filtering prompts longer than 512 tokens: 100%|##########| 8/8 [00:03<00:00, 2.00 examples/s]
(TaskRunner pid=71) Token indices sequence length is longer than the specified maximum sequence length (20 > 10)
Training Progress: 100%|##########| 2/2 [00:10<00:00,  5.00s/it]
2026-01-02 10:20:39,651\tVINFO scripts.py:1299 -- Send termination request to `/venv/lib/python3.11/site-packages/ray/\
core/src/ray/raylet/raylet --node_ip_address=10.0.0.1 --head "--python_worker_command=/venv/bin/python3.11 /venv/lib/\
python3.11/site-packages/ray/_private/workers/setup_worker.py --gcs-address=10.0.0.1:6379"` (via SIGTERM)
(TaskRunner pid=71) Final validation metrics: {'val-core/gsm8k/acc/mean@1': 0.5}
[W102 10:20:40.000 ProcessGroupNCCL.cpp:1250] Warning: WARNING: destroy_process_group() was not called
"""


def say(text: str) -> Answer:
    """Return what the rules say of a text."""
    return diagnose(list(read_lines(text.splitlines())))


def names(text: str) -> list[str]:
    """Return the classes that a text is diagnosed as, best first."""
    return [one.name for one in say(text).diagnoses]


@pytest.mark.parametrize("rule", load_rules(), ids=lambda rule: f"{rule.name}: {rule.example[:40]}")
def test_rule_explains_its_example(rule: Rule) -> None:
    """Each rule explains its own example, and says who writes such a line."""
    answer = say(rule.example if rule.fatal else f"ERROR: {rule.example}\nERROR: it ends\n")
    assert rule.name in [one.name for one in answer.diagnoses], answer
    assert rule.source
    assert rule.cause
    assert rule.fix
    assert rule.role in ROLES


def test_patterns_have_literals() -> None:
    """Each pattern has a literal text in every match, so that a log is searched without regular expressions."""
    without = [pattern.pattern for rule in load_rules() for pattern in rule.message if not clauses(pattern.pattern)]
    assert without == []
    assert prefilter().find(b"nothing of interest") == set()


def test_healthy() -> None:
    """A healthy run is no failure, and neither is its start alone, nor any line of it."""
    assert say(HEALTHY).status == NO_FAILURE
    lines = HEALTHY.splitlines()
    assert say("\n".join(lines[:6])).status == NO_FAILURE
    assert [line for line in lines if say(line).status != NO_FAILURE] == []
    assert say("").status == NO_FAILURE


@pytest.mark.parametrize(
    ("line", "text", "process", "level"),
    [
        ("\x1b[36m(TaskRunner pid=12, ip=10.0.0.2)\x1b[0m no space", "no space", "TaskRunner pid=12", ""),
        ("(WorkerDict pid=5) [rank3]: ValueError: x [repeated 7x across cluster]", "ValueError: x", "rank3", ""),
        ("(EngineCore_DP0 pid=9) ERROR 01-02 10:20:30 [core.py:12] boom", "boom", "EngineCore_DP0 pid=9", "ERROR"),
        ("[2026-01-02 10:20:30,123 E 12 34] (raylet) a.cc:5: boom", "a.cc:5: boom", "raylet", "ERROR"),
        ("2026-01-02 10:20:30,123\tWARNING worker.py:1 -- boom", "worker.py:1 -- boom", "f.log", "WARNING"),
        ("10%|#   | 1/10\r20%|##  | 2/10\r", "20%|##  | 2/10", "f.log", ""),
        ("trainer-1  | hello", "hello", "f.log", ""),
        ("2026-03-17T20:34:50.5+08:00 stderr F [INFO:swift] hello", "[INFO:swift] hello", "f.log", ""),
        ("2026-01-02 10:20:30 | ERROR | stderr | ValueError: x", "ValueError: x", "f.log", "ERROR"),
        ("node1:71:72 [0] NCCL INFO Init START", "Init START", "f.log", "INFO"),
        ("+ python3 train.py lr=1", "python3 train.py lr=1", "f.log", "TRACE"),
        ("Running entrypoint for job raydebug-1: cd /w && exec x", "cd /w && exec x", "f.log", "TRACE"),
    ],
)
def test_prefixes(line: str, text: str, process: str, level: str) -> None:
    """Colours, prefixes and progress bars are taken off, and say whose line it is."""
    (one,) = read_lines([line], "f.log")
    assert (one.text, one.process, one.level) == (text, process, level)


def test_exceptions() -> None:
    """Exceptions are read with their frames, also where lines of two processes alternate."""
    log = """\
(A pid=1) Traceback (most recent call last):
(B pid=2) Traceback (most recent call last):
(A pid=1)   File "/w/a.py", line 3, in one
(B pid=2)   File "/w/b.py", line 4, in two
(A pid=1) ValueError: of a
(B pid=2) my.pkg.OwnError: of b
"""
    events = read_events(list(read_lines(log.splitlines())))
    assert {event.kind for event in events} == {EXCEPTION}
    assert [(event.type, event.message, event.frames) for event in events] == [
        ("ValueError", "of a", [("/w/a.py", 3, "one")]),
        ("OwnError", "of b", [("/w/b.py", 4, "two")]),
    ]


def test_cause_before_effects() -> None:
    """What followed from a cause is listed under it, whichever came first in the file."""
    log = """\
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
(EngineCore pid=9) ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
"""
    first, *others = say(log).diagnoses
    assert (first.name, first.evidence[0].number) == ("vllm-kv-cache-oom", 2)
    assert first.effects == [one.name for one in others]


def test_frameworks_are_named_once() -> None:
    """A rule says {users} for a frame of no framework; the loader puts the one list of frameworks in its place."""
    folder = resources.files("raydebug.diagnose").joinpath("rules")
    texts = [file.read_text() for file in folder.iterdir() if file.name.endswith(".toml")]
    assert sum(text.count("{users}") for text in texts) > 10
    assert not any("dist-packages" in text for text in texts)
    patterns = [pattern for rule in load_rules() for pattern in rule.not_frame]
    assert not any("{users}" in pattern.pattern for pattern in patterns)
    (users,) = {pattern for pattern in patterns if pattern.pattern in PLACEHOLDERS.values()}
    assert users.search("/home/me/reward.py:score")
    assert not users.search("/home/me/verl/trainer/main_ppo.py:run")


def test_users_own_error() -> None:
    """An exception that no rule explains is the user's, with its place; without any, it is unknown."""
    log = """\
Traceback (most recent call last):
  File "/home/u/my_reward.py", line 12, in grade
  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
"""
    (found,) = say(log).diagnoses
    assert found.name == "user-code"
    assert found.title == "JSONDecodeError in the program at /home/u/my_reward.py:12 grade"
    assert found.cause == "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    assert say("Segmentation violation?\nFATAL something odd\n").status == UNKNOWN


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: could not convert string to float: '1,000'",
        "TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'",
        "AttributeError: 'NoneType' object has no attribute 'group'",
        "re.error: missing ), unterminated subpattern at position 0",
        "Exception: bad format",
    ],
)
def test_error_in_a_reward_function(error: str) -> None:
    """An error of the user's function is not one of the settings, also where verl's configuration is in the trace."""
    log = f"""\
Traceback (most recent call last):
  File "/w/verl/trainer/main_ppo.py", line 159, in run
    trainer.fit(config)
  File "/home/u/my_reward.py", line 33, in compute_score
    return grade(text)
{error}
"""
    assert names(log)[0] == "user-code"


OWN = 'Traceback (most recent call last):\n  File "/w/train.py", line 1, in main\nValueError: odd\n'
PAUSE = "(Rank pid=7) raydebug: /w/train.py:1 paused (breakpoint); look at it with: raydebug attach\n"
PORT = """\
Traceback (most recent call last):
  File "/x/site-packages/ray/dashboard/dashboard.py", line 251, in <module>
  File "/x/site-packages/ray/dashboard/http_server_head.py", line 288, in run
  File "/x/site-packages/aiohttp/web_runner.py", line 119, in start
  File "/usr/lib/python3.11/asyncio/base_events.py", line 1536, in create_server
OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 44217): address already in use
"""
QUIET = """\
[2026-01-02 10:20:30,123 I 1 2] actor_manager.cc:1: received notification on actor, state: PENDING_CREATION
[2026-01-02 10:20:31,123 W 1 2] store.cc:1: Disconnecting client due to connection error with code 2: End of file
node1:71:72 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 8 cudaDev 0 - Init START
Exception ignored in: <function ActorHandle.__del__ at 0x7f0000000000>
Traceback (most recent call last):
AttributeError: 'NoneType' object has no attribute 'global_worker'
"""
CONFIG = """\
(TaskRunner pid=71) {'actor_rollout_ref': {'rollout': {'cudagraph_capture_sizes': None,
(TaskRunner pid=71)                                    'cudagraph_capture_sizes': None,
(TaskRunner pid=71)                                    'on_failure': 'CUDA out of memory',
(TaskRunner pid=71)  'trainer': {'nccl_timeout': 'Watchdog caught collective operation timeout'}}
"""
OPTIONAL = (
    "2026-01-02 10:20:30,123\tWARNING gpu_profile_manager.py:78 -- [GpuProfilingManager] `dynolog` is not installed,"
    " GPU profiling will not be available.\n"
)
FULL = "(raylet) [2026-01-02 10:20:30,123 E 1 2] (raylet) m.cc:1: /tmp/ray is over 95% full, available space: 1 GB\n"
KILLED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
LATE = "(raylet) A worker died or was killed. Worker exit type: SYSTEM_ERROR. The process receives a SIGTERM.\n"
TIMEOUT = "(W pid=1) [rank0]: Watchdog caught collective operation timeout: ran for 600000 milliseconds\n"
DISK = "object-store-or-disk-full"
# A log, and the classes of its diagnoses, best first; none where it shows no failure.
LOGS = {
    "a pause": (PAUSE, ["breakpoint-waiting"]),
    "progress after a pause": (f"{PAUSE}(TaskRunner pid=9) step:1 - actor/pg_loss:0.1\n", []),
    "a crash after a pause": (PAUSE + OWN, ["user-code", "breakpoint-waiting"]),
    "a pause after a crash": (OWN + PAUSE, ["user-code", "breakpoint-waiting"]),
    "a pdb without input": (f"(Pdb) \n{OWN}".replace("ValueError: odd", "bdb.BdbQuit"), ["debugger-has-no-terminal"]),
    "a progress bar's end is none of the run": (f"Map: 100%|####| 3/3 [00:43<00:00]\n{TIMEOUT}", ["nccl-timeout"]),
    "a worker that is ended after the training": (HEALTHY + LATE, []),
    "a worker that is ended before": (LATE, ["ray-actor-died"]),
    "deaths that are information, and an exception in __del__": (QUIET, []),
    "a port that the dashboard cannot take": (PORT, ["ray-port-in-use"]),
    "a package that can be left out": (OPTIONAL, []),
    "its line before an error": (OPTIONAL + OWN, ["user-code"]),
    "a printed configuration": (CONFIG, []),
    "a printed configuration before an error": (CONFIG + OWN, ["user-code"]),
    "its words in an error": ("RuntimeError: it fails in cudagraph_capture", ["cuda-graph-capture"]),
    "a warning before progress": (FULL + HEALTHY, []),
    "a warning": (FULL, [DISK]),
    "a warning that Ray repeats": (FULL + OWN + FULL, ["user-code", DISK]),
    "a warning that Ray repeats, and an end": (FULL + KILLED + FULL, ["ray-actor-died", DISK]),
    "a warning that Ray repeats, and its error": (
        FULL + OWN.replace("/w/", "/v/site-packages/ray/").replace("ValueError: odd", "OutOfDiskError: no") + FULL,
        [DISK],
    ),
    "an effect before its cause": (
        f"{TIMEOUT}(W pid=2) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        ["cuda-oom", "nccl-timeout"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("log", "expected"), LOGS.values(), ids=list(LOGS))
def test_log(log: str, expected: list[str]) -> None:
    """What warns, ends late or stands in a text of something else is no cause; what failed is."""
    assert names(log) == expected
    assert (say(log).status == NO_FAILURE) == (expected == [])


@pytest.mark.parametrize(
    "line",
    [
        "wandb: Currently logged in as: me. Use `wandb login --relogin` to force relogin",
        "WANDB_API_KEY=",
        "max locked memory           (kbytes, -l) 8192",
        "   docker run --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 ...",
        "docker run --gpus all --shm-size=16g verl bash train.sh",
        "run.sh: line 3: nvidia-smi: command not found",
        "sh: 1: lspci: not found",
        "flash_attn is not installed.",
        "file descriptor limit is 65536",
    ],
)
def test_a_harmless_line_before_an_error(line: str) -> None:
    """What healthy runs print too is no failure, and the exception of the user's code that follows is the cause."""
    assert say(line).status == NO_FAILURE
    assert names(f"{line}\n{OWN}")[0] == "user-code"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("wandb: Paste an API key from your profile and hit enter, or press ctrl+c to quit:", "wandb-login"),
        ("KeyError: 'WANDB_API_KEY'", "wandb-login"),
        ("WANDB_API_KEY is not set", "wandb-login"),
        ("RuntimeError: cannot register memory: the locked memory limit is too low", "nccl-init-failure"),
        ("libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.\nRuntimeError: x", "nccl-init-failure"),
        ("OSError: file descriptor limit reached", "ulimit-threads-files"),
        ("ERROR: run docker with a larger --shm-size", "shm-too-small"),
        ("run.sh: line 3: torchrun: command not found", "missing-python-package"),
        ("ImportError: flash_attn is not installed.", "missing-python-package"),
        ("nvidia-smi: command not found\nsrun: error: n1: task 0: Exited with exit code 127", "missing-python-package"),
    ],
)
def test_the_same_words_with_a_failure(line: str, name: str) -> None:
    """Where such a line says that something has failed, or nothing else explains the failure, it is the cause."""
    assert names(line)[0] == name


@pytest.mark.parametrize(
    ("ray", "python", "names_it"),
    [
        ("2.41.0", "3.11.7", "ray-version-mismatch"),
        ("2.60.1", "3.11.7", "ray-version-mismatch"),
        ("2.60.0", "3.11.9", "ray-python-version-mismatch"),
        ("2.60.0", "3.1.7", "ray-python-version-mismatch"),
    ],
)
def test_which_version_differs(ray: str, python: str, names_it: str) -> None:
    """Ray's error names both versions of both sides; the one that differs is the cause, and the other one is none."""
    head, job = (
        f"started with:\n    Ray: {one}\n    Python: {two}" for one, two in (("2.60.0", "3.11.7"), (ray, python))
    )
    text = f"RuntimeError: Version mismatch: The cluster was {head}\nThis process on node 10.0.0.1 was {job}"
    assert names(text) == [names_it]


def run(*words: str, **options: bytes) -> Result:
    """Run `raydebug diagnose`."""
    return CliRunner().invoke(cli.app_for(["diagnose"]), ["diagnose", *words], **options)


FILES = "OSError: [Errno 24] Too many open files"


def test_command(tmp_path: Path) -> None:
    """Files, a folder, a compressed file and JSON; exit codes 0 for no failure and 1 for a failure."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "worker.err").write_bytes(b"\xff no text\nOSError: [Errno 24] Too many open files\n")
    (folder / "raylet.out.gz").write_bytes(gzip.compress(b"fine\n"))
    done = run(str(folder), "--json")
    document = json.loads(done.stdout)
    first = document["diagnoses"][0]
    assert (done.exit_code, document["status"], first["class"]) == (1, FAILURE, "ulimit-threads-files")
    assert first["evidence"][0]["line"] == 2
    assert "Too many open files" in run(str(folder / "worker.err")).stdout
    (folder / "worker.err").write_text(HEALTHY)
    assert run(str(folder)).exit_code == 0


CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
LOG = "hello\n" * 2000 + CUDA


FORMATS = {
    "gzip": (gzip.compress(LOG.encode()), ""),
    "utf-8 with a mark": (b"\xef\xbb\xbf" + CUDA.encode(), ""),
    "zeros and other bytes between the lines": (
        bytes(100_000) + b"step 1\n" * 1000 + bytes(range(256)) * 1000 + f"\n{CUDA}".encode() + b"\xff\x00" * 1000, ""),
    "xz": (lzma.compress(LOG.encode()), "compressed with xz"),
    "bzip2": (bz2.compress(LOG.encode()), "compressed with bzip2"),
    "zstd": (b"\x28\xb5\x2f\xfd\xa0" + LOG.encode(), "compressed with zstd"),
    "utf-16": (LOG.encode("utf-16"), "text in UTF-16"),
    "utf-16 without a mark": (LOG.encode("utf-16-le"), "text in UTF-16"),
    "utf-16 in gzip": (gzip.compress(LOG.encode("utf-16-be")), "text in UTF-16"),
    "zip": (b"PK\x03\x04" + bytes(100), "a zip archive"),
    "binary": (bytes(range(256)) * 1000, "binary data"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_formats(tmp_path: Path, name: str) -> None:
    """Text and gzip are read, whatever the name, from a file, in a folder and on standard input; others are refused."""
    data, kind = FORMATS[name]
    log = tmp_path / "worker.log"
    log.write_bytes(data)
    if not kind:
        for word in (str(log), str(tmp_path)):
            assert "[cuda-oom, exact]" in run(word).stdout
        assert "[cuda-oom, exact]" in run("-", input=data).stdout
        return
    refusal = run(str(log)).exception
    assert str(refusal) == (
        f"error: {log} is not a log that can be read\ncause: it is {kind}\n"
        "fix: give it as UTF-8 text, packed with gzip or not, or leave it out"
    )


def test_folder(tmp_path: Path) -> None:
    """In a folder logs have many names; what is left out is counted and named, and links do not lead out of it."""
    for number, name in enumerate(("rank0", "a.log.1", "slurm-1.error", "x.log-20260102.gz", "job.o123", "b.jsonl")):
        folder = tmp_path / str(number)
        folder.mkdir()
        data = CUDA.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        assert run(str(folder)).exit_code == 1, name
    others = tmp_path / "others"
    others.mkdir()
    (others / "a.log").write_text("step 1\n")
    (others / "b.log").symlink_to(tmp_path / "0" / "rank0")
    (others / "config.yaml").write_text("a: 1\n")
    (others / "c.log").write_bytes(b"PK\x03\x04")
    os.mkfifo(others / "d.log")
    (others / "e.log").symlink_to("e.log")
    shown = run(str(others)).stdout
    assert "note: left out, 5: " in shown
    for words in ("b.log: a link out of the folder", "config.yaml: not named as a log", "c.log: it is a zip archive",
                  "d.log: it is not a regular file"):  # fmt: skip
        assert f"{others}/{words}" in shown
    assert shown.startswith("no failure found in 1 lines")


def test_sessions_of_ray(tmp_path: Path) -> None:
    """Of Ray's folder the newest session is read, and the older ones are named as left out."""
    for session, text in (("session_a", CUDA), ("session_b", "step 1\n")):
        (tmp_path / session / "logs").mkdir(parents=True)
        (tmp_path / session / "logs" / "worker-1.err").write_text(text)
    (tmp_path / "session_latest").symlink_to("session_b")
    done = run(str(tmp_path))
    assert done.exit_code == 0
    assert f"left out, 1: {tmp_path / 'session_a'} (a folder)" in done.stdout


def test_archive_that_is_cut_off(tmp_path: Path) -> None:
    """An archive that is cut off is judged as far as it goes, and named."""
    noise = random.Random(0).randbytes(1_000_000).hex()
    packed = gzip.compress((CUDA + noise).encode())
    log = tmp_path / "a.log"
    log.write_bytes(packed[: len(packed) * 3 // 4])
    shown = run(str(log)).stdout
    assert "[cuda-oom, exact]" in shown
    assert f"note: {log} is cut off or damaged; its first " in shown
    log.write_bytes(gzip.compress(CUDA.encode())[:60])
    done = run(str(log))
    assert (done.exit_code, getattr(done.exception, "what", "")) == (1, "a log cannot be read"), "no line of it"


@pytest.mark.parametrize(
    "log",
    [
        "{'a': 1}, " * 1_000_000 + CUDA,
        "step: 1\n" + CUDA.rstrip() + "\r 50%|##| 1/2\n",
        "".join(f"\rrollout: {n}%|###| {n}/9" for n in range(90_000)) + "\r" + CUDA,
        "x" * 3_000_000 + "\n" + CUDA,
        "y" * (64 * 1024 - 30) + CUDA,
    ],
    ids=["at the end of a long line", "before a CR", "behind 90,000 CRs", "after a long line", "where a line is cut"],
)
def test_lines_of_any_length(log: str) -> None:
    """An error is found wherever it stands in a line, and its line number is that of the line."""
    kept = Kept()
    read_log(io.BytesIO(log.encode()), "x.log", prefilter(), kept)
    (found, *_) = diagnose(kept.lines).diagnoses
    assert (found.name, found.evidence[0].number) == ("cuda-oom", log[: log.index("torch.Out")].count("\n") + 1)
    assert kept.kept_bytes < 300_000


def test_json_lines() -> None:
    """Lines of JSON are read as what they hold: Docker's, Ray's with exc_text, those of other loggers."""
    trace = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in f\nIndexError: no\n'
    docker = "".join(json.dumps({"log": one, "stream": "stderr"}) + "\n" for one in trace.splitlines(keepends=True))
    for log in (
        docker,
        json.dumps({"levelname": "ERROR", "message": "Task failed\n" + trace, "pad": "x" * 5_000}),
        json.dumps({"level": "error", "msg": "Task failed", "exc_text": trace}),
    ):
        kept = Kept()
        read_log(io.BytesIO(log.encode()), "x.log", prefilter(), kept)
        assert [one.title for one in diagnose(kept.lines).diagnoses] == ["IndexError in the program at /w/a.py:3 f"]


def test_limit_of_time(tmp_path: Path) -> None:
    """Reading and judging end when they are told to, and the answer says so."""
    log = tmp_path / "a.log"
    log.write_bytes(CUDA.encode() + b"hello\n" * 1_000_000)
    for asked, judged in ((1, FAILURE), (3, FAILURE), (1000, FAILURE)):
        times = iter([""] * asked)
        answer, kept = diagnose_words([str(log)], "default", lambda: next(times, "it is late"))  # noqa: B023
        assert answer.status == judged
        assert (answer.notes == ["it is late"]) == (asked < 1000)
        assert (kept.read_lines < 1_000_000) == (asked < 1000)
    assert until(-1)() == "the limit of -1 s was reached: what came after it was not read or not judged"
    assert until(60)() == ""
    assert until(60, lambda: True)() == "it was cancelled"


def test_patterns_are_linear() -> None:
    """A long line meets RE2, or one of a few patterns that look around it."""
    patterns = [pattern for rule in load_rules() for pattern in (*rule.message, *rule.about, *rule.not_about)]
    around = {one.pattern for one in patterns if _linear(one) is one}
    assert len(around) < 40
    assert all("(?!" in one or "(?<!" in one or "(?P=" in one for one in around)


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("empty.log", "diagnose.empty", "the logs are empty"),
        ("folder", "diagnose.empty", "the logs are empty"),
        ("none.log", "diagnose.no-file", "none.log is not there"),
        ("cut.gz", "diagnose.unreadable", "cut.gz: Compressed file ended before"),
        ("pipe.log", "diagnose.no-log", "it is not a regular file"),
        ("zero.log", "diagnose.no-log", "it is not a regular file"),
        ("damaged.gz", "diagnose.unreadable", "damaged.gz: Error -3 while decompressing"),
        ("mem.log", "diagnose.unreadable", "[Errno 5] Input/output error: '"),
    ],
)
def test_nothing_to_read(tmp_path: Path, name: str, code: str, says: str) -> None:
    """An empty file or folder, a missing or unreadable file and damaged gzip are said in three lines: exit code 2."""
    packed = gzip.compress(bytes(range(256)) * 100)
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut.gz").write_bytes(packed[:12])
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "zero.log").symlink_to("/dev/zero")
    (tmp_path / "damaged.gz").write_bytes(packed[:20] + b"\xff" * 20 + packed[40:])
    (tmp_path / "mem.log").symlink_to("/proc/self/mem")  # as nothing is at address 0, not even root can read it
    failed = run(str(tmp_path / name)).exception
    assert isinstance(failed, RaydebugError)
    assert (failed.code, failed.exit_code) == (code, 2)
    assert says in failed.cause


def test_unreadable_file_in_a_folder(tmp_path: Path) -> None:
    """Of a folder an unreadable file is left out, and named; the others are read."""
    (tmp_path / "bad.log").write_bytes(gzip.compress(b"x")[:12])
    (tmp_path / "a.log").write_text(f"{FILES}\n")
    done = run(str(tmp_path))
    assert "[ulimit-threads-files, exact]" in done.stdout
    assert f"note: {tmp_path / 'bad.log'} is cut off or damaged; its first 0 lines were read: " in done.stdout


def test_pipe() -> None:
    """A pipe, as the shell's <(...) gives it, is read from its first byte."""
    reader, writer = os.pipe()
    os.write(writer, FILES.encode())
    os.close(writer)
    with os.fdopen(reader):
        assert "[ulimit-threads-files, exact]" in run(f"/dev/fd/{reader}").stdout


def test_file_that_grows(tmp_path: Path) -> None:
    """A log that a process goes on to write is read to where it ends now."""
    log = tmp_path / "train.log"
    log.write_text(f"{FILES}\n")
    program = f"file = open({str(log)!r}, 'a', 1)\nwhile True: file.write('still running\\n')"
    writer = subprocess.Popen([sys.executable, "-c", program])
    try:
        before = log.stat().st_size
        while log.stat().st_size == before:
            assert writer.poll() is None
        done = run(str(log))
    finally:
        writer.kill()
        writer.wait()
    assert "[ulimit-threads-files, exact]" in done.stdout


def test_terminal_escapes(tmp_path: Path) -> None:
    """Colours of a log are left out, every other control sequence of a line is shown, and no UTF-8 is replaced."""
    log = tmp_path / "evil.log"
    log.write_bytes(f"verweigert f\N{LATIN SMALL LETTER U WITH DIAERESIS}r \xc3: {FILES}\n".encode("latin-1"))
    assert "verweigert f\N{REPLACEMENT CHARACTER}r \N{REPLACEMENT CHARACTER}: OSError" in run(str(log)).stdout
    line = "\x1b[31mOSError\x1b[0m: [Errno 24] Too many open files\x1b[2J\x1b]0;owned\x07\x9b1A\u202egnp\x00"
    log.write_text(line + "\n")
    shown = run(str(log)).stdout
    assert "OSError: [Errno 24] Too many open files\\x1b[2J\\x1b]0;owned\\x07\\x9b1A\\u202egnp\\x00\n" in shown
    assert not set("\x1b\x07\x9b\u202e\x00") & set(shown)
    document = run(str(log), "--json").stdout
    assert document.isascii()
    assert json.loads(document)["diagnoses"][0]["evidence"][0]["text"].endswith("\x1b]0;owned\x07\x9b1A\u202egnp\x00")


def test_bounded() -> None:
    """A million equal errors, and a line of 8 MB, need no more memory than a few."""
    kept = Kept()
    log = b"ValueError: No available memory for the cache blocks.\n" * 1_000_000 + b"x" * 8_000_000
    read_log(io.BytesIO(log), "big.log", prefilter(), kept)
    assert len(kept.lines) <= MAX_OF_PATTERN + 2_000
    assert kept.read_lines >= 1_000_000
    assert max(len(line.text) for line in kept.lines) <= 4_000


def test_what_is_kept_of_a_long_log() -> None:
    """Healthy parts are skipped; a failure is kept with the lines around it, and so is the last sign of progress."""
    steps = [f"(TaskRunner pid=71) step:{number} - actor/pg_loss:0.01" for number in range(100_000)]
    lines = [*steps, *["nothing"] * 5_000, "before it", FILES, "after it", *["-"] * 5_000]
    kept = Kept()
    read_log(io.BytesIO("\n".join(lines).encode()), "long.log", prefilter(), kept)
    assert kept.read_lines == len(lines)
    assert [line.number for line in kept.lines] == [100_000, *range(105_002 - AROUND, 105_003 + AROUND)]
    assert [one.name for one in diagnose(kept.lines).diagnoses] == ["ulimit-threads-files"]


def test_the_last_of_many() -> None:
    """Of a pattern that a long log has all the time, the last line is kept too, with the lines around it."""
    warning = "(W pid=1) WARNING: OSError: [Errno 24] Too many open files, it is tried again"
    lines = [*[warning] * 50_000, "before it", warning.replace("WARNING: ", ""), "after it", *["-"] * 5_000]
    kept = Kept()
    read_log(io.BytesIO("\n".join(lines).encode()), "long.log", prefilter(), kept)
    numbers = [line.number for line in kept.lines]
    assert {50_001, 50_002, 50_003} <= set(numbers)
    assert numbers == sorted(numbers)
    assert len(numbers) < MAX_OF_PATTERN + 4 * AROUND


def test_no_line_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks or lines: the same lines are found."""
    monkeypatch.setattr(scan, "AROUND", 0)
    words = [word for rule in load_rules() for word in rule.example.split()]
    examples = [line for rule in load_rules() for line in rule.example.splitlines()]
    chance = random.Random(0)
    lines = []
    for number in range(20_000):
        rare = chance.random() < 0.01
        lines.append(f"{number} " + (chance.choice(examples) if rare else " ".join(chance.choices(words, k=3))))
    kept = Kept()
    read_log(io.BytesIO("\n".join(lines).encode()), "noise.log", prefilter(), kept)
    numbers = {line.number for line in kept.lines}
    patterns = [pattern for rule in load_rules() for pattern in rule.message]
    seen: Counter[int] = Counter()
    for number, line in enumerate(lines, 1):
        ids = [one for one in prefilter().find(line.encode()) if one < len(patterns)]
        if any(seen[one] < MAX_OF_PATTERN and patterns[one].search(line) for one in ids):
            assert number in numbers, line
        seen.update(ids)
