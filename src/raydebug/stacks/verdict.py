"""The verdict on the stacks of a job: what a hanging job waits for, in one sentence, with the next command.

The graph (graph.py) says who waits for whom. Where a walk from the driver ends, there is the cause: ends.py describes
it. The rule on collectives (collectives.py) comes first: a rank that is missing explains why the others wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raydebug.cluster.dashboard import UNPLACED
from raydebug.protocol import messages
from raydebug.protocol.listings import ListedStacks
from raydebug.protocol.records import ThreadStack
from raydebug.protocol.training import TrainingWords
from raydebug.render import command
from raydebug.stacks.collectives import all_inside, has_advanced, judge_collectives
from raydebug.stacks.ends import End, Said, call_of, describe, phase_of, rank_of
from raydebug.stacks.graph import RUNNING, Edge, Graph, Node, Path, Task
from raydebug.stacks.groups import active_thread, is_idle, place
from raydebug.stacks.waits import (
    CERTAIN,
    COLLECTIVE,
    LIKELY,
    LOGS,
    Link,
    Verdict,
    VerdictKind,
    attach,
    count,
    make_verdict,
    matches,
    who,
)

COMPUTES_S = 0.5  # CPU time between two samples
APART_S = 1.0  # two samples are further apart: a call of the first one is older by more in the second
Words = Mapping[str, TrainingWords]


class JobVerdict(Verdict):
    """The verdict on one job."""

    job: str | None


def judge_jobs(
    samples: Sequence[Sequence[ListedStacks]], tasks: Sequence[Task] = (), words: Words | None = None
) -> list[JobVerdict]:
    """Return a verdict for each job, those that hang first."""
    found: list[JobVerdict] = []
    for job in sorted({one["job"] for one in samples[-1]}, key=str):
        of_job = [[one for one in sample if one["job"] == job] for sample in samples]
        found.append({**judge(of_job, tasks, words), "job": job})
    return sorted(found, key=lambda one: one["kind"] in ("none", "moving", "starting", "paused"))


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
    if paused := [one for one in processes if one.get("pauses")]:
        ids = [pause for one in paused for pause in one.get("pauses", [])]
        text = f"{count(paused)} paused by raydebug; the others may wait for it"
        return make_verdict("paused", CERTAIN, text, command("raydebug", "attach", ids[0]), paused)
    look = _Look(samples, tasks, words)
    rules = (look.collective, look.deadlock, look.end_of_chain)
    return next((found for rule in rules if (found := rule()) is not None), look.nothing())


class _Look:
    """The last sample of a job, with the earlier ones to compare it with."""

    def __init__(self, samples: Sequence[Sequence[ListedStacks]], tasks: Sequence[Task], words: Words | None) -> None:
        self._samples, self._processes = samples, samples[-1]
        self.graph = Graph(self._processes, tasks, words)
        self._before = [Graph(one, tasks, words) for one in samples[:-1]]
        self._earlier = [one for sample in samples[:-1] for one in sample]
        self._looks_at: dict[str, list[ListedStacks]] = {}
        for one in self._earlier:
            self._looks_at.setdefault(one["instance"], []).append(one)
        self._moved = _moved(samples)
        self._has_moved = {one["instance"] for one in self._moved}
        self._working = [one for one in self._processes if one["threads"] and not is_idle(one)]
        unread = [one for one in self._processes if one["state"] != messages.ANSWERED and not one["threads"]]
        self._nodes = [self.graph.node(one) for one in (*self._working, *unread)]
        self._waits = [node.wait for node in self._nodes if node.process["threads"]]
        self._drivers = [one for one in self._nodes if one.process.get("is_driver") or one.process["role"] == "driver"]
        self._walks = {node.key: self.graph.walk(node) for node in self._nodes}
        self._paths = [path for node in self._drivers for path in self._walks[node.key][0]]
        if all(self._rank(path)[0] >= End.OPEN for path in self._paths):  # what the driver waits for is not known
            self._paths = [path for node in self._nodes for path in self._walks[node.key][0]]

    def _rank(self, path: Path) -> tuple[End, int]:
        """Return how well the end of a path explains that the job stands, the best explanation first."""
        if path.end is None:
            return End.UNPLACED, 0
        return rank_of(path.end, self.graph, moved=self._moves(path.end)), -len(path.edges)

    # Rules: each returns a verdict, or None

    def collective(self) -> Verdict | None:
        """Judge the rank that keeps others waiting in a collective, and what that rank waits for itself."""
        found = judge_collectives(self._waits, self._processes, self._moved, self._earlier)
        if found is None or found["kind"] in ("moving", "collective-mismatch", "crashed-peer", "starting"):
            return found
        late = next(one for one in self._processes if one["pid"] == found["pids"][0] and one["rank"] in
                    (None, *found["ranks"]))  # fmt: skip
        inside = [node for node in self._nodes if node.wait.kind == COLLECTIVE]
        if late not in self._working and late["threads"] and not self._is_reached(inside) and self._best() is not None:
            return None  # the ranks have no task; the driver waits for something else
        if found["certainty"] == CERTAIN and not self._was_judged_before(found):
            found["certainty"] = LIKELY
        join = [Edge(inside[0], self.graph.node(late), COLLECTIVE, inside[0].wait.what)] if inside else []
        ends = self.graph.walk(self.graph.node(late))[0] if late in self._working else []
        best = min((one for one in ends if one.edges), key=self._rank, default=None)
        if best is None or best.end is None or self._rank(best)[0] >= End.OPEN:
            return self._with_chain(found, join, self.graph.node(late))
        text, edges = describe(best.end, self.graph, moved=False).text, [*join, *best.edges]
        pids = [best.end.process["pid"] or 0, *found["pids"]]
        found = {**found, "text": f"{text}; {found['text']}", "next": attach(best.end.process), "pids": pids}
        return self._with_chain(found, edges, best.end)

    def _is_reached(self, nodes: Sequence[Node]) -> bool:
        reached = {edge.target.key for path in self._paths for edge in path.edges if edge.target is not None}
        roots = {path.root.key for path in self._paths}
        return any(node.key in reached | roots for node in nodes)

    def _was_judged_before(self, verdict: Verdict) -> bool:
        if not self._before:
            return False
        waits = [self._before[-1].node(one).wait for one in self._samples[-2] if one["threads"] and not is_idle(one)]
        before = judge_collectives(waits, self._samples[-2], [])
        return before is not None and (before["kind"], before["pids"]) == (verdict["kind"], verdict["pids"])

    def deadlock(self) -> Verdict | None:
        """Judge threads or actors that wait for each other."""
        cycle = next((cycle for _, cycle in self._walks.values() if self._lasts(cycle)), None)
        if cycle is None:
            cycle = next((found for one in self._working if (found := self._locked(one))), None)
        if not cycle:
            return None
        nodes = [edge.source for edge in cycle]
        processes = list({id(one.process): one.process for one in nodes}.values())
        if len(processes) == 1:
            parts = [f"{one.thread['name']} at {place(one.wait.at)}" for one in nodes]
            text = f"threads of {who(processes[0])} wait for each other's locks: {'; '.join(parts)}"
        else:
            parts = [f"{edge.source.wait.who} waits for {edge.words} at {place(edge.source.wait.at)}" for edge in cycle]
            text = f"actors wait for each other: {'; '.join(parts)}"
        verdict = make_verdict("deadlock", self._certainty(cycle), text, attach(processes[0]), processes)
        return self._with_chain(verdict, cycle, None)

    def _locked(self, process: ListedStacks) -> list[Edge]:
        """Return the cycle of threads that wait for each other's locks, the active one or not."""
        for thread in process["threads"]:
            if "wants" in thread and self._lasts(cycle := self.graph.walk(self.graph.node(process, thread))[1]):
                return cycle
        return []

    def _lasts(self, cycle: Sequence[Edge]) -> bool:
        """Return whether there is a cycle, which was there in an earlier look, too: actors may answer in turns."""
        return bool(cycle) and (not self._before or all(self._looks_of(edge) > 1 for edge in cycle))

    def _best(self) -> Path | None:
        best = min(self._paths, key=self._rank, default=None)
        return best if best is not None and self._rank(best)[0] < End.OPEN else None

    def end_of_chain(self) -> Verdict | None:
        """Judge the end of the chain: the process that waits for nothing of ours."""
        if not self._paths:
            return None
        best = min(self._paths, key=self._rank)
        rank = self._rank(best)[0]
        if rank > End.POLLS and (found := all_inside(self._waits)) is not None:
            return found
        if best.end is None:
            return self._no_process(best)
        same = [one.end for one in self._paths if one.end is not None and self._rank(one)[0] == rank]
        others = [one.process for one in same if one.process is not best.end.process]
        said = describe(best.end, self.graph, moved=self._moves(best.end), others=others)
        kind, text = said.kind, said.text
        if best.edges and best.edges[-1].kind == "mailbox" and kind not in ("gil", "stopped", "disk", "gone"):
            edge, wait = best.edges[-1], best.end.wait
            busy = f"that is at {place(wait.at)}" + (f", waiting for {wait.what}" if wait.what else "")
            kind = "mailbox"
            text = f"{edge.source.wait.who} waits for {edge.words}, which waits in the mailbox of {wait.who}; {busy}"
        else:
            text += _waiters(best.edges)
        certainty = self._how_certain(best, said, rank)
        if phase := phase_of(best, self.graph):
            text = f"the job is starting ({phase}): {text}"
            kind = "starting" if rank in (End.STANDS, End.MOVES) or kind == "sleep" else kind
        processes = list({id(one): one for one in (best.end.process, *others)}.values())
        return self._with_chain(make_verdict(kind, certainty, text, said.next, processes), best.edges, best.end)

    def _no_process(self, path: Path) -> Verdict:
        """Judge a task that no process of the job runs."""
        edge, task = path.edges[-1], path.edges[-1].task
        assert task is not None
        kind: VerdictKind = "gone" if task["state"].startswith(RUNNING) else "ray-get"
        why = f"{task['name']}, which Ray has not begun (state {task['state']})"
        if kind == "gone":
            why = f"{task['name']}, but its process (pid {task['pid'] or 'unknown'}) is gone, or has no raydebug"
        elif task["state"] == UNPLACED and not task["needs"]:
            why = f"{task['name']}, for which Ray starts a process"
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
        answered = [one for one in self._processes if one["threads"]]
        return make_verdict("none", CERTAIN, f"all {len(answered)} processes are idle", None)

    # Certainty

    def _how_certain(self, path: Path, said: Said, rank: End) -> str:
        if rank == End.MOVES and said.is_sure:
            return CERTAIN if all(one.end is not None and self._moves(one.end) for one in self._paths) else LIKELY
        is_mailbox = bool(path.edges) and path.edges[-1].kind == "mailbox"
        stands = said.at_once or (path.end is not None and self._stood(path.end))
        if not (said.is_sure or is_mailbox) or not stands:
            return LIKELY
        if path.edges:
            return self._certainty(path.edges)
        # That others wait for it was not seen.
        return CERTAIN if said.at_once or path.root in self._drivers or len(self._nodes) == 1 else LIKELY

    def _moves(self, node: Node) -> bool:
        """Return whether a thread was elsewhere in an earlier look, was not there, is in another call, or computes."""
        process, name = node.process, node.thread.get("name")
        if node.thread is active_thread(process) and process["instance"] in self._has_moved:
            return True
        call = call_of(node)
        for look in self._alike(process):
            if not any(one["name"] == name and not _differs(one, node.thread) for one in look["threads"]):
                return True
            before = call_of(Node(look, node.thread))
            if call and before and call.get("age_s", 0.0) < before.get("age_s", 0.0) + APART_S:
                return True
        return False

    def _alike(self, process: ListedStacks) -> list[ListedStacks]:
        """Return the earlier looks at a process that can be compared with the last one."""
        looks = self._looks_at.get(process["instance"], [])
        return [one for one in looks if one["state"] == process["state"] and one["threads"]]

    def _stood(self, node: Node) -> bool:
        """Return whether a thread was in the same place in an earlier look."""
        return bool(self._alike(node.process)) and not self._moves(node)

    def _certainty(self, edges: Sequence[Edge]) -> str:
        """Return `certain` only if every edge was observed in two looks."""
        return CERTAIN if edges and all(self._looks(edge) > 1 for edge in edges) else LIKELY

    def _looks(self, edge: Edge) -> int:
        """Return in how many looks an edge was observed; 0 if it is only possible."""
        if not edge.is_seen:
            return 0
        if edge.polled and not self._was_asked_for(edge):
            return 1
        looks = self._looks_of(edge)
        return min(looks, edge.task.get("looks", 1)) if edge.task is not None else looks

    def _looks_of(self, edge: Edge) -> int:
        """Return in how many looks the processes were in this wait, whatever Ray said of its task."""
        return 1 + sum(any(other.key == edge.key and other.is_seen for other in _edges_of(graph, edge.source.process))
                       for graph in self._before)  # fmt: skip

    def _was_asked_for(self, edge: Edge) -> bool:
        """Return whether a loop that sleeps now has asked for the object in an earlier look."""
        before = self._looks_at.get(edge.source.process["instance"], [])
        return any(edge.polled in thread.get("objects", []) for one in before for thread in one["threads"])

    def _with_chain(self, verdict: Verdict, edges: Sequence[Edge], end: Node | None) -> Verdict:
        chain = [_link(edge.source, edge.kind, edge.words, self._looks(edge)) for edge in edges]
        if end is not None:
            chain.append(_link(end, verdict["kind"], end.wait.what, 1))
            call = call_of(end)
            verdict["call_age_s"] = call.get("age_s") if call else None
        verdict["chain"] = chain
        return verdict


def _link(node: Node, kind: str, waits_for: str, looks: int) -> Link:
    process, wait = node.process, node.wait
    return {"pid": process["pid"], "rank": process["rank"], "who": wait.who, "at": place(wait.at) if wait.at else "",
            "kind": kind, "waits_for": waits_for, "looks": looks}  # fmt: skip


def _edges_of(graph: Graph, process: ListedStacks) -> Iterable[Edge]:
    """Return the edges of the threads that a process had in an earlier look."""
    return (
        edge
        for one in graph.processes
        if one["instance"] == process["instance"]
        for thread in one["threads"]
        for edge in graph.edges(graph.node(one, thread))
    )


def _waiters(edges: Sequence[Edge]) -> str:
    """Return who waits for the end of a chain, from there to the root: `; driver waits for Critic.fit`."""
    said = [
        f"; {edge.source.wait.who} waits for {edge.words}"
        for edge in reversed(edges)
        if edge.target is None or edge.source.process is not edge.target.process
    ]
    return "".join(said[:4]) + (f"; and so on, {len(said) - 4} more" if len(said) > 4 else "")


def _moved(samples: Sequence[Sequence[ListedStacks]]) -> list[ListedStacks]:
    """Return the processes that were at another line in an earlier sample, or that compute."""
    last = {one["instance"]: one for one in samples[-1]}
    before = [one for sample in samples[:-1] for one in sample if one["instance"] in last]
    changed = {
        one["instance"]
        for one in before
        if one["state"] == last[one["instance"]]["state"]  # py-spy describes the same place in other words
        and (
            _differs(active_thread(one), active_thread(last[one["instance"]]))
            or has_advanced(one, last[one["instance"]])
        )
    }
    return [one for one in samples[-1] if one["instance"] in changed]


def _differs(before: ThreadStack, after: ThreadStack) -> bool:
    """Return whether a thread is at another line, or computes without being in a known wait."""
    if before.get("frames") != after.get("frames"):
        return True
    computes_s = after.get("cpu_s", 0.0) - before.get("cpu_s", 0.0)
    return computes_s > COMPUTES_S and next(matches(after), None) is None
