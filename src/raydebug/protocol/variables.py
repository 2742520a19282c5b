"""The environment variables by which a cluster configures its processes. One home for each name."""

GATEWAY = "RAYDEBUG_GATEWAY"
"""host:port that a process dials; set by the cluster, and the switch of the whole hook."""

TOKEN_PATH = "RAYDEBUG_TOKEN_PATH"  # noqa: S105 - the name of a variable, not a token
"""File with the cluster's token."""

CLUSTER_ID = "RAYDEBUG_CLUSTER_ID"
"""Marks every process that `raydebug up` started, so that `down` never has to find a process by its name."""

BREAKS = "RAYDEBUG_BREAKS"
"""JSON list of breakpoints set from outside: {"where", "module" or "file", "line" or "function"}."""

STOP_WHEN = "RAYDEBUG_STOP_WHEN"
"""JSON list of conditions on the metrics of a step (protocol/tripwires.py): the trainer's process pauses at them."""

STEP_LOGGERS = "RAYDEBUG_STEP_LOGGERS"
"""Where trainers log these metrics, separated by spaces: `verl.utils.tracking:Tracking.log(step,data)`."""

STOP_ON = "RAYDEBUG_STOP_ON"
"""`nonfinite`: a process that trains pauses at the first module with an output or gradient that is not finite."""

CLUSTER_NAME = "RAYDEBUG_CLUSTER_NAME"
"""The cluster's name, for commands that the job's log recommends; unset for the default one."""

PROFILE = "RAYDEBUG_PROFILE"
"""Name of the profile that the driver process applies to the training command."""

TRAINER = "RAYDEBUG_TRAINER"
"""Name of the trainer that a program of the command is, which is recognised by nothing else."""

TINY = "RAYDEBUG_TINY"
"""Parts of the training to replace by tiny ones, made where the driver runs: `model`, `data` or both."""

PATCHES = "RAYDEBUG_PATCHES"
"""Patches of verl and vLLM, separated by commas, that each process applies (trainers/verl/patches.py)."""

ROLLOUTS = "RAYDEBUG_ROLLOUTS"
"""`record:FOLDER`, `replay:FOLDER` or `only-rollout:`: what the driver does with rollouts (profile/rollouts.py)."""

NODE_GPUS = "RAYDEBUG_NODE_GPUS"
"""Logical GPUs of each node, from `raydebug up --gpus`: a profile limits the ranks of a training to them."""

WORKING_DIR = "RAYDEBUG_WORKING_DIR"
"""The job's folder; its workers change to it, so that relative paths mean the same in all of its processes."""

CLUSTER_DIR = "/"
"""The folder of a cluster's own processes. A worker in another one (runtime_env working_dir) stays there."""

GROUP_TIMEOUT = "RAYDEBUG_GROUP_TIMEOUT_S"
"""Seconds to which the timeouts of torch's process groups are raised, so that other ranks do not end a paused one."""

NCCL_HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
"""Torch's own: seconds after which its monitor kills a process whose NCCL collective makes no progress."""

FLIGHT_RECORDER, OLD_FLIGHT_RECORDER = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""Torch's own: how many collectives its flight recorder keeps; 0 turns it off. torch 2.11 and 2.13 know both names."""

JOB = "RAYDEBUG_JOB"
"""Submission id of the job that a process belongs to."""

SNAPSHOTS = "RAYDEBUG_SNAPSHOTS"
"""0: crashes leave no snapshots."""

SPANS = "RAYDEBUG_SPANS"
"""0: processes of the job keep no spans (`raydebug run --no-spans`)."""

GPU_HISTORY = "RAYDEBUG_GPU_HISTORY"
"""1: torch records who allocates GPU memory, for the snapshot of an out of memory (`raydebug run --gpu-history`)."""

RAY_LOGS = "RAYDEBUG_RAY_LOGS"
"""Folder of Ray's log files on this node; unset in containers, where it is CONTAINER_RAY_LOGS."""

CONTAINER_RAY_LOGS = "/tmp/ray/session_latest/logs"  # noqa: S108 - a tmpfs of the container (entrypoints/node.py)

PROFILE_REPORT = "raydebug-profile-{job}.json"
"""File in Ray's log folder: the driver writes there what the profile changed, and Ray's dashboard serves it."""

OPEN = "RAYDEBUG_OPEN"
"""1: Ray's own listener runs in paused workers, for the Ray Distributed Debugger extension. No token guards it."""

PATIENCE = "RAYDEBUG_PATIENCE_S"
"""Seconds that a pause waits for a gateway that cannot be reached before the thread resumes (3600; 0: at once)."""

ALLOWED_HOSTS = "RAYDEBUG_ALLOWED_HOSTS"
"""Comma-separated host names that HTTP requests to the gateway may use, in addition to loopback."""

ANCESTOR = "RAYDEBUG_ANCESTOR"
"""JSON with the ids of the Ray process that a child descends from; set by that process (worker/ray_debugger.py)."""

PREFORK = "RAYDEBUG_PREFORK"
"""Unix socket of a cluster's pool of pre-forked processes, which have the heavy imports done (raydebug/prefork)."""

PREFORK_MODULES = "RAYDEBUG_PREFORK_MODULES"
"""Comma-separated modules that the pool imports, given to `up --prefork`; default: those of a verl training."""

DASHBOARD, GATEWAY_CLIENTS = "RAYDEBUG_DASHBOARD", "RAYDEBUG_GATEWAY_CLIENTS"
"""Addresses of the dashboard, and of the gateway's port for clients: the cluster around a container's terminal."""

"""Variables whose old name works in this release."""

RAY_DEBUG, RAY_DEBUG_POST_MORTEM = "RAY_DEBUG", "RAY_DEBUG_POST_MORTEM"
"""Ray's own two debugger variables; Ray reads the same defaults: ray/util/rpdb.py:298, 338 (2.60.0)."""
