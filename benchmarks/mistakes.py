"""How many mistakes of types in tasks and planners mypy finds.

    python benchmarks/mistakes.py --seed 1

Mistakes are drawn at random and written into a copy of the checkout: a method that no class has, an
argument too many, a keyword that no function takes, None in place of what a function returns.
A mistake counts as found if mypy reports an error on one of its lines.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.framework import ROOT, Row, columns, main, measurement

FOLDERS = ("parenvs", "agents", "datasets", "leaderboard")
WHERE = ("parenvs/tasks/*/*.py", "agents/*/planners.py", "agents/*/entries.py")
Change = tuple[int, int, str]
"""Line and column from 0 where a text is inserted."""


def possible_mistakes(source: str) -> Iterator[tuple[str, int, int, Change]]:
    """Yield the mistakes that a module can have: kind, first and last line, what is inserted."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            lines = node.lineno, node.end_lineno or node.lineno
            if isinstance(node.func, ast.Attribute):
                end = node.func.end_lineno or 0, node.func.end_col_offset or 0
                yield "method", *lines, (end[0] - 1, end[1], "_x")
            begins = node.func.end_lineno or 0, (node.func.end_col_offset or 0) + 1
            if not any(isinstance(x, ast.GeneratorExp) for x in node.args):
                yield "argument", *lines, (begins[0] - 1, begins[1], "object(), ")
            for keyword in node.keywords:
                if keyword.arg:
                    end_col = keyword.col_offset + len(keyword.arg)
                    yield "keyword", *lines, (keyword.lineno - 1, end_col, "_x")
        elif isinstance(node, ast.Return) and not (
            node.value is None or isinstance(node.value, ast.Constant)
        ):
            column = node.col_offset + len("return")
            yield (
                "return",
                node.lineno,
                node.end_lineno or 0,
                (node.lineno - 1, column, " None and"),
            )


def errors(root: Path) -> set[tuple[str, int]]:
    """Return file and line of each error that mypy reports in a checkout."""
    typed = root / "build" / "typed" / "parenvs"
    typed.mkdir(parents=True)
    for path in ((root / "parenvs").iterdir(), (root / x for x in FOLDERS[1:])):
        for target in path:
            (typed / target.name).symlink_to(target)
    command = [sys.executable, "-m", "mypy", "--config-file", root / "setup.cfg", "-p", "parenvs"]
    run = subprocess.run(command, cwd=typed.parent, capture_output=True, text=True)
    found = re.findall(r"^parenvs/(\S+?):(\d+): error", run.stdout, re.M)
    return {(name, int(line)) for name, line in found}


@measurement(title="Mistakes of types that mypy finds")
def mistakes(sample: int = 10, seed: int = 1) -> list[Row]:
    rng = np.random.default_rng(seed)
    paths = sorted(path for pattern in WHERE for path in ROOT.glob(pattern))
    possible = {path: list(possible_mistakes(path.read_text(encoding="utf-8"))) for path in paths}
    files = [path for path in paths if possible[path]]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copy(ROOT / "setup.cfg", copy)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.npz"))
        for number in rng.choice(len(files), sample, replace=False):
            path, every = files[number].relative_to(ROOT), possible[files[number]]
            source = (copy / path).read_text(encoding="utf-8")
            kind, first, last, (line, column, text) = every[rng.integers(len(every))]
            lines = source.splitlines(keepends=True)
            encoded = lines[line].encode()  # columns of syntax trees are in bytes
            lines[line] = (encoded[:column] + text.encode() + encoded[column:]).decode()
            (copy / path).write_text("".join(lines), encoding="utf-8")
            shown = lines[line].strip()
            rows.append({"file": str(path), "kind": kind, "lines": [first, last], "code": shown})
        found = errors(copy)
    for row in rows:
        name, (first, last) = row["file"].removeprefix("parenvs/"), row["lines"]
        row["found"] = any((name, line) in found for line in range(first, last + 1))
    return rows


@mistakes.page
def page(rows: list[Row]) -> list[str]:
    return [
        f"mypy finds {sum(row['found'] for row in rows)} of {len(rows)}.",
        columns(rows, [("file", "`{file}`"), ("kind", "{kind}"), ("found", "{found}"),
                       ("code", "`{code}`")], left=4),
    ]  # fmt: skip


if __name__ == "__main__":
    main(mistakes)
