"""Banks whose files lost something, and the command that makes them."""

import zipfile

import numpy as np
import pytest
from cases import each

from benchmarks.make_sets import main, write_pool
from parenvs.datasets import banks
from parenvs.errors import ParenvsError


@pytest.fixture
def bank(tmp_path, monkeypatch):
    monkeypatch.setattr(banks, "data_folder", lambda: tmp_path)
    (tmp_path / banks.FOLDER).mkdir()
    made = banks.Bank("small", 3)
    row = lambda kind, k: {"a": np.arange(2) + k, "b": np.ones(k + 1)}  # noqa: E731
    path = tmp_path / banks.FOLDER / made.file
    assert write_pool(lambda kind: made, row, "small", path, 0) == 3
    return made


def test_bank__rows_are_as_they_were_made(bank):
    assert [bank[k]["a"].tolist() for k in range(3)] == [[0, 1], [1, 2], [2, 3]]
    assert [len(bank[k]["b"]) for k in range(3)] == [1, 2, 3]


def test_bank__a_lost_array_is_said(bank, tmp_path):
    path = tmp_path / banks.FOLDER / bank.file
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if name != "a.npy"}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in kept.items():
            archive.writestr(name, content)
    with pytest.raises(ParenvsError, match="no array 'a'; see parenvs doctor"):
        bank[0]["a"]


@each(
    ("arguments", "words"),
    [
        (["plan"], "no file 'plan'"),
        (["partition-trial.json"], "did you mean 'partition-train.json'"),
        (["plan-test.npz", "--seed", "-1"], "--seed is -1; give 0 or more"),
        (["banks/hybrid-hybrid.npz", "--seed", "1"], "has one seed; leave it out"),
    ],
)
def test_make_sets__wrong_arguments(arguments, words, capsys, tmp_path):
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--out", str(tmp_path)])
    assert words in capsys.readouterr().err and not any(tmp_path.iterdir())
