"""The order of the tests: what takes longest comes first, so that no worker ends alone."""

LONGEST = ("test_readme__python_examples_run[README.md", "test_bench_speed__quick", "test_pretrain")


def pytest_collection_modifyitems(items):
    """Put the longest tests in front; the others keep their order."""
    items.sort(key=lambda item: not item.name.startswith(LONGEST))
