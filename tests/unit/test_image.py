"""`raydebug image`: its command, what makes an image reproducible, and bad input."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

import build_twice
from raydebug.cluster.compose.image import image_argv, why_not_reproducible
from raydebug.settings.flavours import read_lock
from runs import raydebug, three_lines

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("env", "Dockerfile")
PROGRAM = build_twice.load()
SLIM = build_twice.load("slim-environment")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what `raydebug image` reads, at a commit of a known time."""
    folder = tmp_path / "checkout"
    (folder / "env").mkdir(parents=True)
    (folder / "Dockerfile").write_text("FROM scratch\n")
    (folder / "env/core.lock").write_bytes((ROOT / "env/core.lock").read_bytes())
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    environ = {**os.environ, "GIT_COMMITTER_DATE": "1700000000 +0000"}
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=folder, env=environ, check=True)
    return folder


def info(version: str) -> str:
    """Return the part of `docker info` that is read."""
    return json.dumps({"ServerVersion": version, "DockerRootDir": "/nowhere"})


def image(
    checkout: Path, info: str = info("26.1.5"), *, code: int = 0, build: int = 0, inspect: int = 0, said: str = "",
    **variables: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run `raydebug image` where the docker command answers so."""
    folder = checkout.with_name("bin")
    folder.mkdir()
    script = f"""#!/bin/sh
        case "$1 $2" in
          "buildx version") exit 0 ;;
          "info "*) echo '{info}'; exit {code} ;;
          "buildx build") echo "$@" >&2; exit {build} ;;
          "image inspect") echo '{said}'; exit {inspect} ;;
        esac"""
    (folder / "docker").write_text(script)
    (folder / "docker").chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name not in ("BASE_IMAGE", "DOCKER_HOST")}
    environ |= {"PATH": f"{folder}:{os.environ['PATH']}", **variables}
    return raydebug("image", "--flavour", "core", cwd=checkout, env=environ)


def test_command_of_a_commit(checkout: Path) -> None:
    """The build gets the commit, its time for the image's own times, and no provenance, which has times of its own."""
    done = image(checkout)
    assert done.returncode == 0, done.stderr
    assert "SOURCE_DATE_EPOCH=1700000000" in done.stderr
    assert "--provenance=false" in done.stderr
    assert "note:" not in done.stderr


def test_flash_attn_can_be_left_out() -> None:
    """FLASH_ATTN=0 is a build argument of flavour cuda only."""
    lock = read_lock(ROOT / "env/cuda.lock")
    assert "FLASH_ATTN=0" in image_argv("cuda", lock, {"FLASH_ATTN": "0"}, [])
    assert "FLASH_ATTN=0" not in image_argv("core", lock, {"FLASH_ATTN": "0"}, [])


def test_engine_too_old_for_reproducible_images(checkout: Path) -> None:
    """An engine too old for reproducible images is named, and builds all the same."""
    done = image(checkout, info("20.10.24+dfsg1"))
    assert done.returncode == 0
    assert "engine 20.10.24+dfsg1 is older than 24" in done.stderr
    assert "--provenance" not in done.stderr
    assert why_not_reproducible({"ServerVersion": "24.0.2"}) is None


@pytest.mark.parametrize(("printed", "code"), [("", 1), ("{}", 0), ('{"ServerVersion": ""}', 0), ("no JSON", 0)])
def test_no_engine(checkout: Path, printed: str, code: int) -> None:
    """Without an engine the error says how to get one, exit code 5."""
    done = image(checkout, printed, code=code)
    assert three_lines(done, 5) == "error: the Docker engine is not running"
    assert "ci/docker-engine" in done.stderr


def test_base_that_is_not_there(checkout: Path) -> None:
    """A build that fails on a BASE_IMAGE which nobody has ends with its name and what to do."""
    done = image(checkout, build=1, inspect=1, said="No such image: my-base:1", BASE_IMAGE="my-base:1")
    assert done.returncode == 2
    assert "error: there is no image my-base:1 to build on" in done.stderr
    assert "fix: unset BASE_IMAGE for the pinned base, or make one" in done.stderr


def test_other_failures_keep_their_exit_code(checkout: Path) -> None:
    """Any other failed build keeps buildx's words and exit code."""
    done = image(checkout, build=7)
    assert done.returncode == 7
    assert "error:" not in done.stderr


def test_lock_that_was_edited(checkout: Path) -> None:
    """A lock with a line changed by hand is refused before the build."""
    path = checkout / "env/core.lock"
    path.write_text(path.read_text().replace("aiohttp==", "aiohttp==9", 1))
    assert three_lines(image(checkout), 1) == "error: env/core.lock was edited by hand"


# ci/build-twice


def archive(
    *, byte: bytes = b"a", moment: float = 1.0, mode: int = 0o644, owner: int = 0, more: str = "", to: str = "x"
) -> io.BytesIO:
    """Return a tar archive of a folder, a file and a link."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        kinds = {"opt": tarfile.DIRTYPE, "opt/x": tarfile.REGTYPE, "opt/y": tarfile.SYMTYPE, more: tarfile.DIRTYPE}
        for name, kind in kinds.items():
            if name:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mtime, entry.mode, entry.uid = kind, moment, mode, owner
                entry.linkname = to if kind == tarfile.SYMTYPE else ""
                entry.size = len(byte) if kind == tarfile.REGTYPE else 0
                made.addfile(entry, io.BytesIO(byte))
    stream.seek(0)
    return stream


CHANGES = [{"byte": b"b"}, {"moment": 2.0}, {"mode": 0o664}, {"owner": 1000}, {"more": "opt/z"}, {"to": "z"}]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_each_kind_of_change_is_found(change: dict[str, object]) -> None:
    """Another byte, time, mode, owner, link or one more entry: each is a difference and gives another digest."""
    one, other = PROGRAM.read_entries(archive()), PROGRAM.read_entries(archive(**change))
    assert PROGRAM.differences(one, one) == []
    assert PROGRAM.differences(one, other)
    assert PROGRAM.digest_of(one) != PROGRAM.digest_of(other)


def test_other_content_needs_other_inputs() -> None:
    """Other content of the same inputs is an error; of other inputs it is not."""
    noted = {"inputs": "a", "content": "1", "entries": 1}
    assert "other bytes than env/digests.toml says" in PROGRAM.unexplained("core", noted, {**noted, "content": "2"})
    assert PROGRAM.unexplained("core", noted, {"inputs": "b", "content": "2", "entries": 1}) is None
    assert PROGRAM.unexplained("core", noted, noted) is None
    assert PROGRAM.unexplained("core", {}, noted) is None


@pytest.mark.parametrize(
    "name", ["Dockerfile", "env/core.lock", "env/base-bookworm.list", "ci/slim-environment", "ci/fixed-times"]
)
def test_inputs(tmp_path: Path, name: str) -> None:
    """The digest of the inputs depends on each of them, and not on raydebug's own stage or a comment."""
    for path in ("Dockerfile", *(part.format(flavour="core", base="bookworm") for part in PROGRAM.INPUTS)):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes((ROOT / path).read_bytes())
    before = PROGRAM.inputs_of("core", "bookworm", tmp_path)
    assert before == PROGRAM.inputs_of("core", "bookworm")
    file = tmp_path / name
    text = file.read_text()
    file.write_text(f"# a comment\n{text}")
    assert PROGRAM.inputs_of("core", "bookworm", tmp_path) == before
    file.write_text(f"one more\n{text}")
    assert PROGRAM.inputs_of("core", "bookworm", tmp_path) != before
    if name == "Dockerfile":
        file.write_text(text.replace("WORKDIR /workspace", "WORKDIR /elsewhere"))
        assert PROGRAM.inputs_of("core", "bookworm", tmp_path) == before


def test_noted_digests() -> None:
    """env/digests.toml has whole entries of flavours that exist, on bases that have a list."""
    for flavour, noted in PROGRAM.read_digests().items():
        assert (ROOT / f"env/{flavour}.lock").exists()
        assert (ROOT / f"env/base-{noted['base']}.list").exists()
        assert noted["content"].startswith("sha256:")
        assert noted["inputs"].startswith("sha256:")


@pytest.mark.parametrize("path", sorted((ROOT / "env").glob("base-*.list")), ids=lambda path: path.stem)
def test_lists_of_packages(path: Path) -> None:
    """A base's list has each package once, with version, SHA256 and place, and no address of a mirror."""
    lines = [line.split(" ") for line in path.read_text().splitlines() if not line.startswith("#")]
    assert len({name for name, *_ in lines}) == len(lines) > 90
    assert all(len(line) == 4 and len(line[2]) == 64 and line[3].startswith("pool/") for line in lines)
    assert "://" not in path.read_text()


def bring(site: Path, package: str, **files: str) -> None:
    """Install a package of these files: they replace those of the same name."""
    lines = []
    for name, text in files.items():
        path = site / f"{name}.py"
        path.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        lines.append(f"{path.name},sha256={digest},{len(text)}\n")
    (site / f"{package}-1.dist-info").mkdir()
    (site / f"{package}-1.dist-info/RECORD").write_text("".join(lines))


def test_a_file_of_two_packages(tmp_path: Path) -> None:
    """Which of two packages has written a file may not be chance: it is one that is known to come last, or an error."""
    bring(tmp_path, "one", same="x", own="1")
    bring(tmp_path, "two", same="x")
    SLIM.check_owners(tmp_path)
    bring(tmp_path, SLIM.LAST[0], own="2")
    SLIM.check_owners(tmp_path)
    (tmp_path / "own.py").write_text("1")
    with pytest.raises(SystemExit, match=rf"own\.py: {SLIM.LAST[0]}, one"):
        SLIM.check_owners(tmp_path)
    bring(tmp_path, "three", same="y")
    with pytest.raises(SystemExit, match=r"same\.py: one, three, two"):
        SLIM.check_owners(tmp_path)


@pytest.mark.parametrize(("generations", "is_kept"), [([], True), ([80, 90], False), ([80, 100], True)])
def test_kernels_of_other_gpus(tmp_path: Path, generations: list[int], is_kept: bool) -> None:
    """Kernels that only Blackwell runs are left out where no GPU of that generation is meant; others stay."""
    for name in ("Sm100fKernel.cubin", "fp8_gemm.cubin"):
        path = tmp_path / "flashinfer_cubin/cubins/1f/fmha" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    SLIM.remove_needless(tmp_path, generations)
    assert [path.name for path in path.parent.iterdir()].count("Sm100fKernel.cubin") == is_kept
    assert path.exists()
