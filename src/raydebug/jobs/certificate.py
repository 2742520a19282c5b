"""The death certificate of a process: who ended it, from where, with what memory, at which line. Pure.

Each rule reads one kind of evidence; the first that explains the end gives the certificate. What is not known is said,
with what would make it known.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias, cast

from raydebug.protocol.death import EndedProcess
from raydebug.protocol.messages import EXIT, OS_EXIT
from raydebug.protocol.names import name_process
from raydebug.protocol.node_facts import RAY_WORKER
from raydebug.protocol.secrets import scrubbed, scrubbed_texts

UNSETTLED_S = 1.5  # so long after an end Ray may still have to learn of it
AWAY_S = 35.0  # so long after its connection was lost a process may dial again: 1, 2, 4, 8 and 16 s
MAX_STACK, MAX_NATIVE = 30, 6  # frames
WANTED, FOLLOWED = "wanted", "followed"
"""Kinds of ends that are no failure: its own exit, no more use for it; and the end of who needed it."""
BACK = "back"
"""Kind of what was taken for an end: the process had lost its connection."""
Found: TypeAlias = tuple[str, str, str] | None
"""Kind, who ended it, and how; None where a rule does not explain the end."""

_GUESSES = re.compile(r" *(?:Some common causes include|There are some potential root causes).*")
# Ray's words of a worker's end: ray 2.41 to 2.60 src/ray/raylet/node_manager.cc, core_worker.cc, gcs_actor_manager.cc,
# _private/worker.py `main_loop`.
_CODE = re.compile(r"exit code (-?\d+)")
_SIGTERM = "The process receives a SIGTERM"
_KILLED = re.compile(r"killed by `?ray\.kill|actor is killed", re.IGNORECASE)
_OWNER = re.compile(r"owner (?:process )?(?:has )?died|OWNER_DIED", re.IGNORECASE)
_JOB_OVER = "because its job has finished"
_SCOPE = re.compile(r"out of scope|REF_DELETED|references to the actor were removed", re.IGNORECASE)
_USED = re.compile(r"([\d.]+ ?Gi?B)(?: used)? ?/ ?([\d.]+ ?Gi?B)")
_RSS = re.compile(r"anon-rss:(\d+)kB")
# CPython Modules/faulthandler.c; abseil failure_signal_handler.cc, which Ray installs in its workers.
_PYTHON = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_NATIVE = re.compile(r"^.*?@\s+0x[0-9a-f]+\s+.*$", re.MULTILINE)
# ray 2.41 to 2.60 src/ray/util/logging.cc: with the process id, as children write into the same log.
_RECEIVED = re.compile(r" (\d+) \d+\] logging\.cc:\d+: \*\*\* (SIG\w+) received")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|^<frozen")
_FATAL = {"Segmentation": "SIGSEGV", "Aborted": "SIGABRT", "Bus": "SIGBUS", "Floating": "SIGFPE", "Illegal": "SIGILL"}
_DEADLY = ("SIGINT", "SIGQUIT", "SIGABRT", "SIGKILL", "SIGTERM")  # of others, programs have handlers
_MEANING = {
    "SIGSEGV": "invalid memory access",
    "SIGABRT": "abort: a failed check of native code",
    "SIGBUS": "memory behind a file that was cut, or a full /dev/shm",
    "SIGFPE": "arithmetic error",
    "SIGILL": "illegal instruction: a library built for another processor",
}


@dataclass(frozen=True)
class Evidence:
    """All that is known of one end: what the gateway gathered, and rows of Ray's tables, empty where it has none.

    Args:
        log: the end of the process's own log.
        rss: bytes that it held when it was last measured; 0 if it was not.
        phase, step: of the training.
        others: certificates of processes that ended before.
        age_s: seconds since the end.
    """

    ended: EndedProcess
    worker: Mapping[str, Any] = field(default_factory=dict)
    actor: Mapping[str, Any] = field(default_factory=dict)
    node: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""
    rss: int = 0
    phase: str = ""
    step: int | None = None
    others: Sequence[Certificate] = ()
    age_s: float = UNSETTLED_S

    @property
    def told(self) -> str:
        """Ray's words of its end."""
        return f"{self.worker.get('exit_detail') or ''} {self.actor.get('death_cause') or ''}"

    @property
    def is_silent(self) -> bool:
        """Whether it left no status, no last words and no fault, and Ray does not say that the exit was intended."""
        ended, told = self.ended, f"{self.worker.get('exit_type')} {self.told}"
        return "status" not in ended and not ended["words"] and not ended["fault"] and "INTENDED" not in told

    @property
    def signal(self) -> str:
        """The signal that ended it; empty if none did, or it is not known."""
        status, number = self.ended.get("status"), 0
        if status is not None:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        elif self.ended.get("is_driver") and (code := self._told_code):
            is_shells = 128 < code < 160 and not self.ended["words"]  # with last words it has chosen that code
            number = -code if code < 0 else code - 128 if is_shells else 0
        if number or status is not None:
            return _name(number)
        named = [name for pid, name in _RECEIVED.findall(self.log) if int(pid) == self.ended.get("pid")]
        named += [name for words, name in _FATAL.items() if f"Fatal Python error: {words}" in self.ended["fault"]]
        return named[0] if named else ""

    @property
    def code(self) -> int:
        """The exit code of an end without a signal; 0 if it is none or not known."""
        status = self.ended.get("status")
        if status:  # a worker of Ray ends with 0 after `sys.exit(3)`
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
        return self.ended["words"].get("code") or self._told_code

    @property
    def _told_code(self) -> int:
        said = _CODE.search(self.told)
        code = self.job.get("driver_exit_code") if self.ended.get("is_driver") else said and said[1]
        return int(code or 0)

    @property
    def is_settled(self) -> bool:
        """Whether Ray has said what it knows of the end, or has had the time for it."""
        is_rays = self.ended.get("worker_id") or RAY_WORKER in str(self.ended.get("argv"))
        knows = bool(self.worker.get("exit_type")) if is_rays else "status" in self.ended
        # Its raylet would know of the end by now; but that of a lost node tells nobody.
        lives = self.worker.get("is_alive") and self.node.get("state") != "DEAD" and not self.ended.get("alone")
        limit_s = AWAY_S if lives and self.is_silent else UNSETTLED_S
        return knows or self.age_s >= limit_s or "raylet" in self.ended["node"]

    @property
    def is_wanted(self) -> bool:
        """Whether the job or Ray had no more use for it, or its program came to its end."""
        kind, status, words = self.worker.get("exit_type"), self.ended.get("status"), self.ended["words"]
        told = self.told
        ray_ended_it = kind == "INTENDED_SYSTEM_EXIT" and not _KILLED.search(told) and not _OWNER.search(told)
        out_of_scope = str(kind).startswith("INTENDED") and _SCOPE.search(told)
        came_to_end = words.get("how") == EXIT and not words.get("error") and not self.code and not status
        status_of_job = self.job.get("status")
        is_over = status_of_job == "STOPPED" or (status_of_job == "SUCCEEDED" and not self.ended.get("is_driver"))
        return bool(ray_ended_it or out_of_scope or came_to_end or is_over)


@dataclass
class Certificate:
    """How one process ended."""

    number: int
    who: str
    pid: int
    node: str
    at: float  # seconds since 1970
    kind: str = ""
    by: str = ""  # who ended it
    how: str = ""  # the signal or the exit code, and the memory
    place: str = ""  # file:line function
    stack: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # what is not known, and what would make it known
    phase: str = ""
    step: int | None = None
    after: str = ""  # who of the job ended first

    @property
    def text(self) -> str:
        """The certificate in one sentence."""
        if self.kind == BACK:
            return scrubbed(f"{self.who} pid {self.pid} has not ended: it is connected again")
        told = [self.how, f"at {self.place}" if self.place else self.phase and f"in {self.phase}"]
        told += [f"step {self.step}"] if self.step is not None else []
        told += [f"after {self.after}"] if self.after else []
        return scrubbed(f"{self.by} ended {self.who} pid {self.pid} ({', '.join(filter(None, told))})")

    def as_json(self) -> dict[str, Any]:
        """Return it for the record of a run, without secrets."""
        return cast(dict[str, Any], scrubbed_texts({**asdict(self), "text": self.text}))


def certify(of: Evidence) -> Certificate:
    """Return the death certificate of a process."""
    ended, first = of.ended, next(iter(of.others), None)
    found = Certificate(ended["number"], name_process(ended), ended.get("pid") or 0, str(ended.get("ip")), ended["at"])
    found.phase, found.step, found.after = of.phase, of.step, first.who if first else ""
    if kind := of.worker.get("exit_type"):
        found.evidence.append(f"Ray: {kind}: {_first_line(of.worker.get('exit_detail'))}")
    if "status" in ended:
        found.evidence.append(f"the kernel: {_status_words(ended['status'])}")
    found.kind, found.by, found.how = next(filter(None, (rule(of, found) for rule in _RULES)))
    if found.kind.upper() in _MEANING:  # Python's frames, and the native ones that Ray's handler has written
        text = f"{of.log}\n{ended['fault']}"
        frames = list(_PYTHON.finditer(text, max(0, text.rfind("Fatal Python error: "))))
        at = next((frame for frame in frames if not _LIBRARY.search(frame["file"])), next(iter(frames), None))
        found.place = f"{at['file']}:{at['line']} {at['function']}" if at is not None else ""
        found.stack = [frame[0].strip()[:300] for frame in frames[:MAX_STACK]]
        found.stack += [frame.strip()[:300] for frame in _NATIVE.findall(text)[:MAX_NATIVE]]
    return found


def _ray_memory(of: Evidence, _: Certificate) -> Found:
    """Ray's memory monitor."""
    if of.worker.get("exit_type") != "NODE_OUT_OF_MEMORY" and "low on memory" not in of.told:
        return None
    used = _USED.search(of.told)
    memory = f"memory of the node: {used[1]} of {used[2]}" if used else "the node was low on memory"
    return "ray-oom", "Ray's memory monitor", f"SIGKILL, {memory}{_held(of)}"


def _kernel_memory(of: Evidence, found: Certificate) -> Found:
    """The kernel, out of memory: its log names the process, or its counters have grown and SIGKILL fits."""
    if "status" in of.ended and of.signal != "SIGKILL":
        return None
    node, birth = of.ended["node"], of.ended["birth"]
    lines = [line for line in node.get("kernel", []) if "Killed process" in line]
    own = [line for line in lines if not line.startswith("other: ")]
    in_group = node.get("oom_kills", 0) > birth.get("oom_kills", 0)
    # The counter of a cgroup has its end in any case; the machine's has those of other containers, too.
    on_node = not birth.get("cgroup") and node.get("node_oom_kills", 0) > birth.get("node_oom_kills", 0)
    is_killed = of.ended["kill"].get("signal") == signal.SIGKILL
    if not own and not ((in_group or on_node) and not is_killed and (of.is_silent or of.signal == "SIGKILL")):
        return None
    line = (own or lines or [""])[-1].removeprefix("other: ")  # of a container: its own line has another pid
    found.evidence += [line] if line else []
    if not own:
        found.unknown += ["whether it was this process: dmesg of the machine", *node.get("unread", [])]
    kind, memory = "kernel-oom-machine", f"machine: {_gib(node.get('total', 0))} GiB"
    if line.startswith("Memory cgroup") if line else in_group:
        limit = node.get("limit", 0)
        size = f": {_gib(min(node.get('peak', limit), limit))} of {_gib(limit)} GiB" if limit and in_group else ""
        kind, memory = "kernel-oom-container", f"container{size}"
    rss = _RSS.search(line)
    return kind, "the kernel", f"SIGKILL, memory of the {memory}{_held(of, int(rss[1]) * 1024 if rss else 0)}"


def _wanted(of: Evidence, _: Certificate) -> Found:
    """No failure."""
    return (WANTED, "", "") if of.is_wanted else None


def _node_ended(of: Evidence, found: Certificate) -> Found:
    """Its node or its raylet ended first, or with it."""
    message, raylet = _first_line(of.node.get("state_message")), of.ended["node"].get("raylet", "")
    if raylet:
        how = _status_words(int(raylet)) if raylet.isdigit() else "its status is not known"
        found.evidence.append(f"its raylet: {how}")
        if raylet in ("0", str(int(signal.SIGTERM))):
            found.unknown.append("who sent it: `ray stop` and another SIGTERM look alike; auditd records senders")
            return "ray-stop", "`ray stop`, or another SIGTERM to its raylet,", f"the raylet {how}"
        return "raylet-ended", "the end of its raylet", f"the raylet {how}"
    if of.node.get("state") == "DEAD":
        found.evidence.append(f"Ray: the node is dead: {message}")
        if "SIGTERM" in message or "Expected termination" in message:
            if "status" in of.ended:  # its machine goes on
                return "ray-stop", "`ray stop`, or another SIGTERM to its raylet,", message
            found.unknown.append("who asked it to end: the events of its scheduler or container engine")
            return "node-stopped", "the end of its node", "asked by SIGTERM: `ray stop`, a container or a scheduler"
        found.unknown.append("why: the machine's or the scheduler's log")
        return "node-lost", "the loss of its node", message
    if of.ended.get("alone") and of.is_silent and not of.worker.get("exit_type"):  # which its raylet has said
        found.unknown.append("whether the node is gone: Ray knows after its health checks; the machine's log")
        return "node-lost", "the loss of its node", "no process of the job is left there, and none said why"
    return None


def _killed_by_ray(of: Evidence, _: Certificate) -> Found:
    """Ray ended the worker: its owner asked for it, or has died, or its driver has ended."""
    if _OWNER.search(of.told):
        return FOLLOWED, "Ray", "its owner has died"
    if _JOB_OVER in of.told:
        return FOLLOWED, "Ray", "its job has ended"
    return ("ray-kill", "its owner", "ray.kill") if _KILLED.search(of.told) else None


def _own_exit(of: Evidence, found: Certificate) -> Found:
    """It ended itself: os._exit, sys.exit, an exception, a handler of SIGTERM."""
    words = of.ended["words"]
    found.place = words.get("place", "")
    if words.get("how") == OS_EXIT:
        thread = words.get("thread", "MainThread")
        inside = "" if thread == "MainThread" else f" in thread {thread}"
        return "os-exit", "its own program", f"os._exit({words.get('code')}){inside}"
    if _SIGTERM in of.told or (words and of.code == signal.SIGTERM):  # ray 2.60 worker.py: sys.exit(15) in drivers
        found.unknown.append(f"who sent it: {_senders(of)}")
        return "sigterm", "SIGTERM from another process", "it closed itself properly"
    reason = words.get("reason", "")
    if "No space left" in reason or "quota" in reason:
        full = "; ".join(of.ended["node"].get("full", []))
        return "disk-full", "its own error", f"{reason}{full and f'; full: {full}'}"
    if words.get("error"):
        return WANTED, "", ""  # the log and the snapshot have it
    if of.code and not of.signal:
        return "exit-code", "its own program" if words else "C code of its own", f"exit code {of.code}"
    return None


def _signalled(of: Evidence, found: Certificate) -> Found:
    """A signal ended it: its own code's, or somebody's."""
    name = of.signal
    if name in _MEANING:
        lines = of.ended["node"].get("kernel", [])
        found.evidence += [line for line in lines if "Killed process" not in line and not line.startswith("other: ")]
        full = "; ".join(of.ended["node"].get("full", [])) if name == "SIGBUS" else ""
        return name.lower(), f"{name} of its own code", f"{_MEANING[name]}{full and f'; full: {full}'}"
    sent, by = _name(of.ended["kill"].get("signal", 0)), of.ended["kill"].get("by")
    if not name and sent not in _DEADLY:
        return None
    if by and name in ("", sent):
        place, name = of.ended["kill"].get("place", ""), sent
        if by in (of.ended.get("ppid"), of.ended.get("child_of")):
            return FOLLOWED, f"its parent pid {by}", f"{name} at {place}"  # programs end their children so
        found.place = place
        return name.lower(), "its own program" if by == found.pid else f"pid {by} of the job", f"os.kill, {name}"
    found.unknown.append(f"who sent it: {_senders(of)}")
    return name.lower(), f"{name} from another process", f"a signal{_not_for_memory(of)}{_held(of)}"


def _silent(of: Evidence, found: Certificate) -> Found:
    """It said nothing, and nobody has its status: SIGKILL is what is left."""
    if any((other.pid, other.node) == (of.ended.get("child_of"), str(of.ended.get("ip"))) for other in of.others):
        return FOLLOWED, "the end of its parent", "it said nothing"
    found.unknown.append("its exit status, which only its parent has; on the gateway's own machine raydebug has it")
    return "sigkill", "SIGKILL, or C code that exited,", f"it said nothing{_not_for_memory(of)}{_held(of)}"


_RULES: tuple[Callable[[Evidence, Certificate], Found], ...] = (
    _ray_memory, _kernel_memory, _wanted, _node_ended, _killed_by_ray, _own_exit, _signalled, _silent,
)  # fmt: skip


def _name(number: int) -> str:
    return next((sign.name for sign in signal.Signals if sign == number), "")


def _senders(of: Evidence) -> str:
    scheduler = of.ended["birth"].get("scheduler", "a scheduler")
    return f"a person, a program, or {scheduler} at a limit; its events, or auditd"


def _not_for_memory(of: Evidence) -> str:
    counted = "oom_kills" in of.ended["node"] and "oom_kills" in of.ended["birth"]
    return ", not out of memory" if counted and of.signal in ("", "SIGKILL") else ""


def _held(of: Evidence, rss: int = 0) -> str:
    return f", it held {_gib(rss or of.rss)} GiB" if rss or of.rss else ""


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f}" if size >= 10 * 2**30 else f"{size / 2**30:.2g}"


def _status_words(status: int) -> str:
    is_signal = os.WIFSIGNALED(status)
    return f"ended by signal {os.WTERMSIG(status)}" if is_signal else f"exited with {os.WEXITSTATUS(status)}"


def _first_line(text: object) -> str:
    return _GUESSES.sub("", str(text or "").strip().partition("\n")[0])[:300]
