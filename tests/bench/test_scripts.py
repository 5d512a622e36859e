"""Scripts of ``benchmarks`` with their smallest settings: they measure and show their rows."""

import ast
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import run_all
from benchmarks.framework import parser
from benchmarks.learners import Line, answered
from parenvs.bench.measurement import MEASUREMENTS

ROOT = Path(__file__).parents[2]
SMALL = {
    "exact": "--instances vgg-19 --stages 2 --many 0",
    "exact_points": "--count 1 --sets --clusters A --stages 2 --limit 1",
    "corridors": "--pivots 100 --stages 8 --devices 64 --limit 0.1",
    "proofs": "--cases 3 --each 1",
    "limits": "--limits 0.1 --kinds order",
    "simulation": "--plans 20",
    "classes": "--cases 2",
    "conflicts": "--instances vgg-19 --episodes 3",
    "flops": "--models vgg-19",
    "iopddl_growth": "--seconds 1 --largest 1",
    "slow_networks": "--graphs mixer-l16 --limit 0.1",
    "models": "--instances vgg-19",
    "inference": "--most 1 --sets plan-test",
    "reading": "--repeats 1 --graph vgg-19",
    "kills": "--kills 1 --each 1 --kinds plan --commands export",
    "distributions": "--agents ppo --only words",
    "cartpole": "--envs CartPole-v1 --steps 256 --seeds 1 --episodes 2",
    "learners": "--envs HybridPlan-v1 --agents rule --sets hybrid-test --first 1",
    "iopddl_envs": "--only dead --episodes 1",
    "instead": "",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_script__smallest_settings(name, tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / f"{name}.py", *SMALL[name].split()]
    done = subprocess.run(
        [*command, "--out", tmp_path], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.match(rf"# .+\n\n`python benchmarks/{name}\.py", done.stdout)
    assert (tmp_path / f"{name}.md").read_text(encoding="utf-8") == done.stdout


def measurement_of(name):
    """The measurement of a script, or ``None`` where it has none or needs another package."""
    try:
        import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] in ("benchmarks", "parenvs"):
            raise
        return None
    return MEASUREMENTS.get(name)


def test_commands__that_pages_name_are_understood():
    pages = [
        path
        for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", "benchmarks/results/*.md")
        for path in ROOT.glob(pattern)
    ]
    commands = {
        (name, words)
        for path in pages
        for name, words in re.findall(
            r"`python benchmarks/(\w+)\.py ?([^`]*)`", path.read_text(encoding="utf-8")
        )
        if name != "NAME" and "N SEED" not in words  # in place of names and numbers
    }
    known = [(measurement_of(name), words) for name, words in sorted(commands)]
    known = [(measured, words) for measured, words in known if measured is not None]
    assert len(known) > 50
    for measured, words in known:
        parser(measured).parse_args(shlex.split(words))


def test_run_all__names_measurements():
    with_one = [name for name in run_all.SCRIPTS if measurement_of(name)]
    assert len(with_one) > len(run_all.SCRIPTS) - 5  # some need packages that may not be there


def test_scripts__find_helpers_by_the_package_above_them():
    """A script's folder has no helpers; ``benchmarks``, imported first, says where they are."""
    helpers = {path.stem for folder in ("tests/helpers", "examples") for path in
               (ROOT / folder).glob("*.py")}  # fmt: skip
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        order = []
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                order += [name.name.partition(".")[0] for name in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                order.append(node.module.partition(".")[0])
        if "benchmarks" in order:  # else it is a module of scripts
            first = min(
                (order.index(name) for name in order if name in helpers), default=len(order)
            )
            assert order.index("benchmarks") < first, path.name


def test_learners__hindsight_is_no_rival_where_nothing_is_foreseen():
    on = {"machine": "one"}
    learnt = Line("ppo", [{**on, "training": 1.0}], [[0.9, 0.8]], 0.1)
    lines = [learnt, Line("rule", [on], [[0.8, 0.8]], 0.1), Line("exact", [on], [[1.0, 1.0]], 0.01)]
    others = [("exact later", 1.0, 0.01)]
    assert answered(lines, others)[1].startswith("exact 1.0000")
    assert answered(lines, others, foreseen=False)[1:] == [*["rule 0.8000 in 0.1 s"] * 2, "+0.0500"]
