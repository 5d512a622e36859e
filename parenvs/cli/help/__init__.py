"""What helps at the command line: an example of every command, and ``parenvs doctor``."""

from parenvs.cli.help.doctor import add_doctor
from parenvs.cli.help.examples import add_examples

__all__ = ["add_doctor", "add_examples"]
