"""The environment variables by which a cluster talks to the processes in it. One home for each name."""

GATEWAY = "RAYDEBUG_GATEWAY"
"""host:port that a process dials at its first pause; set by the cluster, and the switch of the whole hook."""

TOKEN_PATH = "RAYDEBUG_TOKEN_PATH"  # noqa: S105 - the name of a variable, not a token
"""File with the cluster's token."""

CLUSTER_ID = "RAYDEBUG_CLUSTER_ID"
"""Marks every process that `raydebug up` started, so that `down` finds them by what they are, not by name."""

BREAKS = "RAYDEBUG_BREAKS"
"""JSON list of breakpoints set from outside: {"where", "module" or "file", "line" or "function"}."""

PROFILE = "RAYDEBUG_PROFILE"
"""Name of the profile that is laid over the training command in the driver process."""

TINY = "RAYDEBUG_TINY"
"""What is swapped in for the user's by a tiny one, made where the driver runs: `model`, `data` or both."""

NODE_GPUS = "RAYDEBUG_NODE_GPUS"
"""Logical GPUs of each node, as `raydebug up --gpus` was told: a profile lets a training have so many ranks there."""

WORKING_DIR = "RAYDEBUG_WORKING_DIR"
"""Where the job runs; its workers go there too, so that relative paths mean the same in all of its processes."""

CLUSTER_DIR = "/"
"""Where a cluster's own processes run. A worker that Ray has put elsewhere (runtime_env working_dir) stays there."""

GROUP_TIMEOUT = "RAYDEBUG_GROUP_TIMEOUT_S"
"""Seconds to which the timeouts of torch's process groups are raised, so that a paused rank is not ended by others."""

NCCL_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
"""Torch's own: seconds after which its monitor kills a process whose NCCL collective stands still."""

JOB = "RAYDEBUG_JOB"
"""Submission id of the job that a process belongs to."""

OPEN = "RAYDEBUG_OPEN"
"""1: Ray's own listener runs in paused workers, for the Ray Distributed Debugger extension. No token guards it."""

PATIENCE = "RAYDEBUG_PATIENCE_S"
"""Seconds that a paused thread waits for a gateway that is gone before it goes on (default 3600; 0: at once)."""

ANCESTOR = "RAYDEBUG_ANCESTOR"
"""JSON of the Ray process that a child descends from; set by that process itself (worker/descent.py)."""

WARM = "RAYDEBUG_WARM"
"""Unix socket of a warm cluster's pool: processes that have the heavy imports done (raydebug/zygotes)."""

WARM_MODULES = "RAYDEBUG_WARM_MODULES"
"""What the pool imports, separated by commas, given to `up --warm`; default: what a verl training imports."""
