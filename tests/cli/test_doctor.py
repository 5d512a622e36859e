"""``parenvs doctor`` finds what is missing or changed, and says the remedy."""

import json
import shutil
import sys
from importlib import metadata

import pytest

from parenvs.agents.learning.network import file_of
from parenvs.cli import app as cli
from parenvs.cli import doctor
from parenvs.instances import data_folder, manifest


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A copy of the data of one model, in place of all that ships."""
    folder = tmp_path / "datasets" / "data"
    weights = tmp_path / "agents" / "learning" / "data"
    folder.mkdir(parents=True)
    weights.mkdir(parents=True)
    entry = manifest()["instances"]["vgg-19"]
    for graph in entry["graphs"].values():
        shutil.copy(data_folder() / graph["file"], folder)
    shutil.copy(data_folder() / "plan-validation.npz", folder)
    (folder / "manifest.json").write_text(json.dumps({"instances": {"vgg-19": entry}}))
    shutil.copy(file_of("ElasticPlan-v2"), weights)
    monkeypatch.setattr(doctor, "data_folder", lambda: folder)
    monkeypatch.setattr(doctor, "manifest", lambda: {"instances": {"vgg-19": entry}})
    return folder


def test_doctor__data_that_is_missing_changed_or_damaged(data):
    sound = doctor.diagnosis().faults
    graph, problems = data / "vgg-19.npz", data / "plan-validation.npz"
    whole = graph.read_bytes()
    graph.unlink()
    weights = data.parents[1] / "agents" / "learning" / "data" / "ElasticPlan-v2.npz"
    weights.unlink()
    problems.write_bytes(problems.read_bytes()[:1000])
    (data / "more.json").write_text("{")
    faults = [x for x in doctor.diagnosis().faults if x not in sound]
    assert len(faults) == 4
    (missing,) = [words for words in faults if "vgg-19.npz is missing" in words]
    assert "git checkout" in missing or "install the package anew" in missing
    for words in ("no networks", "plan-validation.npz", "more.json"):
        assert any(words in fault for fault in faults)
    graph.write_bytes(whole[:-1] + b"x")
    faults = doctor.diagnosis().faults
    assert any("not the file that was published" in words for words in faults)


def test_doctor__missing_extra_and_old_package(monkeypatch):
    real = metadata.version

    def version(name):
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return "1.9" if name == "numpy" else real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    found = doctor.diagnosis()
    assert "torch is not installed" in found.extras["agents"]
    assert found.extras["agents"] != [] and not found.healthy
    assert any(words.startswith("numpy 1.9 is older than ") for words in found.faults)
    text = "\n".join(doctor.lines(found))
    assert "[agents]'" in text and text.endswith("1 broken")


def test_doctor__of_this_checkout(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["parenvs", "doctor", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, said["faults"]
    assert said["healthy"] and set(doctor.PURPOSES) >= set(said["extras"])
