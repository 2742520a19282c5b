"""Manifests of a Ray cluster on Kubernetes, for KubeRay: raycluster.yaml and rayjob.yaml with the user's values.

raydebug has no access to Kubernetes: kubectl applies what this writes, and `up --join --through 'kubectl exec ...'`
reaches it. What the two files say of KubeRay is from its 1.7.0, ray-operator/controllers/ray.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import yaml

from raydebug.cluster.environment import CPUS_AT_LEAST, CPUS_BESIDE_GPUS, CPUS_PER_GPU
from raydebug.cluster.state import DEFAULT_NAME, check_name, name_option
from raydebug.cluster.up import UpOptions
from raydebug.errors import UsageError
from raydebug.protocol import variables
from raydebug.settings.debugger import mode_variables
from raydebug.settings.files import environment_dir
from raydebug.settings.flavours import flavour_variables, has_token_mode, read_lock, require_flavour

POD_CPUS, MEMORY_GIB, MEMORY_GIB_PER_GPU = 2, 16, 32
# RFC 1035, as KubeRay asks (utils/validation.go); its limit of 47 characters for a RayJob is above ours.
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# Source: distribution/reference, regexp.go: no character that YAML or a shell reads.
_IMAGE = re.compile(
    r"(?:[a-zA-Z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_PLACE = re.compile("<([a-z_]+)>")


def manifest(wanted: UpOptions) -> str:
    """Return the text for `kubectl apply -f -`.

    Raises:
        RaydebugError: a name or an image that Kubernetes would refuse or read as something else, an unknown flavour or
            one whose Ray has no token.
    """
    ray, each = _check(wanted), wanted.gpus or 0
    gpus = (each, 0) if wanted.workers == 0 else (0, each)
    memory = [f"{MEMORY_GIB + MEMORY_GIB_PER_GPU * count}Gi" for count in gpus]
    values = {
        "name": wanted.name,
        "image": wanted.image,
        "ray": ray,
        "dashboard_host": "0.0.0.0" if wanted.after else "127.0.0.1",
        "workers": str(wanted.workers),
        "cpus": str(wanted.cpus or POD_CPUS),
        "ray_cpus": str(wanted.cpus or max(CPUS_AT_LEAST, CPUS_PER_GPU * each + CPUS_BESIDE_GPUS)),
        **dict(zip(("head_gpus", "worker_gpus"), map(str, gpus), strict=True)),
        **dict(zip(("head_memory", "worker_memory"), memory, strict=True)),
        "entrypoint": yaml.safe_dump(shlex.join(wanted.after), default_style='"', width=float("inf")).strip(),
    }
    lines = []
    for file in ("raycluster.yaml", *(["rayjob.yaml"] if wanted.after else [])):
        for line in Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines():
            begin, environ, _ = line.partition("<environ>")
            parts = [f"{begin}{pair}" for pair in _environ(wanted)] if environ else [line]
            lines += [_PLACE.sub(lambda place: values[place[1]], part) for part in parts]
    return "\n".join([*lines, ""]).replace(', nvidia.com/gpu: "0"', "")  # a quotation mark of the user's has a "\\"


def next_steps(wanted: UpOptions) -> list[str]:
    """Return the commands that join the cluster once its pods run. Pure."""
    service, token = f"svc/{wanted.name}-head-svc", f"~/.ray/{wanted.name}.token"
    template = "go-template='{{.data.auth_token | base64decode}}'"
    join = f"raydebug up --join http://127.0.0.1:8265{name_option(wanted.name)}"
    return [
        f"(umask 077; mkdir -p ~/.ray; kubectl get secret {wanted.name} -o {template} > {token})",
        f"RAY_AUTH_TOKEN_PATH={token} {join} --through 'kubectl exec -i {service} -c ray-head --'",
    ]


def flavour_of(wanted: UpOptions) -> str:
    """Return whose variables the processes have, and whose Ray the image has."""
    return wanted.flavour or ("cuda" if wanted.gpus else "core")


def _check(wanted: UpOptions) -> str:
    """Return the version of Ray, if all is well."""
    if not _NAME.fullmatch(check_name(wanted.name)):
        raise UsageError(
            f"{wanted.name!r} cannot be a cluster's name on Kubernetes",
            cause="it becomes the name of a service: small letters, digits and '-', a letter first, no '-' at the end",
            fix="use a name such as `--name train`", code="kubernetes.name",
        )  # fmt: skip
    if not _IMAGE.fullmatch(wanted.image):
        raise UsageError(
            f"{wanted.image!r} is not an image" if wanted.image else "there is no image for the pods",
            cause="--image takes REGISTRY/NAME@sha256:DIGEST, an image that the nodes of Kubernetes can pull",
            fix="`raydebug image` builds one; push it to a registry, and name it by the digest that the push prints",
            code="kubernetes.image",
        )
    require_flavour(flavour_of(wanted), fix="raydebug up --cluster kubernetes --flavour cuda ...")
    ray = read_lock(environment_dir() / f"{flavour_of(wanted)}.lock").pins["ray"]
    if not has_token_mode(ray):
        raise UsageError(
            f"flavour '{flavour_of(wanted)}' does not run on Kubernetes",
            cause=f"its Ray {ray} asks for no token, and every pod that reaches its dashboard could run code",
            fix="--flavour cuda, whose Ray asks for one", code="kubernetes.flavour",
        )  # fmt: skip
    return ray


def _environ(wanted: UpOptions) -> list[str]:
    """Return the variables of Ray's containers, each as an item of a list in YAML."""
    environ = {
        variables.GATEWAY: f"{wanted.name}-head-svc:5679",
        variables.TOKEN_PATH: "/run/secrets/raydebug/auth_token",
        variables.CLUSTER_ID: wanted.name,
        **({} if wanted.name == DEFAULT_NAME else {variables.CLUSTER_NAME: wanted.name}),
        **mode_variables(wanted.debugger),
        **flavour_variables(flavour_of(wanted)),
        # As in docker-compose.yml.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        "RAY_health_check_failure_threshold": "7",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9/",
    }
    return [f"{{name: {name}, value: {json.dumps(value)}}}" for name, value in environ.items()]
