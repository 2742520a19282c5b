"""The list that an image has of itself, beside what its tools find in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from containers import IMAGE, docker
from raydebug.cluster.compose.image import copy_sbom
from raydebug.errors import RaydebugError
from raydebug.settings.flavours import normalise, read_lock

ROOT = Path(__file__).resolve().parents[2]
IMPORTLIB = "from importlib.metadata import distributions\nfor one in distributions(): print(one.name, one.version)"


def inside(*argv: str) -> list[str]:
    return docker("run", "--rm", "--network", "none", IMAGE, *argv).splitlines()


def test_the_image_has_what_it_says(tmp_path: Path) -> None:
    """What `raydebug image --sbom` writes is what Python and dpkg list in the image, and has the lock's hashes."""
    file = tmp_path / "core.cdx.json"
    copy_sbom(IMAGE, file)
    components = json.loads(file.read_text())["components"]
    python = {one["name"]: one for one in components if one["purl"].startswith("pkg:pypi/")}
    found = (line.split() for line in inside("python", "-c", IMPORTLIB))
    assert {name: one["version"] for name, one in python.items()} == {normalise(name): v for name, v in found}
    listed = inside("dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\n")
    debian = [one for one in components if one["purl"].startswith("pkg:deb/debian/")]
    assert sorted((one["name"], one["version"]) for one in debian) == sorted(tuple(line.split()[:2]) for line in listed)
    lock = read_lock(ROOT / "env" / "core.lock")
    assert set(lock.pins) - lock.elsewhere | {"raydebug"} == set(python)
    assert [one["content"] for one in python["ray"]["hashes"]] == list(lock.hashes["ray"])


def test_check_env_in_the_image() -> None:
    """The probe of `check env` finds no difference in an image as it was built."""
    code = "import json; from raydebug.check.probes import installed; print(json.dumps(installed.gather()))"
    facts = json.loads(inside("python", "-c", code)[-1])
    assert facts["installed"] == facts["listed"]
    assert len(facts["listed"]) > 100


def test_an_image_without_a_list(tmp_path: Path) -> None:
    """A file that cannot be written is an error in words, and no container is left."""
    before = docker("ps", "-aq")
    with pytest.raises(RaydebugError) as caught:
        copy_sbom(IMAGE, tmp_path / "missing" / "core.cdx.json")
    assert "name a file that can be written" in caught.value.fix
    assert docker("ps", "-aq") == before
