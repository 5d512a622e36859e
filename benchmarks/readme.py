"""Put the tables of benchmarks/results into the README and docs, between their markers.

A table goes wherever a page has ``<!-- begin NAME -->`` and, below it, ``<!-- end NAME -->``.

    python benchmarks/readme.py
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pages() -> list[Path]:
    """The README and every page of the documentation that git keeps."""
    docs = ROOT / "docs"
    kept = (page for page in docs.rglob("*.md") if docs / "generated" not in page.parents)
    return [ROOT / "README.md", *sorted(kept)]


def body(name: str) -> str:
    """What a table's file holds below its heading; its own headings go one level down."""
    text = (ROOT / name).read_text(encoding="utf-8").split("\n", 1)[1].strip()
    return re.sub("^##+(?= )", r"#\g<0>", text, flags=re.MULTILINE)


def filled(page: Path) -> str:
    """Return the text of a page with the tables of today between its markers."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- begin {match[1]} -->\n{body(match[1])}\n<!-- end {match[1]} -->"

    pattern = r"<!-- begin (\S+) -->\n.*?<!-- end \1 -->"
    return re.sub(pattern, table, page.read_text(encoding="utf-8"), flags=re.S)


def main() -> None:
    """Rewrite the pages that have markers."""
    for page in pages():
        text = filled(page)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
