"""Banks whose files lost something."""

import zipfile

import numpy as np
import pytest

from parenvs.datasets import banks
from parenvs.errors import ParenvsError


@pytest.fixture
def bank(tmp_path, monkeypatch):
    monkeypatch.setattr(banks, "data_folder", lambda: tmp_path)
    (tmp_path / banks.FOLDER).mkdir()
    made = banks.Bank("small", 3, lambda k: {"a": np.arange(2) + k, "b": np.ones(k + 1)})
    made.write(tmp_path / banks.FOLDER / made.file)
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
