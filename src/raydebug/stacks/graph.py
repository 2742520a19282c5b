"""The graph of who waits for whom, from one look at the processes of a job.

A node is a thread or a task of asyncio. Its edges come from what its process says of it (worker/thread_waits.py), from
Ray's unfinished tasks, and from the training's own words. A walk from the driver ends where nothing of ours is
waited for any more: there is the cause.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NotRequired, TypedDict
from urllib.parse import urlsplit

from raydebug.cluster.dashboard import UNPLACED
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.names import is_same_node
from raydebug.protocol.questions import TrainingWords
from raydebug.protocol.records import ThreadStack
from raydebug.stacks.groups import BELOW_TRAINERS, active_thread, is_idle, users_frame
from raydebug.stacks.wait_kinds import KINDS, Wait, wait_of

# States of a task that is queued at its actor: ray 2.60.0 src/ray/protobuf/common.proto TaskStatus.
QUEUED = ("SUBMITTED_TO_WORKER", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", "PENDING_ACTOR_TASK_ARGS_FETCH")
WAITS_FOR_ARGUMENTS, RUNNING = "PENDING_ARGS_AVAIL", "RUNNING"
TASK_ID_CHARS = 48  # an object's id begins with that of its task (ray 2.60.0 src/ray/common/id.h)
CREATION = "ACTOR_CREATION_TASK"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
DATA_LOADER_WORKER = "/torch/utils/data/_utils/worker.py"  # torch 2.11 and 2.13
ENGINE = "VLLM::EngineCore"  # vLLM 0.28: title of the engine's process
SERVES = re.compile(r"/(socketserver|http/server|uvicorn/|aiohttp/web|asyncio/base_events|hypercorn/)")
OF_BUFFER = ("running", "pending")  # states of a sample in the buffer of verl's trainer
_EXECUTES = "/ray/_private/function_manager.py"  # on the stack of each thread that runs a method (ray 2.60.0)
MAX_NODES = 20_000


class Task(TypedDict):
    """An unfinished task of Ray."""

    task_id: str
    name: str
    state: str
    actor_id: str | None
    pid: int | None
    needs: str  # its resources, in words
    is_free: NotRequired[bool]  # whether all nodes together have them free
    node_id: NotRequired[str | None]
    job_id: NotRequired[str | None]
    type: NotRequired[str]
    looks: NotRequired[int]  # in how many looks it was in this state: Ray's answer may be some seconds old


@dataclass(frozen=True, eq=False)
class Node:
    """A thread or a task of asyncio of a process; a process that does not answer is a node without frames."""

    process: ListedStacks
    thread: ThreadStack

    @property
    def key(self) -> tuple[str, int]:
        """Identify the node in this look; threads and tasks may have equal names."""
        return self.process["instance"], id(self.thread) if self.thread.get("frames") else 0

    @cached_property
    def wait(self) -> Wait:
        """What it waits for by its stack."""
        return wait_of(self.process, self.thread)


@dataclass(frozen=True)
class Edge:
    """One node waits for another one, or for a task of Ray that no process has.

    Args:
        words: what is waited for: `Critic.fit`, `a lock`.
        is_seen: whether it was observed; not so if it is only possible.
        polled: the object of the task, if it is only known that a loop that sleeps has it in its locals.
    """

    source: Node
    target: Node | None
    kind: str
    words: str
    is_seen: bool = True
    task: Task | None = None
    polled: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """Identify the edge in each look: a loop that polls waits in several ways for the same."""
        target = self.target.process["instance"] if self.target else self.task["task_id"] if self.task else ""
        return self.source.process["instance"], target


@dataclass(frozen=True)
class Path:
    """The edges from a root to a node from which none leads on."""

    root: Node
    edges: tuple[Edge, ...]

    @property
    def end(self) -> Node | None:
        """The last node; None if it is a task that no process has."""
        return self.edges[-1].target if self.edges else self.root


class Graph:
    """Who waits for whom in one look.

    Args:
        words: what processes say of the training, by instance.
    """

    def __init__(
        self,
        processes: Sequence[ListedStacks],
        tasks: Sequence[Task] = (),
        words: Mapping[str, TrainingWords] | None = None,
    ) -> None:
        self.processes, self._words = processes, words or {}
        self._tasks = {task["task_id"]: task for task in tasks}
        self._creations = {
            task["actor_id"]: task for task in tasks if task["actor_id"] and task.get("type") == CREATION
        }
        self._by_actor = {process["actor_id"]: process for process in processes if process["actor_id"]}
        self._by_pid: dict[object, list[ListedStacks]] = {}
        self._by_port: dict[int, list[ListedStacks]] = {}
        self._nodes: dict[tuple[str, int], Node] = {}
        self._edges: dict[tuple[str, int], list[Edge]] = {}
        self._holders: dict[str, dict[str, Node]] = {}
        for process in processes:
            self._by_pid.setdefault(process["pid"], []).append(process)
            for port in process.get("listens", []):
                self._by_port.setdefault(port, []).append(process)

    def node(self, process: ListedStacks, thread: ThreadStack | None = None) -> Node:
        """Return the node of a thread, of the active one by default."""
        made = Node(process, active_thread(process) if thread is None else thread)
        return self._nodes.setdefault(made.key, made)

    def words_of(self, process: ListedStacks) -> TrainingWords:
        """Return what a process says of the training."""
        return self._words.get(process["instance"], {})

    def edges(self, node: Node) -> list[Edge]:
        """Return what a node waits for, what was observed first."""
        if node.key not in self._edges:
            host, _, port = node.thread.get("host", "").rpartition(":")
            is_asked = port.isdigit() and node.wait.kind == "network"
            edges = [
                *self._inside(node), *self._of_objects(node),
                *(self._to_port(node, host, int(port)) if is_asked else []),
                *self._of_children(node), *self._of_pipe(node), *self._of_words(node),
            ]  # fmt: skip
            # An actor that waits for a call of its own method waits for itself.
            of_others = (edge for edge in edges if edge.target is not node or (edge.kind == "mailbox" and edge.is_seen))
            self._edges[node.key] = sorted(of_others, key=lambda edge: not edge.is_seen)
        return self._edges[node.key]

    def walk(self, root: Node) -> tuple[list[Path], list[Edge]]:
        """Return one path to each end that is reached from a node, and the edges of a cycle, if there is one."""
        ends: list[Path] = []
        reached, on_path = {root.key}, {root.key}
        cycle: list[Edge] = []
        path: list[Edge] = []
        open_edges = [(root, iter(self.edges(root)), True)]
        while open_edges and len(reached) < MAX_NODES:
            node, edges, is_end = open_edges.pop()
            edge = next(edges, None)
            if edge is None:
                if is_end:
                    ends.append(Path(root, tuple(path)))
                on_path.discard(node.key)
                if path:
                    path.pop()
                continue
            target = edge.target
            if target is not None and target.key in on_path:
                # A process that also listens, or a wait that is only possible, is no cycle of waits.
                if not (KINDS[edge.kind].may_lock and edge.is_seen):
                    open_edges.append((node, edges, is_end))
                    continue
                begin = next((n for n, step in enumerate(path) if step.source.key == target.key), len(path))
                cycle = cycle or [*path[begin:], edge]
            open_edges.append((node, edges, False))
            if target is None:
                ends.append(Path(root, (*path, edge)))
            elif target.key not in reached:
                reached.add(target.key)
                on_path.add(target.key)
                path.append(edge)
                open_edges.append((target, iter(self.edges(target)), True))
        return ends, cycle

    # Edges

    def _inside(self, node: Node) -> list[Edge]:
        """Return the edges to other threads and tasks of the process: futures, joins, locks."""
        process = node.process
        if process["instance"] not in self._holders:
            held = self._holders[process["instance"]] = {}
            for thread in process["threads"]:
                for lock in thread.get("holds", []):
                    held.setdefault(lock, self.node(process, thread))
        held = self._holders[process["instance"]]
        wanted = [*node.thread.get("awaits", []), *([node.thread["wants"]] if "wants" in node.thread else [])]
        return [
            Edge(node, held[lock], "lock", f"{held[lock].thread.get('name', '?')} of the same process")
            for lock in wanted
            if lock in held
        ]

    def _of_objects(self, node: Node) -> list[Edge]:
        thread, edges = node.thread, []
        objects, same = set(thread.get("objects", [])), set[tuple[str, str | None]]()
        for name in dict.fromkeys([*thread.get("objects", []), *thread.get("polls", [])]):
            task = self._tasks.get(name[:TASK_ID_CHARS])
            if task is None or (task["state"], task.get("job_id")) in same:
                continue
            if task["state"] == WAITS_FOR_ARGUMENTS:  # the next one of its job has the same edges
                same.add((task["state"], task.get("job_id")))
            polled = "" if name in objects else name
            edges += [replace(edge, polled=polled) for edge in self._of_task(node, task)]
        return edges

    def _of_task(self, node: Node, task: Task) -> list[Edge]:
        if task["actor_id"] and task["state"] == UNPLACED and task.get("type") != CREATION:
            task = self._creations.get(task["actor_id"], task)
        if task["state"] == WAITS_FOR_ARGUMENTS:
            words, edges = f"{task['name']}, which waits for its arguments", []
            for other in self._tasks.values():
                of_job = other.get("job_id") == task.get("job_id") and other.get("type") != CREATION
                if of_job and other["state"].startswith(RUNNING) and other is not task:
                    runner = self._runner(other)
                    if runner is not None and runner is not node.process:
                        target = self._node_in(runner, other)
                        edges.append(Edge(node, target, "ray-get", words, is_seen=False, task=task))
            return edges
        runner = self._runner(task)
        if task["state"] == UNPLACED or (runner is None and task["state"] not in QUEUED):
            return [Edge(node, None, "ray-get", task["name"], task=task)]
        if runner is None:
            return []
        target = self._node_in(runner, task)
        is_queued = task["state"] in QUEUED and not _runs(target.thread, task["name"])
        kind, is_seen = "mailbox" if is_queued else "ray-get", not (is_queued and _may_begin(target))
        return [Edge(node, target, kind, task["name"], is_seen, task)]

    def _runner(self, task: Task) -> ListedStacks | None:
        if task["actor_id"] in self._by_actor:
            return self._by_actor[task["actor_id"] or ""]
        processes = self._by_pid.get(task["pid"], []) if task["pid"] else []
        if node := task.get("node_id"):  # a process that has never answered has not said on which node it is
            here = [process for process in processes if process["node_id"] == node]
            ips = {process["ip"] for process in self.processes if process["node_id"] == node}
            unsaid = [process for process in processes if process["node_id"] is None]
            processes = here or [process for process in unsaid if not ips or process["ip"] in ips]
        return processes[0] if len(processes) == 1 else None

    def _node_in(self, process: ListedStacks, task: Task) -> Node:
        """Return the thread that runs a task, or the active one."""
        own = max(process["threads"], key=lambda thread: _runs(thread, task["name"]), default=None)
        return self.node(process, own if own is not None and _runs(own, task["name"]) else None)

    def _to_port(self, node: Node, host: str, port: int) -> list[Edge]:
        """Return the edges to processes that listen where a node waits for an answer."""
        near = node.process["ip"]
        return [
            Edge(node, self.node(other, serving[0]), "network", f"an answer at {host}:{port}", len(serving) == 1)
            for other in self._by_port.get(port, [])
            if other is not node.process and (host == other["ip"] or (host in LOOPBACK and near == other["ip"]))
            if (serving := _serving(other))
        ]

    def _of_children(self, node: Node) -> list[Edge]:
        kind, children = node.wait.kind, list[ListedStacks]()
        if kind == "subprocess":
            children = self._by_pid.get(node.thread.get("child"), [])
        elif kind in ("engine", "data-loader"):
            of_process = [process for process in self.processes if process["child_of"] == node.process["pid"]]
            if kind == "data-loader":
                children = [child for child in of_process if _is_loader_worker(child)]
            else:
                children = [child for child in of_process if child["role"].startswith(ENGINE)]
        here = [child for child in children if is_same_node(child, node.process)]
        return [Edge(node, self.node(child), kind, node.wait.what) for child in here]

    def _of_pipe(self, node: Node) -> list[Edge]:
        pipe = node.thread.get("pipe")
        if pipe is None:
            return []
        others = [process for process in self.processes if pipe in process.get("pipes", []) and not is_idle(process)]
        near = [other for other in others if is_same_node(other, node.process) and other is not node.process]
        ends = [end for end in map(self.node, near) if end.thread.get("pipe") != pipe]
        return [Edge(node, end, "queue", node.wait.what, is_seen=False) for end in ends]

    def _of_words(self, node: Node) -> list[Edge]:
        """Return the edges that only the training knows: requests at an engine, URLs of tools and judges."""
        words, edges = self.words_of(node.process), list[Edge]()
        if not KINDS[node.wait.kind].has_reason and node.wait.kind != "unknown":
            return []
        for request in words.get("requests", []):
            what = f"request {request.get('id', '?')}"
            engines = [
                process
                for process in self._by_pid.get(request.get("engine"), [])
                if is_same_node(process, node.process)
            ]
            edges += [Edge(node, self.node(engine), "engine", what) for engine in engines]
        buffered = {sample.get("uid") for sample in words.get("samples", []) if sample.get("state") in OF_BUFFER}
        for other in self.processes if buffered else ():  # a worker of theirs has the sample
            own = self.words_of(other).get("samples", [])
            begun = [sample for sample in own if sample.get("state") not in OF_BUFFER]
            if at_work := [sample["uid"] for sample in begun if sample.get("uid") in buffered]:
                threads = [thread for thread in other["threads"] if thread["name"].startswith("task ")]
                nodes = [self.node(other, thread) for thread in threads] or [self.node(other)]
                edges += [Edge(node, target, "training", f"sample {at_work[0]}") for target in nodes]
        for url in [work.get("url", "") for work in (*words.get("samples", []), *words.get("rewards", []))]:
            with contextlib.suppress(ValueError):  # it is no URL
                parts = urlsplit(url)
                port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
                edges += self._to_port(node, parts.hostname, port) if parts.hostname and port else []
        return edges


def _is_loader_worker(process: ListedStacks) -> bool:
    """Return whether a child is a worker of a DataLoader, as far as it can be told."""
    frames = active_thread(process).get("frames", [])
    return not process["threads"] or any(frame.get("file", "").endswith(DATA_LOADER_WORKER) for frame in frames)


def _runs(thread: ThreadStack, task: str) -> int:
    """Return whether a thread is in the function of a task, at best by its whole name: `Critic.fit` is 2, `fit` is 1.

    Libraries have functions of any name: each thread is in `Thread.run`, or in the `run` of a class of its own.
    """
    frames, name, best = thread.get("frames", []), task.rpartition(".")[2], 0
    callers = [frame.get("function", "") for frame in frames[1:]]
    for frame, caller in zip(frames, [*callers, ""], strict=False):
        function = frame.get("function", "")
        if function == task:
            return 2
        is_found = function.rpartition(".")[2] == name and not BELOW_TRAINERS.search(frame.get("file", ""))
        if is_found and not caller.endswith("_bootstrap_inner"):
            best = 1
    return best


def _may_begin(node: Node) -> bool:
    """Return whether a call may begin although others run: Ray says so late, and its actor has more than one thread."""
    threads = node.process["threads"]
    executors = [thread for thread in threads if any(_EXECUTES in f.get("file", "") for f in thread["frames"])]
    return node.thread["name"].startswith("task ") or len(executors) > 1


def _serving(process: ListedStacks) -> list[ThreadStack]:
    """Return the threads that may answer a request: those in the user's code, else one of the server's; empty if none.

    Where there are several, nobody knows which one has the request.
    """
    if not process["threads"]:
        return [{"name": "", "frames": []}]
    threads = process["threads"]
    serving = [thread for thread in threads if any(SERVES.search(f.get("file", "")) for f in thread.get("frames", []))]
    tasks = [thread for thread in threads if serving and thread["name"].startswith("task ")]
    return [thread for thread in (*serving, *tasks) if _handles(thread)] or serving[:1]


def _handles(thread: ThreadStack) -> bool:
    """Return whether a thread is in code of the user's that its server has called."""
    for frame in thread.get("frames", []):
        if SERVES.search(frame.get("file", "")):
            return False
        if users_frame([frame]):
            return True
    return False
