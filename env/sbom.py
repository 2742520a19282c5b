"""The software bill of materials of each flavour, CycloneDX 1.6: `nox -s lock` makes it, `nox -s lint` checks it.

`env/sbom/FLAVOUR.cdx.json` has the packages of `env/FLAVOUR.lock`, the same bytes for the same lock. An image has its
own, with what was really installed and Debian's packages: the Dockerfile runs `python env/sbom.py FLAVOUR OUTPUT`.

Source: CycloneDX 1.6 (ECMA-424), schema/bom-1.6.schema.json; purl-spec, types `pypi` and `deb`.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from raydebug.check.probes.installed import debian_packages, python_packages
from raydebug.errors import UsageError
from raydebug.process import run
from raydebug.settings.files import write_named
from raydebug.settings.flavours import Lock, digest, normalise, read_lock

ENV = Path(__file__).resolve().parent
ASK_TIMEOUT_S = 900.0
Component = dict[str, Any]
Licences = list[dict[str, Any]]

# How metadata spell the common licences, in lower case, and their identifiers in SPDX's list.
_SPELLINGS = {
    "Apache-2.0": "apache 2.0, apache license 2.0, apache license, version 2.0, apache 2.0 license",
    "BSD-2-Clause": "",
    "BSD-3-Clause": "3-clause bsd license",
    "CC0-1.0": "",
    "ISC": "isc license, isc license (iscl)",
    "MIT": "mit license",
    "MPL-2.0": "mozilla public license 2.0 (mpl 2.0)",
    "PSF-2.0": "",
    "Unlicense": "the unlicense (unlicense)",
}
_SPDX = {
    word: spdx for spdx, words in _SPELLINGS.items() for word in (spdx.lower(), *re.split(r", (?!version)", words))
}
# Published as source only, which pip would have to build to read its metadata: what their PKG-INFO says.
SOURCE_ONLY = {"antlr4-python3-runtime": "BSD", "flash-attn": "BSD License"}
COPYLEFT = re.compile(r"GPL|MPL|Mozilla|EPL|CDDL|EUPL|OSL")
PROPRIETARY = re.compile(r"(?i)proprietary|end user")
NAME_LENGTH_MAX = 100  # a longer field `License` is the text of one


def sbom_of(flavour: str) -> Path:
    """Return the file of a flavour's bill of materials."""
    return ENV / "sbom" / f"{flavour}.cdx.json"


def document(flavour: str, lock_digest: str, components: Iterable[Component]) -> str:
    """Return a bill of materials, one component a line; no time and no serial number, so that it is always the same."""
    lines = [json.dumps(one) for one in sorted(components, key=lambda one: str(one["purl"]))]
    head = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "platform", "bom-ref": "raydebug", "name": f"raydebug:{flavour}"},
            "properties": [
                {"name": "raydebug:lock", "value": lock_digest},
                {"name": "raydebug:components", "value": digest(lines)},  # shows that none was edited by hand
            ],
        },
    }
    return json.dumps(head)[:-1] + ', "components": [\n' + ",\n".join(lines) + "\n]}\n"


def python_component(name: str, version: str, licences: Licences, sha256s: Iterable[str] = ()) -> Component:
    """Return the component of a Python package; `sha256s` are those of all its files that may be installed."""
    hashes = [{"alg": "SHA-256", "content": sha256} for sha256 in sha256s]
    return _component(f"pkg:pypi/{name}@{quote(version, safe='')}", name, version, licences, hashes)


def _component(purl: str, name: str, version: str, licences: Licences, hashes: list[dict[str, str]]) -> Component:
    parts = {"licenses": licences, "hashes": hashes}
    return {
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
        **{key: value for key, value in parts.items() if value},
    }  # fmt: skip


def licences_of(fields: Mapping[str, Any]) -> Licences:
    """Return the licences that a package's metadata state, as CycloneDX has them; empty where they state none.

    Args:
        fields: the metadata as JSON (PEP 566): `license_expression`, `license`, `classifier`.
    """
    if expression := fields.get("license_expression"):
        return [{"expression": expression}]
    text = (fields.get("license") or "").strip()
    if text and len(text) <= NAME_LENGTH_MAX and "\n" not in text:
        return _named(text)
    classified = [c.rpartition(" :: ")[2] for c in fields.get("classifier", ()) if c.startswith("License :: ")]
    if classified:
        return [one for name in sorted(set(classified)) for one in _named(name)]
    return _named(text.partition("\n")[0].strip())


def _named(name: str) -> Licences:
    if not name:
        return []
    if spdx := _SPDX.get(name.lower()):
        return [{"license": {"id": spdx}}]
    if all(part in _SPELLINGS for part in re.split(" AND | OR ", name)):
        return [{"expression": name}]
    return [{"license": {"name": name}}]


def words_of(licences: Licences) -> str:
    """Return licences in words, empty for none."""
    each = [one.get("expression") or one["license"].get("id") or one["license"]["name"] for one in licences]
    return ", ".join(each)


def from_lock(lock: Lock, licences: Mapping[tuple[str, str], Licences]) -> str:
    """Return the bill of materials of a lock: what it installs on Linux.

    Raises:
        KeyError: the licences of a package are not known.
    """
    components = [
        python_component(name, version, licences[name, version], lock.hashes[name])
        for name, version in lock.pins.items()
        if name not in lock.elsewhere
    ]
    return document(lock.flavour, lock.body, components)


def known_licences(flavours: Iterable[str]) -> dict[tuple[str, str], Licences]:
    """Return the licences of each package and version that the flavours' bills of materials have already.

    Raises:
        RaydebugError: `sbom.unreadable`.
    """
    known = {}
    for flavour in flavours:
        for one in components_of(sbom_of(flavour)):
            known[one["name"], one["version"]] = one.get("licenses", [])
    return known


def components_of(path: Path) -> list[Component]:
    """Return the components of a bill of materials; none where there is no file.

    Raises:
        RaydebugError: `sbom.unreadable`, it is no bill of materials.
    """
    if not path.exists():
        return []
    try:
        components = json.loads(path.read_bytes())["components"]
        return [one for one in components if one["name"] and one["version"] and one["purl"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"cannot read {path}",
            cause=f"it is no bill of materials: {type(error).__name__}: {error}",
            fix=f"git checkout -- env/sbom/{path.name}, or delete it and run: nox -s lock",
            code="sbom.unreadable",
        ) from error


def make(lock: Lock, flavours: Iterable[str]) -> None:
    """Write the bill of materials of a lock; pip is asked for the licences of packages that none has yet."""
    known = known_licences(flavours)
    new = {name: v for name, v in lock.pins.items() if (name, v) not in known and name not in lock.elsewhere}
    asked = ask_licences({n: v for n, v in new.items() if n not in SOURCE_ONLY}, lock.python.split()[0])
    asked |= {name: _named(SOURCE_ONLY[name]) for name in new if name in SOURCE_ONLY}
    file = sbom_of(lock.flavour)
    file.parent.mkdir(exist_ok=True)
    write_named(file, from_lock(lock, known | {(n, v): asked[n] for n, v in new.items()}), mode=None)


def ask_licences(pins: Mapping[str, str], python: str) -> dict[str, Licences]:
    """Return the licences of packages by their metadata, which pip reads out of the index without the packages.

    Source: pip 26.3: `--report` has the metadata, `--dry-run` with `fast-deps` loads nothing else of a wheel.
    """
    if not pins:
        return {}
    if (has := metadata.version("pip")) != (wants := read_lock(ENV / "nox.lock").pins["pip"]):
        raise UsageError(
            f"pip {has} runs beside nox, env/nox.lock has {wants}",
            cause="licences are read with pip, and older ones load whole packages for it",
            fix=f"{sys.executable} -m pip install --require-hashes -r env/nox.lock",
            code="sbom.pip",
        )
    with tempfile.TemporaryDirectory(prefix="raydebug-sbom-") as folder:
        wanted, report = Path(folder, "wanted.txt"), Path(folder, "report.json")
        # Without torch's "+cpu", which the public index does not have.
        wanted.write_text("".join(f"{name}=={version.partition('+')[0]}\n" for name, version in pins.items()))
        # pip has no "any glibc": each one by its number.
        platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(40, 4, -1)]
        platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
        run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"),
                *("--use-feature", "fast-deps", "--only-binary", ":all:", "--python-version", python),
                *(option for platform in platforms for option in ("--platform", platform)),
                *("--target", str(Path(folder, "nothing")), "--report", str(report), "--requirement", str(wanted)),
            ],
            timeout_s=ASK_TIMEOUT_S,
            fix="pip names the package; one that is published as source only goes into SOURCE_ONLY of env/sbom.py",
        )
        found = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    by_name = {normalise(one["name"]): licences_of(one) for one in found}
    return {name: by_name[name] for name in pins}


def check(lock: Lock, flavours: Iterable[str]) -> None:
    """Hold a flavour's bill of materials against its lock.

    Raises:
        RaydebugError: `sbom.stale`, it does not have what the lock has; `sbom.unreadable`.
    """
    file = sbom_of(lock.flavour)
    try:
        fits = file.exists() and from_lock(lock, known_licences(flavours)) == file.read_text(encoding="utf-8")
    except KeyError:
        fits = False
    if not fits:
        raise UsageError(
            f"env/sbom/{file.name} does not fit env/{lock.flavour}.lock",
            cause="it was not made from this lock, or was edited by hand",
            fix="nox -s lock",
            code="sbom.stale",
        )


def licence_table(flavours: Iterable[str]) -> str:
    """Return the table of pins.md: packages without a licence in their metadata, and those to look at."""
    names: dict[str, dict[str, list[str]]] = {}
    for flavour in flavours:
        for one in components_of(sbom_of(flavour)):
            words = words_of(one.get("licenses", []))
            if not words or COPYLEFT.search(words) or PROPRIETARY.search(words):
                kind = "proprietary" if PROPRIETARY.search(words) else words or "none stated"
                names.setdefault(kind, {}).setdefault(one["name"], []).append(flavour)
    lines = ["| licence | packages |", "|---|---|"]
    for kind, packages in sorted(names.items()):
        each = [f"{name} ({', '.join(where)})" for name, where in sorted(packages.items())]
        lines.append(f"| {kind} | {', '.join(each)} |")
    return "\n".join(lines)


# In an image


def of_image(flavour: str) -> str:
    """Return the bill of materials of the image that this runs in: its Python's packages and Debian's.

    A Python package of the lock has the lock's hashes and licences; another one has what its metadata state.
    """
    lock = read_lock(ENV / f"{flavour}.lock")
    locked = {(one["name"], one["version"]): one for one in components_of(sbom_of(flavour))}
    components = []
    for name, version, folder in python_packages():
        fields = metadata.PathDistribution(folder).metadata.json
        components.append(locked.get((name, version)) or python_component(name, version, licences_of(fields)))
    os_release = Path("/etc/os-release").read_text(encoding="utf-8")
    release = dict(re.findall(r'^(ID|VERSION_ID|VERSION_CODENAME)="?([^"\n]*)"?$', os_release, re.M))
    distribution = f"{release['ID']}-{release.get('VERSION_ID') or release['VERSION_CODENAME']}"  # sid has no number
    for name, version, architecture in debian_packages():
        purl = f"pkg:deb/{release['ID']}/{quote(name)}@{quote(version, safe=':')}"
        purl += f"?arch={architecture}&distro={distribution}"
        components.append(_component(purl, name, version, debian_licences(name), []))
    return document(flavour, lock.body, components)


def debian_licences(package: str, docs: Path = Path("/usr/share/doc")) -> Licences:
    """Return the licences that a Debian package's copyright file names; empty where it is in prose.

    Source: Debian's machine-readable copyright format 1.0 (DEP-5).
    """
    file = docs / package / "copyright"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    names = re.findall(r"^License: *(\S.*?) *$", text, re.M) if text.startswith("Format:") else []
    return [{"license": {"name": name}} for name in sorted(set(names))]


if __name__ == "__main__":
    write_named(Path(sys.argv[2]), of_image(sys.argv[1]), mode=0o644)
