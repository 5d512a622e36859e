"""Opens a site in headless Chromium: errors, widths, accessibility; of the leaderboard more.

Of the leaderboard's site it tries sorting, filters and what is there without a script, too. Of the
site of the documentation it looks at every page at three widths and in the dark, and at whether its
drawings follow the theme that a reader chooses.

Needs Chromium, ``playwright`` and, for the accessibility check, ``axe-playwright-python``; says so
and checks nothing where they are missing (status 0, or 1 with ``--required``).

    python benchmarks/site_check.py build/docs --shots FOLDER
    python benchmarks/site_check.py build/docs/leaderboard
"""

from __future__ import annotations

import argparse
import importlib.resources
import shutil
import sys
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {
        "color_scheme": "light", "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2, "has_touch": True, "is_mobile": True,
    },
}  # fmt: skip
OTHER = ("leaderboard", "_static", "_modules")
"""Folders of the documentation that hold another site, or no pages."""
SHOWN = (
    "index.html",
    "start.html",
    "concepts.html",
    "environments.html",
    "results.html",
    "results/pipelines.html",
    "generated/environments/HybridPlan-v1.html",
    "generated/api.html",
    "generated/tutorials/write_a_solver.html",
    "generated/commands/parenvs.html",
)
"""Pages of the documentation that are looked at closely, and of which there are pictures."""
THEME = ("aria-required-attr", "landmark-unique", "scrollable-region-focusable")
"""Rules of accessibility that the documentation's theme breaks on every page."""
SAMPLE = 8
"""One in this many entry pages takes part in the slow checks."""
PLAIN = """() => [...document.querySelectorAll('main table, main svg[role=img], main details')]
    .every((x) => x.getClientRects().length > 0)"""


class Check:
    """Counts the checks, and keeps the faults that they find."""

    def __init__(self) -> None:
        self.done = 0
        self.wrong: list[str] = []

    def expect(self, holds: bool, words: str) -> None:
        """Count a check, and keep its words as a fault if it fails."""
        self.done += 1
        if not holds:
            self.wrong.append(words)
            print(f"WRONG  {words}", flush=True)


def main() -> int:
    """Run all checks; the status is 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path, help="folder of the site")
    parser.add_argument("--shots", type=Path, help="folder for screenshots")
    parser.add_argument("--required", action="store_true", help="fail where Chromium is missing")
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser = None
    if browser is None:
        print("skipped: Chromium or the package playwright is not installed")
        return int(options.required)
    root = options.site.resolve()
    is_docs = (root / "searchindex.js").exists()
    paths = [path.relative_to(root) for path in root.rglob("*.html")]
    pages = sorted(x.as_posix() for x in paths if not is_docs or x.parts[0] not in OTHER)
    entries = [page for page in pages if page.startswith("entries/")]
    sample = [page for page in pages if page not in entries] + entries[::SAMPLE]
    sample = [x for x in pages if x in SHOWN] if is_docs else sample
    check, axe = Check(), _axe()
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name, view in VIEWS.items():
            context = chromium.new_context(**view)
            page = _page(context, check)
            for address in pages if is_docs or name == "light" else sample:
                page.goto(f"{root.as_uri()}/{address}")
                _fits(page, check, f"{name} {address}")
                if axe and address in sample:
                    _accessible(page, axe, check, f"{name} {address}", THEME if is_docs else ())
                if options.shots and address in sample:
                    options.shots.mkdir(parents=True, exist_ok=True)
                    shot = f"{address.replace('/', '-').removesuffix('.html')}-{name}.png"
                    page.screenshot(path=options.shots / shot)
            context.close()
        if is_docs:
            _drawings(chromium, root, check)
            return _told(len(pages), check, axe)
        context = chromium.new_context(**VIEWS["light"])
        page = _page(context, check)
        _sorting(page, root, check)
        _filters(page, root, check)
        _theme(page, root, check)
        if entries:
            _folding(page, root / entries[0], check)
        context.close()
        context = chromium.new_context(java_script_enabled=False, **VIEWS["light"])
        plain = context.new_page()
        for address in sample:
            plain.goto(f"{root.as_uri()}/{address}")
            check.expect(plain.locator("h1").is_visible(), f"no script: {address} has no heading")
            check.expect(plain.evaluate(PLAIN), f"no script: {address} hides something")
            check.expect(
                plain.locator("#filters:visible, #fold:visible, #theme:visible").count() == 0,
                f"no script: {address} shows what needs one",
            )
        chromium.close()
    return _told(len(pages), check, axe)


def _told(count: int, check: Check, axe: str) -> int:
    """Print how many checks there were; returns the status."""
    words = "axe: on" if axe else "axe: axe-playwright-python is not installed, left out"
    print(f"{count} pages, {check.done} checks, {len(check.wrong)} wrong; {words}")
    return int(bool(check.wrong))


def _drawings(chromium: Any, root: Path, check: Check) -> None:
    """A drawing has dark paper where the reader chose the dark theme on a light system."""
    context = chromium.new_context(**VIEWS["light"])
    page = _page(context, check)
    page.goto(f"{root.as_uri()}/index.html")
    drawing = page.locator("article img[src$='.svg']").first
    light = drawing.screenshot()
    page.evaluate("document.body.dataset.theme = 'dark'")
    check.expect(drawing.screenshot() != light, "drawings do not follow the dark theme")
    page.evaluate("document.body.dataset.theme = 'light'")
    check.expect(drawing.screenshot() == light, "drawings do not follow the light theme")
    context.close()


def _axe() -> str:
    """The source of axe-core, or an empty text."""
    try:
        package = importlib.resources.files("axe_playwright_python")
    except ModuleNotFoundError:
        return ""
    return (package / "axe.min.js").read_text(encoding="utf-8")


def _page(context: Any, check: Check) -> Any:
    """A page on which every message, error and request to another host is a fault."""
    page = context.new_page()
    page.on("console", lambda m: check.expect(False, f"{page.url}: console: {m.text}"))
    page.on("pageerror", lambda e: check.expect(False, f"{page.url}: error: {e}"))
    page.on(
        "request",
        lambda r: check.expect(r.url.startswith("file:"), f"{page.url}: asks for {r.url}"),
    )
    page.on("requestfailed", lambda r: check.expect(False, f"{page.url}: {r.url} fails"))
    return page


def _fits(page: Any, check: Check, where: str) -> None:
    wide, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    check.expect(wide <= room, f"{where}: {wide} pixels wide in {room}")


def _accessible(page: Any, axe: str, check: Check, where: str, known: tuple[str, ...]) -> None:
    page.evaluate(axe)  # not a script element: the page's policy forbids those
    found = page.evaluate("axe.run(document, {resultTypes: ['violations'], preload: false})")
    for one in (x for x in found["violations"] if x["id"] not in known):
        nodes = "; ".join(node["html"][:120] for node in one["nodes"][:3])
        many = len(one["nodes"])
        check.expect(False, f"{where}: axe {one['id']} ({one['impact']}) on {many}: {nodes}")
    check.expect(True, where)


def _column(page: Any, place: int) -> list[str]:
    script = f"(t) => [...t.tBodies[0].rows].map((r) => r.cells[{place}].textContent)"
    return list(page.locator("table").first.evaluate(script))


def _sorting(page: Any, root: Path, check: Check) -> None:
    page.goto(f"{root.as_uri()}/index.html")
    header = page.locator("table").first.locator("thead th").nth(2)
    for order in ("descending", "ascending"):
        header.locator("button").click()
        scores = [float(text) for text in _column(page, 2)]
        check.expect(scores == sorted(scores, reverse=order == "descending"), f"scores {order}")
        check.expect(header.get_attribute("aria-sort") == order, f"aria-sort is not {order}")
    page.locator("table").first.locator("thead th").nth(1).locator("button").press("Enter")
    names = page.locator("table").first.locator("tbody .name a").all_text_contents()
    check.expect(names == sorted(names), "names are not sorted by keyboard")
    check.expect(page.locator("table").first.locator("[aria-sort]").count() == 1, "two orders")


def _filters(page: Any, root: Path, check: Check) -> None:
    page.goto(f"{root.as_uri()}/index.html")
    rows, status = page.locator("tbody tr:visible"), page.locator("#filter-status")
    everything = rows.count()
    name = page.locator("tbody tr .name a").first.text_content()
    page.fill("#filter-text", name)
    check.expect(0 < rows.count() <= everything, "the text's filter finds nothing")
    found = [str(text).lower() for text in rows.evaluate_all("rs => rs.map(r => r.dataset.words)")]
    check.expect(all(name in text for text in found), "the text's filter shows others")
    page.fill("#filter-text", "no such entry <b>")
    check.expect(rows.count() == 0 and "No entry" in status.text_content(), "nothing, not said")
    page.fill("#filter-text", "")
    task = page.locator("section[data-task]").last.get_attribute("data-task")
    page.select_option("#filter-task", task)
    check.expect(page.locator("section[data-task]:visible").count() == 1, "task filter")
    page.select_option("#filter-task", "")
    counts = []
    for value in ("yes", "no"):
        page.select_option("#filter-learned", value)
        counts.append(rows.count())
    check.expect(sum(counts) == everything, f"learned {counts} of {everything}")
    page.select_option("#filter-learned", "")
    check.expect(rows.count() == everything, "filters do not end")


def _theme(page: Any, root: Path, check: Check) -> None:
    page.goto(f"{root.as_uri()}/index.html")
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    before = page.evaluate(paper)
    page.click("#theme")
    dark = page.evaluate(paper)
    check.expect(dark != before, "the theme's button changes nothing")
    page.reload()
    check.expect(page.evaluate(paper) == dark, "the theme is not kept")
    page.click("#theme")
    check.expect(page.evaluate(paper) == before, "the theme does not come back")


def _folding(page: Any, path: Path, check: Check) -> None:
    page.goto(path.as_uri())
    plans = page.locator("details[id]")
    page.click("#fold")
    check.expect(page.locator("details[id][open]").count() == 0, "plans do not close")
    page.locator("tbody th a").first.click()
    page.wait_for_timeout(200)
    check.expect(plans.first.get_attribute("open") is not None, "a link does not open its plan")


if __name__ == "__main__":
    sys.exit(main())
