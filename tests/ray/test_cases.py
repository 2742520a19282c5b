"""Every place where a Ray program can stop: it is listed, attached, its values are read, and it is resumed."""

from __future__ import annotations

from typing import Any

import pytest

from runs import wait_for

pytestmark = pytest.mark.timeout(120)

# case, name of the function that pauses, value of its local `secret`
BREAKPOINTS = [
    ("task", "task", "41"),
    ("nested", "nested_function.<locals>.inner", "41"),
    ("actor", "Actor.method", "41"),
    ("async_actor", "AsyncActor.method", "41"),
    ("actor_thread", "Actor.thread.<locals>.body", "41"),
    ("driver", "driver", "41"),
    ("init", "BreaksInInit.__init__", "41"),
    ("child", "<module>", "41"),
    ("fork", "spawned", "41"),
    ("spawn", "spawned", "41"),
]
POST_MORTEMS = [
    ("pm_task", "task_that_fails", "ValueError: task 41"),
    ("pm_nested", "task_that_fails", "ValueError: task 41"),
    ("pm_actor", "Actor.fails", "ValueError: actor 41"),
    ("pm_async", "AsyncActor.fails", "ValueError: async 41"),
    ("pm_init", "FailsInInit.__init__", "ValueError: init 41"),
    ("pm_thread", "Actor.thread_that_fails.<locals>.body", "ValueError: thread 41"),
]
LONG = ("init", "fork", "spawn", "pm_nested", "pm_async", "pm_init", "pm_thread")


def rows(cases: list[tuple[str, str, str]]) -> list[Any]:
    """Return the parameters of a test, the longer ones marked."""
    return [pytest.param(*case, id=case[0], marks=[pytest.mark.long] * (case[0] in LONG)) for case in cases]


@pytest.mark.parametrize(("case", "function", "secret"), rows(BREAKPOINTS))
def test_breakpoint(run, dashboard, case, function, secret):
    """F15: a breakpoint in each of these places is listed with its place, shows its locals, and the program resumes.

    In a task, a function inside one, an actor, an async actor, a thread of an actor, the driver, an actor's `__init__`,
    and in a child by subprocess, by fork and by spawn.
    """
    job = run("--", "python", "cases.py", case)
    (pause,) = job.pauses(1)
    assert (pause["kind"], pause["function"]) == ("breakpoint", function)
    in_ray = case not in ("child", "fork", "spawn")
    # The process reports to Ray from a separate thread, in parallel with the pause.
    wait_for(lambda: len(dashboard.paused_workers()) == (1 if in_ray else 0), "Ray's own table to be right", run=job)
    assert (pause["child_of"] is None) == in_ray
    assert job.attach(pause["id"], "p secret").strip() == secret
    job.attach(pause["id"], "c")
    assert f"done: {case}" in job.end()
    wait_for(lambda: dashboard.paused_workers() == [], "Ray's own table to be empty")


@pytest.mark.long
def test_child_has_the_ids_of_its_parent(run):
    """A child that an actor started before its first method has that actor's ids, and names its parent."""
    job = run("--", "python", "cases.py", "actor_child")
    child, actor = sorted(job.pauses(2), key=lambda pause: pause["child_of"] is None)
    assert (child["child_of"], actor["child_of"]) == (actor["pid"], None)
    ids = ("actor", "actor_id", "worker_id", "node_id", "ip", "job_id", "job")
    assert [child[name] for name in ids] == [actor[name] for name in ids]
    assert child["actor"] == "SpawnsInInit"
    said = f"pid {child['pid']}, child of SpawnsInInit pid {actor['pid']})"
    wait_for(lambda: said in job.text, said, run=job)
    for pause in (child, actor):
        job.attach(pause["id"], "c")
    assert "done: actor_child" in job.end()


@pytest.mark.long
def test_program_without_ray_is_nobodys_child(run):
    """A job's program that never connects to Ray has no parent, although a Ray actor started it."""
    job = run("--", "python", "-c", "breakpoint()")
    (pause,) = job.pauses(1)
    assert [pause[name] for name in ("child_of", "actor", "worker_id")] == [None, None, None]
    job.attach(pause["id"], "c")
    job.end()


@pytest.mark.parametrize(("case", "function", "exception"), rows(POST_MORTEMS))
def test_post_mortem(run, case, function, exception):
    """A crash there pauses once, at the frame that raised, with its locals; the program then fails as without us."""
    job = run("--debugger", "post-mortem", "--", "python", "cases.py", case)
    (pause,) = job.pauses(1)
    assert (pause["kind"], pause["function"], pause["exception"]) == ("post-mortem", function, exception)
    assert job.attach(pause["id"], "p secret").strip() == "41"
    job.attach(pause["id"], "c")
    assert f"done: {case}" in job.end()


def test_post_mortem_of_the_driver(run):
    """An error that ends the driver pauses it before it ends, and its exit code does not change."""
    job = run("--debugger", "post-mortem", "--", "python", "cases.py", "pm_driver")
    (pause,) = job.pauses(1)
    assert pause["exception"] == "IndexError: list index out of range"
    job.attach(pause["id"], "c")
    assert "IndexError" in job.end(code=1)


@pytest.mark.parametrize("case", ["two_tasks", pytest.param("two_threads", marks=pytest.mark.long)])
def test_two_at_once(run, case):
    """F12: of two pauses (in two workers, or in two threads of one), resuming one leaves the other paused."""
    job = run("--", "python", "cases.py", case)
    first, second = job.pauses(2)
    assert {job.attach(p["id"], "p secret").strip() for p in (first, second)} == {"41", "51"}
    job.attach(first["id"], "c")
    (left,) = job.pauses(1)
    assert left["id"] == second["id"]
    assert job.attach(second["id"], "p secret").strip() in ("41", "51")
    job.attach(second["id"], "c")
    assert f"done: {case}" in job.end()
