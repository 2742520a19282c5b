"""What the process at the end of a chain does, in words: it computes, waits for the network, is stopped, starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from raydebug.protocol import messages
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.records import OpenCall
from raydebug.protocol.training import TrainingWords
from raydebug.render import command
from raydebug.stacks.graph import CREATION, Graph, Node, Path
from raydebug.stacks.groups import is_idle_server, is_idle_thread, place, users_frame
from raydebug.stacks.waits import COLLECTIVE, LOGS, VerdictKind, attach, count, for_seconds, holds_gil

SHOWN_CALL_S = 5.0  # a shorter call says nothing
LONG_CALL_S = 60.0  # a call that takes longer is said to compute, although its lines move
EXPLAINED = ("sleep", "queue", "lock", "engine")  # waits whose reason the training itself may know
# What a process does while a job starts: file, function, phase. vLLM 0.28, transformers 5, CPython 3.11, ray 2.60.0.
STARTS: tuple[tuple[str, str, str], ...] = (
    (r"^<frozen importlib", r"_find_and_load", "it imports modules"),
    (r"/vllm/", r"^(load_model|determine_available_memory|capture_model|initialize_kv_cache|compile_or|profile_run)",
     "vLLM: {function}"),
    (r"/transformers/", r"^from_pretrained$", "it loads a model"),
    (r"/torch/distributed/distributed_c10d\.py$", r"^(init_process_group|new_group)$", "{function}"),
    (r"/ray/_private/worker\.py$", r"^(init|connect)$", "it connects to Ray"),
)  # fmt: skip


class End(IntEnum):
    """How well an end explains that a job stands; the lowest one is the cause."""

    UNPLACED = 0
    SILENT = 1
    WAITS = 2  # for something that is not ours
    STANDS = 3  # at a line, in no known wait
    MOVES = 4
    OPEN = 5  # from here on another process may be what it waits for
    SLEEPS = 6
    POLLS = 7
    OBJECT = 8
    IDLE = 9


def rank_of(node: Node, graph: Graph, *, moved: bool) -> End:
    """Return how well a node explains that a job stands."""
    process, kind = node.process, node.wait.kind
    if process["state"] != messages.ANSWERED:
        return End.SILENT
    if is_idle_thread(node.thread):
        return End.IDLE
    if kind in EXPLAINED and _unfinished(graph.words_of(process)):
        return End.WAITS
    if is_idle_server(node.thread.get("frames", [])):
        return End.IDLE
    if moved:
        return End.MOVES if kind in ("unknown", COLLECTIVE) else End.POLLS  # from one known wait to another
    ranks = {"unknown": End.STANDS, "sleep": End.SLEEPS, "ray-get": End.OBJECT, COLLECTIVE: End.OBJECT,
             "queue": End.OPEN, "engine": End.OPEN}  # fmt: skip
    return ranks.get(kind, End.WAITS)


@dataclass(frozen=True)
class Said:
    """An end in words.

    Args:
        is_sure: whether it is what stops the job, if the process stands there in two looks.
        at_once: whether one look is enough for that.
    """

    kind: VerdictKind
    text: str
    next: str | None
    is_sure: bool = False
    at_once: bool = False


def describe(node: Node, graph: Graph, *, moved: bool, others: Sequence[ListedStacks] = ()) -> Said:
    """Say what the process at the end of a chain does.

    Args:
        node: the end.
        graph: with the words of the training.
        moved: whether it was at another line in an earlier look.
        others: processes that do the same.
    """
    process, wait = node.process, node.wait
    if process["state"] != messages.ANSWERED:
        return _silent(node, [process, *[one for one in others if one["state"] != messages.ANSWERED]])
    words = _training(graph.words_of(process))
    call = call_of(node)
    age_s = call.get("age_s", 0.0) if call else 0.0
    age = f", in one call of {call.get('function', '?')} for {age_s:.0f} s" if call and age_s >= SHOWN_CALL_S else ""
    at, rank = place(wait.at), rank_of(node, graph, moved=moved)
    if rank == End.WAITS and wait.kind in EXPLAINED and _unfinished(graph.words_of(process)):
        return Said("training", f"{wait.who} waits at {at}{words}", attach(process), is_sure=True)
    if rank == End.POLLS:
        who = count([process, *others])
        text = f"{who} in one wait after the other, last at {at}: what they wait for is not known{words}"
        return Said("moving", text, None)
    if moved and age_s >= LONG_CALL_S and wait.kind == "unknown":
        return Said("computes", f"{wait.who} computes at {at}{age}{words}", attach(process))
    if moved:
        text = f"{count([process, *others])} at work, at another line than before or computing: now at {at}{age}{words}"
        return Said("moving", text, None, is_sure=True)
    if is_idle_thread(node.thread):
        return Said("unknown", f"{wait.who} is idle{words}", attach(process))
    if wait.kind == "unknown" or wait.kind == COLLECTIVE:
        return Said("unknown", f"{wait.who} is at {at}; it is in no known wait{age}{words}", attach(process))
    text = f"{wait.who} waits for {wait.what} at {at}{age}{words}"
    return Said(wait.kind, text, attach(process), is_sure=wait.kind in ("network", "subprocess", "lock"))


def call_of(node: Node) -> OpenCall | None:
    """Return the oldest call of a thread that has not returned; None where nobody has looked before."""
    calls = [one for one in node.process.get("calls", []) if one.get("thread") == node.thread.get("name")]
    return max(calls, key=lambda one: one.get("age_s", 0.0), default=None)


def _silent(node: Node, stuck: Sequence[ListedStacks]) -> Said:
    """Say why processes do not answer; a stack from outside shows which call holds Python's lock."""
    process = node.process
    at = f", at {place(node.wait.at)}" if node.wait.at else ""
    if process.get("gone"):
        text = f"{count([process])} gone: its node has no process {process['pid']} any more"
        return Said("gone", text, LOGS, is_sure=True, at_once=True)
    if process.get("stopped"):
        stopped = [one for one in stuck if one.get("stopped")]
        text = f"{count(stopped)} stopped: by SIGSTOP, or by a debugger of native code{at}"
        wake = command("kill", "-CONT", str(process["pid"]))
        return Said("stopped", text, wake, is_sure=True, at_once=True)
    if "asleep" in process:
        where = f" in {process['asleep']}" if process["asleep"] else ""
        text = (
            f"{count([process])} asleep in the kernel{where} (state D), mostly for a disk or a network file system{at}"
        )
        return Said("disk", text, None, is_sure=True, at_once=True)
    seen = any("gil" in thread for one in stuck for thread in one["threads"])  # raydebug could run py-spy on its node
    from_node = command("py-spy", "dump", "--native", "--pid", str(process["pid"]))
    following = None if "native" in process else "raydebug stacks --native" if seen else from_node
    holder = next((one for one in process["threads"][:1] if holds_gil(process, one)), None)
    text = f"{count(stuck)} not answering: native code holds Python's lock (GIL)"
    if holder is None:
        why = f"; it could not be read: {process['unread']}" if "unread" in process else ""
        return Said("gil", f"{text} there, or the process is stopped{why}", following)
    frames, own = holder.get("frames", []), users_frame(holder.get("frames", []))
    where = place(frames[0]) + (f", from {place(own)}" if own and own is not frames[0] else "") if frames else "?"
    inner = [one["frames"][0] for one in process.get("native", [])[:1] if one.get("frames")]
    is_native = bool(inner) and inner != frames[:1]  # where Python runs it may only be slow
    return Said("gil", f"{text}, called at {where}", following, is_sure=is_native, at_once=True)


def phase_of(path: Path, graph: Graph) -> str:
    """Return in which phase of its start a job is; empty if it does not start."""
    for node in [path.root, *(edge.target for edge in path.edges if edge.target is not None)]:
        words = graph.words_of(node.process)
        if words.get("starting"):
            return words.get("phase", "no step has begun")
    for edge in path.edges:
        if edge.task is not None and edge.task.get("type") == CREATION and edge.target is not None:
            return edge.task["name"]
    for frame in path.end.thread.get("frames", []) if path.end is not None else ():
        name = frame.get("function", "").rpartition(".")[2]
        for file, function, phase in STARTS:
            if re.search(file, frame.get("file", "")) and re.search(function, name):
                return phase.format(function=name)
    return ""


def _unfinished(words: TrainingWords) -> bool:
    return bool(words.get("samples") or words.get("rewards") or words.get("requests") or words.get("sync"))


def _training(words: TrainingWords) -> str:
    """Return what a process says of its work, oldest first."""
    said = [
        *(_sample(one) for one in words.get("samples", [])[:1]),
        *(_reward(one) for one in words.get("rewards", [])[:1]),
        *(f"request {one.get('id', '?')} has no answer{_age(one)}" for one in words.get("requests", [])[:1]),
    ]
    if total := max(words.get("samples_total", 0), len(words.get("samples", []))) - 1:
        said += [f"{total} more samples are not finished"] if total > 0 else []
    if sync := words.get("sync"):
        missing = f": the side of the {sync['missing']} has not joined" if sync.get("missing") else ""
        said.append(f"the weight sync has not ended{missing}{_age(sync)}")
    where = ", ".join(f"{name} {words[name]}" for name in ("step", "phase") if words.get(name) is not None)
    return "".join(f"; {one}" for one in said) + (f" ({where})" if where else "")


def _sample(one: Mapping[str, object]) -> str:
    turn = f", turn {one['turn']}" if "turn" in one else ""
    tool = f", tool {one['tool']}" if "tool" in one else ""
    url = f" at {one['url']}" if "url" in one else ""
    return f"sample {one.get('uid', '?')} is {one.get('state', 'not finished')}{turn}{tool}{url}{_age(one)}"


def _reward(one: Mapping[str, object]) -> str:
    source = f" for data source {one['data_source']}" if "data_source" in one else ""
    url = f" at {one['url']}" if "url" in one else ""
    return f"the reward {one.get('function', 'function')}{source}{url} has not returned{_age(one)}"


def _age(one: Mapping[str, object]) -> str:
    age = one.get("age_s")
    return for_seconds(age if isinstance(age, int | float) else None)
