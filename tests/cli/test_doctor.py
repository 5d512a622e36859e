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
    shutil.copy(file_of("PipelinePlan-v1"), weights)
    monkeypatch.setattr(doctor, "data_folder", lambda: folder)
    monkeypatch.setattr(doctor, "manifest", lambda: {"instances": {"vgg-19": entry}})
    return folder


def faults():
    return [*doctor._graphs(True), *doctor._readable()]


def test_doctor__finds_nothing_in_what_is_whole(data):
    assert faults() == []


def test_doctor__missing_graph(data):
    (data / "vgg-19.npz").unlink()
    (words,) = faults()
    assert "vgg-19.npz is missing" in words
    assert "git checkout" in words or "install the package anew" in words


def test_doctor__changed_graph(data):
    path = data / "vgg-19.npz"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert ["not the file that was published" in words for words in faults()] == [True]


def test_doctor__damaged_set_and_json(data):
    path = data / "plan-validation.npz"
    path.write_bytes(path.read_bytes()[:1000])
    (data / "more.json").write_text("{")
    assert len(faults()) == 2
    assert all(name in " ".join(faults()) for name in ("plan-validation.npz", "more.json"))


def test_doctor__missing_weights(data):
    (data.parents[1] / "agents" / "learning" / "data" / "PipelinePlan-v1.npz").unlink()
    assert ["no networks" in words for words in faults()] == [True]


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


def test_doctor__requirements():
    assert doctor._lack("numpy>=1.0") == ""
    assert doctor._lack('numpy>=1.0; python_version >= "3.10" and extra == "x"') == ""
    assert doctor._lack('numpy>=1.0; python_version>="3.99"') == "numpy needs Python 3.99"
    assert doctor._lack("no-such-package") == "no-such-package is not installed"
    assert doctor._lack("numpy>=99").endswith("is older than 99")


def test_doctor__deleted_file_of_a_clone(tmp_path, monkeypatch):
    found = doctor.Diagnosis()

    class Done:
        returncode = 0
        stdout = " D datasets/data/plan-test.npz\n M leaderboard/tasks.json\n M leaderboard/x.py\n"

    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "git")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: Done)
    doctor._clone(tmp_path, found)
    assert len(found.faults) == 1 and "plan-test.npz is missing; git checkout" in found.faults[0]
    assert any("tasks.json differs" in words for words in found.notes)
    assert not any("x.py" in words for words in found.notes)


def test_doctor__of_this_checkout(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["parenvs", "doctor", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, said["faults"]
    assert said["healthy"] and set(doctor.PURPOSES) >= set(said["extras"])
