"""Death certificates: who ended a process, from what is known of its end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from raydebug.diagnose.inputs import read_text
from raydebug.diagnose.run_diagnosis import diagnose_run
from raydebug.jobs.certificate import FOLLOWED, WANTED, Certificate, Evidence, certify, name_process
from raydebug.runs.record import Run, Step

GIB = 2**30
BIRTH = {"ns": "boot pid:[1]", "oom_kills": 0, "node_oom_kills": 0}
QUIET = {"oom_kills": 0, "node_oom_kills": 0, "total": 512 * GIB, "kernel": []}
KILLED = {
    "exit_type": "SYSTEM_ERROR",
    "exit_detail": "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1)",
}
CGROUP_LINE = (
    "Memory cgroup out of memory: Killed process 4242 (ray::WorkerDict) total-vm:99000000kB, anon-rss:63963136kB,"
    " file-rss:0kB"
)  # fmt: skip


def evidence(**facts: Any) -> Evidence:
    """Return the evidence of an end; facts of the gateway and rows of Ray."""
    rows = {
        name: facts.pop(name)
        for name in Evidence.__dataclass_fields__
        if name in facts and name not in ("node", "actor")
    }
    ended = {
        "number": 1, "at": 1.0, "pid": 4242, "ip": "10.0.0.7", "actor": "WorkerDict", "rank": 3, "birth": BIRTH,
        "words": {}, "fault": "", "kill": {},
    }  # fmt: skip
    row = facts.pop("row", {})
    return Evidence({**ended, "node": QUIET, **facts}, node=row, **rows)  # type: ignore[typeddict-item]


# ruff: noqa: E501, ISC004 - a case is a row
CASES: dict[str, tuple[Evidence, str, str]] = {
    "kernel, container": (
        evidence(
            status=9, worker=KILLED, rss=60 * GIB, phase="update_actor", step=12,
            node={**QUIET, "oom_kills": 1, "node_oom_kills": 1, "limit": 419 * GIB, "peak": 418 * GIB, "kernel": [CGROUP_LINE]},
        ),
        "kernel-oom-container",
        "the kernel ended WorkerDict rank 3 pid 4242 (SIGKILL, memory of the container: 418 of 419 GiB, it held 61 GiB,"
        " in update_actor, step 12)",
    ),
    "kernel, machine": (
        evidence(worker=KILLED, node={**QUIET, "node_oom_kills": 2, "kernel": [CGROUP_LINE.replace("Memory cgroup out", "Out")]}),
        "kernel-oom-machine",
        "the kernel ended WorkerDict rank 3 pid 4242 (SIGKILL, memory of the machine: 512 GiB, it held 61 GiB)",
    ),
    "kernel, of which only the counter tells": (
        evidence(worker=KILLED, rss=2 * GIB, node={**QUIET, "oom_kills": 1, "limit": 8 * GIB, "unread": ["the kernel's log"]}),
        "kernel-oom-container",
        "the kernel ended WorkerDict rank 3 pid 4242 (SIGKILL, memory of the container: 8 of 8 GiB, it held 2 GiB)",
    ),
    "Ray's memory monitor": (
        evidence(worker={
            "exit_type": "NODE_OUT_OF_MEMORY",
            "exit_detail": "Task was killed due to the node running low on memory. Memory on the node was 30.45GB used / 32.00GB limit",
        }),
        "ray-oom",
        "Ray's memory monitor ended WorkerDict rank 3 pid 4242 (SIGKILL, memory of the node: 30.45GB of 32.00GB)",
    ),
    "SIGKILL": (
        evidence(status=9, worker=KILLED),
        "sigkill",
        "SIGKILL from another process ended WorkerDict rank 3 pid 4242 (a signal, not out of memory)",
    ),
    "SIGKILL on another node": (
        evidence(worker=KILLED),
        "sigkill",
        "SIGKILL, or C code that exited, ended WorkerDict rank 3 pid 4242 (it said nothing, not out of memory)",
    ),
    "SIGTERM that Ray handled": (
        evidence(status=256, words={"how": "exit"}, worker={
            "exit_type": "SYSTEM_ERROR",
            "exit_detail": "Worker exits with an exit code 1. The process receives a SIGTERM.",
        }),
        "sigterm",
        "SIGTERM from another process ended WorkerDict rank 3 pid 4242 (it closed itself properly)",
    ),
    "SIGSEGV": (
        evidence(status=11 | 128, worker=KILLED, log=(
            "Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n"
            '  File "/usr/lib/python3.11/ctypes/__init__.py", line 517 in string_at\n'
            '  File "/job/reward.py", line 7 in score\n'
            "*** SIGSEGV received at time=1 on cpu 0 ***\nPC: @     0x7f0  (unknown)  __strlen_avx2\n"
        )),
        "sigsegv",
        "SIGSEGV of its own code ended WorkerDict rank 3 pid 4242 (invalid memory access, at /job/reward.py:7 score)",
    ),
    "os._exit in a thread": (
        evidence(status=7 << 8, words={"how": "os._exit", "code": 7, "place": "/job/a.py:3 leave", "thread": "loader"}),
        "os-exit",
        "its own program ended WorkerDict rank 3 pid 4242 (os._exit(7) in thread loader, at /job/a.py:3 leave)",
    ),
    "C code that exits": (
        evidence(status=9 << 8, worker=KILLED),
        "exit-code",
        "C code of its own ended WorkerDict rank 3 pid 4242 (exit code 9)",
    ),
    "a full disk": (
        evidence(
            status=256, is_driver=True, actor=None, rank=None, node={**QUIET, "full": ["/tmp (20.0 GiB)"]},
            words={"how": "exit", "error": "OSError", "reason": "[Errno 28] No space left on device", "place": "/job/t.py:9 save"},
        ),
        "disk-full",
        "its own error ended driver pid 4242 ([Errno 28] No space left on device; full: /tmp (20.0 GiB),"
        " at /job/t.py:9 save)",
    ),
    "a raylet that was killed": (
        evidence(status=256, worker=KILLED, node={**QUIET, "raylet": "9"}),
        "raylet-ended",
        "the end of its raylet ended WorkerDict rank 3 pid 4242 (the raylet ended by signal 9)",
    ),
    "ray stop": (
        evidence(status=15, node={**QUIET, "raylet": "0"}),
        "ray-stop",
        "`ray stop`, or another SIGTERM to its raylet, ended WorkerDict rank 3 pid 4242 (the raylet exited with 0)",
    ),
    "a stopped container": (
        evidence(alone=True, node={}, row={"state": "DEAD", "state_message": "Expected termination: received SIGTERM"}),
        "node-stopped",
        "the end of its node ended WorkerDict rank 3 pid 4242"
        " (asked by SIGTERM: `ray stop`, a container or a scheduler)",
    ),
    "a lost node": (
        evidence(alone=True, node={}),
        "node-lost",
        "the loss of its node ended WorkerDict rank 3 pid 4242"
        " (no process of the job is left there, and none said why)",
    ),
    "ray.kill": (
        evidence(status=256, worker={
            "exit_type": "INTENDED_SYSTEM_EXIT",
            "exit_detail": "Worker exits because the actor is killed. The actor is dead because it was killed by `ray.kill`.",
        }),
        "ray-kill",
        "its owner ended WorkerDict rank 3 pid 4242 (ray.kill)",
    ),
    "a driver that is gone": (
        evidence(is_driver=True, actor=None, rank=None, job={"driver_exit_code": -9}, worker=KILLED),
        "sigkill",
        "SIGKILL from another process ended driver pid 4242 (a signal, not out of memory)",
    ),
    "a process of the job": (
        evidence(status=9, kill={"pid": 4242, "signal": 9, "place": "/job/t.py:4 clean", "by": 77}),
        "sigkill",
        "pid 77 of the job ended WorkerDict rank 3 pid 4242 (os.kill, SIGKILL, at /job/t.py:4 clean)",
    ),
    "vLLM's engine": (
        evidence(status=9, actor=None, rank=None, title="VLLM::EngineCore", child_of=99),
        "sigkill",
        "SIGKILL from another process ended VLLM::EngineCore pid 4242 (a signal, not out of memory)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_who_ended_a_process(name: str) -> None:
    """Each kind of end has its sentence."""
    given, kind, text = CASES[name]
    found = certify(given)
    assert (found.kind, found.text) == (kind, text)
    assert json.loads(json.dumps(found.as_json()))["text"] == text


MACHINE_LINE = CGROUP_LINE.replace("Memory cgroup out", "Out")
IN_GROUP = {**BIRTH, "cgroup": "/sys/fs/cgroup"}
SAID_BY_CHILD = "[2026-11-26 06:28:17,914 E 25550 4242] logging.cc:474: *** SIGSEGV received at time=1 on cpu 0 ***\n"
UNLIKE: dict[str, tuple[Evidence, str]] = {
    "the kernel's line of another process with this id": (evidence(status=15, node={**QUIET, "kernel": [CGROUP_LINE]}), "sigterm"),
    "memory of the machine, which the cgroup counts, too": (
        evidence(status=9, birth=IN_GROUP, node={**QUIET, "oom_kills": 1, "node_oom_kills": 1, "kernel": [MACHINE_LINE]}),
        "kernel-oom-machine",
    ),
    "memory of another container": (evidence(status=9, birth=IN_GROUP, node={**QUIET, "node_oom_kills": 1}), "sigkill"),
    "memory of a tool, hours ago": (
        evidence(status=9, birth=IN_GROUP, node={**QUIET, "oom_kills": 1}, kill={"pid": 4242, "signal": 9, "place": "/job/t.py:4 clean", "by": 77}),
        "sigkill",
    ),
    "a raylet that has told of its end": (evidence(worker=KILLED, alone=True, node={}, row={"state": "ALIVE"}), "sigkill"),
    "a signal that ends nobody": (evidence(worker=KILLED, kill={"pid": 4242, "signal": 10, "place": "/job/t.py:4 ask", "by": 77}), "sigkill"),
    "a child that crashed": (evidence(worker=KILLED, log=f"{SAID_BY_CHILD}Fatal Python error: Segmentation fault\nstep 100\n"), "sigkill"),
    "a crash of its own": (evidence(worker=KILLED, log=SAID_BY_CHILD.replace("25550", "4242")), "sigsegv"),
    "sys.exit(130)": (evidence(is_driver=True, words={"how": "exit"}, job={"driver_exit_code": 130}), "exit-code"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNLIKE)
def test_evidence_of_something_else(name: str) -> None:
    """What looks like the reason of an end, and is of another process, time or place, is not taken for it."""
    given, kind = UNLIKE[name]
    found = certify(given)
    assert found.kind == kind
    assert ("pid 77 of the job" in found.text) is (name == "memory of a tool, hours ago")


def test_no_failures() -> None:
    """An end that was wanted, or that follows from another one, is no failure."""
    over = {"exit_type": "INTENDED_SYSTEM_EXIT", "exit_detail": "Worker exits because the job has finished"}
    parent = Certificate(1, "WorkerDict", 99, "10.0.0.7", 0.5, kind="sigkill")
    # of Ray 2.41
    unused = {"exit_type": "INTENDED_SYSTEM_EXIT", "exit_detail": "Worker exits because the actor is killed. The actor is"
              " dead because all references to the actor were removed including lineage ref count."}  # fmt: skip
    assert certify(evidence(worker=over)).kind == WANTED
    assert certify(evidence(worker=unused)).kind == WANTED
    assert certify(evidence(words={"how": "exit"})).kind == WANTED
    assert certify(evidence(words={"how": "exit", "error": "ValueError"}, status=256)).kind == WANTED
    assert certify(evidence(job={"status": "SUCCEEDED"}, status=9)).kind == WANTED
    assert certify(evidence(job={"status": "STOPPED"}, status=6, is_driver=True)).kind == WANTED
    owner = {"exit_type": "INTENDED_SYSTEM_EXIT", "exit_detail": "Worker exits because its owner died"}
    assert certify(evidence(worker=owner)).kind == FOLLOWED
    over = {"exit_type": "INTENDED_USER_EXIT", "exit_detail": "Worker force exited because its job has finished"}
    assert certify(evidence(worker=over, status=256)).kind == FOLLOWED
    oom_of_another = {**QUIET, "node_oom_kills": 1, "kernel": [f"other: {CGROUP_LINE}"]}
    assert certify(evidence(worker=owner, node=oom_of_another)).kind == FOLLOWED
    assert certify(evidence(child_of=99, others=[parent])).kind == FOLLOWED
    pool = {"pid": 4242, "signal": 15, "place": "/job/t.py:4 clean", "by": 99}
    assert certify(evidence(status=15, ppid=99, kill=pool)).kind == FOLLOWED
    assert certify(evidence(words={"how": "exit", "code": 0})).kind == WANTED


@pytest.mark.parametrize(("node", "kind"), [("10.0.0.7", FOLLOWED), ("10.0.0.8", "sigkill")])
def test_a_parent_is_of_the_same_node(node: str, kind: str) -> None:
    """A process follows its parent's end, and not that of a process with the parent's id on another node."""
    other = Certificate(1, "Trainer", 77, node, 0.5)
    assert certify(evidence(child_of=77, others=[other])).kind == kind


def test_a_certificate_says_what_it_does_not_know() -> None:
    """Where the sender of a signal is not known, the certificate says where it is; Slurm's jobs are named."""
    (unknown,) = certify(evidence(status=15, birth={**BIRTH, "scheduler": "Slurm, job 42"})).unknown
    assert unknown == "who sent it: a person, a program, or Slurm, job 42 at a limit; its events, or auditd"


def test_a_certificate_has_no_secrets() -> None:
    """What looks like a secret is hidden in all texts of a certificate."""
    secret = "hf_" + "a" * 34
    given = evidence(status=5 << 8, words={"how": "os._exit", "code": 5, "place": f"/job/{secret}.py:1 f"}, worker={
        "exit_type": "SYSTEM_ERROR", "exit_detail": f"token {secret}"})  # fmt: skip
    assert secret not in json.dumps(certify(given).as_json())
    assert secret not in certify(given).text


def test_the_names_of_processes() -> None:
    """A process is named by its actor, its program or its parent."""
    assert name_process({"title": "VLLM::Worker_TP1 x"}) == "VLLM::Worker_TP1"
    assert name_process({"child_of": 7}) == "child of pid 7"
    assert name_process({"actor": "Critic", "rank": 0}) == "Critic rank 0"


LOG = """\
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
	class_name: WorkerDict
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed \
by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed unexpectedly
"""


def test_diagnose_has_the_certificate_in_place_of_rays_guesses(tmp_path: Path) -> None:
    """The certificate is the first cause of a run whose log ends with Ray's three guesses."""
    found = certify(CASES["kernel, container"][0])
    run = Run(folder=tmp_path, status="failed", deaths=[found.as_json()])
    answer = diagnose_run(read_text(LOG, "job.log"), run)
    assert [one.name for one in answer.diagnoses][:2] == ["process-death", "ray-actor-died"]
    assert answer.first is not None
    assert answer.first.title == found.text
    assert "common causes" not in answer.first.cause
    assert answer.first.fix.startswith("a higher memory limit of the container")
    assert "ray-actor-died" in answer.first.effects


def test_an_exact_cause_comes_before_the_end_that_follows_from_it(tmp_path: Path) -> None:
    """A CUDA error with its own line explains the abort after it."""
    abort = certify(evidence(status=int(signal.SIGABRT), worker=KILLED))
    run = Run(folder=tmp_path, status="failed", deaths=[abort.as_json()])
    log = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB\n"
    )
    answer = diagnose_run(read_text(log, "job.log"), run)
    assert [one.name for one in answer.diagnoses][:2] == ["cuda-oom", "process-death"]
    assert os.WTERMSIG(6) == signal.SIGABRT


@pytest.mark.parametrize(
    ("kind", "text", "end_s", "first"),
    [
        ("ray-kill", "its owner ended Sandbox (ray.kill)", 900.0, ["user-code", "process-death"]),
        (
            "sigkill",
            "SIGKILL ended sandbox.py, sent by kill() at /w/sandbox.py:88",
            900.0,
            ["user-code", "process-death"],
        ),
        ("sigkill", "SIGKILL ended Actor", 900.0, ["process-death", "user-code"]),
        ("sigkill", "SIGKILL ended Actor", 1900.0, ["user-code"]),
    ],
)
def test_a_death_that_the_run_went_on_after(
    tmp_path: Path, kind: str, text: str, end_s: float, first: list[str]
) -> None:
    """A death before further steps is no cause, and one that the program asked for comes after its own exception."""
    death = {"kind": kind, "at": 1000.0, "who": "x", "pid": 1, "text": text, "evidence": [], "stack": [], "unknown": []}
    step = Step(step=1, end_s=end_s, seconds=1.0, metrics={})
    run = Run(folder=tmp_path, status="failed", started=0.0, deaths=[death], steps=[step])
    log = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in score\nIndexError: list index\n'
    assert [diagnosis.name for diagnosis in diagnose_run(read_text(log, "job.log"), run).diagnoses] == first
