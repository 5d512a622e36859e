"""Counts of a checkout: lines of code without docstrings and comments, modules, words."""

import ast
import io
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

PRODUCT = ("parenvs", "agents", "datasets", "leaderboard")
LATE = re.compile(r'"[a-z_]+(?:\.[a-z_]+)+:[A-Za-z_]+"')
LAYOUT = {
    tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER, tokenize.COMMENT,
}  # fmt: skip


def weigh_module(source):
    """Code lines, docstring lines, comment lines, their characters, and calls by text."""
    documents = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            documents.update(range(node.lineno, node.end_lineno + 1))
    code, comments = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= documents
    lines = source.splitlines()
    return Counter(
        modules=1,
        code=len(code),
        docstrings=len(documents),
        comments=len(comments - code),
        characters=sum(len(lines[i - 1].strip()) for i in code),
        late=len(LATE.findall(source)),
        fmt=len(re.findall(r"# fmt:", source)),
    )


@cache
def weigh(root):
    """Figures by name, such as ``"product code"``, of the folders of a checkout."""
    figures = Counter()
    for group, folders in (
        ("product", PRODUCT),
        ("tests", ("tests",)),
        ("benchmarks", ("benchmarks",)),
        ("docs", ("docs", "examples")),
    ):
        for folder in folders:
            for path in (root / folder).rglob("*.py"):
                for name, value in weigh_module(path.read_text("utf-8")).items():
                    figures[f"{group} {name}"] += value
    for folder in (".", *PRODUCT, "benchmarks", "docs", "examples", "tests"):
        pages = Path(root, folder).glob("*.md") if folder == "." else (root / folder).rglob("*.md")
        for page in pages:
            parts = page.relative_to(root).parts
            if "generated" in parts:
                continue
            evidence = "results" in parts[:-1] or parts[0] == "benchmarks"
            changes = parts == ("CHANGELOG.md",)
            group = "results" if evidence else "changelog" if changes else "guides"
            figures[f"{group} words"] += len(page.read_text("utf-8").split())
    return figures
