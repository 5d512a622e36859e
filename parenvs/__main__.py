"""``python -m parenvs`` is the ``parenvs`` command."""

from parenvs.cli import main

main()
