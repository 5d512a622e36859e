"""Running the ``parenvs`` command in this process."""

import sys

import pytest

from parenvs.cli import app as cli


def caller(monkeypatch, capfd, folder, *first):
    """``call("show", ...)`` in a folder: (status, stdout, stderr); ``first`` comes before."""
    monkeypatch.chdir(folder)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["parenvs", *first, *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capfd.readouterr()
        return ended.value.code, captured.out, captured.err

    return call
