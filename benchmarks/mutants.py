"""How many small mistakes in the cost model and in the rules the tests notice.

Each mutant is a module with one change: an operator, a comparison, a number, a condition or a
function in place of another, or a statement left out. It is killed if the tests of its room fail or
take far longer than without it. Everything happens in a copy of the checkout.
"""

from __future__ import annotations

import ast
import copy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from common import ROOT, parser, percent, progress, publish, table

ROOMS = {
    "parenvs/judging.py": ["pipeline/test_judge.py", "partitioning/test_report.py"],
    "parenvs/pipeline/formulas.py": [
        "pipeline/test_formulas.py",
        "pipeline/test_problem.py",
        "pipeline/test_judge.py",
    ],
    "parenvs/pipeline/legality.py": ["pipeline/test_judge.py"],
    "parenvs/pipeline/points.py": [
        "pipeline/test_points.py",
        "agents/exact/test_points.py",
        "envs/test_pipeline_plan.py",
    ],
    "parenvs/partitioning/formulas.py": [
        "partitioning/test_formulas.py",
        "partitioning/test_problem.py",
        "partitioning/test_report.py",
    ],
    "parenvs/partitioning/rules.py": ["partitioning/test_rules.py"],
    "parenvs/partitioning/classes.py": [
        "partitioning/test_report.py",
        "partitioning/test_classes.py",
    ],
    "parenvs/partitioning/legality.py": ["partitioning/test_report.py"],
    "parenvs/partitioning/memory.py": ["partitioning/test_memory.py"],
}
"""Module -> the files under ``tests`` that are to notice mistakes in it, quick ones first."""

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

EQUIVALENT = {
    (
        "parenvs/partitioning/formulas.py",
        "graph.parent >= 0",
        "graph.parent >= 1",
    ): "the first instruction is no loop: a loop has an operand, which stands before it",
}
"""Module, and what is changed to what: changes that no test can see -> the reason."""


@dataclass
class Mutant:
    """One change of one module.

    Attributes:
        module: the module's path.
        line: number of the line.
        before: the expression or statement as it is, with the expression around it.
        after: what it is changed to.
        outcome: ``killed``, ``timeout`` or ``lives``; empty before it ran.
    """

    module: str
    line: int
    before: str
    after: str
    outcome: str = ""


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """The changes of one node; each is a new node."""
    if isinstance(node, ast.Compare):
        for k, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[k] = OPERATORS[type(operator)]()
            yield changed
    elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)):
        if type(node.op) in OPERATORS:
            changed = copy.deepcopy(node)
            changed.op = OPERATORS[type(node.op)]()
            yield changed
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
    """Parent, field and index of every node that runs; annotations and f-strings are left out."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns"):
            continue
        for k, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield tree, field, k
                yield from places(child)


def mutants(module: str, source: str) -> Iterator[tuple[Mutant, str]]:
    """Every mutant of a module, and its source."""
    tree = ast.parse(source)
    for parent, field, k in list(places(tree)):
        held = getattr(parent, field)
        node = held if k is None else held[k]
        around = isinstance(parent, ast.expr)  # a number alone says little
        before = ast.unparse(parent if around else node)
        for changed in variants(node):
            replace(parent, field, k, changed)
            after = ast.unparse(parent if around else changed)
            text = ast.unparse(ast.fix_missing_locations(tree))
            yield Mutant(module, node.lineno, before, after), text
            replace(parent, field, k, node)


def replace(parent: ast.AST, field: str, k: int | None, node: ast.AST) -> None:
    """Put a node in its parent's place."""
    if k is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[k] = node


def outcome(folder: Path, tests: list[str], limit: float | None) -> str:
    """Run test files in the copy; ``limit`` is in seconds."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", *options, *(f"tests/{name}" for name in tests)]
    try:
        done = subprocess.run(
            command, cwd=folder, timeout=limit, stdout=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    return "killed" if done.returncode else "lives"


def examine(folder: Path, module: str, most: int | None, seed: int, end: float) -> list[Mutant]:
    """Run the mutants of a module, or ``most`` that are drawn, until the time ``end``."""
    source = (folder / module).read_text(encoding="utf-8")
    every = list(mutants(module, source))
    order = np.random.default_rng(seed).permutation(len(every))[:most]
    start = time.perf_counter()
    if outcome(folder, ROOMS[module], None) != "lives":
        raise SystemExit(f"{module}: its tests fail without a change")
    limit = 30 + 3 * (time.perf_counter() - start)
    seen = []
    for k in order.tolist():
        if time.perf_counter() > end:
            break
        mutant, changed = every[k]
        (folder / module).write_text(changed, encoding="utf-8")
        mutant.outcome = outcome(folder, ROOMS[module], limit)
        progress(f"{module}:{mutant.line}: {mutant.before} -> {mutant.after}: {mutant.outcome}")
        seen.append(mutant)
    (folder / module).write_text(source, encoding="utf-8")
    progress(f"{module}: {len(seen)} of {len(every)} mutants")
    return sorted(seen, key=lambda mutant: mutant.line)


def code(text: str) -> str:
    """A cell of a table that holds code."""
    return "`" + text.replace("|", "\\|") + "`"


def reason(mutant: Mutant) -> str:
    """Why a survivor is none, or an empty text."""
    return EQUIVALENT.get((mutant.module, mutant.before, mutant.after), "")


def summary(found: list[Mutant]) -> list[object]:
    """Counts of some mutants, and the share that is killed of those not known to be equivalent."""
    living = [mutant for mutant in found if mutant.outcome == "lives"]
    equivalent = sum(bool(reason(mutant)) for mutant in living)
    killed = len(found) - len(living)
    share = killed / (len(found) - equivalent) if len(found) > equivalent else None
    return [len(found), killed, equivalent, len(living) - equivalent, percent(share, 1)]


def main() -> None:
    """Print and write the share killed for each module, and the survivors."""
    options = parser(__doc__, seconds=3600)
    options.add_argument("modules", nargs="*", help="part of their paths (default: all)")
    options.add_argument("--most", type=int, help="mutants of each module, drawn at random")
    options.add_argument("--seed", type=int, default=0, help="of the draw")
    chosen = options.parse_args()
    modules = [m for m in ROOMS if not chosen.modules or any(x in m for x in chosen.modules)]
    start, found = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "checkout"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs"))
        for k, module in enumerate(modules, 1):
            end = start + chosen.seconds * k / len(modules)
            found += examine(folder, module, chosen.most, chosen.seed, end)
    rows = [[f"`{m}`", *summary([x for x in found if x.module == m])] for m in modules]
    counts = table(["module", "mutants", "killed", "equivalent", "survivors", "share"], rows)
    living = [x for x in found if x.outcome == "lives"]
    cells = [[f"`{x.module}:{x.line}`", f"`{x.before}`", f"`{x.after}`", reason(x)] for x in living]
    survivors = table(["place", "is", "changed to", "why it is equivalent"], cells, left=4)
    publish("mutants", [counts, survivors], [asdict(x) for x in found], chosen.out)


if __name__ == "__main__":
    main()
