"""``python -m parenvs`` is the ``parenvs`` command."""

from parenvs.cli.app import main

main()
