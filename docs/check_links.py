"""Checks every link inside a built site: pages, pictures and anchors; status 1 if one is broken.

python docs/check_links.py build/docs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep links and ids."""
        found = dict(attrs)
        self.places.update(filter(None, (found.get("id"), found.get("name"))))
        if tag in ("a", "img", "link", "script"):
            self.targets += filter(None, (found.get("href"), found.get("src")))


def broken(site: Path) -> Iterator[str]:
    """Each broken link in words: the page, and what it links to."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                yield f"{path.relative_to(site.resolve())}: {target}"
            elif there in pages and unquote(parts.fragment) not in pages[there].places:
                yield f"{path.relative_to(site.resolve())}: {target} (no such anchor)"


def main() -> int:
    """Check the site that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path, help="folder of the built site")
    site = parser.parse_args().site
    wrong = sorted(set(broken(site)))
    for words in wrong:
        print(words)
    count = sum(1 for _ in site.rglob("*.html"))
    print(f"{count} pages, {len(wrong)} broken links")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
