"""Croissant metadata and datasheet: as committed, whole, and true of the files."""

import hashlib
import json

import pytest

from parenvs.core.registry import TASKS
from parenvs.datasets import croissant
from parenvs.shipped import data_folder, names

FILE = data_folder() / croissant.METADATA
CROISSANT, RAI = (f"http://mlcommons.org/croissant/{x}1.0" for x in ("", "RAI/"))


@pytest.fixture(scope="module")
def content():
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_croissant__is_what_the_command_makes(tmp_path, monkeypatch, capsys):
    assert croissant.main(["--check"]) == 0
    changed = {tmp_path / "a.json": "new", tmp_path / "b.md": "same"}
    (tmp_path / "b.md").write_text("same")
    monkeypatch.setattr(croissant, "made", lambda: changed)
    assert croissant.main(["--check"]) == 2 and "a.json is another one" in capsys.readouterr().err
    assert croissant.main([]) == 0 and (tmp_path / "a.json").read_text() == "new"


def test_croissant__describes_every_file_as_it_is(content):
    listed = {file["@id"]: file for file in content["distribution"]}
    assert sorted(listed) == croissant.files() and len(listed) == len(content["distribution"])
    for path, file in listed.items():
        assert file["@type"] == "cr:FileObject"
        assert {"name", "contentUrl", "encodingFormat", "contentSize"} <= set(file)
        data = (data_folder() / file["contentUrl"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(data).hexdigest()
        assert file["contentSize"] == f"{len(data)} B"
        assert f"Licence: {croissant.licence_of(path).licence}." in file["description"]
    used = {croissant.licence_of(path) for path in listed}
    assert used == set(croissant.LICENCES)  # no row is about nothing


def test_croissant__has_what_the_format_asks_for(content):
    """By a reading of the specification: required properties, and records of the fields named."""
    required = {"@context", "@type", "name", "description", "license", "url", "creator"}
    assert required | {"datePublished", "version", "conformsTo", "citeAs"} <= set(content)
    assert content["@type"] == "sc:Dataset" and content["conformsTo"] == [CROISSANT, RAI]
    assert content["@context"]["cr"] == "http://mlcommons.org/croissant/"
    ids = [file["@id"] for file in content["distribution"]]
    for records in content["recordSet"]:
        fields = {field["@id"]: field for field in records["field"]}
        assert records["@type"] == "cr:RecordSet" and records["key"]["@id"] in fields
        ids += [records["@id"], *fields]
        keys = [row[records["key"]["@id"]] for row in records["data"]]
        assert len(keys) == len(set(keys)) > 0
        kinds = {"sc:Text": str, "sc:Integer": int}
        for row in records["data"]:
            assert set(row) == set(fields)
            assert all(type(x) is kinds[fields[name]["dataType"]] for name, x in row.items())
    assert len(ids) == len(set(ids))


def test_croissant__says_what_responsible_use_needs(content):
    """Fields of the vocabulary for responsible AI; the datasheet has the same words."""
    needed = (
        "dataCollection", "dataBiases", "dataLimitations", "dataUseCases", "dataSocialImpact",
        "personalSensitiveInformation", "dataReleaseMaintenancePlan", "dataAnnotationProtocol",
        "dataPreprocessingProtocol",
    )  # fmt: skip
    sheet = (data_folder().parent / croissant.SHEET).read_text(encoding="utf-8")
    for name in needed:
        assert len(content[f"rai:{name}"]) > 80 and content[f"rai:{name}"] in sheet
    sets, models = (records["data"] for records in content["recordSet"])
    assert {row["sets/name"] for row in sets} == {x for task in TASKS.values() for x in task.sets}
    assert {row["models/name"] for row in models} == set(names())


def test_croissant__is_valid_by_its_own_library():
    library = pytest.importorskip("mlcroissant")
    read = library.Dataset(jsonld=str(FILE))
    assert not read.metadata.issues.errors and not read.metadata.issues.warnings
    rows = list(read.records("sets"))
    assert len(rows) == sum(len(task.sets) for task in TASKS.values())
