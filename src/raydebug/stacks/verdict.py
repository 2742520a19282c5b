"""The verdict on the stacks of a job: what a hanging job waits for, in one sentence, with the next command.

The graph (graph.py) says who waits for whom. Where a walk from the driver ends, there is the cause: causes.py
describes it. The rule on collectives (collectives.py) comes first: a rank that is missing explains why the others wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from raydebug.cluster.dashboard import UNPLACED
from raydebug.protocol import messages
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.questions import TrainingWords
from raydebug.render import command
from raydebug.stacks.causes import Cause, call_of, describe, end_of, phase_of
from raydebug.stacks.collectives import all_inside, judge_collectives
from raydebug.stacks.graph import RUNNING, Edge, Graph, Node, Path, Task
from raydebug.stacks.groups import active_thread, group, is_idle, place
from raydebug.stacks.movement import computes, differs, moved
from raydebug.stacks.wait_kinds import (
    CERTAIN,
    COLLECTIVE,
    KINDS,
    LIKELY,
    LOGS,
    End,
    Job,
    Link,
    Verdict,
    count,
    make_verdict,
    show_locals,
    who,
)

APART_S = 1.0  # two samples are further apart: a call of the first one is older by more in the second
SHOWN_WAITERS = 4
Words = Mapping[str, TrainingWords]


class JobVerdict(Verdict):
    """The verdict on one job."""

    job: str | None


def as_document(
    samples: Sequence[Sequence[ListedStacks]],
    tasks: Sequence[Task],
    words: Words | None = None,
    slow: Mapping[str | None, Verdict] | None = None,
) -> dict[str, Any]:
    """Return what `raydebug stacks --json` prints, and --from reads; `verdict` is that of the first job of `verdicts`.

    Args:
        samples: the processes at one or more moments, oldest first.
        tasks: Ray's unfinished ones.
        words: what processes say of the training, by instance.
        slow: verdicts on slow ranks, by job; they count for a job that is not stopped.
    """
    verdicts = judge_jobs(samples, tasks, words)
    for number, verdict in enumerate(verdicts):
        if slow and verdict["job"] in slow and KINDS[verdict["kind"]].job not in (Job.STOPPED, Job.PAUSED):
            verdicts[number] = {**slow[verdict["job"]], "job": verdict["job"]}
    return {
        "version": 1,
        "processes": samples[-1],
        "tasks": tasks,
        "training": words or {},
        "groups": group(samples[-1]),
        "verdict": verdicts[0] if verdicts else judge(samples, tasks, words),
        "verdicts": verdicts,
    }


def judge_jobs(
    samples: Sequence[Sequence[ListedStacks]], tasks: Sequence[Task] = (), words: Words | None = None
) -> list[JobVerdict]:
    """Return a verdict for each job, those that hang first."""
    verdicts: list[JobVerdict] = []
    for job in sorted({process["job"] for process in samples[-1]}, key=str):
        of_job = [[process for process in sample if process["job"] == job] for sample in samples]
        verdicts.append({**judge(of_job, tasks, words), "job": job})
    return sorted(verdicts, key=lambda verdict: KINDS[verdict["kind"]].job >= Job.GOES_ON)


def judge(samples: Sequence[Sequence[ListedStacks]], tasks: Sequence[Task] = (), words: Words | None = None) -> Verdict:
    """Return the verdict on the stacks of a job.

    Args:
        samples: the processes at one or more moments, oldest first.
        tasks: Ray's unfinished ones.
        words: what processes say of the training, by instance.
    """
    processes = samples[-1]
    if not processes:
        return make_verdict("none", CERTAIN, "no process of a job runs", None)
    if paused := [process for process in processes if process.get("pauses")]:
        text = f"{count(paused)} paused by raydebug; the others may wait for it"
        return make_verdict("paused", CERTAIN, text, command("raydebug", "attach", paused[0]["pauses"][0]), paused)
    look = _Look(samples, tasks, words)
    return look.collective() or look.deadlock() or look.end_of_chain() or look.nothing()


class _Look:
    """The last sample of a job as a table of waits, with the earlier samples to compare it with."""

    def __init__(self, samples: Sequence[Sequence[ListedStacks]], tasks: Sequence[Task], words: Words | None) -> None:
        self._samples, self._processes = samples, samples[-1]
        self.graph = Graph(self._processes, tasks, words)
        self._before = [Graph(sample, tasks, words) for sample in samples[:-1]]
        self._earlier = [process for sample in samples[:-1] for process in sample]
        self._looks_at: dict[str, list[ListedStacks]] = {}
        for process in self._earlier:
            self._looks_at.setdefault(process["instance"], []).append(process)
        self._moved = moved(samples)
        self._has_moved = {process["instance"] for process in self._moved}
        self._working = [process for process in self._processes if process["threads"] and not is_idle(process)]
        silent = [process for process in self._processes if process["state"] != messages.ANSWERED]
        unread = [process for process in silent if not process["threads"]]
        self._nodes = [self.graph.node(process) for process in (*self._working, *unread)]
        self._waits = [node.wait for node in self._nodes if node.process["threads"]]
        self._drivers = [
            node for node in self._nodes if node.process.get("is_driver") or node.process["role"] == "driver"
        ]
        self._walks = {node.key: self.graph.walk(node) for node in self._nodes}
        self._paths = [path for node in self._drivers for path in self._walks[node.key][0]]
        if all(self._end(path) >= End.OPEN for path in self._paths):  # what the driver waits for is not known
            self._paths = [path for node in self._nodes for path in self._walks[node.key][0]]

    def _end(self, path: Path) -> End:
        """Return how well the end of a path explains that the job stands."""
        return End.UNPLACED if path.end is None else end_of(path.end, self.graph, moved=self._moves(path.end))

    def _best_of(self, paths: Iterable[Path]) -> Path | None:
        """Return the path whose end explains best that the job stands, the longest of equal ones."""
        return min(paths, key=lambda path: (self._end(path), -len(path.edges) if path.end else 0), default=None)

    # Rules: each returns a verdict, or None

    def collective(self) -> Verdict | None:
        """Judge the rank that keeps others waiting in a collective, and what that rank waits for itself."""
        verdict = judge_collectives(self._waits, self._processes, self._moved, self._earlier)
        if verdict is None or verdict["kind"] != "missing-rank":
            return verdict
        late = next(process for process in self._processes if process["instance"] == verdict["instances"][0])
        inside = [node for node in self._nodes if node.wait.kind == COLLECTIVE]
        reached = {edge.target.key for path in self._paths for edge in path.edges if edge.target is not None}
        reached |= {path.root.key for path in self._paths}
        if late not in self._working and late["threads"] and reached.isdisjoint(node.key for node in inside):
            best = self._best_of(self._paths)
            if best is not None and self._end(best) < End.OPEN:
                return None  # the ranks have no task; the driver waits for something else
        if verdict["certainty"] == CERTAIN and not self._was_judged_before(verdict):
            verdict["certainty"] = LIKELY
        edges = [Edge(inside[0], self.graph.node(late), COLLECTIVE, inside[0].wait.what)] if inside else []
        paths = self.graph.walk(self.graph.node(late))[0] if late in self._working else []
        best = self._best_of(path for path in paths if path.edges)
        if best is None or best.end is None or self._end(best) >= End.OPEN:
            return self._with_chain(verdict, edges, self.graph.node(late))
        cause, process = describe(best.end, self.graph, moved=False), best.end.process
        verdict["text"], verdict["next"] = f"{cause.text}; {verdict['text']}", cause.next
        verdict["pids"] = [process["pid"] or 0, *verdict["pids"]]
        verdict["instances"] = [process["instance"], *verdict["instances"]]
        return self._with_chain(verdict, [*edges, *best.edges], best.end)

    def _was_judged_before(self, verdict: Verdict) -> bool:
        if not self._before:
            return False
        working = [process for process in self._samples[-2] if process["threads"] and not is_idle(process)]
        waits = [self._before[-1].node(process).wait for process in working]
        before = judge_collectives(waits, self._samples[-2], [])
        return before is not None and (before["kind"], before["instances"]) == (verdict["kind"], verdict["instances"])

    def deadlock(self) -> Verdict | None:
        """Judge threads or actors that wait for each other."""
        locking = ((process, thread) for process in self._working for thread in process["threads"] if "wants" in thread)
        of_locks = (self.graph.walk(self.graph.node(*each))[1] for each in locking)  # of threads, active or not
        cycles = filter(None, chain((cycle for _, cycle in self._walks.values()), of_locks))
        # In an earlier look it has to be there, too: actors may answer in turns.
        lasting = (edges for edges in cycles if not self._before or all(self._looks_of(edge) > 1 for edge in edges))
        cycle = next(lasting, None)
        if cycle is None:
            return None
        nodes = [edge.source for edge in cycle]
        processes = list({id(node.process): node.process for node in nodes}.values())
        if len(cycle) == 1:
            wait = nodes[0].wait
            waits = f"{wait.who} waits at {place(wait.at)} for {cycle[0].words}"
            text = f"{waits}, which waits in the mailbox of the same actor until that has returned"
        elif len(processes) == 1:
            parts = [f"{node.thread['name']} at {place(node.wait.at)}" for node in nodes]
            text = f"threads of {who(processes[0])} wait for each other's locks: {'; '.join(parts)}"
        else:
            parts = [f"{edge.source.wait.who} waits for {edge.words} at {place(edge.source.wait.at)}" for edge in cycle]
            text = f"actors wait for each other: {'; '.join(parts)}"
        verdict = make_verdict("deadlock", self._certainty(cycle), text, show_locals(processes[0]), processes)
        return self._with_chain(verdict, cycle, None)

    def end_of_chain(self) -> Verdict | None:
        """Judge the end of the chain: the process that waits for nothing of ours."""
        best = self._best_of(self._paths)
        if best is None:
            return None
        blocked, best = best.end, self._to_working_thread(best)
        end = self._end(best)
        if end > End.POLLS and (waiting := all_inside(self._waits)) is not None:
            return waiting
        if best.end is None:
            return self._no_process(best)
        same = [path.end.process for path in self._paths if path.end is not None and self._end(path) == end]
        others = [process for process in same if process is not best.end.process]
        cause = describe(best.end, self.graph, moved=self._moves(best.end), others=others)
        kind, text = cause.kind, cause.text + _waiters(best.edges)
        if best.edges and best.edges[-1].kind == "mailbox" and not KINDS[kind].at_once:
            edge, wait = best.edges[-1], best.end.wait
            busy = f"that is at {place(wait.at)}" + (f", waiting for {wait.what}" if wait.what else "")
            kind = "mailbox"
            text = f"{edge.source.wait.who} waits for {edge.words}, which waits in the mailbox of {wait.who}; {busy}"
        on_path = [best.root, *(edge.target for edge in best.edges)]
        if blocked is not None and blocked is not best.end:
            text += f"; {blocked.wait.what} is waited for at {place(blocked.wait.at)}, perhaps until that is done"
        elif any(edge.kind == "queue" and edge.target in on_path for edge in self.graph.edges(best.end)):
            text += "; each of the last two waits for the other: what one of them has sent is lost"
        certainty = self._how_certain(best, cause, end)
        if phase := phase_of(best, self.graph):
            text = f"the job is starting ({phase}): {text}"
            kind = "starting" if end in (End.STANDS, End.MOVES) or kind == "sleep" else kind
        processes = list({id(process): process for process in (best.end.process, *others)}.values())
        return self._with_chain(make_verdict(kind, certainty, text, cause.next, processes), best.edges, best.end)

    def _to_working_thread(self, path: Path) -> Path:
        """Return a path that goes on to a thread of its last process that computes: the process may wait for that one.

        Whether it does is not seen, so that nothing is certain.
        """
        node = path.end
        if node is None or node.wait.kind not in ("lock", "queue"):
            return path
        for before in self._alike(node.process)[-1:]:
            threads = {thread["name"]: thread for thread in before["threads"]}
            for thread in node.process["threads"]:
                if thread is not node.thread and computes(threads.get(thread["name"], thread), thread):
                    works = self.graph.node(node.process, thread)
                    step = Edge(node, works, node.wait.kind, f"{thread['name']} of the same process", is_seen=False)
                    return Path(path.root, (*path.edges, step))
        return path

    def _no_process(self, path: Path) -> Verdict:
        """Judge a task that no process of the job runs."""
        edge, task = path.edges[-1], path.edges[-1].task
        assert task is not None
        kind = "gone" if task["state"].startswith(RUNNING) else "ray-get"
        why = f"{task['name']}, which Ray has not begun (state {task['state']})"
        if kind == "gone":
            why = f"{task['name']}, but its process (pid {task['pid'] or 'unknown'}) is gone, or has no raydebug"
        elif task["state"] == UNPLACED and not task["needs"]:
            why = f"{task['name']}, for which Ray starts a process"
        elif task["state"] == UNPLACED and task.get("is_free"):
            why = f"task {task['name']}, which Ray has not placed yet: it needs {task['needs']}, and as much is free"
        elif task["state"] == UNPLACED:
            why = f"task {task['name']}, for which no node has room: it needs {task['needs']}"
        text = f"{edge.source.wait.who} waits for {why}; at {place(edge.source.wait.at)}{_waiters(path.edges[:-1])}"
        following = LOGS if kind == "gone" else "raydebug ps"
        certainty = LIKELY if kind == "gone" else self._certainty(path.edges)
        verdict = make_verdict(kind, certainty, text, following, [edge.source.process])
        return self._with_chain(verdict, path.edges, None)

    def nothing(self) -> Verdict:
        """Return the verdict where no process works, or all are in a cycle that does not last."""
        if self._working:
            text = f"{count(self._working)} at work, and ask one another in turns"
            return make_verdict("moving", LIKELY, text, None, self._working)
        answered = [process for process in self._processes if process["threads"]]
        return make_verdict("none", CERTAIN, f"all {len(answered)} processes are idle", None)

    # Certainty

    def _how_certain(self, path: Path, cause: Cause, end: End) -> str:
        """Return `certain` if the cause was seen to stop the job: in this look, or to stand there in two."""
        if end == End.MOVES and cause.kind == "moving":
            return CERTAIN if all(path.end is not None and self._moves(path.end) for path in self._paths) else LIKELY
        kind, is_mailbox = KINDS[cause.kind], bool(path.edges) and path.edges[-1].kind == "mailbox"
        stood = path.end is not None and bool(self._alike(path.end.process)) and not self._moves(path.end)
        if not ((kind.is_sure and cause.is_seen) or is_mailbox) or not (kind.at_once or stood):
            return LIKELY
        if path.edges:
            return self._certainty(path.edges)
        # That others wait for it was not seen.
        return CERTAIN if kind.at_once or path.root in self._drivers or len(self._nodes) == 1 else LIKELY

    def _moves(self, node: Node) -> bool:
        """Return whether a thread was elsewhere in an earlier look, was not there, is in another call, or computes."""
        process, name = node.process, node.thread.get("name")
        if node.thread is active_thread(process) and process["instance"] in self._has_moved:
            return True
        call = call_of(node)
        for look in self._alike(process):
            if not any(thread["name"] == name and not differs(thread, node.thread) for thread in look["threads"]):
                return True
            before = call_of(Node(look, node.thread))
            if call and before and call.get("age_s", 0.0) < before.get("age_s", 0.0) + APART_S:
                return True
        return False

    def _alike(self, process: ListedStacks) -> list[ListedStacks]:
        """Return the earlier looks at a process that can be compared with the last one."""
        looks = self._looks_at.get(process["instance"], [])
        return [look for look in looks if look["state"] == process["state"] and look["threads"]]

    def _certainty(self, edges: Sequence[Edge]) -> str:
        """Return `certain` only if every edge was observed in two looks."""
        return CERTAIN if edges and all(self._looks(edge) > 1 for edge in edges) else LIKELY

    def _looks(self, edge: Edge) -> int:
        """Return in how many looks an edge was observed; 0 if it is only possible."""
        if not edge.is_seen:
            return 0
        before = self._looks_at.get(edge.source.process["instance"], [])
        was_asked_for = any(edge.polled in thread.get("objects", []) for look in before for thread in look["threads"])
        if edge.polled and not was_asked_for:  # by the loop that sleeps now
            return 1
        looks = self._looks_of(edge)
        return min(looks, edge.task.get("looks", 1)) if edge.task is not None else looks

    def _looks_of(self, edge: Edge) -> int:
        """Return in how many looks the processes were in this wait, whatever Ray said of its task."""
        looks, instance = 1, edge.source.process["instance"]
        for graph in self._before:
            own = (process for process in graph.processes if process["instance"] == instance)
            edges = (graph.edges(graph.node(process, thread)) for process in own for thread in process["threads"])
            looks += any(other.key == edge.key and other.is_seen for other in chain.from_iterable(edges))
        return looks

    def _with_chain(self, verdict: Verdict, edges: Sequence[Edge], end: Node | None) -> Verdict:
        verdict["chain"] = [_link(edge.source, edge.kind, edge.words, self._looks(edge)) for edge in edges]
        if end is not None:
            verdict["chain"].append(_link(end, verdict["kind"], end.wait.what, 1))
            call = call_of(end)
            verdict["call_age_s"] = call.get("age_s") if call else None
        return verdict


def _link(node: Node, kind: str, waits_for: str, looks: int) -> Link:
    process, wait = node.process, node.wait
    return {"pid": process["pid"], "rank": process["rank"], "who": wait.who, "at": place(wait.at) if wait.at else "",
            "kind": kind, "waits_for": waits_for, "looks": looks}  # fmt: skip


def _waiters(edges: Sequence[Edge]) -> str:
    """Return who waits for the end of a chain, from there to the root: `; driver waits for Critic.fit`."""
    waiters = [
        f"; {edge.source.wait.who} waits for {edge.words}"
        for edge in reversed(edges)
        if edge.target is None or edge.source.process is not edge.target.process
    ]
    more = len(waiters) - SHOWN_WAITERS
    return "".join(waiters[:SHOWN_WAITERS]) + (f"; and so on, {more} more" if more > 0 else "")
