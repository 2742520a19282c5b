"""ci/base-image with packages that the mirror has no longer; needs root and apt's sources of Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GONE = ("zlib1g", "procps")


@pytest.mark.timeout(300)
def test_packages_that_are_gone(tmp_path: Path) -> None:
    """A package that the mirror has no longer comes from the archive of versions; one that is nowhere is named."""
    if os.geteuid() or not shutil.which("mmdebstrap"):
        pytest.skip("it needs root and mmdebstrap (`ci/base-image` installs that)")
    for name in ("ci/base-image", "env/base-bookworm.list"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    file = tmp_path / "env/base-bookworm.list"
    text = file.read_text()
    moment = next(line.split()[-1] for line in text.splitlines() if line.startswith("# snapshot: "))
    versions = {line.split()[0]: line.split()[1] for line in text.splitlines() if not line.startswith("#")}
    places = {line.split()[0]: line.split()[-1] for line in text.splitlines() if not line.startswith("#")}
    fetched = subprocess.run(
        ["apt-get", "download", f"{GONE[0]}={versions[GONE[0]]}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    (package,) = tmp_path.glob("*.deb") or pytest.skip(fetched.stderr)
    for name in GONE:
        text = text.replace(places[name], places[name].replace("pool/", "pool/gone/"))
    file.write_text(text)
    kept = tmp_path / "snapshots/debian" / moment / places[GONE[0]].replace("pool/", "pool/gone/")
    kept.parent.mkdir(parents=True)
    shutil.move(package, kept)
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path / "snapshots")
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environ = {**os.environ, "SNAPSHOT": f"http://127.0.0.1:{server.server_port}"}
        done = subprocess.run(
            [tmp_path / "ci/base-image"], env=environ, capture_output=True, text=True, timeout=250, check=False
        )
        server.shutdown()
    names = [Path(places[name]).name for name in GONE]
    assert done.returncode == 5, done.stderr
    assert f"the mirror has no longer: {names[1]} {names[0]}; asking SNAPSHOT" in done.stderr
    assert f"not on the mirror or at SNAPSHOT, with their hashes, are: {names[1]}\n" in done.stderr
    assert "`ci/base-image --list bookworm`: it takes today's packages" in done.stderr


def test_unknown_list() -> None:
    """A list that does not exist is answered with those that do."""
    done = subprocess.run([ROOT / "ci/base-image", "nowhere"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 5
    assert "fix: one of: bookworm-dev bookworm trixie-dev" in done.stderr
