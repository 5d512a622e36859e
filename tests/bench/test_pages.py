"""The pages of ``benchmarks/results`` are what their measurements show of the files beside them."""

import shlex
from importlib import import_module
from pathlib import Path

import pytest
from cases import slow

from benchmarks.framework import parser
from parenvs.bench.measurement import MEASUREMENTS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SCRIPT = "python benchmarks/"


def head(path):
    """The command and the machine of a page."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return lines[2].strip("`"), lines[4]


EARLIER = ("mutants",)
"""Pages about sources that have changed since."""
PAGES = [path.stem for path in sorted(RESULTS.glob("*.md")) if head(path)[0].startswith(SCRIPT)]
PAGES = [name for name in PAGES if name not in EARLIER]


LONG = ("classes", "elastic", "packed_order", "paper_claims", "partition_families")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*(x for x in PAGES if x not in LONG), *slow(*LONG)])
def test_pages__are_made_of_the_rows(name):
    command, machine = head(RESULTS / f"{name}.md")
    _, script, *words = shlex.split(command)
    try:
        import_module(f"benchmarks.{Path(script).stem}")
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    measured = MEASUREMENTS[Path(script).stem]
    options = vars(parser(measured).parse_args(words))
    data = measured.run(RESULTS, options, render=True)
    shown = measured.shown(data, RESULTS, options, command, machine)
    assert shown[name] == (RESULTS / f"{name}.md").read_text(encoding="utf-8")
