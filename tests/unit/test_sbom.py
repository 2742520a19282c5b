"""Bills of materials: what they have of a lock and of an image, and how one that does not fit is found."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from test_locks import BODY, A, B

import sbom
from lock_files import write_lock
from raydebug.check import env
from raydebug.check.probes import installed
from raydebug.errors import RaydebugError
from raydebug.settings.flavours import FLAVOURS, Lock, normalise, read_lock

LICENCES: dict[tuple[str, str], sbom.Licences] = {
    ("ray", "2.60.0"): [{"license": {"id": "Apache-2.0"}}],
    ("torch", "2.13.0+cpu"): [],
}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lock:
    """A lock of two packages in a folder of pins with its bill of materials."""
    monkeypatch.setattr(sbom, "ENV", tmp_path)
    write_lock(tmp_path / "core.lock", flavour="core", python="3.11", inputs=[], body=BODY)
    (tmp_path / "sbom").mkdir()
    lock = read_lock(tmp_path / "core.lock")
    sbom.sbom_of("core").write_text(sbom.from_lock(lock, LICENCES))
    return lock


def refusal(lock: Lock) -> RaydebugError:
    with pytest.raises(RaydebugError) as caught:
        sbom.check(lock, ["core"])
    assert caught.value.exit_code == 2
    return caught.value


def test_what_it_has_of_a_lock(lock: Lock) -> None:
    """It has name, version, hashes, licence and purl of what the lock installs on Linux, and the lock's digest."""
    document = json.loads(sbom.sbom_of("core").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["properties"][0] == {"name": "raydebug:lock", "value": lock.body}
    ray, torch = document["components"]
    assert ray == {
        "type": "library", "bom-ref": "pkg:pypi/ray@2.60.0", "name": "ray", "version": "2.60.0",
        "purl": "pkg:pypi/ray@2.60.0", "licenses": [{"license": {"id": "Apache-2.0"}}],
        "hashes": [{"alg": "SHA-256", "content": A}, {"alg": "SHA-256", "content": B}],
    }  # fmt: skip
    assert (torch["purl"], "licenses" in torch) == ("pkg:pypi/torch@2.13.0%2Bcpu", False)
    sbom.check(lock, ["core"])


@pytest.mark.parametrize(
    ("old", "new"),
    [("ray==2.60.0", "ray==2.61.0"), (A, "c" * 64), (f"torch==2.13.0+cpu \\\n    --hash=sha256:{B}\n", "")],
    ids=["version", "hash", "package"],
)
def test_stale(lock: Lock, tmp_path: Path, old: str, new: str) -> None:
    """A lock that was made anew without it is an error that says what to run."""
    write_lock(tmp_path / "core.lock", flavour="core", python="3.11", inputs=[], body=BODY.replace(old, new))
    assert str(refusal(read_lock(tmp_path / "core.lock"))) == (
        "error: env/sbom/core.cdx.json does not fit env/core.lock\n"
        "cause: it was not made from this lock, or was edited by hand\n"
        "fix: nox -s lock"
    )


def test_edited_by_hand(lock: Lock) -> None:
    """A licence that was changed in it, a component that was deleted, and a missing file are found too."""
    file = sbom.sbom_of("core")
    text = file.read_text()
    file.write_text(text.replace("Apache-2.0", "MIT"))
    assert refusal(lock).code == "sbom.stale"
    file.write_text("".join(line for line in text.splitlines(keepends=True) if "torch" not in line))
    assert refusal(lock).code in ("sbom.stale", "sbom.unreadable")
    file.unlink()
    assert refusal(lock).code == "sbom.stale"


@pytest.mark.parametrize("text", ["", "[]", '{"components": 1}', '{"components": [{"name": "ray"}]}', "\0"])
def test_unreadable(lock: Lock, text: str) -> None:
    """A file that is no bill of materials is refused in words."""
    sbom.sbom_of("core").write_text(text)
    failure = refusal(lock)
    assert failure.code == "sbom.unreadable"
    assert failure.fix == "git checkout -- env/sbom/core.cdx.json, or delete it and run: nox -s lock"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"license_expression": "Apache-2.0 AND MIT", "license": "BSD"}, "Apache-2.0 AND MIT"),
        ({"license": "Apache License, Version 2.0"}, "Apache-2.0"),
        ({"license": "MPL-2.0 AND MIT"}, "MPL-2.0 AND MIT"),
        ({"license": "BSD", "classifier": ["License :: OSI Approved :: BSD License"]}, "BSD"),
        ({"classifier": ["License :: OSI Approved :: MIT License", "Topic :: Software Development"]}, "MIT"),
        (
            {"license": "Copyright (c) NumPy\n...", "classifier": ["License :: OSI Approved :: BSD License"]},
            "BSD License",
        ),
        ({"license": "MIT License\n\nCopyright ..."}, "MIT"),
        ({"classifier": ["License :: Other/Proprietary License"]}, "Other/Proprietary License"),
        ({"license": " ", "classifier": []}, ""),
        ({}, ""),
    ],
)
def test_licences_of_metadata(fields: dict[str, Any], words: str) -> None:
    """The expression counts most, then a short `License`, then the classifiers, then the first line of a text."""
    assert sbom.words_of(sbom.licences_of(fields)) == words


def test_licences_to_look_at() -> None:
    """The table names packages without a licence, with a copyleft one, and with a proprietary one, by flavour."""
    table = sbom.licence_table(FLAVOURS)
    assert "| MPL-2.0 | certifi (core, cpu, cuda, cuda-verl04)" in table
    assert "| none stated | cuda-toolkit (cuda), " in table
    assert "nvidia-cuda-nvcc (cuda)" in table
    assert "numpy" not in table


def test_core_is_what_is_installed_here() -> None:
    """Each package of core's bill of materials is installed in this environment, in its version and licence."""
    has = {normalise(one.name): one for one in metadata.distributions()}
    components = sbom.components_of(sbom.sbom_of("core"))
    assert len(components) > 70
    assert {c["name"]: c["version"] for c in components} == {c["name"]: has[c["name"]].version for c in components}
    for one in components:
        assert one.get("licenses", []) == sbom.licences_of(has[one["name"]].metadata.json), one["name"]


def test_of_an_image(tmp_path: Path) -> None:
    """An image has listed what importlib and dpkg find in it, no more and no less."""
    file = tmp_path / "own.cdx.json"
    subprocess.run([sys.executable, "env/sbom.py", "core", str(file)], cwd=ROOT, check=True, timeout=30)
    components = json.loads(file.read_text())["components"]
    python = {c["name"]: c["version"] for c in components if c["purl"].startswith("pkg:pypi/")}
    # Asked of a Python of its own: other tests of this process may have put more on its path.
    program = (
        "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"
    )
    said = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert python == {normalise(name): version for name, version in json.loads(said.stdout)}
    asked = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version} ${Architecture}\n"]
    try:
        listed = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout
    except FileNotFoundError:
        pytest.skip("no dpkg here")
    wanted = {tuple(line.split()[1:]) for line in listed.splitlines() if line.startswith("installed ")}
    assert set(installed.debian_packages()) == wanted
    debian = [(c["name"], c["version"]) for c in components if c["purl"].startswith("pkg:deb/")]
    assert sorted(debian) == sorted(one[:2] for one in wanted)
    assert all(" " not in c["purl"] and "+" not in c["purl"] for c in components)
    refs = [c["bom-ref"] for c in components]
    assert len(refs) == len(set(refs))


def test_debian_packages_and_licences(tmp_path: Path) -> None:
    """Removed packages do not count; licences come from copyright files in the machine-readable form."""
    status = tmp_path / "status"
    status.write_text(
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9+deb12u10\n"
        "Description: C\n Version: 9 is a line of a text\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n\n"
    )
    assert list(installed.debian_packages(status)) == [("libc6", "2.36-9+deb12u10", "amd64")]
    for name, text in {
        "a": "Format: 1.0\nLicense: GPL-2+\n text\nLicense: Expat\n",
        "b": "License: MIT, in prose",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "copyright").write_text(text)
    assert sbom.words_of(sbom.debian_licences("a", tmp_path)) == "Expat, GPL-2+"
    assert sbom.debian_licences("b", tmp_path) == sbom.debian_licences("missing", tmp_path) == []


def test_an_old_pip_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that would load whole packages for their licences is refused before it runs."""
    monkeypatch.setattr(metadata, "version", lambda name: "23.2.1")
    with pytest.raises(RaydebugError) as caught:
        sbom.ask_licences({"ray": "2.60.0"}, "3.11")
    assert caught.value.code == "sbom.pip"
    assert caught.value.what.startswith("pip 23.2.1 runs beside nox, env/nox.lock has ")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """`image --sbom` into a folder that is not there is refused before the build, not after it."""
    argv = [sys.executable, "-m", "raydebug", "image", "--flavour", "core", "--sbom", str(tmp_path / "no" / "file")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: cannot write {tmp_path / 'no' / 'file'}\n"
        f"cause: there is no folder {tmp_path / 'no'}\n"
        "fix: make the folder first: the file is written when the image is built, minutes from now\n"
    )


# `check env`

CORE = {name: version for name, version in env._lock("core").pins.items() if name not in env._lock("core").elsewhere}


def differences(has: dict[str, str], of_image: dict[str, str] | None) -> list[tuple[str, str, str]]:
    return [(one.severity, one.what, one.why) for one in env._off_the_list(has, of_image, "core")]


def test_an_environment_of_the_lock() -> None:
    """What differs from the lock is counted and named; packages beside the lock are the user's own."""
    assert differences({**CORE, "my-package": "1"}, None) == []
    has = {**CORE, "rich": "1.0", "certifi": "2"}
    del has["six"]
    (found,) = env._off_the_list(has, None, "core")
    assert (found.code, found.severity) == ("env.sbom-differs", "note")
    assert found.what == f"3 of {len(CORE)} packages differ from env/core.lock"
    assert found.why == (
        f"certifi 2 for {CORE['certifi']}, rich 1.0 for {CORE['rich']}, six (not installed) for {CORE['six']}"
    )
    assert found.fix == "uv pip install --no-deps --require-hashes -r env/core.lock"


def test_an_environment_of_somebodys_own() -> None:
    """An environment that was not made from the lock is not compared with it package by package."""
    assert differences(dict.fromkeys(CORE, "0"), None) == []
    assert differences({}, None) == []


def test_an_image(tmp_path: Path) -> None:
    """An image is compared with its own list: added packages and those of Debian count too."""
    listed = {"ray": "2.60.0", "deb:libc6": "2.36", "raydebug": "0.1.0"}
    assert differences(listed, listed) == []
    (found,) = differences({**listed, "deb:libc6": "2.37", "vim": "1"}, listed)
    assert found == (
        "warning",
        "2 of 3 packages differ from the image as it was built",
        "deb:libc6 2.37 for 2.36, vim 1 for (none)",
    )
    many = differences({f"p{number}": "1" for number in range(9)}, listed)
    assert many[0][2].endswith(" and 6 more")


def test_the_list_of_an_image_is_read(tmp_path: Path) -> None:
    """The probe reads the list of its image and what is installed; a list that is damaged is none."""
    own, status = tmp_path / "own.cdx.json", tmp_path / "status"
    status.write_text("Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2\n")
    components = [
        sbom.python_component("ray", "2.60.0", []),
        {"name": "libc6", "version": "1", "purl": "pkg:deb/debian/x"},
    ]
    own.write_text(sbom.document("core", "sha256:0", components))
    facts = installed.gather(own, status)
    assert facts["listed"] == {"ray": "2.60.0", "deb:libc6": "1"}
    assert (facts["installed"]["deb:libc6"], "debugpy" in facts["installed"]) == ("2", True)
    own.write_text(own.read_text()[:-3])
    assert installed.gather(own, status)["listed"] is None
    assert installed.gather(tmp_path / "none")["listed"] is None
