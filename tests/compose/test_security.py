"""Security requirements (S-numbers) of the compose files, the images and the verbs that need an engine to test."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import shlex
import subprocess
import tarfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from containers import IMAGE, container_of, docker, remove_all
from egress import Egress
from raydebug.cluster.compose.project import containers, project_of
from raydebug.cluster.find import load_cluster
from raydebug.cluster.state import Cluster
from runs import raydebug, up_in_containers, wait_for

ROOT = Path(__file__).resolve().parents[2]
DEV = (".devcontainer/docker-compose.dev.yml",)
COMBINATIONS = {
    "gpu": ("docker-compose.yml",),
    "cpu": ("docker-compose.yml", "docker-compose.cpu.yml"),
    "gpu-hosts": ("docker-compose.yml", "deploy/compose-hosts.yml"),
    "cpu-hosts": ("docker-compose.yml", "docker-compose.cpu.yml", "deploy/compose-hosts.yml"),
    "gpu-dev": ("docker-compose.yml", *DEV),
    "cpu-dev": (
        "docker-compose.yml", "docker-compose.cpu.yml", *DEV, ".devcontainer/docker-compose.dev-cpu.yml",
    ),
}  # fmt: skip
# A machine's own variables must not change the files' values.
REQUIRED = {"RAYDEBUG_TOKEN_FILE": "/tmp/token", "RAYDEBUG_UID": "4711", "RAYDEBUG_GID": "4711"}
PLAIN = ("PATH", "HOME", "DOCKER_HOST", "XDG_RUNTIME_DIR")


def config_of(files: tuple[str, ...], *options: str, **variables: str) -> dict[str, Any]:
    """Return the configuration that docker compose computes from some files, with the services of every profile."""
    chosen = [option for file in files for option in ("-f", file)]
    environment = {name: os.environ[name] for name in PLAIN if name in os.environ}
    done = subprocess.run(
        ["docker", "compose", *options, *chosen, "--profile", "*", "config", "--format", "json"], cwd=ROOT,
        env={**environment, **REQUIRED, **variables}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(params=COMBINATIONS, scope="module")
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each combination of the compose files."""
    return config_of(COMBINATIONS[request.param])


# Compose files


def test_no_rights_in_any_combination(config):
    """S11-S15: every combination has no privilege, capability, host namespace or root, and sets every limit."""
    assert {"head", "worker", "gateway", "job"} <= set(config["services"])
    for name, service in config["services"].items():
        assert not service.get("privileged"), name
        assert service["cap_drop"] == ["ALL"], name
        assert not service.get("cap_add"), name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not [o for o in service["security_opt"] if "unconfined" in o], name
        assert not {"network_mode", "pid", "ipc", "userns_mode", "cgroup"} & set(service), name
        assert not service.get("devices"), name
        assert service["user"] == "4711:4711", name
        assert int(service["mem_limit"]) > 0, name
        assert int(service["pids_limit"]) > 0, name
        for mount in service.get("volumes", []):
            assert "docker.sock" not in mount["source"], name
            assert mount["source"] != "/", name
        if name != "dev":  # an editor writes its server into the Dev Container
            assert service["read_only"] is True, name


def test_published_on_loopback_in_any_combination(config):
    """S1: the files publish two ports, the dashboard's and the gateway's, on 127.0.0.1."""
    published = [port for service in config["services"].values() for port in service.get("ports", [])]
    assert sorted(port["target"] for port in published) == [5678, 8265]
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_token_mode_in_any_combination(config):
    """S5, S6: the file sets token mode in every service, and the token is a mounted secret, never a variable."""
    for name, service in config["services"].items():
        assert service["environment"]["RAY_AUTH_MODE"] == "token", name
        assert service["environment"]["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/raydebug_token", name
        assert "RAY_AUTH_TOKEN" not in service["environment"], name
        assert "raydebug_token" in [secret["source"] for secret in service["secrets"]], name


def test_rights_of_the_rdma_file():
    """deploy/compose-rdma.yml gives the host's network and the cards' device files to nodes, and no further right."""
    services = config_of(("docker-compose.yml", "deploy/compose-rdma.yml"))["services"]
    assert {name for name, service in services.items() if service.get("devices")} == {"head", "worker"}
    for name, service in services.items():
        assert [one["source"] for one in service.get("devices", ())] in ([], ["/dev/infiniband"]), name
        assert service["network_mode"] == "host", name
        assert not service.get("ports"), name
        assert not service.get("privileged"), name
        assert service["cap_drop"] == ["ALL"], name
        assert not service.get("cap_add"), name
        assert service["read_only"] is True, name
        assert not {"pid", "ipc", "userns_mode", "cgroup"} & set(service), name
    # The ports that are otherwise published on loopback, or inside the containers' network, listen on loopback only.
    assert services["head"]["environment"]["DASHBOARD_LISTEN"] == "127.0.0.1:8265"
    assert services["gateway"]["environment"]["GATEWAY_LISTEN"] == "127.0.0.1:5678"
    assert services["gateway"]["environment"]["DIAL_LISTEN"] == "127.0.0.1:5679"
    assert services["head"]["ulimits"]["memlock"] == services["worker"]["ulimits"]["memlock"] == -1


@pytest.mark.parametrize("path", sorted(ROOT.glob(".devcontainer/**/devcontainer.json")), ids=lambda p: p.parent.name)
def test_devcontainer(path):
    """S16: the Dev Container mounts no socket, requests no privilege, and what it runs downloads nothing."""
    text = re.sub(r"^\s*//.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    document = json.loads(text)
    assert not {"mounts", "runArgs", "privileged", "capAdd", "securityOpt", "features"} & set(document)
    assert "docker.sock" not in text
    assert document["postCreateCommand"] == ["/workspace/.devcontainer/post-create", "/workspace"]
    assert document["initializeCommand"] == [".devcontainer/initialize"]  # on the host: .env and the token
    scripts = [(ROOT / ".devcontainer" / name).read_text(encoding="utf-8") for name in ("post-create", "initialize")]
    script = "".join(scripts)
    assert not re.search(r"curl|wget|pip |uv |npm |apt|git clone|https?://", script)


def test_every_base_is_pinned_by_digest():
    """S18: each external image in a FROM of the Dockerfile has its digest; none is `latest`."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    froms = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, flags=re.MULTILINE)
    stages = {stage for _, stage in froms} | {"scratch", "${BASE_IMAGE}", "${FLAVOUR}"}
    foreign = [image for image, _ in froms if image not in stages]
    assert foreign
    assert all(re.search(r":[^@]+@sha256:[0-9a-f]{64}$", image) for image in foreign)
    assert ":latest" not in text
    assert not re.search(r"(curl|wget)[^\n]*\|\s*(ba)?sh", text)


# A running cluster

ASK = """
import os, sys, urllib.error, urllib.request
what, how = sys.argv[1:]
os.environ.pop("RAY_ADDRESS", None)
right = open("/run/secrets/raydebug_token").read().strip()
token = {"none": "", "wrong": "0" * 64, "right": right}[how]
os.environ.update({"RAY_AUTH_MODE": "token" if token else "disabled", "RAY_gcs_server_request_timeout_seconds": "5"})
os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
if token:
    os.environ["RAY_AUTH_TOKEN"] = token
if what.startswith("http:"):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        urllib.request.urlopen(urllib.request.Request(what, headers=headers), timeout=10)
        print("opened")
    except urllib.error.HTTPError as error:
        print("refused" if error.code in (401, 403) else "opened", error.code)
elif what == "gcs":
    from ray._raylet import GcsClient
    print("opened", GcsClient(address="head:6379").internal_kv_keys(b"", namespace=b"session", timeout=5))
elif what in ("raylet", "agent-grpc"):
    import grpc
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc, reporter_pb2, reporter_pb2_grpc
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    if what == "raylet":
        stub = node_manager_pb2_grpc.NodeManagerServiceStub(grpc.insecure_channel("head:6380"))
        print("opened", stub.GetNodeStats(node_manager_pb2.GetNodeStatsRequest(), timeout=10, metadata=metadata))
    else:
        stub = reporter_pb2_grpc.ReporterServiceStub(grpc.insecure_channel("head:6382"))
        print("opened", stub.HealthCheck(reporter_pb2.HealthCheckRequest(), timeout=10, metadata=metadata))
else:
    import ray
    ray.init("ray://head:10001")
    print("opened", len(ray.nodes()))
os._exit(0)
"""
ASKED = {
    "dashboard": "http://head:8265/api/v0/nodes",
    "jobs": "http://head:8265/api/jobs/",
    "agent": "http://head:52365/api/job_agent/jobs/x/logs",
    "runtime-env-agent": "http://head:6383/get_or_create_runtime_env",
    "gateway": "http://gateway:5678/pauses",
    **{what: what for what in ("raylet", "agent-grpc", "gcs", "client")},
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["none", "wrong", "right"])
@pytest.mark.parametrize("what", ASKED)
def test_only_the_right_token_opens_inside(cluster, what, how):
    """S2: on the cluster's own network, too, every service of Ray and the gateway accept only the right token."""
    node = next(c for c in containers(cluster) if c.service == "worker")
    argv = ["docker", "exec", "-i", node.name, "timeout", "40", "python", "-", ASKED[what], how]
    done = subprocess.run(argv, input=ASK, capture_output=True, text=True, timeout=60, check=False)
    opened = any(line.startswith("opened") for line in done.stdout.splitlines())
    assert opened == (how == "right"), done.stdout + done.stderr[-2000:]


OF_EVERY_NODE = {6380, 6381, 6382, 6383, 52365}
OF_THE_HEAD = {6379, 8265, 10001, 44217, 44227}


def test_what_listens_is_what_is_documented(cluster):
    """S2: no container listens on a port beyond docs/07-containers.md; Prometheus' 6384 is closed."""
    for container in containers(cluster):
        expected = {"gateway": {5678, 5679}, "worker": OF_EVERY_NODE, "head": OF_EVERY_NODE | OF_THE_HEAD}
        rows = [
            r.split() for r in docker("exec", container.name, "cat", "/proc/net/tcp", "/proc/net/tcp6").splitlines()
        ]
        addresses = {row[1] for row in rows if len(row) > 3 and row[3] == "0A"}
        ports = {int(a.rpartition(":")[2], 16) for a in addresses if not a.rpartition(":")[0].endswith("7F")}
        of_workers = {port for port in ports if 10002 <= port <= 10999}
        assert ports - of_workers == expected[container.service], container.service
        if container.service == "gateway":
            assert of_workers == set()


def test_metrics_of_the_head_are_numbers(cluster):
    """S2: two pages of the head need no token, as Ray has no switch for it; they contain numbers and no secret."""
    node = next(c for c in containers(cluster) if c.service == "worker")
    fetch = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
    for port in (44217, 44227):
        page = docker("exec", node.name, "python", "-S", "-c", fetch, f"http://head:{port}/metrics")
        lines = [line for line in page.splitlines() if line and not line.startswith("#")]
        assert lines
        assert all(re.fullmatch(r"[a-z_]+(\{.*\})? [-+0-9.eEinfaN]+", line) for line in lines)
        assert cluster.token not in page


def test_no_telemetry(cluster):
    """S29: usage statistics of Ray, vLLM and Hugging Face are off in every service."""
    wanted = {"RAY_USAGE_STATS_ENABLED=0", "VLLM_NO_USAGE_STATS=1", "HF_HUB_DISABLE_TELEMETRY=1", "DO_NOT_TRACK=1"}
    for container in containers(cluster):
        assert wanted <= set(docker("exec", container.name, "env").splitlines()), container.name


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.getuid() != 0, reason="the packets of a bridge are for root to see")
def test_nothing_leaves_the_network(project):
    """S29: from `up` over a job to `down` no packet leaves the cluster's network, not even to a name server."""
    name = f"fx-egress-{os.getpid()}"
    network = f"{project_of(name)}_default"
    with Egress(network) as egress:
        try:
            done = up_in_containers(name, project)
            assert done.returncode == 0, done.stderr
            assert egress.watching.is_set()
            done = raydebug("run", "--name", name, "--debugger", "off", "--", "python", "cases.py", "task", cwd=project)
            assert done.returncode == 0, done.stdout + done.stderr
            left = egress.left()
            worker = container_of(load_cluster(name), "worker")
            docker("exec", worker.name, "python", "-S", "-c", PACKET_TO_NOWHERE)
            wait_for(lambda: egress.left() != left, "a packet that was meant to leave to be seen", 10)
            assert [packet[1:] for packet in egress.left() - left] == [("192.0.2.7", 17, 9)]
            seen = egress.left()
            assert raydebug("down", "--name", name).returncode == 0
            left |= egress.left() - seen
        finally:
            remove_all(name)
    assert left == set()


PACKET_TO_NOWHERE = "import socket; socket.socket(2, 2).sendto(b'x', ('192.0.2.7', 9))"  # an address for documentation


def test_fork_bomb_is_bounded():
    """S14: a fork bomb is limited to its container's processes, and the host stays responsive."""
    bomb = "import os, time\nn = 0\ntry:\n  while n < 1000:\n    if os.fork() == 0: time.sleep(20)\n    n += 1\n"
    bomb += "except OSError as error: print(n, error.errno)"
    started = time.monotonic()
    said = docker("run", "--rm", "--init", "--pids-limit", "40", "--memory", "300m", "--network", "none", "--cap-drop",
                  "ALL", IMAGE, "python", "-c", bomb)  # fmt: skip
    count, errno = said.split()
    assert int(count) < 40
    assert int(errno) == 11  # EAGAIN
    assert time.monotonic() - started < 30


def test_any_user_works():
    """S13: the image runs as any uid, without a capability, read-only and without a network (S36)."""
    said = docker("run", "--rm", "--user", "4711:4711", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
                  "--network", "none", IMAGE, "python", "-c", "import os, ray; print(os.getuid())")  # fmt: skip
    assert said.strip() == "4711"


# Input of verbs and files


@pytest.mark.timeout(120)
def test_hostile_arguments_reach_the_job_as_they_are(cluster, project):
    """S27: a job's arguments are passed on unchanged; the shell that starts the job evaluates none."""
    words = ["$(touch hacked)", "; touch hacked", "`touch hacked`", "--name", "-v", "a b", "$HOME", "'", '"']
    (project / "argv.py").write_text("import json, sys; print('argv', json.dumps(sys.argv[1:]))")
    done = raydebug("run", "--name", cluster.name, "--", "python", "argv.py", *words, cwd=project)
    assert done.returncode == 0, done.stderr
    assert f"argv {json.dumps(words)}" in done.stdout
    assert not (project / "hacked").exists()


# Installed packages, and the contents of images


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pip in an environment of its own."""
    folder = tmp_path_factory.mktemp("pip")
    venv.create(folder, with_pip=True)
    return folder / "bin" / "pip"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("lock", ["core", "dev"])
def test_flipped_hash_is_refused(pip, tmp_path, lock):
    """S17: with a changed hash in the lock an install fails for that reason; with the original lock it succeeds."""
    package = {"core": "idna", "dev": "iniconfig"}[lock]
    text = (ROOT / "env" / f"{lock}.lock").read_text(encoding="utf-8")
    entry = re.search(rf"^{package}==[^\n]*(?:\n    --hash=[^\n]*)+", text, flags=re.MULTILINE)
    assert entry is not None
    flipped = re.sub(r"sha256:(.)", lambda m: f"sha256:{'0' if m[1] != '0' else '1'}", entry[0])
    assert flipped != entry[0]
    results = []
    for requirement in (entry[0], flipped):
        file = tmp_path / f"{len(results)}.txt"
        file.write_text(requirement + "\n", encoding="utf-8")
        options = ("--no-deps", "--no-cache-dir", "--require-hashes", "-r", file, "-d", tmp_path)
        argv = [pip, "download", *options]
        results.append(subprocess.run(argv, capture_output=True, text=True, timeout=80, check=False))
    assert results[0].returncode == 0, results[0].stderr
    assert results[1].returncode != 0
    assert "DO NOT MATCH THE HASHES" in results[1].stderr


@pytest.mark.timeout(180)
def test_image_keeps_no_secret(cluster, tmp_path):
    """S28: no layer and no line of the image's history contains the token, a private key or a credential in a URL."""
    looked_for = re.compile(
        rb"-----BEGIN (?:RSA |EC |OPENSSH )?PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}|https?://[^/\s:@\"'<>{}$%]+:[^/\s:@\"'<>{}$%]{6,}@"
        rb"[a-z0-9.-]+\.[a-z]{2,}|" + cluster.token.encode()
    )
    history = docker("image", "history", "--no-trunc", "--format", "{{.CreatedBy}}", IMAGE)
    assert not looked_for.search(history.encode())
    found = []
    for layer, name, content in files_in(IMAGE, tmp_path):
        if "/site-packages/" in f"/{name}":  # examples and test keys of public packages, checked by hash
            continue
        if name.startswith("run/secrets/") or looked_for.search(content):
            found.append((layer, name))
    assert found == []


def files_in(image: str, folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield each file of each layer of an image."""
    archive = folder / "image.tar"
    docker("save", "--output", str(archive), image, timeout_s=120)
    with tarfile.open(archive) as outer:
        for member in outer:
            if not member.isfile() or member.size < 1024 or member.name.endswith(".json"):
                continue
            file = outer.extractfile(member)
            assert file is not None
            with contextlib.suppress(tarfile.ReadError), tarfile.open(fileobj=file, mode="r:*") as layer:
                for one in layer:
                    if one.isfile() and one.size < 1 << 20:
                        content = layer.extractfile(one)
                        assert content is not None
                        yield member.name, one.name, content.read()
    archive.unlink()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_secrets_of_our_own_build_are_in_no_layer(tmp_path):
    """S28: the Dockerfile's stages with secrets, rebuilt with a canary in each, leave it in no layer or history."""
    canary, tag = "canary-1c9e57d20b", f"fx-own-canary-{os.getpid()}"
    secrets = {"PACKAGE_ENV_FILE": "RAYDEBUG_CANARY={}\n", "EXTRA_CA_FILE": "# {}\n"}
    environment = dict(os.environ)
    for name, line in secrets.items():
        given = Path(os.environ.get(name) or "/dev/null").read_text(encoding="utf-8")
        (tmp_path / name).write_text(given + line.format(canary) if given or name == "PACKAGE_ENV_FILE" else "")
        environment[name] = str(tmp_path / name)
    dry = raydebug("image", "--flavour", "core", "--dry-run", cwd=ROOT, env=environment)
    assert dry.returncode == 0, dry.stderr
    argv = [tag if part == "raydebug:core" else part for part in shlex.split(dry.stdout)]
    argv[-1:] = ["--no-cache-filter", "uv,wheel,core", "--progress", "plain", "."]
    try:
        built = subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
        )
        assert built.returncode == 0, built.stderr[-3000:]
        steps = re.findall(r"^#(\d+) \[(uv|wheel|core) .*RUN --mount=type=secret", built.stderr, re.MULTILINE)
        ran = {stage for number, stage in steps if f"#{number} CACHED" not in built.stderr}
        assert ran == {"uv", "wheel", "core"}, "a step from the cache would prove nothing"
        assert canary not in built.stderr
        assert canary not in docker("image", "history", "--no-trunc", tag) + docker("image", "inspect", tag)
        docker("save", "--output", str(tmp_path / "image.tar"), tag, timeout_s=120)
        with (
            (tmp_path / "image.tar").open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as layers,
        ):
            assert layers.find(b"Succeed or raise: `healthcheck") > 0, "what layers hold can be read"
            assert layers.find(canary.encode()) < 0
    finally:
        subprocess.run(["docker", "image", "rm", "--force", tag], capture_output=True, timeout=60, check=False)


def test_down_and_clean_know_their_own(cluster: Cluster):
    """S30: every container, network and volume of a cluster has the label by which `down` finds it."""
    project = project_of(cluster.name)
    for container in containers(cluster):
        labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", container.name))
        assert labels["com.docker.compose.project"] == project
        assert labels["org.raydebug.cluster"] == cluster.id
    assert container_of(cluster, "head").name.startswith(project)
