"""The ``parenvs`` command, which names no task: a task's options are flags, see ``Task``."""

from parenvs.cli.app import main

__all__ = ["main"]
