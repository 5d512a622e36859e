"""Running the ``parenvs`` command in this process."""

import sys
from functools import cache

import pytest
import typer

from parenvs.cli import app as cli
from parenvs.core.registry import TASKS

GPUS = [("Tesla V100-SXM2-32GB", 32 * 2.0**30)] * 8
"""Those of the machine that commands run on: what is planned where no cluster is given."""


@cache
def command(tasks):
    """The command with the options of these tasks: it takes half of the time of most tests."""
    return typer.main.get_command(cli.app)


def walk(group=None, name=""):
    """Yield every command by its name without ``parenvs``, those of groups among them."""
    group = group or typer.main.get_command(cli.app)
    for inner in group.commands:
        found, whole = group.get_command(None, inner), f"{name} {inner}".strip()
        if hasattr(found, "commands"):
            yield from walk(found, whole)
        else:
            yield whole, found


def main(monkeypatch, *arguments):
    """Run ``parenvs`` as a program would, up to its end; its exit status."""
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(cli, "app", command(tuple(TASKS)))
        patch.setattr("parenvs.machine.gpus", lambda: GPUS)
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


def good(result):
    """The standard output of a command, which must have ended well."""
    status, out, err = result
    assert status == 0, err
    assert "Traceback" not in err
    return out
