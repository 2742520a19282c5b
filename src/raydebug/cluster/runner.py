"""Run programs where a cluster's jobs run, and translate paths: this machine, containers, nodes of a joined cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raydebug import process
from raydebug.cluster.known_folders import with_local_names
from raydebug.cluster.state import Cluster, name_option
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.process import SAFE_PATH

WORKSPACE = "/workspace"  # docker-compose.yml mounts the project there
IMAGE_PYTHON = "/opt/venv/bin/python"  # Dockerfile
PYTHON_TIMEOUT_S = 30.0
NODES_AT_ONCE = 100  # a word of a command line has at most 128 KiB on Linux


Environ = Mapping[str, str] | None


@dataclass(frozen=True)
class LocalRunner:
    """This machine, with the cluster's interpreter."""

    python: str

    def folder(self, here: Path) -> str:
        return str(here)

    def here(self, there: str) -> Path:
        return Path(there)

    def has_program(self, name: str, working_dir: Path) -> bool:
        """Look on the PATH that the cluster has: its interpreter's folder comes first."""
        if "/" in name:
            return (working_dir / name).is_file()
        path = os.pathsep.join([str(Path(self.python).parent), os.environ.get("PATH", "")])
        return shutil.which(name, path=path) is not None

    def run_python(
        self, arguments: list[str], working_dir: Path, *, environ: Environ = None, timeout_s: float = PYTHON_TIMEOUT_S
    ) -> str:
        """Run code of ours in the cluster's Python in a folder, and return what it printed.

        Args:
            arguments: what follows the interpreter and `-P`: the folder is not on the path.
            working_dir: of this machine.
            environ: its whole environment.
            timeout_s: limit in seconds.
        """
        return process.run([self.python, SAFE_PATH, *arguments], cwd=working_dir, env=environ, timeout_s=timeout_s)


@dataclass(frozen=True)
class ContainerRunner:
    """A container of a cluster, the head's for None, where the user's project is mounted."""

    cluster: Cluster
    container: str | None = None

    def folder(self, here: Path) -> str:
        """Return the path in the containers of a folder of the project.

        Raises:
            RaydebugError: it is outside of the project, which no container sees.
        """
        with contextlib.suppress(ValueError):
            return str(WORKSPACE / here.resolve().relative_to(self.cluster.project))
        raise UsageError(
            f"the containers of cluster '{self.cluster.name}' do not see {here}",
            cause=f"they have {self.cluster.project} as {WORKSPACE}, and nothing else of this machine",
            fix="run from there, or `raydebug down` and `raydebug up` from the folder of your project",
            code="run.outside-project",
        )

    def here(self, there: str) -> Path:
        """Return a file of the project on this machine, the inverse of `folder`; any other path as it is."""
        path = Path(there)
        return self.cluster.project / path.relative_to(WORKSPACE) if path.is_relative_to(WORKSPACE) else path

    def has_program(self, name: str, working_dir: Path) -> bool:
        question = "import shutil, sys; sys.exit(shutil.which(sys.argv[1]) is None)"
        code, _ = self._run(["-c", question, name], working_dir)
        return code == 0

    def run_python(
        self, arguments: list[str], working_dir: Path, *, environ: Environ = None, timeout_s: float = PYTHON_TIMEOUT_S
    ) -> str:
        """Run the image's Python in the container, whose environment the jobs have too; there is no limit."""
        code, printed = self._run(arguments, working_dir)
        if code != 0:
            raise process.CommandFailed([IMAGE_PYTHON, SAFE_PATH, *arguments], code, printed, fix="see `raydebug ps`")
        return printed

    def _run(self, arguments: list[str], working_dir: Path) -> tuple[int, str]:
        from raydebug.cluster.compose import engine
        from raydebug.cluster.compose.project import project_of

        found = engine.connect()
        wanted = self.container
        every = found.containers(project_of(self.cluster.name))
        fitting = [c for c in every if (c.name == wanted if wanted else c.service == "head")]
        if not fitting or fitting[0].state != "running":
            raise RaydebugError(
                f"cluster '{self.cluster.name}' has no running {wanted or 'head'}",
                cause=f"its container is {fitting[0].state if fitting else 'gone'}",
                fix=f"see `raydebug ps{name_option(self.cluster.name)}`",
                code="cluster.no-head",
                exit_code=Exit.SESSION_LOST,
            )
        return found.run_in(fitting[0], [IMAGE_PYTHON, SAFE_PATH, *arguments], self.folder(working_dir))


@dataclass(frozen=True)
class NodeRunner:
    """A node of a joined cluster: programs run there as jobs of raydebug's own, in 3 s.

    Args:
        cluster: that it is a node of.
        ip: its address.
        at: the folder of the nodes in which `run_python` runs; empty for the newest copy of the given one.
    """

    cluster: Cluster
    ip: str
    at: str = ""

    def folder(self, here: Path) -> str:
        """Return where the nodes have a folder, which is copied there if they do not share it."""
        from raydebug.cluster.working_folder import folder_on_nodes

        return folder_on_nodes(self.cluster, here, as_it_is=True)

    def here(self, there: str) -> Path:
        """Return the file of this machine that a copy was made of; any other path as it is."""
        return Path(with_local_names(self.cluster, there))

    def has_program(self, name: str, working_dir: Path) -> bool:
        """Leave the answer to the job itself, whose log says it."""
        return True

    def run_python(
        self, arguments: list[str], working_dir: Path, *, environ: Environ = None, timeout_s: float = PYTHON_TIMEOUT_S
    ) -> str:
        """Run the node's Python, whose environment the jobs have too."""
        done = _run_on_nodes(self.cluster, {self.ip: arguments}, working_dir, timeout_s, self.at)[self.ip]
        if isinstance(done, RaydebugError):
            raise done
        return done


Runner = LocalRunner | ContainerRunner | NodeRunner
"""Where a job will run, for `run`, `check` and the profiles."""


def _run_on_nodes(
    cluster: Cluster, programs: Mapping[str, list[str]], working_dir: Path, timeout_s: float, at: str = ""
) -> dict[str, str | RaydebugError]:
    """Run the Python of nodes, by address, in one job of raydebug's own for each NODES_AT_ONCE."""
    from raydebug.cluster.head_requests import ANSWER_LIMIT_S, Node, ask_nodes
    from raydebug.cluster.joined_job import NO_FOLDER
    from raydebug.cluster.working_folder import folder_on_nodes

    folder = at or folder_on_nodes(cluster, working_dir, as_it_is=False)
    answers: dict[str, Node] = {}
    for first in range(0, len(programs), NODES_AT_ONCE):
        request = {
            "do": "run", "head": cluster.remote.head, "folder": folder, "limit_s": timeout_s,
            "argv": dict(list(programs.items())[first : first + NODES_AT_ONCE]),
        }  # fmt: skip
        answers |= {node["ip"]: node for node in ask_nodes(cluster, request, ANSWER_LIMIT_S + timeout_s)}
    found: dict[str, str | RaydebugError] = {}
    for ip, arguments in programs.items():
        node = answers.get(ip) or Node(problem=f"no node {ip} is alive")
        code, output = node.get("code", Exit.FAILED), node.get("problem") or node.get("output", "")
        found[ip] = output
        if code != 0:
            fix = f"see `raydebug ps{name_option(cluster.name)}`"
            if code == NO_FOLDER:
                fix = f"let it be copied there: `raydebug run --upload{name_option(cluster.name)} -- ...`"
            found[ip] = process.CommandFailed([f"python on {ip}", SAFE_PATH, *arguments], code, output, fix=fix)
    return found


def run_on_each(
    programs: Mapping[str, tuple[Runner, list[str]]],
    working_dir: Path,
    *,
    environ: Environ = None,
    timeout_s: float = PYTHON_TIMEOUT_S,
) -> dict[str, str | RaydebugError]:
    """Run code of ours in several places, by any key; return what each printed, or why it failed.

    On the nodes of a joined cluster that is one job.
    """
    nodes = {key: (node, words) for key, (node, words) in programs.items() if isinstance(node, NodeRunner)}
    by_ip = {node.ip: words for node, words in nodes.values()}
    if by_ip and len(by_ip) == len(programs):
        cluster = next(node.cluster for node, _ in nodes.values())
        try:
            done = _run_on_nodes(cluster, by_ip, working_dir, timeout_s)
        except RaydebugError as error:
            return dict.fromkeys(programs, error)
        return {key: done[node.ip] for key, (node, _) in nodes.items()}
    found: dict[str, str | RaydebugError] = {}
    for key, (runner, arguments) in programs.items():
        try:
            found[key] = runner.run_python(arguments, working_dir, environ=environ, timeout_s=timeout_s)
        except RaydebugError as error:
            found[key] = error
    return found
