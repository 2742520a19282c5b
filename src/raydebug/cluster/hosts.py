"""Clusters by ssh: Ray and the gateway on the hosts of a file, the first one the head, without a shared folder.

Each request to a host is one ssh connection, whose far end is on_host.py; none is kept, so the cluster outlives them.
A host is believed in what it says of itself, and its answer is checked for its form. One that lies about its versions
fails later; it has the token, as every node has, so it gains nothing by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import raydebug
from raydebug import render
from raydebug.cluster import audit_log, on_nodes, rendezvous, state
from raydebug.cluster.locks import only_one
from raydebug.cluster.node_jobs import problems_of
from raydebug.cluster.on_host import HostAnswer
from raydebug.cluster.ray_node import START_LIMIT_S
from raydebug.cluster.rendezvous import Head
from raydebug.cluster.state import Cluster, Remote, name_option
from raydebug.cluster.tunnel import close_way, folder_of_commands, open_way
from raydebug.cluster.up import UpOptions, ignore_interrupts, raise_if_interrupted, words_of
from raydebug.errors import Exit, RaydebugError, UsageError
from raydebug.process import SAFE_PATH, too_old
from raydebug.protocol import records
from raydebug.settings.files import NotPlainText, read_plain

HOSTS_FILE_BYTES, ANSWER_BYTES = 1 << 20, 8 << 20
AT_ONCE = 32  # connections
ASK_LIMIT_S, UP_LIMIT_S = 60.0, START_LIMIT_S + 30.0
KILLED_S, LAST_CHARS = 2.0, 300
# A name, and a user's before it: nothing that ssh or a shell reads as something else.
_HOST = re.compile(r"(\w[\w.-]*@)?[\w:][\w.:-]*", re.ASCII)
# Nobody is there to answer a question; a terminal or forwardings of ssh_config would be in the way.
# With ControlMaster one connection would end others.
SSH_OPTIONS = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15"]
SSH_OPTIONS += ["-o", "ControlMaster=no", "-o", "ClearAllForwardings=yes", "--"]
COLUMNS = ("python", "ray", "raydebug", "debugpy")


def read_hosts(path: Path) -> list[str]:
    """Return the names in a file of hosts: one a line, `#` begins a comment.

    Raises:
        RaydebugError: it has none, one of them twice, or what is no name.
    """
    lines: dict[str, int] = {}
    try:
        for number, line in enumerate(read_plain(path, bytes_max=HOSTS_FILE_BYTES, what="it").split("\n"), 1):
            name = line.partition("#")[0].strip()
            if name and not _HOST.fullmatch(name):
                raise NotPlainText(f"{name!r} is not the name of a host", number)
            if name in lines:
                raise NotPlainText(f"{name} is in line {lines[name]} already", number)
            if name:
                lines[name] = number
        if not lines:
            raise NotPlainText("it names no host")
    except NotPlainText as error:
        raise UsageError(
            f"{path} is not a file of host names", cause=str(error),
            fix="one name a line, as `ssh NAME` takes it; the first one becomes the head", code="ssh.hosts",
        ) from error  # fmt: skip
    return list(lines)


def ask_hosts(
    cluster: Cluster, do: str, names: Iterable[str] | None = None, *, limit_s: float = ASK_LIMIT_S, **request: Any
) -> dict[str, HostAnswer]:
    """Send a request to all hosts of a cluster, or to those named, side by side, and return their answers.

    A failure of any kind is the answer's `problem`. Where this is interrupted the connections are ended.

    Args:
        cluster: of the kind `ssh`.
        do: what on_host.py is to do.
        names: of hosts.
        limit_s: for each host.
        **request: what it needs.
    """
    there = cluster.there
    far = [there.launched["python"], SAFE_PATH, "-m", "raydebug.cluster.on_host"]
    given = json.dumps({"do": do, "folder": there.folder, **request}).encode()
    asked = hosts_of(cluster) if names is None else list(names)

    async def ask_each() -> list[HostAnswer]:
        some = asyncio.Semaphore(AT_ONCE)

        async def ask(host: str) -> HostAnswer:
            async with some:
                argv = [*_ssh_to(there.launched["ssh"], host), shlex.join(far)]
                return await _ask(argv, folder_of_commands(cluster), given, limit_s)

        return await asyncio.gather(*map(ask, asked))

    return dict(zip(asked, asyncio.run(ask_each()), strict=True))


async def _ask(argv: list[str], folder: Path | None, given: bytes, limit_s: float) -> HostAnswer:
    pipe = asyncio.subprocess.PIPE
    try:  # in a session of its own: a Ctrl-C is ours to answer
        far = await asyncio.create_subprocess_exec(
            *argv, cwd=folder, stdin=pipe, stdout=pipe,
            stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return {"problem": f"{argv[0]}: {error.strerror}"}
    assert far.stdin is not None
    assert far.stdout is not None
    try:
        async with asyncio.timeout(limit_s):
            far.stdin.write(given)
            far.stdin.close()
            await far.stdout.readexactly(ANSWER_BYTES)
        return {"problem": "its answer is too long"}
    except TimeoutError:
        return {"problem": f"it gave no answer within {limit_s:.0f} s"}
    except asyncio.IncompleteReadError as error:  # the usual end
        printed = error.partial
        await far.wait()
    finally:
        if far.returncode is None:
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                os.killpg(far.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):  # something else may hold its output
                await asyncio.wait_for(far.wait(), KILLED_S)
    lines = printed.decode("utf-8", "replace").strip().split("\n")
    answers = [line.removeprefix(on_nodes.MARK) for line in lines if line.startswith(on_nodes.MARK)]
    try:
        if answers:
            answer = records.read(json.loads(answers[-1]), HostAnswer, "the answer")
            wrong = rendezvous.what_is_wrong(answer["head"]) if "head" in answer else ""
            return {"problem": f"it has no head that could be used: {wrong}"} if wrong else answer
    except (ValueError, RecursionError) as error:
        return {"problem": f"its answer cannot be read: {error}"}
    what = "ssh does not reach it" if far.returncode == 255 else "raydebug does not run there"  # ssh(1), EXIT STATUS
    last = too_old("".join(lines)) or lines[-1].strip()[-LAST_CHARS:] or "it printed nothing"
    return {"problem": f"{what}: {last}"}


def hosts_of(cluster: Cluster) -> list[str]:
    """Return the names of a cluster's hosts, head first."""
    return cluster.there.launched["hosts"].split()


def what_does_not_fit(looked: Mapping[str, HostAnswer], version: str) -> list[str]:
    """Return why hosts, head first, cannot be one cluster of this version of raydebug. Pure."""
    problems: dict[str, HostAnswer] = {}
    first, model = next(((host, dict(one)) for host, one in looked.items() if one.get("ray")), ("", {}))
    for host, answer in looked.items():
        facts: dict[str, Any] = {"hook": False, **dict.fromkeys((*COLUMNS, "executable")), **answer}
        problem = on_nodes.problem_of(facts, version)
        # Ray takes no other version of itself, nor of Python, not even another patch release of it (ray 2.60.0
        # _private/utils.py check_version_info).
        for key, name in (("ray", "Ray"), ("python", "Python")):
            if problem is None and not facts[key]:
                problem = f"its Python {facts['python']} ({facts['executable']}) has no ray"
            elif problem is None and facts[key] != model[key]:
                problem = f"it has {name} {facts[key]}, and {first} has {model[key]}"
        if problem is not None:
            problems[host] = {"problem": problem}
    return said_of(problems)


def said_of(answers: Mapping[str, HostAnswer]) -> list[str]:
    """Return the problems of hosts, a line for each problem. Pure."""
    return problems_of({"ip": host, "problem": one["problem"]} for host, one in answers.items() if "problem" in one)


def bring_up(options: UpOptions, *, on_phase: Callable[[str], None]) -> tuple[Cluster, bool]:
    """Start a cluster on the hosts of a file; return it when all are up, and whether this call started it.

    Of one that runs, only the way to it is opened again.

    Raises:
        RaydebugError: a host is missing, or does not fit; nothing is left on any of them then.
    """
    audit_log.prune()
    with only_one(options.name, wait=False):
        existing = state.read_record(options.name)
        if existing is not None:
            _refuse_others(existing, options)
            return _open(existing, _head_of(existing), existing.there.launched, options), False
        if options.hosts is None:
            raise UsageError(
                "--cluster ssh needs --hosts", cause="Ray is started on the hosts of a file",
                fix="raydebug up --hosts FILE, with one name a line", code="ssh.hosts",
            )  # fmt: skip
        cluster = _plan(options, read_hosts(options.hosts))
        on_phase("comparing versions")
        _refuse_unfit(ask_hosts(cluster, "look"))
        state.save_cluster(cluster)  # from here on `down` ends all of it
        try:
            head, launched = _start(cluster, options, on_phase)
            return _open(cluster, head, launched, options), True
        except BaseException:
            on_phase("ending what was started")
            with ignore_interrupts():
                if left := take_down(cluster):
                    down = f"`raydebug down{name_option(cluster.name)}`"
                    render.say(f"note: not all could be ended: {'; '.join(left)}; {down} tries it again")
            raise


def _refuse_others(existing: Cluster, options: UpOptions) -> None:
    state.refuse_other_kind(existing, "ssh")
    if options.hosts is not None and read_hosts(options.hosts) != hosts_of(existing):
        raise RaydebugError(
            f"cluster '{existing.name}' runs already, on other hosts", cause=f"it has {' '.join(hosts_of(existing))}",
            fix=f"`raydebug down{name_option(existing.name)}` first, or another name with --name",
            code="ssh.other-hosts", exit_code=Exit.TAKEN,
        )  # fmt: skip
    for name, asked in (("ssh", options.ssh if options.ssh != UpOptions.ssh else None), ("python", options.python)):
        if asked is not None and asked != existing.there.launched[name]:
            raise RaydebugError(
                f"cluster '{existing.name}' runs already, with another --{name}",
                cause=f"it has {existing.there.launched[name]}",
                fix=f"leave --{name} out, or `raydebug down{name_option(existing.name)}` first",
                code="ssh.other-options", exit_code=Exit.TAKEN,
            )  # fmt: skip


def take_down(cluster: Cluster) -> list[str]:
    """End the cluster on all hosts and forget it; return what is left."""
    left = said_of(ask_hosts(cluster, "end"))
    close_way(cluster)
    if not left:
        state.forget(cluster)
    return left


def _ssh_to(ssh: str, host: str) -> list[str]:
    return [*words_of("--ssh", ssh), *SSH_OPTIONS, host]


def _open(cluster: Cluster, head: Head, launched: dict[str, str], options: UpOptions) -> Cluster:
    """Return the cluster with the way to its head."""
    cluster = rendezvous.with_head(cluster, head, through=cluster.there.through, launched=launched)
    return open_way(cluster, options.ports)


def _head_of(cluster: Cluster) -> Head:
    """Return where the head of a cluster is that runs."""
    ((host, answer),) = ask_hosts(cluster, "read", hosts_of(cluster)[:1]).items()
    if "problem" in answer or "head" not in answer:
        raise RaydebugError(
            f"cluster '{cluster.name}' is there, but its head does not answer",
            cause=f"{host}: {answer.get('problem', 'it has not come up')}",
            fix=f"clear it away with `raydebug down{name_option(cluster.name)}`, then `raydebug up` again",
            code="cluster.dead",
        )  # fmt: skip
    return answer["head"]


def _plan(options: UpOptions, hosts: list[str]) -> Cluster:
    """Return the record as far as it is known before anything is started."""
    words_of("--node-options", options.node_options)
    folder, identity = state.make_folder(options.name), uuid.uuid4().hex
    launched = {"hosts": " ".join(hosts), "ssh": options.ssh, "python": options.python or sys.executable}
    launched["folder"] = str(Path.cwd())  # of the files that --ssh may name
    remote = Remote(
        "http://127.0.0.1:0", "127.0.0.1:0", str(state.make_token(folder)), launched=launched,
        through=shlex.join(_ssh_to(options.ssh, hosts[0])),
        folder=f"/tmp/rd-{identity[:12]}",  # noqa: S108 - made private there; short, as a socket's path has 107 bytes
    )  # fmt: skip
    return Cluster(
        name=options.name, id=identity, kind="ssh", folder=folder, temp_dir=folder, python=launched["python"], ports={},
        cpus=options.cpus or 0, gpus=0, debugger=options.debugger, flavour="core", created=time.time(), remote=remote,
    )  # fmt: skip


def _refuse_unfit(looked: Mapping[str, HostAnswer]) -> None:
    if not (problems := what_does_not_fit(looked, raydebug.__version__)):
        return
    rows = [[host, *(str(answer.get(key, "-")) for key in COLUMNS)] for host, answer in looked.items()]
    render.table(None, ["host", *COLUMNS], rows, to_stderr=True)
    raise RaydebugError(
        "these hosts cannot be one cluster", cause="; ".join(problems),
        fix="each needs a login without a question (`ssh HOST true`), and the same Python with the same Ray, debugpy"
        f" and raydebug {raydebug.__version__}; --python PATH names it", code="ssh.unfit",
    )  # fmt: skip


def _start(cluster: Cluster, options: UpOptions, on_phase: Callable[[str], None]) -> tuple[Head, dict[str, str]]:
    """Start the head, then the others; when all are up, return where the head is, and what the record is to have."""
    hosts, ips = hosts_of(cluster), list[str]()
    words = {"nodes": len(hosts), "debugger": options.debugger, "cpus": options.cpus, "gpus": options.gpus}
    common = words_of("--node-options", options.node_options)
    common += [word for name, value in words.items() if value is not None for word in (f"--{name}", str(value))]
    head: Head | None = None
    for names, role in ((hosts[:1], "--head"), (hosts[1:], "--join")):
        if not names:
            continue
        on_phase(f"starting the head on {names[0]}" if head is None else f"starting {len(names)} more nodes")
        answers = ask_hosts(
            cluster, "start", names, limit_s=UP_LIMIT_S, token=cluster.token, head=head, options=[role, *common]
        )
        raise_if_interrupted()
        problems, head = said_of(answers), head or answers[hosts[0]].get("head")
        if problems or head is None:
            raise RaydebugError(
                f"cluster '{cluster.name}' did not come up",
                cause="; ".join(problems) or f"{hosts[0]} does not say where its head is",
                fix="correct this there, then `raydebug up` again", code="cluster.not-up",
            )  # fmt: skip
        found = [answers[host].get("node", {}).get("ip", "") for host in names]
        ips += [ip if _HOST.fullmatch(ip) else "?" for ip in found]
    assert head is not None
    return head, {**cluster.there.launched, "ips": " ".join(ips), "log": f"nodes/{head['host']}.log"}
