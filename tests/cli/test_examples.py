"""Every command ends its help with an example that its own parser takes."""

import shlex

import typer
from cases import each
from commands import walk

from parenvs.cli.app import app

COMMANDS = dict(walk())


@each("name", COMMANDS)
def test_examples__every_command_has_one_that_parses(name):
    command = COMMANDS[name]
    shown = [line[2:] for line in (command.epilog or "").splitlines() if line.startswith("$ ")]
    assert shown, f"parenvs {name} has no example: add a line to parenvs/cli/app.py"
    for line in shown:
        words = shlex.split(line)
        assert words[: 1 + len(name.split())] == ["parenvs", *name.split()], line
        with command.make_context(name, words[1 + len(name.split()) :]):
            pass  # unknown options, and required ones that are missing, raise UsageError


def test_examples__the_program_itself_has_one():
    top = typer.main.get_command(app)
    assert "$ parenvs plan" in top.epilog
    options = {option for parameter in top.params for option in parameter.opts}
    assert {"--install-completion", "--show-completion"} <= options
