"""The working folder on the nodes of a joined cluster: the same as here where they share it, else a copy.

A copy is a package of Ray's own: a zip, named by its content, which Ray unpacks on each node before a process of the
job starts there. Source: ray 2.41.0 to 2.60.0 dashboard/modules/job/job_head.py `get_package` and `upload_package`,
_private/runtime_env/working_dir.py and packaging.py.
"""

from __future__ import annotations

import errno
import fnmatch
import functools
import hashlib
import io
import os
import re
import secrets
import stat
import subprocess
import time
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from raydebug import process, render
from raydebug.cluster.dashboard import ENDED, Dashboard
from raydebug.cluster.head_requests import ANSWER_LIMIT_S, ask_nodes
from raydebug.cluster.known_folders import KEPT_COPIES, PACKAGE_PREFIX, note_copy, note_shared, read_known
from raydebug.cluster.state import Cluster, name_option
from raydebug.errors import RaydebugError, UsageError
from raydebug.settings.files import state_dir

MIB = 1024**2
MOST_BYTES = 96 * MIB  # Ray's dashboard takes 100 MiB (ray 2.41.0 to 2.60.0 DASHBOARD_CLIENT_MAX_SIZE)
IGNORED = frozenset({".git", ".venv", "node_modules", "__pycache__", ".ipynb_checkpoints"})
# Names of files, and of folders (`.ssh/`), that hold secrets, in small letters; `gh/hosts.yml` is a file in a folder.
SECRETS = """
.env* .env*/ *.env *.secret *.secrets .netrc _netrc .ssh/ id_rsa id_dsa id_ecdsa* id_ed25519* *_key *-key *.key *.pem
*.p12 *.pfx *.ppk *.jks *.keystore *.kdbx .gnupg/ .htpasswd .*_history core.[0-9]* .aws/ *credentials
*credentials*.json *credentials*.csv .azure/ gcloud/ .boto .s3cfg .kube/ kubeconfig* *.kubeconfig kube.config
service[-_]account*.json *[-_]key.json client_secret*.json *.tfstate* *.tfvars .terraform.d/ .vault* vault.y*ml
.sops.y*ml secret.[!p]* secrets.[!p]* .git-credentials gh/hosts.yml .npmrc .pypirc .docker/ *wandb/settings .ray/
.huggingface/ .databrickscfg .modal.toml .pgpass .my.cnf auth.json token token.txt *[-_]token *[-_]token.txt *.token
"""
NAMED_AT_MOST = 3
ASKED_NODES = 50  # the head and some others; the request is one word of a command line
LIMIT_S = 30.0
REPORTS_WITHIN_S = 10.0  # of the agent of a node that has just started
RESOURCES = "--resource_dir="  # ray 2.41.0 to 2.60.0 _private/services.py start_raylet


def folder_on_nodes(cluster: Cluster, here: Path, *, as_it_is: bool) -> str:
    """Return the path that a folder of this machine has on the nodes; it is copied there if they do not share it.

    Args:
        cluster: that was joined.
        here: the folder.
        as_it_is: copy it again if it has changed; else the last copy will do, which a running job may have.

    Raises:
        RaydebugError: the nodes do not answer, or the folder cannot be copied.
    """
    if here == Path("/"):  # raydebug's own programs that need no folder run there
        return "/"
    known = read_known(cluster)
    shared = known["shared"].get(str(here))
    if shared is None:
        shared = _is_shared(cluster, here)
        if shared is not None:
            note_shared(cluster, here, shared=shared)
    if shared:
        return str(here)
    copy = next((path for path, of in known["copies"].items() if of == str(here)), None)
    if copy is None or as_it_is or not Dashboard(cluster).has_package(Path(copy).name):
        copy = _copy(cluster, here)
        jobs = Dashboard(cluster).submitted_jobs() if len(known["copies"]) >= KEPT_COPIES else []
        note_copy(cluster, here, copy, [job["entrypoint"] for job in jobs if job["status"] not in ENDED])
    return copy


def _is_shared(cluster: Cluster, here: Path) -> bool | None:
    """Return whether all nodes see a file that is made in a folder for this question; None if not all have answered."""
    mark = here / f".raydebug-{secrets.token_hex(8)}"
    looks = ["-c", "import os, sys; print(os.path.exists(sys.argv[1]))", str(mark)]
    ips = [node["node_ip"] for node in Dashboard(cluster).living_nodes()][:ASKED_NODES]
    programs, head = dict.fromkeys(ips, looks), cluster.remote.head
    request = {"do": "run", "head": head, "folder": "/", "limit_s": LIMIT_S, "argv": programs}
    try:
        mark.touch(exist_ok=False)
    except OSError as error:
        render.say(
            f"note: whether the nodes share {here} is not known, as no file can be made there ({error.strerror}); it"
            " counts as not shared. If they share it: --no-upload"
        )
        return False
    try:
        nodes = ask_nodes(cluster, request, ANSWER_LIMIT_S + LIMIT_S)
    finally:
        mark.unlink(missing_ok=True)
    answers = {node["ip"]: node["output"].strip() for node in nodes if node.get("code") == 0}
    if set(answers.values()) - {"True"}:
        return False
    if silent := [ip for ip in ips if ip not in answers]:
        render.say(
            f"note: whether all nodes share {here} is not known, as {', '.join(silent[:NAMED_AT_MOST])} gave no answer;"
            " it counts as not shared. If they share it: --no-upload"
        )
    return None if silent else bool(ips)


def _copy(cluster: Cluster, here: Path) -> str:
    """Give Ray a folder's files, unless it has them, and return where it unpacks them."""
    try:
        files, links, kept_back = list_files(here)
        sizes = {path: (here / path).stat().st_size for path in files}
        total = sum(sizes.values())
        if total > MOST_BYTES:
            raise _too_big(here, sizes)
        data = pack(here, sizes)
    except OSError as error:
        raise UsageError(
            f"the working folder {here} cannot be copied to the nodes",
            cause=f"{error.filename}: {error.strerror}",
            fix="make it readable, or name it in .gitignore",
            code="run.folder-unreadable",
        ) from error
    name = f"{PACKAGE_PREFIX}{hashlib.sha256(data).hexdigest()[:40]}"
    dashboard = Dashboard(cluster)
    place = f"{_resources(cluster, dashboard)}/working_dir_files/{name}"
    if not dashboard.has_package(name):
        copied = f"{len(sizes)} files of it are copied there, {total / MIB:.1f} MiB"
        left_out = _named("links that are left out", links)
        left_out += _named("left out as their names are those of secrets, and they are not committed", kept_back)
        render.say(f"the nodes do not share {here}: {copied}{left_out}")
        dashboard.put_package(name, data)
    return place


def _named(what: str, paths: list[Path]) -> str:
    named = ", ".join(map(str, paths[:NAMED_AT_MOST])) + (", ..." if len(paths) > NAMED_AT_MOST else "")
    return f"; {what}: {len(paths)} ({render.visible(named, keep='')})" if paths else ""


def _resources(cluster: Cluster, dashboard: Dashboard) -> str:
    """Return the folder of the nodes in which Ray unpacks packages: a word of each raylet's command line names it."""
    found: dict[str, str] = {}
    deadline = time.monotonic() + REPORTS_WITHIN_S
    while not found and time.monotonic() < deadline:
        for node in dashboard.living_nodes()[:ASKED_NODES]:
            if place := dashboard.option_of_raylet(node["node_id"], RESOURCES):
                found.setdefault(place, node["node_ip"])
        time.sleep(0 if found else 1)
    if len(found) == 1:
        return found.popitem()[0]
    cause, code = "no node has said where Ray unpacks it", "run.nodes-silent"
    fix = f"try again when `raydebug ps{name_option(cluster.name)}` lists the nodes as alive"
    if found:
        places = ", ".join(f"{place} on {ip}" for place, ip in list(found.items())[:NAMED_AT_MOST])
        cause, code = f"Ray unpacks it in different folders: {places}", "run.temp-dirs-differ"
        fix = "start Ray with one --temp-dir on all nodes, or run in one that they share; --no-upload takes their own"
    raise UsageError("the working folder cannot be copied to the nodes", cause=cause, fix=fix, code=code)


def list_files(folder: Path) -> tuple[list[Path], list[Path], list[Path]]:
    """Return the files that a job may need, and the links and the secrets that are left out, relative to the folder.

    In a checkout of git those that it does not ignore, of submodules too; else all but IGNORED, and virtual
    environments. What SECRETS names is left out unless it was committed; so are links to folders, to secrets and to
    files outside of the folder. Each list is sorted.

    Raises:
        RaydebugError: git fails in a checkout, or the folder is no project.
    """
    files, links, kept_back = [], [], set()
    for path, is_secret in _listed(folder):
        whole = folder / path
        if is_secret:
            kept_back.add(path)
        elif whole.is_symlink() and (whole.is_dir() or not _is_allowed(folder, path, os.path.realpath(whole))):
            links.append(path)
        elif whole.is_file():
            files.append(path)
    return sorted(files), sorted(links), sorted(kept_back)


def _listed(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Return the paths in a folder, and whether each is a secret, a file or a whole folder, which is left out."""
    found = _listed_by_git(folder)
    if found is None or not (found or (folder / ".git").exists()):  # outside of git, or git ignores the folder itself
        found = _walk(folder)
    for path, is_committed in found:
        whole = folder / path
        # Git names a submodule that is not there "./", in its folder.
        if not path.parts or IGNORED.intersection(path.parts):
            continue
        if not is_committed and (secret := _secret_in(folder, path)):
            yield secret, True
        elif whole.is_dir() and not whole.is_symlink():  # a submodule, or another checkout
            yield from ((path / inner, is_secret) for inner, is_secret in _listed(whole))
        else:
            yield path, False


def _is_allowed(folder: Path, path: Path, real: str) -> bool:
    """Return whether the real place of a path is in the folder, and no secret with another name."""
    leads_to = Path(os.path.relpath(real, os.path.realpath(folder)))
    return ".." not in leads_to.parts and (leads_to == path or not _secret_in(folder, leads_to))


def _secret_in(folder: Path, path: Path) -> Path | None:
    """Return the first part of a path whose name is that of a secret, or raydebug's state; None if there is none."""
    for at in path.parents[-2::-1]:
        if _secret_name().fullmatch(f"{at.name}/"):
            return at
    names = (path.name, f"{path.parent.name}/{path.name}", f"{path.name}/")
    if any(map(_secret_name().fullmatch, names)):
        return path
    has_name = "raydebug" in path.parts or "raydebug" in folder.parts  # the whole question takes 0.2 ms
    return path if has_name and (folder / path).is_relative_to(state_dir()) else None


@functools.cache
def _secret_name() -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, SECRETS.split())), re.IGNORECASE)


def _listed_by_git(folder: Path) -> Iterable[tuple[Path, bool]] | None:
    """Return the paths that git does not ignore, and whether each is committed; None outside of a checkout."""
    if not any((at / ".git").exists() for at in (folder, *folder.parents)):
        return None
    argv = process.git_in(folder, "ls-files", "-tz", "--cached", "--others", "--exclude-standard")
    try:
        with process.start_filter(argv, errors=subprocess.PIPE, env=process.gits_env()) as git:
            printed, said = git.communicate()
        if git.returncode == 0:  # each name follows a letter, "?" where it is not committed, and a space
            lines = [line for line in printed.split(b"\0") if line]
            return [(Path(os.fsdecode(line[2:])), not line.startswith(b"?")) for line in lines]
        why = " ".join(said.decode(errors="replace").split())
    except OSError as error:  # no git here
        why = str(error)
    raise UsageError(
        f"the working folder {folder} cannot be copied to the nodes: git does not say which files it ignores",
        cause=why,
        fix="where another user owns the checkout: `git config --global --add safe.directory DIR`; where the nodes have"
        " their own files at this path: --no-upload",
        code="run.git-failed",
    )


def _walk(folder: Path) -> Iterator[tuple[Path, bool]]:
    if Path.home().resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"the working folder {folder} is not copied to the nodes",
            cause="your home folder is in it, with all that is private",
            fix="run in the folder of your project; where the nodes have their own files at this path: --no-upload",
            code="run.folder-is-home",
        )
    for at, folders, files in os.walk(folder):
        inner = [name for name in folders if name not in IGNORED and not Path(at, name, "pyvenv.cfg").exists()]
        whole = [
            name for name in inner
            if Path(at, name, ".git").exists() or Path(at, name).is_symlink()
            or _secret_name().fullmatch(f"{name}/") or Path(at, name) == state_dir()
        ]  # fmt: skip
        folders[:] = [name for name in inner if name not in whole]
        yield from ((Path(at, name).relative_to(folder), False) for name in (*files, *whole))


def pack(folder: Path, files: Collection[Path]) -> bytes:
    """Return a zip of files of a folder; equal files make an equal zip.

    Raises:
        OSError: a file cannot be read, or leads out of the folder by now.
        RaydebugError: they have grown to more than MOST_BYTES.
    """
    packed, size = io.BytesIO(), 0
    with zipfile.ZipFile(packed, "w") as package:
        for path in files:
            with open(folder / path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                about, opened = os.fstat(file.fileno()), Path(f"/proc/self/fd/{file.fileno()}")
                # Who else may write the folder may have put a link there since it was listed.
                real = os.path.realpath(opened if opened.exists() else folder / path)
                if not stat.S_ISREG(about.st_mode) or not _is_allowed(folder, path, real):
                    raise OSError(
                        errno.EMLINK, "the file has been replaced by one outside of the folder", str(folder / path)
                    )
                content = file.read(MOST_BYTES - size + 1)
            size += len(content)
            if size > MOST_BYTES:
                raise _too_big(folder, {path: (folder / path).stat().st_size for path in files})
            # Of 1980, whatever the time of the file is.
            entry = zipfile.ZipInfo(os.fsencode(path).decode(errors="replace"))
            entry.external_attr = (0o600 | about.st_mode & 0o777) << 16
            package.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _too_big(here: Path, sizes: dict[Path, int]) -> RaydebugError:
    largest = sorted(sizes, key=lambda path: -sizes[path])[:NAMED_AT_MOST]
    named = ", ".join(f"{path} {sizes[path] / MIB:.0f} MiB" for path in largest)
    return UsageError(
        f"the working folder {here} is too big to be copied to the nodes",
        cause=f"it has {sum(sizes.values()) / MIB:.0f} MiB, {MOST_BYTES // MIB} are possible; the largest: {named}",
        fix="name what the job does not need in .gitignore (outside of git: `git init` first), or run in a folder that"
        " the nodes share; where they have their own files at this path: --no-upload",
        code="run.folder-too-big",
    )
