"""``run("plan", ...)`` in an empty folder, for the tests of all commands."""

import pytest
from commands import caller


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("plan", ...)`` in an empty folder: (status, stdout, stderr)."""
    folder = tmp_path / "here"
    folder.mkdir()
    return caller(monkeypatch, capfd, folder)
