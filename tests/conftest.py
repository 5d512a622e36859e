"""One thread a worker, and the longest tests first, so that no worker ends alone."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers with threads each get in each other's way

LONGEST = ("test_readme__python_examples_run[README.md", "test_bench_speed__quick", "test_pretrain")


def pytest_collection_modifyitems(items):
    """Put the longest tests in front; the others keep their order."""
    items.sort(key=lambda item: not item.name.startswith(LONGEST))
