"""The pages of ``benchmarks/results`` are what their measurements show of the files beside them."""

import re
from pathlib import Path

import pytest
from cases import slow

from benchmarks.framework import MADE, RESULTS, pages, remade

EARLIER = ("mutants", "compute")
"""Pages about sources that have changed since; ``make renew`` holds the sum of all files."""
PAGES = [name for name in pages() if name not in EARLIER]
LONG = ("classes", "elastic", "paper_claims")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*(x for x in PAGES if x not in LONG), *slow(*LONG)])
def test_pages__are_made_of_the_rows(name):
    try:
        made = remade(name)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    assert made == (RESULTS / f"{name}.md").read_text(encoding="utf-8")


def test_pages__say_which_commit_they_are_of():
    """Pages of before say that it was not recorded."""
    for page in sorted(RESULTS.glob("*.md")):
        lines = page.read_text(encoding="utf-8").splitlines()
        assert lines[2].startswith("`") and lines[2].endswith("`"), page
        assert re.search(r"(^|; )commits? (not recorded|[0-9a-f]{12})", lines[MADE]), page


def test_pages__need_nothing_that_outsiders_do_not_have():
    """No row and no page names a file beside the checkout."""
    for path in Path(RESULTS).iterdir():
        assert path.suffix == ".png" or "../shared/" not in path.read_text(encoding="utf-8"), path
