"""Bills of materials against the schema that the CycloneDX project publishes with its library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator  # Ray's dashboard asks for it
from referencing import Registry, Resource

import sbom
from raydebug.settings.flavours import FLAVOURS
from wheels.conftest import install

# Apache-2.0, kept by the CycloneDX project; only the schemas in it are read.
LIBRARY = "cyclonedx-python-lib==11.12.0 --hash=sha256:0e807521a921a5c3cb8ce1153f8a61d29eedfe76a46aac2796b7c6b573391a54"


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Draft7Validator:
    schemas = install([LIBRARY], tmp_path_factory.mktemp("cyclonedx") / "library") / "cyclonedx" / "schema" / "_res"
    names = ("bom-1.6", "spdx", "jsf-0.82")
    bom, *others = (json.loads((schemas / f"{name}.SNAPSHOT.schema.json").read_text()) for name in names)
    # The library names its copies *.SNAPSHOT.schema.json, in the references too; their ids are the published ones.
    text = json.dumps(bom).replace(".SNAPSHOT.schema.json", ".schema.json")
    registry: Registry[Any] = Registry().with_resources((one["$id"], Resource.from_contents(one)) for one in others)
    return Draft7Validator(json.loads(text), registry=registry)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_valid(validator: Draft7Validator, flavour: str) -> None:
    """The bill of materials of each flavour is valid CycloneDX 1.6."""
    document = json.loads(sbom.sbom_of(flavour).read_text())
    assert [error.message for error in validator.iter_errors(document)] == []


def test_of_an_image_is_valid(validator: Draft7Validator) -> None:
    """So is that of an image, made here of this environment and this machine's Debian packages."""
    if not Path("/etc/os-release").exists():
        pytest.skip("no Linux distribution here")
    assert [error.message for error in validator.iter_errors(json.loads(sbom.of_image("core")))] == []


def test_a_mistake_is_found(validator: Draft7Validator) -> None:
    """The schema refuses a licence that is not on SPDX's list, and a hash that is none: the references are followed."""
    document = json.loads(sbom.sbom_of("core").read_text())
    document["components"][0]["licenses"] = [{"license": {"id": "Apache License"}}]
    document["components"][1]["hashes"][0]["content"] = "abc"
    assert len(list(validator.iter_errors(document))) == 2
