"""`raydebug up --join` where Ray runs inside a job of Slurm, without a token, and only srun leads to the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from ray_by_hand import HEAD, RAY_STARTS_S, User, assert_token_is_hidden, debug, is_up, ray_environ, ray_start
from runs import JOBS, RAYDEBUG, wait_for
from world import NODES, World, long

RAY = tuple(int(part) for part in version("ray").split(".")[:2])

pytestmark = [pytest.mark.timeout(500), long]

# As users start it (Ray's documentation, Deploying on Slurm), but for the wait until the head can be joined.
BATCH = """\
#!/bin/sh
#SBATCH --nodes=3 --ntasks-per-node=1 --output={log}
start() {{ for _ in 1 2 3; do srun --overlap -N1 -n1 -w "$@"; done }}  # Ray gives up on a busy machine
start n1 {head} &
until [ -e {up} ]; do sleep 0.2; done
start n2 {second} &
start n3 {third} &
cd {jobs}
until [ -e {go} ]; do sleep 0.2; done
{raydebug} up --join auto --name inside && {raydebug} run --name inside -- python several.py work 1
{raydebug} down --name inside
touch {done}
wait
"""
SYMMETRIC = """\
#!/bin/sh
#SBATCH --nodes=3 --ntasks-per-node=1 --output={log}
cd {jobs}
srun ray symmetric-run --address n1:6379 --min-nodes 3 {small} -- sh -c '{raydebug} up --join auto --name symmetric \\
  && {raydebug} run --name symmetric -- python several.py stop n3; {raydebug} down --name symmetric'
"""


def submit(world: World, script: str, environ: dict[str, str]) -> str:
    """Submit a script from the login node, and return the job's id."""
    file = world.home() / "job.sh"
    file.write_text(script)
    return world.login(["sbatch", "--parsable", str(file)], env=environ).stdout.strip()


@pytest.mark.skipif(RAY < (2, 54), reason="before Ray 2.54 the workers never see the head (ray issue 59795)")
def test_symmetric_run(world: World):
    """Under `ray symmetric-run` the command on the head joins its own Ray, the only one; an actor on n3 pauses."""
    log = world.home() / "symmetric.log"
    environ = ray_environ(world, token="5" * 64)
    small = "--num-cpus=2 --object-store-memory=100000000"
    try:
        submit(world, SYMMETRIC.format(log=log, jobs=JOBS, raydebug=RAYDEBUG, small=small), environ)
        wait_for(lambda: log.exists() and "paused 1" in log.read_text(), "the pause", 240)
        inside = User(world, machine=HEAD, environ=environ, cluster="symmetric")
        (pause,) = inside.pauses(1)
        assert "n3" in inside.attach(pause["id"], "p host", "c")
        wait_for(lambda: "'symmetric' is left: it runs on without raydebug" in log.read_text(), "raydebug's end")
        assert "done: n3 41" in log.read_text()
    finally:
        print(log.read_text() if log.exists() else "it has no log")
        world.clean()


@pytest.fixture(scope="module")
def batch(world: World) -> Iterator[tuple[User, str]]:
    """A user at the login node, and the job of Slurm in which Ray runs."""
    environ = ray_environ(world, token="")
    marks = {name: world.home() / f"batch.{name}" for name in ("up", "go", "done", "log")}
    try:
        starts = (" ".join(ray_start(node)) for node in NODES)
        words = dict(zip(("head", "second", "third"), starts, strict=True))
        job = submit(world, BATCH.format(**words, **marks, jobs=JOBS, raydebug=RAYDEBUG), environ)
        wait_for(lambda: is_up(world, HEAD), "the head", RAY_STARTS_S)
        marks["up"].touch()
        wait_for(lambda: all(is_up(world, node) for node in NODES), "the nodes", RAY_STARTS_S)
        yield User(world, environ=environ), job
    finally:
        world.clean()


def test_srun_alone_leads_to_the_head(batch: tuple[User, str]):
    """Every verb works through `srun --overlap`; the token is nowhere in what Slurm shows; srun may be killed."""
    user, job = batch
    with user.joined(f"srun --unbuffered --jobid {job} --overlap -N1 -n1 -w {HEAD}"):
        debug(user)
        token = Path(user.record()["remote"]["token_file"]).read_text()
        shown = user.world.login(["scontrol", "show", "job", "-dd", job]).stdout
        script = user.world.login(["scontrol", "write", "batch_script", job, "-"]).stdout
        assert token not in shown + script
        assert_token_is_hidden(user.world, token)
        with user.running("--", "python", "several.py", "stop", "n3"):
            (pause,) = user.pauses(1)
            user.world.send_to("login", lambda argv: argv[0] == "srun" and "raydebug.cluster.connection" in argv)
            assert [one["id"] for one in user.pauses(1)] == [pause["id"]]


def test_inside_the_job(batch: tuple[User, str]):
    """`--join auto` in the job's own script finds the head beside it; processes have no rank of Slurm's."""
    user, _ = batch
    home = user.world.home()
    (home / "batch.go").touch()
    wait_for((home / "batch.done").exists, "raydebug in the job")
    said = (home / "batch.log").read_text()
    assert "nodes      3 with Ray" in said
    assert "done: ['n1', 'n2', 'n3']" in said
    assert "cluster 'inside' is left: it runs on without raydebug" in said
