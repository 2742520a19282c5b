"""deploy/kuberay.yaml and rayjob.yaml as they are committed, held against KubeRay's own schemas and rules of ours."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import kuberay_schemas
from raydebug.cluster import joined_job
from raydebug.protocol import variables

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = ("kuberay.yaml", "rayjob.yaml")

Document = dict[str, Any]


def faults_of(documents: list[Document], schemas: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with manifests: what KubeRay's schemas say, then what they cannot know."""
    of_kind: dict[str, list[Document]] = {}
    for document in documents:
        of_kind.setdefault(document["kind"], []).append(document)
    for document in (*of_kind["RayCluster"], *of_kind["RayJob"]):
        for error in jsonschema.Draft202012Validator(schemas[document["kind"]]).iter_errors(document):
            yield f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
    (cluster,), (job,) = of_kind["RayCluster"], of_kind["RayJob"]
    policies = of_kind.get("NetworkPolicy", [])
    yield from _faults_of_policies(cluster, policies, schemas)
    yield from _faults_of_cluster(cluster)
    if job["spec"].get("clusterSelector", {}).get("ray.io/cluster") != cluster["metadata"]["name"]:
        yield "the job runs in another cluster"
    if '"port": 8265' not in json.dumps(policies) or "kuberay-operator" not in json.dumps(policies):
        yield "the operator does not reach the dashboard"


def _faults_of_policies(cluster: Document, policies: list[Document], schemas: dict[str, Any]) -> Iterator[str]:
    own = {"matchLabels": {"ray.io/cluster": cluster["metadata"]["name"]}}
    if not any(one["spec"]["podSelector"] == own and one["spec"]["policyTypes"] == ["Ingress"] for one in policies):
        yield "no network policy for all pods of the cluster"
    if "networkPolicy" in cluster["spec"]:
        yield "KubeRay refuses networkPolicy without its feature gate"
    groups = schemas["RayCluster"]["properties"]["spec"]["properties"]["networkPolicy"]["properties"]
    rules = jsonschema.Draft202012Validator(groups["head"]["properties"]["ingressRules"])  # Kubernetes's own type
    for policy in policies:
        yield from (error.message for error in rules.iter_errors(policy["spec"]["ingress"]))
        if any(not rule.get("from") for rule in policy["spec"]["ingress"]):
            yield "a network policy lets everybody in"
        if any(
            peer.get("namespaceSelector") == {} for rule in policy["spec"]["ingress"] for peer in rule.get("from", ())
        ):
            yield "a network policy lets every namespace in"


def _faults_of_cluster(cluster: Document) -> Iterator[str]:
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    if spec.get("authOptions", {}).get("mode") != "token":
        yield "Ray asks for no token"
    if spec["headGroupSpec"]["rayStartParams"].get("dashboard-host") != "127.0.0.1":
        yield "the dashboard listens beyond the pod"
    head = spec["headGroupSpec"]["template"]["spec"]
    gateways = [one for one in head.get("initContainers", ()) if one["name"] == "raydebug-gateway"]
    if [one.get("restartPolicy") for one in gateways] != ["Always"]:
        yield "the gateway does not run beside Ray"
    command = " ".join(itertools.chain.from_iterable(one["command"] for one in gateways))
    if "--host 127.0.0.1 " not in command or '--dial-host "$POD_IP" ' not in command:
        yield "the gateway listens elsewhere"
    for pod in (head, *(group["template"]["spec"] for group in spec["workerGroupSpecs"])):
        first = pod["containers"][0]
        if not first["name"].startswith("ray-"):
            yield f"KubeRay runs `ray start` in {first['name']}"
        environ = {one["name"]: one.get("value", "") for one in first["env"]}
        host, _, port = environ.get(variables.GATEWAY, "").partition(":")
        ports = [one["containerPort"] for one in head["containers"][0]["ports"]]
        if host != f"{name}-head-svc" or not port.isdecimal() or int(port) not in ports:
            yield f"{first['name']}: the head's service has no such port: {host}:{port}"
        yield from _faults_of_pod(name, pod)


def _faults_of_pod(name: str, pod: Document) -> Iterator[str]:
    user = pod.get("securityContext", {})
    safe = (user.get("runAsNonRoot"), user.get("seccompProfile"), pod.get("automountServiceAccountToken"))
    if safe != (True, {"type": "RuntimeDefault"}, False) or not user.get("runAsUser"):
        yield "a pod has more rights than it needs"
    if any(pod.get(one) for one in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")):
        yield "a pod shares the node's namespaces"
    volumes = {one["name"]: one for one in pod["volumes"]}
    if any("hostPath" in one for one in volumes.values()):
        yield "a pod has folders of the node"
    if [one["secret"]["secretName"] for one in volumes.values() if "secret" in one] != [name]:
        yield "the Secret is not the one that the operator makes"
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        rights = container.get("securityContext", {})
        allowed = (rights.get("allowPrivilegeEscalation"), rights.get("privileged"), rights.get("capabilities"))
        if allowed != (False, None, {"drop": ["ALL"]}):
            yield f"{container['name']} has more rights than it needs"
        if not re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", container["image"]):
            yield f"{container['name']}: the image has no digest"
        environ = [variable["name"] for variable in container["env"]]
        if len(environ) != len(set(environ)):
            yield f"{container['name']} has a variable twice"
        if "RAY_AUTH_TOKEN" in environ:
            yield f"{container['name']} has a token in the manifest"
        mounts = {mount["mountPath"]: volumes.get(mount["name"], {}) for mount in container["volumeMounts"]}
        token = next((v["value"] for v in container["env"] if v["name"] == variables.TOKEN_PATH), "")
        if "secret" not in mounts.get(token.rpartition("/")[0], {}):
            yield f"{container['name']}: no token at {token!r}"


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    return kuberay_schemas.recorded()


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """A cluster with a job: policy, RayCluster, policy, RayJob."""
    return [document for file in FILES for document in yaml.safe_load_all((DEPLOY / file).read_text())]


def test_the_committed_manifests(documents, schemas):
    """Nothing is wrong with them; only the variables for commands in the head's pod are the head's alone."""
    assert list(faults_of(documents, schemas)) == []
    environs = [{one["name"]: one["value"] for one in _first(documents, part)["containers"][0]["env"]}
                for part in ("head", "workers")]  # fmt: skip
    assert environs[0].items() - environs[1].items() == {
        (variables.DASHBOARD, "http://127.0.0.1:8265"), (variables.GATEWAY_CLIENTS, "127.0.0.1:5678"),
    }  # fmt: skip
    assert environs[1].items() <= environs[0].items()


def _first(documents: list[Document], part: str = "head") -> Document:
    spec = documents[1]["spec"]
    group = spec["headGroupSpec"] if part == "head" else spec["workerGroupSpecs"][0]
    pod: Document = group["template"]["spec"]
    return pod


def _swap(documents: list[Document]) -> None:
    pod = _first(documents)
    pod["containers"].insert(0, pod["initContainers"].pop())


MISTAKES: dict[str, tuple[Callable[[list[Document]], Any], str]] = {
    "a key that is misspelled": (lambda them: them[1]["spec"].update(workersGroupSpecs=[]),
        "('workersGroupSpecs' was unexpected)"),
    "a misspelled key of a container": (lambda them: _first(them)["containers"][0].update(volumeMount=[]),
        "('volumeMount' was unexpected)"),
    "a number for a text": (lambda them: them[1]["spec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 4}),
        "4 is not of type 'string'"),
    "memory in GB": (lambda them: _first(them)["containers"][0]["resources"]["limits"].update(memory="16 GB"),
        "'16 GB' does not match"),
    "a mode of the token that is none": (lambda them: them[1]["spec"]["authOptions"].update(mode="tokens"),
        "'tokens' is not one of ['disabled', 'token']"),
    "a way to submit that is none": (lambda them: them[3]["spec"].update(submissionMode=["HTTPMode"]),
        "['HTTPMode'] is not of type 'string'"),
    "a rule of the policy that is none": (lambda them: them[0]["spec"]["ingress"][0].update(source=[]),
        "('source' was unexpected)"),
    "no token": (lambda them: them[1]["spec"].pop("authOptions"), "Ray asks for no token"),
    "a sidecar before Ray": (_swap, "KubeRay runs `ray start` in raydebug-gateway"),
    "a gateway that keeps the pod from starting": (lambda them: _first(them)["initContainers"][0].pop("restartPolicy"),
        "the gateway does not run beside Ray"),
    "clients from everywhere": (
        lambda them: _first(them)["initContainers"][0].update(command=["python", "-m", "raydebug.gateway"]),
        "the gateway listens elsewhere",
    ),
    "the port for processes is left out": (lambda them: _first(them)["containers"][0]["ports"].pop(),
        "the head's service has no such port: train-head-svc:5679"),
    "the token is not mounted": (lambda them: _first(them, "workers")["containers"][0].update(volumeMounts=[]),
        "ray-worker: no token at '/run/secrets/raydebug/auth_token'"),
    "another Secret": (lambda them: _first(them)["volumes"][0]["secret"].update(secretName="raydebug"),
        "the Secret is not the one that the operator makes"),
    "the token in the manifest": (
        lambda them: _first(them)["containers"][0]["env"].append({"name": "RAY_AUTH_TOKEN", "value": "x"}),
        "ray-head has a token in the manifest",
    ),
    "root": (lambda them: _first(them)["securityContext"].pop("runAsNonRoot"), "a pod has more rights than it needs"),
    "a capability": (lambda them: _first(them, "workers")["containers"][0]["securityContext"].pop("capabilities"),
        "ray-worker has more rights than it needs"),
    "the node's network": (lambda them: _first(them).update(hostNetwork=True), "a pod shares the node's namespaces"),
    "an image that can change": (lambda them: _first(them)["containers"][0].update(image="raydebug:cuda"),
        "ray-head: the image has no digest"),
    "no policy": (lambda them: them.pop(0), "no network policy for all pods of the cluster"),
    "a policy for nobody": (lambda them: them[0]["spec"]["podSelector"].update(matchLabels={"app": "train"}),
        "no network policy for all pods of the cluster"),
    "a policy with a hole": (lambda them: them[0]["spec"]["ingress"].append({"ports": [{"port": 5678}]}),
        "a network policy lets everybody in"),
    "an operator of any namespace": (lambda them: them[2]["spec"]["ingress"][0]["from"][0].update(namespaceSelector={}),
        "a network policy lets every namespace in"),
    "KubeRay's own policy": (lambda them: them[1]["spec"].update(networkPolicy={"mode": "DenyAllIngress"}),
        "KubeRay refuses networkPolicy without its feature gate"),
    "a job for another cluster": (lambda them: them[3]["spec"]["clusterSelector"].update({"ray.io/cluster": "other"}),
        "the job runs in another cluster"),
    "no way for the operator": (lambda them: them.pop(2), "the operator does not reach the dashboard"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, documents, schemas):
    """Each of these mistakes in a manifest is found, so that the test above means something."""
    make, expected = MISTAKES[mistake]
    wrong = copy.deepcopy(documents)
    make(wrong)
    found = []
    with contextlib.suppress(KeyError, ValueError):  # a required part is missing, which the schema has said before
        for fault in faults_of(wrong, schemas):
            found.append(fault)  # not `extend`: it would lose those before the exception
    assert any(expected in fault for fault in found), found


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_kubectl_reads_the_same(tmp_path, documents):
    """kubectl's reader of YAML, which is another one, sees the same documents."""
    for file in FILES:
        shutil.copy(DEPLOY / file, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(json.dumps({"resources": FILES}))
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True)
    ours, theirs = (
        {(one["kind"], one["metadata"]["name"]): one for one in read}
        for read in (documents, yaml.safe_load_all(done.stdout))
    )
    assert theirs == ours


@pytest.mark.parametrize(
    ("change", "ports"),
    [
        ({}, [5678, 5679]),
        ({"RAYDEBUG_GATEWAY_CLIENTS": "gateway:5678"}, []),
        ({"RAYDEBUG_GATEWAY_CLIENTS": "127.0.0.1:"}, []),
        ({"RAYDEBUG_GATEWAY": ""}, []),
        ({"RAYDEBUG_TOKEN_PATH": "/nowhere/token"}, []),
        ({"RAY_AUTH_TOKEN": "another"}, []),
        ({"sent": "_ray_pkg_2.zip"}, []),
    ],
)
def test_which_gateway_is_the_pods(change, ports, tmp_path, monkeypatch):
    """`up --join` takes the gateway beside Ray's head if it is on the pod's loopback and has Ray's own token."""
    (tmp_path / "token").write_text("mine\n")
    environ = {
        "RAYDEBUG_GATEWAY": "train-head-svc:5679", "RAYDEBUG_GATEWAY_CLIENTS": "127.0.0.1:5678",
        "RAYDEBUG_TOKEN_PATH": str(tmp_path / "token"), "RAY_AUTH_TOKEN": "mine", **change,
    }  # fmt: skip
    sent = environ.pop("sent", "")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert joined_job._ports_beside({"token": sent}) == ports
