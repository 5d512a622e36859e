"""One thread a worker, the longest tests first, and those of the second job left to it."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers with threads each get in each other's way

LONGEST = ("test_readme__python_examples_run[README.md", "test_pretrain")
SLOW = Path(__file__).with_name("slow.txt")


@pytest.hookimpl(tryfirst=True)  # before those with a mark are left out
def pytest_collection_modifyitems(config, items):
    """Mark the tests of the second job; of the others the longest come first, that none ends alone.

    A name that no test has is an error, if all tests are collected; files that are skipped as a
    whole, where a package is missing, tell nothing of their names.
    """
    lines = SLOW.read_text(encoding="utf-8").splitlines()
    names = {line for line in lines if not line.startswith("#")}
    for item in items:
        if item.nodeid in names:
            item.add_marker("slow")
    read = {item.path for item in items}
    unknown = sorted(
        name
        for name in names - {item.nodeid for item in items}
        if (path := config.rootpath / name.split("::")[0]) in read or not path.exists()
    )
    if unknown and config.args == config.getini("testpaths"):
        raise pytest.UsageError(f"{SLOW.name}: no test {unknown[0]}")
    items.sort(key=lambda item: not item.name.startswith(LONGEST))
