"""What a local cluster starts with: logical GPUs and CPUs, the environment that every worker inherits, Ray's argv."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from raydebug.cluster.gpus import list_gpus
from raydebug.cluster.state import DEFAULT_NAME, Cluster
from raydebug.errors import UsageError
from raydebug.process import SAFE_PATH
from raydebug.protocol import variables
from raydebug.settings.debugger import mode_variables

VISIBLE = "CUDA_VISIBLE_DEVICES"
# verl 0.9.1 reserves 3 CPUs beside each GPU (single_controller/ray/base.py, max_colocate_count=3). Its TransferQueue
# takes 9 more by default (8 storage units, 1 controller), a remote reward manager 1, and Ray asks for one to place an
# actor. Logical CPUs cost nothing; a placement group that lacks one waits for ever.
CPUS_PER_GPU = 3
CPUS_BESIDE_GPUS = 12
CPUS_AT_LEAST = 16
# Ours and Ray's alone: a value from the user's shell would point at another cluster, token or mode, or let Ray's legacy
# debugger listen beyond loopback (ray 2.60.0 util/rpdb.py:240).
DROPPED = (
    "RAY_ADDRESS",
    "RAY_AUTH_TOKEN",
    "PYTHONBREAKPOINT",
    "RAY_JOB_CONFIG_JSON_ENV_VAR",
    "VIRTUAL_ENV",
    "REMOTE_PDB_HOST",
)

# Of our own variables the user may give these to `up`.
OURS_TO_SET = (variables.PATIENCE, variables.OPEN, variables.PREFORK_MODULES, variables.ALLOWED_HOSTS)


def cpus_for(gpus: int) -> int:
    """Return the number of logical CPUs that a node with this many logical GPUs needs."""
    # A batch system may give a process some of the host's only; macOS does not tell.
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(CPUS_AT_LEAST, here, CPUS_PER_GPU * gpus + CPUS_BESIDE_GPUS)


def visible_indexes(uuids: Sequence[str], said: str | None) -> list[int | None]:
    """Return the indexes of the GPUs that a value of CUDA_VISIBLE_DEVICES leaves visible; None hides none. Pure.

    A part of a GPU (`MIG-`) has None for its index: of which GPU it is, is not known here.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables": indices or beginnings of UUIDs (`GPU-`, `MIG-`);
    CUDA ignores an invalid entry and all entries after it, so that an empty value or -1 hides every GPU.
    """
    if said is None:
        return [*range(len(uuids))]
    found: list[int | None] = []
    for word in map(str.strip, said.split(",")):
        if word.isdecimal() and int(word) < len(uuids):
            found.append(int(word))
        elif word.startswith("GPU-") and (named := [n for n, uuid in enumerate(uuids) if uuid.startswith(word)]):
            found.append(named[0])
        elif word.startswith("MIG-") and uuids:
            found.append(None)
        else:
            break
    return found


def choose_gpus(asked: int | None, environ: Mapping[str, str]) -> int:
    """Return the number of logical GPUs of a local cluster: those of --gpus, else those that the driver lists.

    Raises:
        RaydebugError: CUDA_VISIBLE_DEVICES names fewer than --gpus, and Ray would not start.
    """
    gpus, _ = list_gpus()
    usable = len(visible_indexes([gpu.uuid for gpu in gpus], environ.get(VISIBLE)))
    if asked is None:
        return usable
    if asked > usable and VISIBLE in environ and gpus:
        raise UsageError(
            f"--gpus {asked} is more than CUDA_VISIBLE_DEVICES allows",
            cause=f"CUDA_VISIBLE_DEVICES={environ[VISIBLE]} names {usable} of the {len(gpus)} GPUs of this machine;"
            " Ray does not start with more logical GPUs than it names",
            fix=f"--gpus {usable}, or unset CUDA_VISIBLE_DEVICES",
            code="cluster.gpus-hidden",
        )
    return asked


def start_environment(environ: Mapping[str, str], gpus: int) -> dict[str, str]:
    """Return the environment to start a local cluster in, which has to allow its logical GPUs.

    Ray refuses to start with more GPUs than CUDA_VISIBLE_DEVICES names (2.60, _private/resource_and_label_spec.py).
    Where the machine has no GPU at all, an empty CUDA_VISIBLE_DEVICES hides nothing and is left out.
    """
    kept = dict(environ)
    if gpus and VISIBLE in kept and not list_gpus()[0]:
        del kept[VISIBLE]
    return kept


def why_so_many(asked: int | None, environ: Mapping[str, str]) -> str:
    """Return the origin of a local cluster's number of logical GPUs."""
    if asked is not None:
        return f"--gpus is {asked}"
    gpus, failure = list_gpus()
    if failure is not None:
        return f"the NVIDIA driver lists none ({failure})"
    hidden = f", and CUDA_VISIBLE_DEVICES={environ[VISIBLE]}" if VISIBLE in environ else ""
    return f"the NVIDIA driver lists {len(gpus)}{hidden}"


def without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Slurm's programs without what would change what we ask of them. Pure.

    In the shell of an `salloc` srun would take the nodes, tasks and memory of that job for options of its own. Filters
    of squeue would hide the cluster's job (Slurm 22.05, the programs' manuals, ENVIRONMENT VARIABLES).

    >>> without_slurm({"SLURM_JOB_ID": "7", "SQUEUE_ALL": "", "SLURM_CONF": "/c", "HOME": "/h"})
    {'SLURM_CONF': '/c', 'HOME': '/h'}
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")  # the last one proves to the controller who asks
    return {k: value for k, value in environ.items() if k in kept or not k.startswith(("SLURM_", "SQUEUE_"))}


def cluster_environment(base: Mapping[str, str], cluster: Cluster, flavour: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the cluster's processes, set once before Ray starts. Pure.

    It is made of that of `raydebug up`; the user's own values win over the flavour's (env/flavours).
    """
    kept = {k: v for k, v in base.items() if k not in DROPPED and not k.startswith(("RAYDEBUG_", "RAY_DEBUG"))}
    binaries = str(Path(cluster.python).parent)
    return {
        **flavour,
        # Ray Client's server forks between gRPC's threads; with gRPC's fork handlers every third child of it dies of a
        # segmentation fault before its exec, and ray:// hangs (Ray 2.60, grpcio 1.85; ray-project/ray#60316).
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        # Ray's GCS declares a raylet dead after so many checks without an answer, each 13 s after the last
        # (default 5; ray 2.60.0 ray_config_def.h health_check_*), and the raylet ends itself then: a raylet that was
        # stopped for 60 s was lost. As patient as ray_node is, and a raylet that has ended is noticed by its process.
        # docker-compose.yml has 7: there a node that lost its network is dead after 91 s.
        "RAY_health_check_failure_threshold": "30",
        **kept,
        **{name: base[name] for name in OURS_TO_SET if name in base},
        **mode_variables(cluster.debugger),
        "PATH": os.pathsep.join([binaries, *[p for p in kept.get("PATH", "").split(os.pathsep) if p != binaries]]),
        "PYTHONUNBUFFERED": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(cluster.token_file),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray reports even that it is off (2.60, usage_stats_head.py): nothing listens on this port.
        "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9/",
        # Everything of it listens on loopback: on Linux Ray takes the host's outer address for 127.0.0.1 unless
        # this says that it may not form a cluster (ray/_private/services.py get_node_ip_address, 2.60.0).
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        variables.GATEWAY: f"{cluster.host}:{cluster.ports['dial']}",
        variables.TOKEN_PATH: str(cluster.token_file),
        variables.CLUSTER_ID: cluster.id,
        variables.RAY_LOGS: str(cluster.ray_logs),
        **({variables.CLUSTER_NAME: cluster.name} if cluster.name != DEFAULT_NAME else {}),
        **({variables.PREFORK: str(cluster.pool_socket)} if cluster.prefork else {}),
    }


def ray_command(cluster: Cluster, ip: str | None = None, join: str | None = None) -> list[str]:
    """Return the argv that runs a node in the foreground.

    Args:
        cluster: with ports, sizes and Ray's temp dir.
        ip: the node's own address; None for that of a cluster of this machine alone.
        join: address of the head's GCS; None for the head.
    """
    port = cluster.ports
    place = [f"--address={join}"]
    if join is None:  # the other nodes take the temp dir of the head
        place = [
            "--head",
            f"--port={port['gcs']}",
            f"--dashboard-host={cluster.host}",
            f"--dashboard-port={port['dashboard']}",
            f"--ray-client-server-port={port['client_server']}",
            f"--temp-dir={cluster.ray_dir}",
        ]
    return [
        cluster.python,
        SAFE_PATH,
        "-m",
        "ray.scripts.scripts",
        "start",
        *place,
        "--block",
        f"--node-ip-address={ip or cluster.host}",
        f"--dashboard-agent-listen-port={port['agent']}",
        f"--dashboard-agent-grpc-port={port['agent_grpc']}",
        f"--runtime-env-agent-port={port['runtime_env']}",
        f"--metrics-export-port={port['metrics']}",
        f"--node-manager-port={port['node_manager']}",
        f"--object-manager-port={port['object_manager']}",
        # Any free port, where the user names no block of them. Each raylet counts up from 10002 by default and reserves
        # no port that it hands out, so two clusters that start workers at once would collide.
        # Source: Ray 2.60, src/ray/raylet/worker_pool.cc.
        f"--min-worker-port={port.get('worker_first', 0)}",
        f"--max-worker-port={port.get('worker_last', 0)}",
        f"--num-cpus={cluster.cpus}",
        f"--num-gpus={cluster.gpus}",
        "--disable-usage-stats",
        "--log-color=false",
    ]
