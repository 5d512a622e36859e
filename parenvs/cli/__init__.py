"""The ``parenvs`` command."""

from parenvs.cli.app import main

__all__ = ["main"]
