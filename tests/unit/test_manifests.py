"""Manifests for KubeRay: what `up --cluster kubernetes --dry-run` prints, held against KubeRay's own schemas."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import kuberay_schemas
from raydebug.cluster import on_nodes
from raydebug.cluster.kubernetes import manifest
from raydebug.cluster.up import UpOptions
from raydebug.errors import RaydebugError

IMAGE = f"registry.example/team/raydebug@sha256:{'5' * 64}"
GOLDEN = {
    "cluster.yaml": UpOptions(name="train", image=IMAGE, workers=2, gpus=8, flavour="cuda"),
    "job.yaml": UpOptions(
        name="train", image=IMAGE, workers=0, after=("python", "train.py", "data.files=[a: 'b']", "--x=#1\n- y")
    ),
}

Document = dict[str, Any]


def faults_of(documents: list[Document], schemas: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with manifests: what KubeRay's schemas say, then what they cannot know."""
    of_kind: dict[str, list[Document]] = {}
    for one in documents:
        of_kind.setdefault(one["kind"], []).append(one)
    for one in (*of_kind["RayCluster"], *of_kind.get("RayJob", ())):
        for error in jsonschema.Draft202012Validator(schemas[one["kind"]]).iter_errors(one):
            yield f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
    (cluster,) = of_kind["RayCluster"]
    yield from _faults_of_policies(cluster, of_kind.get("NetworkPolicy", []), schemas)
    yield from _faults_of_cluster(cluster)
    for job in of_kind.get("RayJob", ()):
        policies = json.dumps(of_kind.get("NetworkPolicy"))
        if job["spec"].get("clusterSelector", {}).get("ray.io/cluster") != cluster["metadata"]["name"]:
            yield "the job runs in another cluster"
        if '"port": 8265' not in policies or "kuberay-operator" not in policies:
            yield "the operator does not reach the dashboard"
        if cluster["spec"]["headGroupSpec"]["rayStartParams"].get("dashboard-host") == "127.0.0.1":
            yield "the operator does not reach the dashboard: it listens on loopback"


def _faults_of_policies(cluster: Document, policies: list[Document], schemas: dict[str, Any]) -> Iterator[str]:
    own = {"matchLabels": {"ray.io/cluster": cluster["metadata"]["name"]}}
    if not any(one["spec"]["podSelector"] == own and one["spec"]["policyTypes"] == ["Ingress"] for one in policies):
        yield "no network policy for all pods of the cluster"
    if "networkPolicy" in cluster["spec"]:
        yield "KubeRay refuses networkPolicy without its feature gate"
    groups = schemas["RayCluster"]["properties"]["spec"]["properties"]["networkPolicy"]["properties"]
    rules = jsonschema.Draft202012Validator(groups["head"]["properties"]["ingressRules"])  # Kubernetes's own type
    for one in policies:
        yield from (error.message for error in rules.iter_errors(one["spec"]["ingress"]))
        if any(not rule.get("from") for rule in one["spec"]["ingress"]):
            yield "a network policy lets everybody in"


def _faults_of_cluster(cluster: Document) -> Iterator[str]:
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    if not re.fullmatch("[a-z]([-a-z0-9]{0,51}[a-z0-9])?", name):
        yield f"{name} is no name of a cluster"
    if spec.get("authOptions", {}).get("mode") != "token":
        yield "Ray asks for no token"
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
        host, _, port = environ.get("RAYDEBUG_GATEWAY", "").partition(":")
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
    for one in (*pod["containers"], *pod.get("initContainers", ())):
        rights = one.get("securityContext", {})
        drops = rights.get("capabilities", {})
        if (
            rights.get("allowPrivilegeEscalation") is not False
            or rights.get("privileged")
            or drops != {"drop": ["ALL"]}
        ):
            yield f"{one['name']} has more rights than it needs"
        if not re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", one["image"]):
            yield f"{one['name']}: the image has no digest"
        environ = [variable["name"] for variable in one["env"]]
        if len(environ) != len(set(environ)):
            yield f"{one['name']} has a variable twice"
        if "RAY_AUTH_TOKEN" in environ:
            yield f"{one['name']} has a token in the manifest"
        mounts = {mount["mountPath"]: volumes.get(mount["name"], {}) for mount in one["volumeMounts"]}
        token = next((v["value"] for v in one["env"] if v["name"] == "RAYDEBUG_TOKEN_PATH"), "")
        if "secret" not in mounts.get(token.rpartition("/")[0], {}):
            yield f"{one['name']}: no token at {token!r}"


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    """KubeRay's schemas."""
    return kuberay_schemas.recorded()


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """A cluster with a job."""
    return list(
        yaml.safe_load_all(
            manifest(UpOptions(name="train", image=IMAGE, workers=2, gpus=8, flavour="cuda", after=("true",)))
        )
    )


@pytest.mark.parametrize("file", GOLDEN)
def test_manifest(file, schemas):
    """The manifest is the recorded one (running this file writes it), and nothing is wrong with it."""
    text = manifest(GOLDEN[file])
    assert text == (Path(__file__).parent / "manifests" / file).read_text()
    read = list(yaml.safe_load_all(text))
    assert list(faults_of(read, schemas)) == []
    if GOLDEN[file].after:
        assert shlex.split(read[-1]["spec"]["entrypoint"]) == list(GOLDEN[file].after)


@pytest.mark.parametrize(("workers", "gpus", "cpus"), [*itertools.product((0, 1, 64), (0, 8), (None, 4))])
def test_sizes(workers, gpus, cpus, schemas):
    """GPUs are the workers', or the head's without workers; pods have what Ray counts with."""
    read = list(yaml.safe_load_all(manifest(UpOptions(name="a", image=IMAGE, workers=workers, gpus=gpus, cpus=cpus))))
    assert list(faults_of(read, schemas)) == []
    head, (group,) = read[1]["spec"]["headGroupSpec"], read[1]["spec"]["workerGroupSpecs"]
    counted = [
        int(pod["template"]["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0))
        for pod in (head, group)
    ]
    assert counted == ([0, gpus] if workers else [gpus, 0])
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == workers
    assert head["rayStartParams"]["num-cpus"] == str(cpus or (36 if gpus else 16))
    assert group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == str(cpus or 2)


def _first(documents: list[Document], part: str = "head") -> Document:
    spec = documents[1]["spec"]
    group = spec["headGroupSpec"] if part == "head" else spec["workerGroupSpecs"][0]
    pod: Document = group["template"]["spec"]
    return pod


def _swap(documents: list[Document]) -> None:
    pod = _first(documents)
    pod["containers"].insert(0, pod["initContainers"].pop())


MISTAKES: dict[str, tuple[Callable[[list[Document]], Any], str]] = {
    "a key that is misspelled": (
        lambda them: them[1]["spec"].update(workersGroupSpecs=[]),
        "('workersGroupSpecs' was unexpected)",
    ),
    "a misspelled key of a container": (
        lambda them: _first(them)["containers"][0].update(volumeMount=[]),
        "('volumeMount' was unexpected)",
    ),
    "a number for a text": (
        lambda them: them[1]["spec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 4}),
        "4 is not of type 'string'",
    ),
    "a variable without quotes": (
        lambda them: _first(them, "workers")["containers"][0]["env"][-1].update(value=0),
        "0 is not of type 'string'",
    ),
    "memory in GB": (
        lambda them: _first(them)["containers"][0]["resources"]["limits"].update(memory="16 GB"),
        "'16 GB' does not match",
    ),
    "no template": (lambda them: them[1]["spec"]["headGroupSpec"].pop("template"), "'template' is a required property"),
    "a mode of the token that is none": (
        lambda them: them[1]["spec"]["authOptions"].update(mode="tokens"),
        "'tokens' is not one of ['disabled', 'token']",
    ),
    "a way to submit that is none": (
        lambda them: them[3]["spec"].update(submissionMode=["HTTPMode"]),
        "['HTTPMode'] is not of type 'string'",
    ),
    "a rule of the policy that is none": (
        lambda them: them[0]["spec"]["ingress"][0].update(source=[]),
        "('source' was unexpected)",
    ),
    "no token": (lambda them: them[1]["spec"].pop("authOptions"), "Ray asks for no token"),
    "a sidecar before Ray": (_swap, "KubeRay runs `ray start` in raydebug-gateway"),
    "a gateway that keeps the pod from starting": (
        lambda them: _first(them)["initContainers"][0].pop("restartPolicy"),
        "the gateway does not run beside Ray",
    ),
    "clients from everywhere": (
        lambda them: _first(them)["initContainers"][0].update(command=["python", "-m", "raydebug.gateway"]),
        "the gateway listens elsewhere",
    ),
    "the port for processes is left out": (
        lambda them: _first(them)["containers"][0]["ports"].pop(),
        "the head's service has no such port: train-head-svc:5679",
    ),
    "the token is not mounted": (
        lambda them: _first(them, "workers")["containers"][0].update(volumeMounts=[]),
        "ray-worker: no token at '/run/secrets/raydebug/auth_token'",
    ),
    "another Secret": (
        lambda them: _first(them)["volumes"][0]["secret"].update(secretName="raydebug"),
        "the Secret is not the one that the operator makes",
    ),
    "the token in the manifest": (
        lambda them: _first(them)["containers"][0]["env"].append({"name": "RAY_AUTH_TOKEN", "value": "x"}),
        "ray-head has a token in the manifest",
    ),
    "root": (lambda them: _first(them)["securityContext"].pop("runAsNonRoot"), "a pod has more rights than it needs"),
    "a capability": (
        lambda them: _first(them, "workers")["containers"][0]["securityContext"].pop("capabilities"),
        "ray-worker has more rights than it needs",
    ),
    "the node's network": (lambda them: _first(them).update(hostNetwork=True), "a pod shares the node's namespaces"),
    "an image that can change": (
        lambda them: _first(them)["containers"][0].update(image="raydebug:cuda"),
        "ray-head: the image has no digest",
    ),
    "no policy": (lambda them: them.pop(0), "no network policy for all pods of the cluster"),
    "a policy for nobody": (
        lambda them: them[0]["spec"]["podSelector"].update(matchLabels={"app": "train"}),
        "no network policy for all pods of the cluster",
    ),
    "a policy with a hole": (
        lambda them: them[0]["spec"]["ingress"].append({"ports": [{"port": 5678}]}),
        "a network policy lets everybody in",
    ),
    "KubeRay's own policy": (
        lambda them: them[1]["spec"].update(networkPolicy={"mode": "DenyAllIngress"}),
        "KubeRay refuses networkPolicy without its feature gate",
    ),
    "a job for another cluster": (
        lambda them: them[3]["spec"]["clusterSelector"].update({"ray.io/cluster": "other"}),
        "the job runs in another cluster",
    ),
    "no way for the operator": (lambda them: them.pop(2), "the operator does not reach the dashboard"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, documents, schemas):
    """Each of these mistakes in a manifest is found, so that the tests above mean something."""
    make, expected = MISTAKES[mistake]
    wrong = copy.deepcopy(documents)
    make(wrong)
    found = []
    with contextlib.suppress(KeyError):  # a required part is missing, which the schema has said before
        for fault in faults_of(wrong, schemas):
            found.append(fault)  # not `extend`: it would lose those before the exception
    assert any(expected in fault for fault in found), found


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": "a_b"}, "kubernetes.name"),
        ({"name": "1a"}, "kubernetes.name"),
        ({"name": "a-"}, "kubernetes.name"),
        ({"name": 'a"\nb'}, "cluster.bad-name"),
        ({"image": ""}, "kubernetes.image"),
        ({"image": 'a"}, privileged: true, x: {y: "'}, "kubernetes.image"),
        ({"image": "a:b\nc: d"}, "kubernetes.image"),
        ({"image": f"a@sha256:{'0' * 63}"}, "kubernetes.image"),
        ({"image": "$(id)"}, "kubernetes.image"),
        ({"flavour": "other"}, "flavour.unknown"),
        ({"flavour": "cuda-verl04"}, "kubernetes.flavour"),
        ({"debugger": "other"}, "debugger.unknown"),
    ],
)
def test_what_is_refused(change, code):
    """A value that Kubernetes would refuse, or that would be more than a value in YAML, is refused."""
    with pytest.raises(RaydebugError) as refused:
        manifest(UpOptions(**{"name": "train", "image": IMAGE, **change}))
    assert refused.value.code == code


# The last one is written as a blank by kubectl, whatever it has read.
WORDS = ["y", "1e3", "a\u2028b", "<name>", "$(date)", '", nvidia.com/gpu: "0"', "é\t\\n", "\U0001f600", "b\x85c"]


@pytest.mark.parametrize("word", WORDS)
def test_a_command_is_one_word_of_yaml(word):
    """Whatever a command is made of, the job gets it as it was given."""
    read = list(yaml.safe_load_all(manifest(UpOptions(name="y", image="1e3", after=("echo", word)))))
    assert shlex.split(read[-1]["spec"]["entrypoint"]) == ["echo", word]
    assert read[1]["metadata"]["name"] == "y"
    assert _first(read)["containers"][0]["image"] == "1e3"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_kubectl_reads_the_same(tmp_path):
    """kubectl's reader of YAML, which is another one, sees the same documents."""
    wanted = UpOptions(name="y", image="1e3", workers=2, gpus=8, after=("echo", *WORDS[:-1]))
    (tmp_path / "manifest.yaml").write_text(manifest(wanted))
    (tmp_path / "kustomization.yaml").write_text("resources: [manifest.yaml]\n")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=True)
    ours, theirs = (
        {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}
        for text in (manifest(wanted), done.stdout)
    )
    assert theirs == ours


def up(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `raydebug up --cluster kubernetes`."""
    argv = [sys.executable, "-m", "raydebug", "up", "--cluster", "kubernetes", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_verb():
    """The manifest is on stdout, and what follows on stderr; without --dry-run it says what to do."""
    done = up("--name", "train", "--workers", "2", "--gpus", "8", "--image", IMAGE, "--dry-run")
    assert (done.returncode, done.stdout) == (0, manifest(GOLDEN["cluster.yaml"]))
    assert "warning" not in done.stderr
    join = "raydebug up --join http://127.0.0.1:8265 --name train --through 'kubectl exec -i svc/train-head-svc"
    assert f"RAY_AUTH_TOKEN_PATH=~/.ray/train.token {join} -c ray-head --'" in done.stderr
    tagged = up("--image", "raydebug:cpu", "--dry-run", "--json", "--", "python", "train.py", "--json")
    assert 'entrypoint: "python train.py --json"' in json.loads(tagged.stdout)["manifest"]
    assert "warning: raydebug:cpu has no digest" in up("--image", "raydebug:cpu", "--dry-run").stderr
    assert up("--image", IMAGE).stderr == (
        "error: raydebug starts nothing on Kubernetes itself\n"
        "cause: it has no access there: kubectl has, with your account; raydebug writes the manifest\n"
        "fix: the same command with `--dry-run | kubectl apply -f -`, then the `raydebug up --join` that it prints\n"
    )
    unfit = up("--image", IMAGE, "--dry-run", "--cluster", "kubernetes", "--python", "x")
    assert unfit.stderr.startswith("error: --python is for --cluster local or slurm or ssh\n")


@pytest.mark.parametrize(
    ("change", "ports"),
    [
        ({}, [5678, 5679]),
        ({"RAYDEBUG_GATEWAY_CLIENTS": "gateway:5678"}, []),
        ({"RAYDEBUG_GATEWAY_CLIENTS": "127.0.0.1:"}, []),
        ({"RAYDEBUG_GATEWAY": ""}, []),
        ({"RAYDEBUG_TOKEN_PATH": "/nowhere/token"}, []),
        ({"RAY_AUTH_TOKEN": "another"}, []),
        ({"public": "2"}, []),
    ],
)
def test_which_gateway_is_the_pods(change, ports, tmp_path, monkeypatch):
    """`up --join` takes the gateway beside Ray's head if it is on the pod's loopback and has Ray's own token."""
    (tmp_path / "token").write_text("mine\n")
    environ = {
        "RAYDEBUG_GATEWAY": "train-head-svc:5679", "RAYDEBUG_GATEWAY_CLIENTS": "127.0.0.1:5678",
        "RAYDEBUG_TOKEN_PATH": str(tmp_path / "token"), "RAY_AUTH_TOKEN": "mine", **change,
    }  # fmt: skip
    public = environ.pop("public", "")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert on_nodes._ports_beside({"public": public}) == ports


if __name__ == "__main__":
    for file, wanted in GOLDEN.items():
        (Path(__file__).parent / "manifests" / file).write_text(manifest(wanted))
