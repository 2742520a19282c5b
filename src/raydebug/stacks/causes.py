"""The process at the end of a chain: how well it explains that the job stands, and what it does, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from raydebug.protocol import messages
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.records import OpenCall
from raydebug.render import command
from raydebug.stacks.graph import CREATION, Graph, Node, Path
from raydebug.stacks.groups import active_thread, is_idle_server, is_idle_thread, place, users_frame
from raydebug.stacks.training_words import describe as describe_training
from raydebug.stacks.wait_kinds import COLLECTIVE, KINDS, LOGS, End, attach, count, holds_gil, show_locals

SHOWN_CALL_S = 5.0  # a shorter call says nothing
PEERS = {"lock": "its holder", "network": "host", "subprocess": "child"}  # by kind the field that has the other side
LONG_CALL_S = 60.0  # a call that takes longer is said to compute, although its lines move
# What a process does while a job starts: file, function, phase. vLLM 0.28, transformers 5, CPython 3.11, ray 2.60.0.
STARTS: tuple[tuple[str, str, str], ...] = (
    (r"^<frozen importlib", r"_find_and_load", "it imports modules"),
    (r"/vllm/", r"^(load_model|determine_available_memory|capture_model|initialize_kv_cache|compile_or|profile_run)",
     "vLLM: {function}"),
    (r"/transformers/", r"^from_pretrained$", "it loads a model"),
    (r"/torch/distributed/distributed_c10d\.py$", r"^(init_process_group|new_group)$", "{function}"),
    (r"/ray/_private/worker\.py$", r"^(init|connect)$", "it connects to Ray"),
)  # fmt: skip


class Cause(NamedTuple):
    """What the process at the end of a chain does; `is_seen` if that leaves no other reading of its kind."""

    kind: str
    text: str
    next: str | None
    is_seen: bool = True


def end_of(node: Node, graph: Graph, *, moved: bool) -> End:
    """Return how well a node explains that a job stands."""
    if node.process["state"] != messages.ANSWERED:
        return End.SILENT
    if is_idle_thread(node.thread):
        return End.IDLE
    if _has_reason(node, graph):
        return End.WAITS
    if is_idle_server(node.thread.get("frames", [])):
        return End.IDLE
    if moved:  # from one known wait to another, or at work
        return End.MOVES if node.wait.kind in ("unknown", COLLECTIVE) else End.POLLS
    return KINDS[node.wait.kind].end


def describe(node: Node, graph: Graph, *, moved: bool, others: Sequence[ListedStacks] = ()) -> Cause:
    """Say what the process at the end of a chain does.

    Args:
        node: the end.
        graph: with the words of the training.
        moved: whether it was at another line in an earlier look.
        others: processes that do the same.
    """
    process, wait, end = node.process, node.wait, end_of(node, graph, moved=moved)
    if end == End.SILENT:
        return _silent(node, [process, *[other for other in others if other["state"] != messages.ANSWERED]])
    at, call = place(wait.at), call_of(node)
    said = describe_training({process["instance"]: graph.words_of(process)}, [process])
    words = f"; {said}" if said else ""
    age_s = call.get("age_s", 0.0) if call else 0.0
    age = f", in one call of {call.get('function', '?')} for {age_s:.0f} s" if call and age_s >= SHOWN_CALL_S else ""
    if end == End.WAITS and _has_reason(node, graph):
        return Cause("training", f"{wait.who} waits at {at}{words}", show_locals(process))
    if end == End.POLLS:
        text = f"in one wait after the other, last at {at}: what they wait for is not known{words}"
        return Cause("moving", f"{count([process, *others])} {text}", None)
    if moved and age_s >= LONG_CALL_S and wait.kind == "unknown":
        return Cause("computes", f"{wait.who} computes at {at}{age}{words}", attach(process, node.thread))
    if moved:
        those = count([process, *others])
        text = f"{those} at work, at another line than before or computing: now at {at}{age}{words}"
        return Cause("moving", text, None)
    if is_idle_thread(node.thread):
        return Cause("unknown", f"{wait.who} is idle{words}", show_locals(process))
    if wait.kind in ("unknown", COLLECTIVE):
        is_thread = node.thread is active_thread(process) or not node.thread["name"].startswith("task ")
        would_pause = wait.kind == "unknown" and is_thread
        following = attach(process, node.thread) if would_pause else show_locals(process)
        return Cause("unknown", f"{wait.who} is at {at}; it is in no known wait{age}{words}", following)
    # Sure is what names the other side; who holds a lock was looked for, or the chain would go on.
    is_seen = PEERS.get(wait.kind, "") in ("", *node.thread)
    return Cause(wait.kind, f"{wait.who} waits for {wait.what} at {at}{age}{words}", show_locals(process), is_seen)


def _has_reason(node: Node, graph: Graph) -> bool:
    """Return whether the training has not finished something that a thread in this wait may wait for."""
    words = graph.words_of(node.process)
    unfinished = words.get("samples") or words.get("rewards") or words.get("requests") or words.get("sync")
    return KINDS[node.wait.kind].has_reason and bool(unfinished)


def call_of(node: Node) -> OpenCall | None:
    """Return the oldest call of a thread that has not returned; None where nobody has looked before."""
    calls = [call for call in node.process.get("calls", []) if call.get("thread") == node.thread.get("name")]
    return max(calls, key=lambda call: call.get("age_s", 0.0), default=None)


def _silent(node: Node, silent: Sequence[ListedStacks]) -> Cause:
    """Say why a process does not answer, by what its node says of it."""
    process = node.process
    at = f", at {place(node.wait.at)}" if node.wait.at else ""
    if process.get("gone"):
        return Cause("gone", f"{count([process])} gone: its node has no process {process['pid']} any more", LOGS)
    if process.get("stopped"):
        stopped = count([other for other in silent if other.get("stopped")])
        wake = command("kill", "-CONT", str(process["pid"]))
        return Cause("stopped", f"{stopped} stopped: by SIGSTOP, or by a debugger of native code{at}", wake)
    if "asleep" in process:
        where = f" in {process['asleep']}" if process["asleep"] else ""
        kernel = f"{count([process])} asleep in the kernel{where} (state D)"
        return Cause("disk", f"{kernel}, mostly for a disk or a network file system{at}", None)
    return _native(process, silent)


def _native(process: ListedStacks, silent: Sequence[ListedStacks]) -> Cause:
    """Say which call holds Python's lock; sure if its C frames were read."""
    can_read = any("gil" in thread for other in silent for thread in other["threads"])  # py-spy runs on its node
    from_node = command("py-spy", "dump", "--native", "--pid", str(process["pid"]))
    following = None if "native" in process else "raydebug stacks --native" if can_read else from_node
    holder = next((thread for thread in process["threads"][:1] if holds_gil(process, thread)), None)
    text = f"{count(silent)} not answering: native code holds Python's lock (GIL)"
    if holder is None:
        why = f"; it could not be read: {process['unread']}" if "unread" in process else ""
        return Cause("gil", f"{text} there, or the process is stopped{why}", following, is_seen=False)
    frames, own = holder.get("frames", []), users_frame(holder.get("frames", []))
    where = place(frames[0]) + (f", from {place(own)}" if own and own is not frames[0] else "") if frames else "?"
    inner = [thread["frames"][0] for thread in process.get("native", [])[:1] if thread.get("frames")]
    is_native = bool(inner) and inner != frames[:1]  # where Python runs it may only be slow
    return Cause("gil", f"{text}, called at {where}", following, is_seen=is_native)


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
