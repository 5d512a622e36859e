"""Twenty functions and thirty comments of the product at random, for a reader to grade.

    python benchmarks/readable.py --seed 7

Functions of five lines and more, docstrings excluded, and comments with a line of their own are
drawn uniformly from their sorted names. Someone who did not write them says of each function
whether it is obvious, clear after thought or neither; of each comment, whether the code says it.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("parenvs", "agents", "datasets", "leaderboard")
LEAST = 5
"""Lines of the shortest function that is drawn."""
CONTEXT = 4
"""Lines that are printed after a comment."""


def functions(source: str) -> Iterator[tuple[str, str]]:
    """Yield the qualified name and the text of each function of a module."""
    nodes = [("", node) for node in ast.parse(source).body]
    for prefix, node in nodes:  # grows by the members of each class and function
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        nodes += [(f"{prefix}{node.name}.", member) for member in node.body]
        body = node.body[1:] if ast.get_docstring(node) else node.body
        if not isinstance(node, ast.ClassDef) and body:
            start = min(x.lineno for x in (node, *node.decorator_list))
            lines = source.splitlines()[start - 1 : node.end_lineno]
            if (node.end_lineno or 0) - body[0].lineno + 1 >= LEAST:
                yield prefix + node.name, "\n".join(lines)


def comments(source: str) -> Iterator[tuple[str, str]]:
    """Yield the line number and the text of each comment block, with the code that follows."""
    lines = source.splitlines()
    for number, line in enumerate(lines):
        begins = line.lstrip().startswith("# ")
        if begins and not (number and lines[number - 1].lstrip().startswith("# ")):
            after = number + next(
                (k for k, x in enumerate(lines[number:]) if not x.lstrip().startswith("#")), 0
            )
            yield f"line {number + 1:04}", "\n".join(lines[number : after + CONTEXT])


def main() -> None:
    """Print the sample of a seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    rng = np.random.default_rng(parser.parse_args().seed)
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    for kind, count in ((functions, 20), (comments, 30)):
        found = {
            f"{path.relative_to(ROOT)} {name}": text
            for path in files
            for name, text in kind(path.read_text(encoding="utf-8"))
        }
        for name in rng.choice(sorted(found), count, replace=False):
            print(f"\n=== {name}\n{found[name]}")


if __name__ == "__main__":
    main()
