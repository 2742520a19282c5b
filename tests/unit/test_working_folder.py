"""The working folder of a job on nodes that do not share it: which files are copied, and the names that users see."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from raydebug.cluster import working_folder
from raydebug.cluster.compose.image import commit_arguments
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.head_requests import submit_request
from raydebug.cluster.joined_job import run_here
from raydebug.cluster.known_folders import KEPT_COPIES, copies_on, note_copy, note_shared, read_known, with_local_names
from raydebug.cluster.runner import NodeRunner
from raydebug.cluster.state import Cluster, Remote
from raydebug.cluster.working_folder import folder_on_nodes, list_files, pack
from raydebug.console.session import GatewayAddress
from raydebug.errors import RaydebugError
from raydebug.gateway.path_map import PathMap
from raydebug.jobs.submit import copy_of_jobs

THERE = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_" + 40 * "a"
NEWER = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_" + 40 * "b"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """The record of a cluster that was joined."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "token").write_text("0" * 64)
    return Cluster(
        name="x", id="1", kind="joined", folder=folder, temp_dir=folder, python=sys.executable, ports={}, cpus=0,
        gpus=0, debugger="breakpoint", flavour="core", created=1.0,
        remote=Remote("http://127.0.0.1:1", "127.0.0.1:1", str(folder / "token"), folder="/tmp/raydebug-1"),
    )  # fmt: skip


def git(folder: Path, *arguments: str) -> None:
    """Run git as a user without a configuration."""
    one = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "protocol.file.allow=always", *arguments]
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(one, cwd=folder, check=True, capture_output=True, env=environ)


def write(folder: Path, *names: str) -> None:
    """Write small files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def names(folder: Path) -> list[str]:
    """Return the files of a folder that would be copied."""
    return [str(path) for path in list_files(folder)[0]]


def have_nodes(monkeypatch: pytest.MonkeyPatch, *temp_dirs: str) -> None:
    """Let a cluster have nodes with these folders of Ray's; an empty one has not reported."""
    rows = [{"node_id": temp_dir, "node_ip": f"10.0.0.{number}"} for number, temp_dir in enumerate(temp_dirs)]
    monkeypatch.setattr(Dashboard, "living_nodes", lambda _: rows)
    words = {node: {"cmdline": ["raylet", f"--resource_dir={node}"] if node else None} for node in temp_dirs}
    monkeypatch.setattr(Dashboard, "node_statistics", lambda _, node: words[node])


def test_files_in_a_hook_of_git(tmp_path, monkeypatch):
    """What git ignores stays here also where git itself has set GIT_DIR: in a hook, an alias, `git rebase --exec`."""
    write(tmp_path, "sub/train.py", "sub/secrets.yaml")
    (tmp_path / ".gitignore").write_text("secrets.yaml\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "1")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / ".git" / "index"))
    assert names(tmp_path / "sub") == ["train.py"]


CONFIGURATIONS = {
    "of the folder": "git config core.fsmonitor ./runs",
    "included": "git config include.path ../more; printf '[core]\\nfsmonitor = ./runs\\n' >more",
    "of a worktree": "git config extensions.worktreeConfig true; git config --worktree core.fsmonitor ./runs",
    "a signature": "git config log.showSignature true; git config gpg.program $PWD/runs; git cat-file commit HEAD >c;"
    " { sed '/^$/,$d' c; printf 'gpgsig -----BEGIN PGP SIGNATURE-----\\n -----END PGP SIGNATURE-----\\n\\n1\\n'; } >d;"
    " git update-ref HEAD $(git hash-object -t commit -w d)",
    "a partial clone": "git sparse-checkout set --cone --sparse-index a; git config remote.o.url 'ext::./runs';"
    " git config remote.o.promisor true; git config extensions.partialClone o; git config protocol.ext.allow always;"
    " git config core.repositoryFormatVersion 1; find .git/objects/$(git rev-parse HEAD:b | cut -c1-2) -type f -delete",
}


@pytest.mark.parametrize("planted", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_a_configuration_of_git_runs_nothing(tmp_path, planted):
    """No program runs that the configuration of a folder, or of a checkout inside of it, names for git."""
    project = tmp_path / "project"
    for at in (project, project / "inner"):
        write(at, "train.py", "a/x.py", "b/y.py")
        git(at, "init", "-q")
        git(at, "add", "train.py", "a", "b")
        git(at, "commit", "-qm", "1")
        (at / "runs").write_text(f"#!/bin/sh\ntouch {tmp_path}/RAN\n")
        (at / "runs").chmod(0o755)
        subprocess.run(["sh", "-ec", planted], cwd=at, check=True, capture_output=True)
    (tmp_path / "RAN").unlink(missing_ok=True)  # git has run it for the commands above
    names(project)
    assert commit_arguments(project)[1] != "REVISION="
    assert not (tmp_path / "RAN").exists()


def test_files_of_a_checkout(tmp_path):
    """Of a checkout of git the files that it does not ignore are copied, and those of checkouts inside of it."""
    library, project = tmp_path / "library", tmp_path / "project"
    write(library, "lib.py")
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-qm", "1")
    write(project, "train.py", "gone.py", "sub/new.py", "out/big.bin", ".venv/x.py", "node_modules/y.js", "data/d.bin")
    (project / ".gitignore").write_text("out/\n")
    git(project, "init", "-q")
    git(project, "add", "train.py", "gone.py")
    git(project, "submodule", "add", "-q", str(library), "library")
    git(project, "commit", "-qm", "1")
    git(tmp_path, "clone", "-q", str(project), "clone")
    assert names(tmp_path / "clone") == [".gitmodules", "gone.py", "train.py"], "a submodule that is not there"
    write(project / "other", "o.py")
    git(project / "other", "init", "-q")
    (project / "gone.py").unlink()
    (project / "here").symlink_to(".")
    (project / "link.py").symlink_to("train.py")
    assert names(project) == [
        ".gitignore", ".gitmodules", "data/d.bin", "library/lib.py", "link.py", "other/o.py", "sub/new.py", "train.py",
    ]  # fmt: skip
    assert names(project / "sub") == ["new.py"]
    assert names(project / "out") == ["big.bin"], "a folder that git ignores, but which is the working folder"


def test_files_of_another_folder(tmp_path):
    """Outside of git all files are copied but those of virtual environments, of caches and of linked folders."""
    write(tmp_path, "train.py", "sub/a.py", "env/pyvenv.cfg", "env/lib/x.py", "sub/__pycache__/a.pyc")
    (tmp_path / "loop").symlink_to(".")
    write(tmp_path / "inner", "a.py", "out/secret", ".gitignore")
    (tmp_path / "inner/.gitignore").write_text("out\n.gitignore\n")
    git(tmp_path / "inner", "init", "-q")
    assert names(tmp_path) == ["inner/a.py", "sub/a.py", "train.py"], "git is asked in a checkout inside of it"


# Beside the sources of a training.
SECRETS = """
.env sub/.env.local .envrc prod.env env.secret .ENV .npmrc .pypirc .git-credentials .docker/config.json .boto .s3cfg
.config/gcloud/application_default_credentials.json .config/gh/hosts.yml .config/huggingface/token .huggingface/token
.azure/accessTokens.json .aws/credentials .AWS/x aws_credentials .databrickscfg .my.cnf .vault-token .modal.toml
.wandb/settings wandb/settings .netrc _netrc .kube/config kubeconfig kube.config .ssh/id id_rsa deploy_key server.pem
tls.key cert.p12 keystore.jks service-account.json gcp-key.json credentials.json client_secret.json token token.txt
hf_token hf_token.txt my.token auth_token .ray/auth_token secrets.yaml secret.toml .streamlit/secrets.toml vault.yml
terraform.tfstate terraform.tfvars .htpasswd .sops.yaml .bash_history auth.json .pgpass core.12345 .gnupg/x
state/raydebug/x
"""
SOURCES = "sub/token/a.py secrets.py secret.parquet keys.py tokens.txt tokenizer.json env.py key_value.json"


@pytest.mark.parametrize("in_git", [False, True])
def test_secrets_and_links_are_not_copied(cluster, tmp_path, monkeypatch, capsys, in_git):
    """Files of secrets are left out unless they were committed, and links that lead elsewhere; both are named."""
    project = tmp_path / "project"
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "state"))
    write(project, "train.py", "conf/.env", *SECRETS.split(), *SOURCES.split())
    write(tmp_path, "outside")
    for name, leads_to in (("a", "../outside"), ("b", ".env"), ("c", "sub"), ("d", "/"), ("same.py", "train.py")):
        (project / name).symlink_to(leads_to)
    if in_git:
        git(project, "init", "-q")
        git(project, "add", "conf/.env")
    assert sorted(names(project)) == sorted(
        [*(["conf/.env"] if in_git else []), "same.py", "train.py", *SOURCES.split()]
    )
    note_shared(cluster, project, shared=False)
    have_nodes(monkeypatch, "/tmp/ray")
    monkeypatch.setattr(Dashboard, "has_package", lambda *_: False)
    monkeypatch.setattr(Dashboard, "put_package", lambda *_: None)
    folder_on_nodes(cluster, project, as_it_is=True)
    said = capsys.readouterr().err
    assert "; links that are left out: 4 (a, b, c, ...)" in said
    assert "; left out as their names are those of secrets, and they are not committed: " in said
    assert "(.AWS, .ENV, .aws, ...)" in said


def test_a_file_that_has_changed_since_it_was_listed(tmp_path, monkeypatch):
    """No link is followed that has taken the place of a file or of its folder, and no more is read than is possible."""
    write(tmp_path, "outside/a", "project/sub/a", "project/.env")
    project = tmp_path / "project"
    files, *_ = list_files(project)
    for at, leads_to in (("sub/a", "../../outside/a"), ("sub/a", "../.env"), ("sub", "../outside")):
        (project / at).rename(tmp_path / "was")
        (project / at).symlink_to(leads_to)
        with pytest.raises(OSError, match="the file has been replaced by one outside of the folder"):
            pack(project, files)
        (project / at).unlink()
        (tmp_path / "was").rename(project / at)
    monkeypatch.setattr(working_folder, "MOST_BYTES", 6)
    with pytest.raises(RaydebugError, match="is too big to be copied"):
        pack(tmp_path / "outside", [Path("a")])


@pytest.mark.parametrize("path", ["", None])
def test_git_that_fails(tmp_path, monkeypatch, path):
    """In a checkout nothing is copied unless git says what it ignores: the error has what git said."""
    write(tmp_path, ".git/HEAD", "sub/train.py", ".gitignore")
    if path is not None:
        monkeypatch.setenv("PATH", path)
    with pytest.raises(RaydebugError) as raised:
        list_files(tmp_path / "sub")
    said = "not a git repository" if path is None else "No such file or directory: 'git'"
    assert (raised.value.code, said in raised.value.cause) == ("run.git-failed", True)
    assert "git config --global --add safe.directory DIR" in raised.value.fix


def test_the_home_folder_is_not_copied(tmp_path, monkeypatch):
    """Outside of git neither the home folder nor one that has it inside is copied."""
    monkeypatch.setenv("HOME", str(tmp_path / "home/me"))
    write(tmp_path, "home/me/project/train.py")
    for folder in (tmp_path / "home/me", tmp_path / "home", Path("/")):
        with pytest.raises(RaydebugError) as raised:
            list_files(folder)
        assert raised.value.code == "run.folder-is-home"
    assert names(tmp_path / "home/me/project") == ["train.py"]


def test_a_copy_is_named_by_its_content(tmp_path):
    """Equal files make equal bytes, whatever their times; a file stays executable, and its owner can write it."""
    write(tmp_path, "a.sh", "b/c.py")
    (tmp_path / "a.sh").chmod(0o555)
    first = pack(tmp_path, list_files(tmp_path)[0])
    os.utime(tmp_path / "b/c.py", (1, 1))
    assert pack(tmp_path, list_files(tmp_path)[0]) == first
    with zipfile.ZipFile(io.BytesIO(first)) as package:
        assert {one.filename: stat.filemode(one.external_attr >> 16)[1:] for one in package.infolist()} == {
            "a.sh": "rwxr-xr-x",
            "b/c.py": stat.filemode((tmp_path / "b/c.py").stat().st_mode)[1:],
        }
        assert package.read("b/c.py") == b"b/c.py"
    write(tmp_path, "b/d.py")
    assert pack(tmp_path, list_files(tmp_path)[0]) != first


def test_a_folder_that_is_too_big(cluster, tmp_path):
    """The error names the largest files, and what to do."""
    folder = tmp_path / "project"
    write(folder, "train.py")
    for name, mib in (("big.bin", 90), ("second.bin", 20)):
        with (folder / name).open("wb") as file:
            file.truncate(mib * 1024**2)
    note_shared(cluster, folder, shared=False)
    with pytest.raises(RaydebugError) as raised:
        folder_on_nodes(cluster, folder, as_it_is=True)
    error = raised.value
    assert error.what == f"the working folder {folder} is too big to be copied to the nodes"
    assert error.cause == (
        "it has 110 MiB, 96 are possible; the largest: big.bin 90 MiB, second.bin 20 MiB, train.py 0 MiB"
    )
    assert error.fix == (
        "name what the job does not need in .gitignore (outside of git: `git init` first), or run in a folder that the"
        " nodes share; where they have their own files at this path: --no-upload"
    )


@pytest.mark.skipif(os.getuid() == 0, reason="root can read every file")
def test_a_file_that_cannot_be_read(cluster, tmp_path):
    """The error names the file."""
    folder = tmp_path / "project"
    write(folder, "secret")
    (folder / "secret").chmod(0)
    note_shared(cluster, folder, shared=False)
    with pytest.raises(RaydebugError) as raised:
        folder_on_nodes(cluster, folder, as_it_is=True)
    assert (raised.value.code, raised.value.cause) == ("run.folder-unreadable", f"{folder}/secret: Permission denied")


def test_where_ray_unpacks(cluster, tmp_path, monkeypatch):
    """It is asked of the nodes: those that have not reported do not count, and different folders are refused."""
    note_shared(cluster, tmp_path, shared=False)
    monkeypatch.setattr(Dashboard, "has_package", lambda *_: True)
    have_nodes(monkeypatch, "/a", "", "/a")
    assert folder_on_nodes(cluster, tmp_path, as_it_is=True).startswith("/a/working_dir_files/_ray_pkg_")
    (cluster.folder / "folders.json").unlink()
    note_shared(cluster, tmp_path, shared=False)
    monkeypatch.setattr("raydebug.cluster.working_folder.REPORTS_WITHIN_S", 0.1)
    for temp_dirs, code, cause in (
        (("/a", "/b"), "run.temp-dirs-differ", "in different folders: /a on 10.0.0.0, /b on 10.0.0.1"),
        (("",), "run.nodes-silent", "no node has said"),
    ):
        have_nodes(monkeypatch, *temp_dirs)
        with pytest.raises(RaydebugError) as raised:
            folder_on_nodes(cluster, tmp_path, as_it_is=True)
        assert (raised.value.code, cause in raised.value.cause) == (code, True)
        assert copies_on(cluster) == {}


def test_programs_of_raydebug_do_not_import_from_a_copy(cluster, tmp_path, monkeypatch):
    """Ray has a copy first on PYTHONPATH: a file of the user's with the name of a library's is not run by ours."""
    lines = []
    monkeypatch.setattr(Dashboard, "submit_job", lambda _, line, **more: lines.append(line))
    note_copy(cluster, Path("/my/project"), THERE)
    for folder in (THERE, "/"):
        submit_request(cluster, "1", {"folder": folder})
    shown = f"{lines[0].partition(' && exec ')[0]}; echo $PYTHONPATH"
    for given, left in ((THERE, ""), (f"{THERE}:/a:/b", "/a:/b"), ("/a", "/a")):
        done = subprocess.run(
            ["sh", "-c", shown], env={"PYTHONPATH": given}, capture_output=True, text=True, check=True
        )
        assert done.stdout == f"{left}\n"
    assert lines[1].startswith("cd / && exec ")
    copy = tmp_path / "working_dir_files/_ray_pkg_a"
    write(copy, "secrets.py")
    monkeypatch.setenv("PYTHONPATH", f"{copy}:/a")
    path = run_here(["-c", "import secrets, sys; print(*sys.path[:1])"], str(copy), 30.0)
    assert path == {"code": 0, "output": "/a\n"}


def test_what_is_remembered(cluster, tmp_path):
    """An answer holds until the cluster is joined again; the folders of copies are known for longer."""
    note_shared(cluster, tmp_path, shared=True)
    assert folder_on_nodes(cluster, tmp_path, as_it_is=True) == str(tmp_path)
    assert folder_on_nodes(cluster, Path("/"), as_it_is=True) == "/"
    note_copy(cluster, Path("/my/project"), THERE)
    note_copy(cluster, Path("/my/project"), NEWER)
    again = replace(cluster, created=2.0)
    assert (read_known(again)["shared"], list(copies_on(again))) == ({}, [NEWER, THERE])
    (cluster.folder / "folders.json").write_text("[]")
    assert read_known(cluster) == {"created": 1.0, "shared": {}, "copies": {}}


def test_a_folder_that_cannot_be_written(cluster, tmp_path, monkeypatch, capsys):
    """No file can be made there to ask the nodes for: it counts as not shared, and a note says what to do."""
    have_nodes(monkeypatch, "/tmp/ray")
    monkeypatch.setattr(Dashboard, "has_package", lambda *_: True)
    folder_on_nodes(cluster, tmp_path / "gone", as_it_is=True)
    assert capsys.readouterr().err == (
        f"note: whether the nodes share {tmp_path}/gone is not known, as no file can be made there (No such file or"
        " directory); it counts as not shared. If they share it: --no-upload\n"
    )


def test_names_of_files(cluster):
    """What the cluster sends has the names of this machine's files: a text, and JSON."""
    here = Path('/my "project"')
    note_copy(cluster, here, THERE)
    assert with_local_names(cluster, f'  File "{THERE}/a.py", line 1') == '  File "/my "project"/a.py", line 1'
    sent = json.dumps({"file": f"{THERE}/a.py", "other": f"{NEWER}/a.py"})
    assert json.loads(with_local_names(cluster, sent, is_json=True)) == {
        "file": '/my "project"/a.py',
        "other": f"{NEWER}/a.py",
    }
    assert with_local_names(replace(cluster, remote=Remote()), sent) == sent
    assert GatewayAddress.of(cluster).copies() == [{"localRoot": str(here), "remoteRoot": THERE}]


def test_a_folder_with_several_copies():
    """A file here is that of the copy which the process has; the client gets the name there beside its own."""
    paths = PathMap([], [("/my/project", NEWER), ("/my/project", THERE)])
    assert paths.to_cluster("/my/project/a.py") == f"{NEWER}/a.py"
    body = paths.translate_body({"stackFrames": [{"source": {"path": f"{THERE}/a.py"}}]})
    assert body["stackFrames"][0]["source"] == {"path": "/my/project/a.py", "adapterData": f"{THERE}/a.py"}
    assert paths.to_cluster("/my/project/a.py") == f"{THERE}/a.py"


def test_a_folder_inside_of_another():
    """A file in it is that of the copy which the process has, of either folder."""
    paths = PathMap([], [("/my/project", THERE), ("/my/project/sub", NEWER)])
    assert paths.to_cluster("/my/project/sub/a.py") == f"{NEWER}/a.py"
    assert paths.to_client(f"{THERE}/sub/a.py") == "/my/project/sub/a.py"
    assert paths.to_cluster("/my/project/sub/a.py") == f"{THERE}/sub/a.py"
    assert paths.to_client(f"{NEWER}/a.py") == "/my/project/sub/a.py"
    assert paths.to_cluster("/my/project/sub/a.py") == f"{NEWER}/a.py"


def test_files_outside_of_copies():
    """An editor opens its own file, unless its user has mappings that do not have it."""
    body = {"stackFrames": [{"source": {"path": "/shared/a.py"}}]}
    paths = PathMap([], [("/my/project", THERE)])
    assert paths.translate_body(body) == body
    paths = PathMap([("/x", "/y")], [("/my/project", THERE)])
    assert paths.translate_body(body)["stackFrames"][0]["source"]["sourceReference"] == 1_000_000
    assert paths.to_client(f"{THERE}/a.py") == "/my/project/a.py"


def test_breakpoints_of_a_running_job(cluster, monkeypatch):
    """They are looked up in the copy that a running job has, in that of the named job first; not in a newer one."""
    here, newest = Path("/my/project"), NEWER.replace("b", "c")
    for there in (THERE, NEWER, newest):
        note_copy(cluster, here, there)
    jobs = [("1", THERE, "RUNNING"), ("2", NEWER, "RUNNING"), ("3", newest, "FAILED"), ("4", "/other", "RUNNING")]
    rows = [
        {"submission_id": name, "entrypoint": f"cd {there} && exec x", "status": status} for name, there, status in jobs
    ]
    monkeypatch.setattr(Dashboard, "submitted_jobs", lambda _: rows)
    assert [copy_of_jobs(cluster, here, job) for job in ("1", "2", "3", None)] == [THERE, NEWER, NEWER, NEWER]
    assert copy_of_jobs(cluster, Path("/other")) == ""
    asked = []
    monkeypatch.setattr(
        "raydebug.cluster.head_requests.ask_nodes", lambda _, request, *more: asked.append(request) or []
    )
    with pytest.raises(RaydebugError):
        NodeRunner(cluster, "127.0.0.1", at=THERE).run_python(["-c", ""], here)
    assert asked[0]["folder"] == THERE


def test_a_copy_with_a_running_job_is_kept(cluster):
    """Of many copies the last ones stay known, and the one that a job which runs is in."""
    others = [f"{THERE}{number}" for number in range(KEPT_COPIES + 1)]
    for there in (THERE, NEWER, *others):
        note_copy(cluster, Path("/my/project"), there, [f"cd {THERE} && exec x"])
    assert list(copies_on(cluster)) == [*others[:0:-1], THERE]


def test_packages(cluster, monkeypatch):
    """A job in a copy asks Ray for its package, any other job for none, whatever the name of its folder."""
    sent = []
    note_copy(cluster, Path("/my/project"), THERE)
    monkeypatch.setattr(Dashboard, "_ask", lambda *arguments, **options: sent.append(options["json"]["runtime_env"]))
    for folder in (THERE, "/my/project", NEWER, ""):
        Dashboard(cluster).submit_job("true", submission_id="1", env={}, folder=folder)
    assert [one.get("working_dir") for one in sent] == [f"gcs://_ray_pkg_{40 * 'a'}.zip", None, None, None]


def test_another_kind_of_cluster(tmp_path):
    """--upload is refused where jobs run in the folder itself."""
    argv = [sys.executable, "-m", "raydebug", "run", "--upload", "--", "true"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-3:] == [
        "error: --upload and --no-upload are for a cluster whose nodes are other machines",
        "cause: the jobs of cluster 'default' run in this folder itself",
        "fix: leave it out",
    ]


@pytest.mark.parametrize(("second", "shared"), [("True\n", True), ("False\n", False), (None, False)])
def test_whether_all_nodes_share_a_folder(cluster, tmp_path, monkeypatch, capsys, second, shared):
    """A folder is shared where every node says so; where one gives no answer it is copied, and they are asked again."""
    answer = {"code": 0, "output": second} if second else {"problem": "it gave no answer within 90 s"}
    nodes = [{"ip": "10.0.0.1", "code": 0, "output": "True\n"}, {"ip": "10.0.0.2", **answer}]
    monkeypatch.setattr(Dashboard, "living_nodes", lambda _: [{"node_ip": node["ip"]} for node in nodes])
    monkeypatch.setattr(working_folder, "ask_nodes", lambda *_: nodes)
    monkeypatch.setattr(working_folder, "_copy", lambda *_: "/there")
    found = folder_on_nodes(cluster, tmp_path, as_it_is=True)
    assert (found == str(tmp_path)) is shared
    assert set(read_known(cluster)["shared"].values()) == ({shared} if second else set())
    assert ("10.0.0.2 gave no answer" in capsys.readouterr().err) is (second is None)
