"""Put the tables of benchmarks/results into the README and docs/results.md, between their markers.

python benchmarks/readme.py
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def body(name: str) -> str:
    """What a table's file holds below its heading; its own headings go two levels down."""
    text = (ROOT / name).read_text(encoding="utf-8").split("\n", 1)[1].strip()
    return re.sub("^##(?= )", "####", text, flags=re.MULTILINE)


def main() -> None:
    """Rewrite both pages."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- begin {match[1]} -->\n{body(match[1])}\n<!-- end {match[1]} -->"

    pattern = r"<!-- begin (\S+) -->\n.*?<!-- end \1 -->"
    for page in (ROOT / "README.md", ROOT / "docs" / "results.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(pattern, table, text, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    main()
