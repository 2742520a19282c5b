"""The environment of a cluster: set once, before Ray starts; every worker inherits it. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from raydebug.cluster.state import DEFAULT_NAME, Cluster
from raydebug.protocol import variables
from raydebug.settings.debugger import mode_variables

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
OURS_TO_SET = (variables.PATIENCE, variables.OPEN, variables.WARM_MODULES, variables.ALLOWED_HOSTS)


def cluster_environment(base: Mapping[str, str], cluster: Cluster, flavour: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the cluster's processes.

    Args:
        base: the environment of `raydebug up`.
        cluster: the cluster to start.
        flavour: variables of its flavour (env/flavours); the user's own values win over them.
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
        **({variables.WARM: str(cluster.pool_socket)} if cluster.prefork else {}),
    }


def ray_command(cluster: Cluster) -> list[str]:
    """Return the argv that runs the head of a local cluster in the foreground."""
    port = cluster.ports
    return [
        cluster.python,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        f"--node-ip-address={cluster.host}",
        f"--port={port['gcs']}",
        f"--dashboard-host={cluster.host}",
        f"--dashboard-port={port['dashboard']}",
        f"--dashboard-agent-listen-port={port['agent']}",
        f"--dashboard-agent-grpc-port={port['agent_grpc']}",
        f"--runtime-env-agent-port={port['runtime_env']}",
        f"--metrics-export-port={port['metrics']}",
        f"--ray-client-server-port={port['client_server']}",
        f"--node-manager-port={port['node_manager']}",
        f"--object-manager-port={port['object_manager']}",
        # Any free port. Each raylet counts up from 10002 by default and reserves no port that it hands out, so two
        # clusters that start workers at once would collide. Source: Ray 2.60, src/ray/raylet/worker_pool.cc.
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--num-cpus={cluster.cpus}",
        f"--num-gpus={cluster.gpus}",
        f"--temp-dir={cluster.ray_dir}",
        "--disable-usage-stats",
        "--log-color=false",
    ]
