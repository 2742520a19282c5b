"""KubeRay's own schemas of RayCluster and RayJob, made strict: a key that they do not have is an error.

The API server drops such a key without a word. The recorded file is made from a checkout of ray-project/kuberay
(Apache-2.0), by `python tests/support/kuberay_schemas.py CHECKOUT VERSION`; descriptions and rules in CEL are left out.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

RECORDED = Path(__file__).parents[1] / "unit" / "kuberay_schemas.json.gz"
KINDS = {"RayCluster": "rayclusters", "RayJob": "rayjobs"}
INT_OR_STRING = "x-kubernetes-int-or-string"


def strict(schema: Any) -> Any:
    """Return a structural schema of Kubernetes as a JSON schema that allows no further keys."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if isinstance(kept.get("description"), str):  # not a property of that name
        del kept["description"]
    if schema.get(INT_OR_STRING) is True:
        pattern = {"pattern": kept["pattern"]} if "pattern" in kept else {}  # of its texts
        return {"anyOf": [{"type": "integer"}, {"type": "string"}], **pattern}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields")
    if kept.get("type") == "object" and isinstance(kept.get("properties"), dict) and not is_open:
        kept["additionalProperties"] = False
    return {key: value if key in ("enum", "default", "required") else strict(value) for key, value in kept.items()}


def make(checkout: str, version: str) -> dict[str, Any]:
    """Return what is recorded: the source of each schema, and the schemas of v1."""
    argv = ["git", "-C", checkout, "rev-parse", f"{version}^{{commit}}"]
    commit = subprocess.run(argv, capture_output=True, check=True, text=True).stdout.strip()
    made: dict[str, Any] = {"project": "ray-project/kuberay", "version": version, "commit": commit, "sha256": {}}
    for kind, plural in KINDS.items():
        path = f"ray-operator/config/crd/bases/ray.io_{plural}.yaml"
        text = subprocess.run(["git", "-C", checkout, "show", f"{commit}:{path}"], capture_output=True, check=True)
        made["sha256"][path] = hashlib.sha256(text.stdout).hexdigest()
        versions = yaml.load(text.stdout, yaml.CSafeLoader)["spec"]["versions"]
        (schema,) = [one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == "v1"]
        made[kind] = strict(schema)
        made[kind]["properties"]["metadata"] = {"type": "object"}  # the API server's own
    return made


def recorded() -> dict[str, Any]:
    """Return the recorded schemas with their source."""
    document: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return document


if __name__ == "__main__":
    text = json.dumps(make(*sys.argv[1:]), separators=(",", ":"), sort_keys=True)
    RECORDED.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
