"""`raydebug node`: one host of a cluster, wherever a launcher has started it: srun, ssh, a command of the user's.

All hosts get the same folder (rendezvous.py). The head starts the gateway and Ray, and says where it is once its raylet
answers; the others wait for that, and join. A node that joins before the head's raylet is registered ends after 67 s
("No node info found for head node in GCS"; Ray 2.60, measured).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
import tempfile
import time
import traceback
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from raydebug.cluster import private_folders, rendezvous, state
from raydebug.cluster.environment import choose_gpus, cluster_environment, cpus_for, start_environment
from raydebug.cluster.interpreter import find_interpreter, probe_environment
from raydebug.cluster.keeper import POLL_S, REAP_PERIOD_S, Keeper, adopt_orphans, end_descendants, end_with_parent, log
from raydebug.cluster.rendezvous import ENDED, FAILED, LOCAL_DISK, Head, NodeState
from raydebug.cluster.up import PURPOSES, choose_ports
from raydebug.errors import Exit, RaydebugError, TakenError, UsageError
from raydebug.protocol import variables
from raydebug.settings.files import open_private
from raydebug.settings.flavours import flavour_variables

PATIENCE_S = 300.0  # for the head: a launcher may start it later, on a slower disk
CONNECT_TIMEOUT_S = 3.0
OF_NODES = ("agent", "agent_grpc", "runtime_env", "metrics", "node_manager", "object_manager")
# Of a block of ports: the least number of all, and those of Ray's and our own processes. They are taken anywhere in the
# first half of it, as another cluster may have the same block on the same host, and Ray's workers have the rest.
BLOCK_PORTS, OWN_PORTS = 64, 16
LOCK = "node.lock"
ABSENCES = 2  # of the head's file: for a moment a shared file system may show a folder without it
ANYWHERE = "192.0.2.1"  # RFC 5737, for documentation: the way there is the default route, and nothing is sent
# Below Ray they would be those of one task of the launcher's, the same in all processes of a node.
LAUNCHERS = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMI2_", "PMIX_")
THRESHOLD = "RAY_health_check_failure_threshold"


@dataclass(frozen=True)
class NodeOptions:
    """The options of `raydebug node`; None leaves the choice to raydebug.

    Args:
        folder: of the cluster, the same one for all of its nodes.
        head: whether this is the head; None: task 0 of Slurm is.
        nodes: how many nodes the cluster is to have.
        cpus, gpus: logical CPUs and GPUs of this node.
        interface: network interface whose address the node has.
        ports: `FIRST-LAST`, the only ports that are used.
        patience_s: how long to wait for the head.
        debugger: mode of the cluster; the head's counts.
        python: the interpreter whose environment Ray runs in; None for find_interpreter's.
    """

    folder: Path
    head: bool | None = None
    nodes: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    interface: str | None = None
    ports: str | None = None
    patience_s: float = PATIENCE_S
    debugger: str = "breakpoint"
    python: str | None = None


class Stop:
    """Whether a signal has asked the node to end."""

    asked, child = False, 0

    def take_signals(self) -> None:
        """Note the signals from now on."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        self.asked = True
        if self.child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGTERM)


class NodeKeeper(Keeper):
    """Keeps the head, with the gateway, or a node that has joined a head."""

    starts_gateway = "only a new cluster has another one"

    def __init__(self, host: str, cluster: state.Cluster, ip: str, head: Head, stop: Stop, *, is_head: bool) -> None:
        gateway_at = {"gateway": cluster.host, "dial": ip} if is_head else {}
        super().__init__(
            cluster, environment_of(start_environment(os.environ, cluster.gpus), cluster, head["dial"]), ip, gateway_at
        )
        self.host, self.head, self._stop = host, head, stop
        self.join = None if is_head else head["gcs"]
        self._looked, self._absent = time.monotonic(), 0

    def run(self) -> str | None:
        """Run the node until a signal or its own end, then end all of it; return why it has failed."""
        failure: str | None = "it was interrupted"
        try:
            failure = self._take_ports() or self._start_and_watch()
        finally:
            with contextlib.suppress(RaydebugError):
                if self.join is None and self._is_known():
                    rendezvous.forget_head(self.cluster.folder)  # the others end too
            self._end_all()
            self._say(phase=FAILED if failure else ENDED, reason=failure)
        return failure

    def _is_over(self) -> bool:
        return self.stopping or self._stop.asked

    def _note_up(self) -> None:
        if self.join is None:
            rendezvous.publish(self.cluster.folder, self.head)
        super()._note_up()

    def _keep_others(self) -> None:
        """End with the head; without a shared folder Ray notices its end, after 60 s."""
        if self.join is not None and time.monotonic() > self._looked + REAP_PERIOD_S:
            self._looked = time.monotonic()
            with contextlib.suppress(RaydebugError):  # a file system that is away for a while
                self._absent = 0 if self._is_known() else self._absent + 1
                if self._absent == ABSENCES:
                    log("the head has ended")
                    self.stopping = True

    def _is_known(self) -> bool:
        found = rendezvous.find_head(self.cluster.folder)
        return found is not None and found["id"] == self.cluster.id

    def _log_of(self, part: str) -> Path:
        folder = self.cluster.folder
        return folder / rendezvous.NODES / f"{self.host}.log" if part == "ray" else super()._log_of(part)

    def _write_status(self) -> None:
        found = {name: self._status[name] for name in ("phase", "reason", "gateway")}
        _say(self.cluster.folder, rendezvous.state_of(self.host, self.ip, is_head=not self.join, **found))


def run(options: NodeOptions) -> tuple[str | None, bool]:
    """Run a node until its end; return why it has failed, and whether it is the head.

    It is kept by a process of its own. Where one of the two is killed, the other ends all that was started.

    Raises:
        RaydebugError: nothing says what it is, or the folder is not this user's alone.
    """
    is_head = which_role(options, os.environ)
    host = re.sub(r"[^\w.-]", "_", os.environ.get("SLURMD_NODENAME") or socket.gethostname(), flags=re.ASCII)
    folder, stop = Path(os.path.abspath(options.folder)), Stop()
    if is_head:
        rendezvous.make(folder)
        _refuse_running(folder)
        rendezvous.forget_nodes(folder)
    stop.take_signals()
    adopt_orphans()
    reading, writing = os.pipe()
    stop.child = os.fork()
    if not stop.child:
        code = Exit.FAILED
        try:
            end_with_parent()
            adopt_orphans()
            failure = _keep(options, folder, host, stop, writing, is_head=is_head) or ""
            os.write(writing, b"\n" + failure.encode(errors="replace"))
            code = Exit.OK
        except Exception as error:  # noqa: BLE001 - the last words of this process
            traceback.print_exc()
            os.write(writing, f"\n{type(error).__name__}: {error}".encode(errors="replace"))
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as said:
        temp_dir, _, failure = said.read().partition("\n")
    if os.waitpid(stop.child, 0)[1] != 0:
        failure = failure or "its process was killed"
        with contextlib.suppress(RaydebugError):
            if is_head:
                rendezvous.forget_head(folder)
        end_descendants()
        if temp_dir:
            private_folders.remove_private(Path(temp_dir))
        _say_early(folder, host, FAILED, failure, is_head=is_head)
    return failure or None, is_head


def _refuse_running(folder: Path) -> None:
    """Refuse the folder of a cluster whose head answers: it would end with its head's file.

    The head of a job which is queued again may still answer, and is replaced.
    """
    head = None
    with contextlib.suppress(RaydebugError):  # a broken file is replaced
        head = rendezvous.find_head(folder)
    own = life_of(os.environ).split(" ")[:2]
    if head is None or (own[0] and head["life"].split(" ")[:2] == own):
        return
    with contextlib.suppress(OSError):
        ip, _, port = head["gcs"].rpartition(":")
        socket.create_connection((ip, int(port)), timeout=CONNECT_TIMEOUT_S).close()
        raise TakenError(
            f"{folder} has a cluster already", cause=f"its head on {head['host']} answers at {head['gcs']}",
            fix=f"end it first, or name another folder; where that is another program, remove"
            f" {folder / rendezvous.HEAD_FILE}", code="node.taken",
        )  # fmt: skip


def _keep(options: NodeOptions, folder: Path, host: str, stop: Stop, told: int, *, is_head: bool) -> str | None:
    """Keep the node until its end; return why it has failed. Its temp dir is written to the pipe `told`."""
    try:
        if not is_head:
            _refuse_second(folder)
            _say_early(folder, host, "waiting for the head")
        life = life_of(os.environ) if options.head is None else None
        head = None if is_head else wait_for_head(folder, options.patience_s, stop, life)
        rendezvous.check(folder)
        os.chdir(variables.CLUSTER_DIR)
        temp_dir = Path(head["temp_dir"]) if head else Path(tempfile.mkdtemp(prefix="rd-", dir=LOCAL_DISK))
        if head is not None:
            _refuse_second(folder)
        os.write(told, os.fsencode(temp_dir))
        clear_remains(Path(LOCAL_DISK))
        private_folders.make_private(temp_dir)
        hold(temp_dir)
        try:
            return _plan(options, folder, temp_dir, host, head, stop).run()
        finally:
            private_folders.remove_private(temp_dir)
    except RaydebugError as error:
        failure = None if stop.asked else f"{error.what}: {error.cause}"
        if error.code != "node.tasks":  # else its name is that of the one that is there
            _say_early(folder, host, FAILED if failure else ENDED, failure, is_head=is_head)
        return failure


def _refuse_second(folder: Path) -> None:
    """Refuse to join on the host of the head, whose temp dir and name of a file this node would have."""
    head = None
    with contextlib.suppress(RaydebugError):
        head = rendezvous.find_head(folder)
    if head is not None and is_held(Path(head["temp_dir"])):
        raise RaydebugError(
            "this host has a node of this cluster already", cause=f"the head holds {head['temp_dir']}/{LOCK}",
            fix="start one `raydebug node` on each host: srun --ntasks-per-node=1 raydebug node ...", code="node.tasks",
        )  # fmt: skip


def hold(temp_dir: Path) -> None:
    """Hold the lock of a temp dir as long as this process lives."""
    fresh = temp_dir / f"{LOCK}.{os.getpid()}"  # it gets its name when it is held
    with contextlib.suppress(OSError):
        fcntl.flock(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600), fcntl.LOCK_EX)
        fresh.rename(temp_dir / LOCK)


def clear_remains(disk: Path) -> None:
    """Remove temp dirs of ours that nobody holds: a launcher may kill all processes of a node at once."""
    for temp_dir in disk.glob("rd-*"):
        if is_held(temp_dir) is False:
            private_folders.remove_private(temp_dir)


def is_held(temp_dir: Path) -> bool | None:
    """Return whether the node of a temp dir lives; None where the folder is another user's, or has no lock."""
    try:
        if temp_dir.lstat().st_uid != os.geteuid():
            return None
        lock = os.open(temp_dir / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(lock)
    return False


def _say_early(folder: Path, host: str, phase: str, reason: str | None = None, *, is_head: bool = False) -> None:
    """Say how a node is that has no address yet."""
    with contextlib.suppress(RaydebugError):
        _say(folder, rendezvous.state_of(host, "?", phase, is_head=is_head, reason=reason))


def _say(folder: Path, node: NodeState) -> None:
    log(f"{node['host']} {node['ip']}: {node['phase']}{'; ' + node['reason'] if node['reason'] else ''}")
    if folder.is_dir():
        rendezvous.say_node(folder, node)


def _plan(options: NodeOptions, folder: Path, temp_dir: Path, host: str, head: Head | None, stop: Stop) -> NodeKeeper:
    """Return what keeps the node; `head` is None for the head itself."""
    # srun says from where it was called, as the nodes see that host; in a batch script that is the first of them.
    peers = [head["ip"]] if head else [os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ANYWHERE), host, ANYWHERE]
    ip = address_toward(peers, options.interface)
    python = find_interpreter(options.python)
    environment = probe_environment(python)
    gpus = choose_gpus(options.gpus, os.environ)
    cpus = options.cpus or cpus_for(gpus)
    first, middle, last = _block(options.ports, cpus)
    block = {"worker_first": middle, "worker_last": last} if last else {}
    within = f"{first}-{middle}" if last else None
    ports = choose_ports({"dashboard": 0, "gateway": 0}, {}, (), OF_NODES if head else PURPOSES, within)
    cluster = state.Cluster(
        name=state.DEFAULT_NAME, id=head["id"] if head else uuid.uuid4().hex, kind="node", folder=folder,
        temp_dir=temp_dir, python=python, cpus=cpus, gpus=gpus,
        debugger=head["debugger"] if head else options.debugger, flavour=environment.flavour, created=time.time(),
        ports={"dial": 0, **ports, **block},
    )  # fmt: skip
    if head is not None:
        return NodeKeeper(host, cluster, ip, head, stop, is_head=False)
    rendezvous.forget_head(folder)
    open_private(cluster.numbers_file, "wb").close()  # a gateway that finds no file takes it for lost
    own = Head(
        id=cluster.id, host=host, ip=ip, gcs=f"{ip}:{cluster.ports['gcs']}", dial=f"{ip}:{cluster.ports['dial']}",
        client_port=cluster.ports["gateway"], dashboard_port=cluster.ports["dashboard"], temp_dir=str(temp_dir),
        python=python, ray=environment.ray, flavour=cluster.flavour, gpus=gpus,
        debugger=cluster.debugger, nodes=options.nodes or int(os.environ.get("SLURM_STEP_NUM_NODES", 1)),
        life=life_of(os.environ),
    )  # fmt: skip
    if problem := rendezvous.what_is_wrong(own):  # else nobody could read it, which is noticed minutes later
        raise UsageError(
            "this node cannot be a head", cause=f"{problem}; its Python is {python}",
            fix="run raydebug in an environment whose path has only letters of ASCII, digits and ./+@-_",
            code="node.head",
        )  # fmt: skip
    return NodeKeeper(host, cluster, ip, own, stop, is_head=True)


def _block(ports: str | None, cpus: int) -> tuple[int, int, int]:
    """Return the first port that may be used, the first one of Ray's workers, and the last one; 0 for any. Pure."""
    found = re.fullmatch(r"(\d{4,5})-(\d{4,5})", ports or "0000-0000", re.ASCII)
    first, last = (int(found[1]), int(found[2])) if found else (0, -1)
    least = max(BLOCK_PORTS, cpus + 2 * OWN_PORTS)
    if ports is not None and not (1024 <= first <= last - least + 1 and last < 65536):
        raise UsageError(
            f"--ports {ports} is not a block of at least {least} ports",
            cause=f"Ray and the gateway listen on 11 ports of the head, and each of Ray's workers on one: {cpus} CPUs",
            fix="--ports 20000-20999",
            code="node.ports",
        )
    return first, min(last + 1 - cpus - OWN_PORTS, (first + last + 1) // 2) if last else 0, last


def which_role(options: NodeOptions, environ: Mapping[str, str]) -> bool:
    """Return whether this is the head. Pure.

    Raises:
        RaydebugError: nothing says so, or Slurm has started several on this host.
    """
    if environ.get("SLURM_LOCALID", "0") != "0":
        raise UsageError(
            "this host has several tasks of this step",
            cause=f"SLURM_LOCALID is {environ['SLURM_LOCALID']}; one `raydebug node` has all CPUs and GPUs of a host",
            fix="srun --ntasks-per-node=1 raydebug node ...",
            code="node.tasks",
        )
    if options.head is not None:
        return options.head
    if "SLURM_PROCID" in environ:
        return environ["SLURM_PROCID"] == "0"
    raise UsageError(
        "nothing says whether this node is the head",
        cause="below Slurm its task 0 is; here is no SLURM_PROCID",
        fix="raydebug node --folder FOLDER --head on one host, and --join on each of the others",
        code="node.role",
    )


def life_of(environ: Mapping[str, str]) -> str:
    """Return the life of the launcher's job: one that is queued again keeps its id. Pure.

    >>> life_of({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}), life_of({})
    ('7 0 1', '  ')
    """
    return " ".join(environ.get(f"SLURM_{name}", "") for name in ("JOB_ID", "STEP_ID", "RESTART_COUNT"))


def environment_of(base: Mapping[str, str], cluster: state.Cluster, dial: str) -> dict[str, str]:
    """Return the whole environment of a node's processes. Pure."""
    kept = {name: value for name, value in base.items() if not name.startswith(LAUNCHERS)}
    found = cluster_environment(kept, cluster, flavour_variables(cluster.flavour))
    del found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]
    # As docker-compose.yml: with the 30 of a single machine a host that is lost is taken for alive for six minutes.
    return {**found, variables.GATEWAY: dial, THRESHOLD: base.get(THRESHOLD, "7")}


def address_toward(peers: Iterable[str], interface: str | None) -> str:
    """Return the own address by which a host is reached from the first of these peers that there is a way to.

    Not that of the host's own name, which Debian maps to 127.0.1.1. Nothing is sent.

    Raises:
        RaydebugError: there is none.
    """
    if interface is not None:
        for address in psutil.net_if_addrs().get(interface, ()):
            if address.family == socket.AF_INET:
                return address.address
        problem = f"this host has no interface {interface} with an address of IPv4"
    else:
        for peer in peers:
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((peer, 9))
                found = str(probe.getsockname()[0])
                if not found.startswith("127."):
                    return found
        problem = "it has no way to another host"
    raise RaydebugError(
        "the address of this node is not known",
        cause=problem,
        fix=f"name its interface: --interface {' or '.join(name for name in psutil.net_if_addrs() if name != 'lo')}",
        code="node.no-address",
    )


def wait_for_head(folder: Path, patience_s: float, stop: Stop, life: str | None) -> Head:
    """Return the head, once it says where it is and can be reached.

    Args:
        folder: of the cluster.
        patience_s: how long to wait.
        stop: what ends it earlier.
        life: that of the head (life_of); None for any, where each node was told what it is.

    Raises:
        RaydebugError: it does not within the patience, or before the node is asked to end.
    """
    fix = "see what the head has printed; wait longer with --patience SECONDS"
    deadline, problem = time.monotonic() + patience_s, f"no head has written {folder / rendezvous.HEAD_FILE}"
    while time.monotonic() < deadline and not stop.asked:
        try:
            head = rendezvous.find_head(folder)
        except RaydebugError as error:  # a file system that is away for a while
            head, problem = None, error.cause
        if head is not None and life not in (None, head["life"]):
            problem = (
                f"the head in {folder / rendezvous.HEAD_FILE} is of another step, or of an earlier life of its job"
            )
        elif head is not None:
            ip, _, port = head["gcs"].rpartition(":")
            try:
                socket.create_connection((ip, int(port)), timeout=CONNECT_TIMEOUT_S).close()
            except OSError as error:
                problem = f"its {head['gcs']} cannot be reached from here: {error.strerror or error}"
                fix = "name the head's network with --interface, or the ports that a firewall lets through with --ports"
            else:
                return head
        time.sleep(POLL_S)
    raise RaydebugError(
        f"the head has not come up within {patience_s:.0f} s", cause=problem, fix=fix, code="node.no-head"
    )  # fmt: skip
