"""Running the ``parenvs`` command in this process."""

import sys
from functools import cache

import pytest
import typer

from parenvs.cli import app as cli
from parenvs.core.registry import TASKS


@cache
def command(tasks):
    """The command with the options of these tasks: it takes half of the time of most tests."""
    return typer.main.get_command(cli.app)


def main(monkeypatch, *arguments):
    """Run ``parenvs`` as a program would, up to its end; its exit status."""
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(cli, "app", command(tuple(TASKS)))
        patch.setattr(sys, "argv", ["parenvs", *map(str, arguments)])
        cli.main()
    return ended.value.code


def caller(monkeypatch, capfd, folder, *first):
    """``call("show", ...)`` in a folder: (status, stdout, stderr); ``first`` comes before."""
    monkeypatch.chdir(folder)

    def call(*arguments):
        capfd.readouterr()
        status = main(monkeypatch, *first, *arguments)
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return call
