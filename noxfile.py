"""Tests on other Pythons and other versions: ``nox -l`` lists the sessions.

    nox -s tests                 # each Python that is supported, in today's versions
    nox -s lowest lowest-jax     # the lower bounds of setup.cfg: without JAX, then with it

Sessions are kept and used again: ``nox -R``. ``make test`` runs the tests in ``.venv``.
"""

import re
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
NAMED = re.compile("jax|torch", re.I)
"""What tests of JAX and PyTorch name."""


def tried(session: nox.Session, extras: str, versions: str, *files: str) -> None:
    """Install the checkout with its extras in some versions, and run the tests."""
    session.install("-c", f"constraints/{versions}.txt", "-e", f".[{extras}]")
    # A file's tests run in one worker, which makes what they share once.
    session.run(
        "python", "-m", "pytest", "-n", "auto", "--dist", "loadfile", *files, *session.posargs
    )


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """All tests but the slow ones, in the versions that are tested together."""
    tried(session, "agents,jax,envs,dev", "tested")


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """All tests that need no JAX, in the lowest versions that setup.cfg allows."""
    tried(session, "agents,envs,fast,dev", "lowest")


@nox.session(name="lowest-jax", python=PYTHONS[1])
def lowest_jax(session: nox.Session) -> None:
    """The tests of JAX and PyTorch, in their lowest versions, on the lowest Python of JAX."""
    files = (
        path for path in Path("tests").rglob("test_*.py") if NAMED.search(path.read_text("utf-8"))
    )
    tried(session, "agents,torch,envs,dev", "lowest-jax", *sorted(map(str, files)))
