"""The share of small mistakes in formulas, rules and what tasks share that the tests notice.

    python benchmarks/mutants.py --sample 60 --seed 1

A mutant is a module with one change: an operator, a comparison, a number, a condition or a function
in place of another, or a statement left out. A uniform sample is drawn over all mutants of the
modules. Each is written into a copy of the checkout, where the tests of the module's room run up to
the first that fails. Survivors are listed, so that a reader can tell which of them change nothing.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

from benchmarks.framework import ROOT, Case, Row, columns, main, measurement, percent

ROOMS = {
    "parenvs/core": ("tests/core", "tests/envs"),
    "parenvs/envs": ("tests/envs",),
    "parenvs/fields.py": ("tests/test_fields.py",),
    "parenvs/graph/opcodes.py": ("tests/graph", "tests/partition"),
    "parenvs/tasks/pipeline": ("tests/pipeline",),
    "parenvs/tasks/partition": ("tests/partition",),
    "parenvs/tasks/hybrid": ("tests/hybrid",),
    "parenvs/tasks/sharding": ("tests/sharding",),
    "parenvs/tasks/elastic": ("tests/elastic",),
}
"""Modules, or folders of them -> the tests that are to notice mistakes there."""
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
FUNCTIONS = {
    "max": "min", "maximum": "minimum", "argmax": "argmin", "any": "all", "ceil": "floor",
}  # fmt: skip
FUNCTIONS |= {other: name for name, other in FUNCTIONS.items()}


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the changes of a node; each is a new node."""
    if isinstance(node, ast.Compare):
        for k, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[k] = OPERATORS[type(operator)]()
            yield changed
    elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)):
        if type(node.op) in OPERATORS:
            other = copy.deepcopy(node)
            other.op = OPERATORS[type(node.op)]()
            yield other
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
        yield ast.Attribute(node.value, FUNCTIONS[node.attr], node.ctx)
    elif isinstance(node, ast.Name) and node.id in FUNCTIONS:
        yield ast.Name(FUNCTIONS[node.id], node.ctx)
    elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        yield ast.Pass()


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Yield parent, field and index of every node that runs: no annotations, no f-strings."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for k, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield tree, name, k
                yield from places(child)


def put(parent: ast.AST, name: str, k: int | None, node: ast.AST) -> None:
    """Put a node in its parent's place."""
    if k is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[k] = node


def mutants_of(source: str) -> Iterator[tuple[Row, ast.Module]]:
    """Yield what is changed, and the tree, which holds until the next one is asked for."""
    tree = ast.parse(source)
    for parent, name, k in list(places(tree)):
        held = getattr(parent, name)
        node = held if k is None else held[k]
        around = isinstance(parent, ast.expr)  # a number alone says little
        before = ast.unparse(parent if around else node)
        for changed in variants(node):
            ast.copy_location(changed, node)
            put(parent, name, k, changed)
            after = ast.unparse(parent if around else changed)
            row = {"line": node.lineno, "before": before, "after": after}
            yield row, ast.fix_missing_locations(tree)
            put(parent, name, k, node)


def modules() -> dict[str, tuple[str, ...]]:
    """Return the modules and their tests."""
    result = {}
    for room, tests in ROOMS.items():
        path = ROOT / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            result[file.relative_to(ROOT).as_posix()] = tests
    return result


@cache
def checkout() -> Path:
    """Return a copy of the checkout, which the operating system removes."""
    folder = Path(tempfile.mkdtemp()) / "checkout"
    names = shutil.ignore_patterns(".*", "__pycache__", "runs", "build", "results")
    return Path(shutil.copytree(ROOT, folder, ignore=names))


def tested(module: str, number: int, tests: tuple[str, ...], seconds: float) -> Row:
    """Run the tests of a mutant in the copy."""
    file = checkout() / module
    source = file.read_text(encoding="utf-8")
    row, tree = next(x for k, x in enumerate(mutants_of(source)) if k == number)
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow"]
    command = [sys.executable, "-W", "ignore", "-m", "pytest", *options, *tests]
    try:
        file.write_text(ast.unparse(tree), encoding="utf-8")
        done = subprocess.run(command, cwd=checkout(), capture_output=True, timeout=seconds)
        outcome = "lives" if done.returncode == 0 else "killed"
    except subprocess.TimeoutExpired:
        outcome = "timeout"
    finally:
        file.write_text(source, encoding="utf-8")
    return {**row, "outcome": outcome}


@measurement(
    key="module number digest",
    title="Mistakes that the tests notice",
    about={"sample": "mutants", "seed": "of the sample", "seconds": "of the tests of a mutant"},
)
def mutants(sample: int = 60, seed: int = 0, seconds: float = 600.0) -> Iterator[Case]:
    every: list[tuple[str, int, str]] = []
    for module in modules():
        source = (ROOT / module).read_text(encoding="utf-8")
        digest = hashlib.sha256(source.encode()).hexdigest()[:12]
        every += [(module, number, digest) for number, _ in enumerate(mutants_of(source))]
    for k in np.random.default_rng(seed).permutation(len(every))[:sample]:
        module, number, digest = every[k]
        key = {"module": module, "number": number, "digest": digest}
        yield key, partial(tested, module, number, modules()[module], seconds)


@mutants.page
def page(rows: list[Row]) -> list[str]:
    lives = [row for row in rows if row["outcome"] == "lives"]
    killed, count = len(rows) - len(lives), len(rows)
    # Clopper and Pearson, Biometrika 26(4), 1934.
    low = beta.ppf(0.025, killed, count - killed + 1) if killed else 0.0
    high = beta.ppf(0.975, killed + 1, count - killed) if killed < count else 1.0

    def code(name: str) -> Any:
        return lambda row: "`" + str(row[name]).replace("|", "\\|") + "`"

    return [
        f"{killed} of {count} mutants are killed, {percent(killed / count, 1)}: of all between "
        f"{percent(low, 1)} and {percent(high, 1)}, with 95 % confidence. Survivors:",
        columns(
            lives,
            [("place", lambda row: f"{row['module']}:{row['line']}"),
             ("is", code("before")), ("changed to", code("after"))],
            left=3,
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(mutants)
