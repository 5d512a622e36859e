"""HTML from Python: elements that escape all their texts, and the frame of a page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TypeAlias

COMMAND = "parenvs leaderboard site"
GENERATOR = COMMAND
"""Mark by which ``write_folder`` knows a folder that it may replace."""
_VOID = {"br", "input", "link", "meta"}
_SHAPES = {"circle", "path", "rect"}
_POLICY = (
    "default-src 'none'; style-src 'self' file:; script-src 'self' file:; base-uri 'none'; "
    "form-action 'none'"
)
"""Content policy: only the site's own files, so that even an unescaped text could not run."""
_WEB = re.compile(r"https?://[^\s\"'<>\\]+")


class Markup(str):
    """Text that is HTML already; every other text is escaped."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"
"""Content of an element; None adds nothing."""


def markup(*children: Child) -> Markup:
    """Join children, and escape those that are not ``Markup``."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, (str, int)):
            parts.append(html.escape(str(child)))
        elif child is not None:
            parts.append(markup(*child))
    return Markup("".join(parts))


def tag(element: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """Make an element.

    Args:
        element: name of the element.
        children: content, escaped unless it is ``Markup``.
        attributes: names with underscores for hyphens, an underscore at the end is dropped; None
            and False leave an attribute out, True gives it no value.

    >>> tag("td", "a < b", class_="number", data_sort=1)
    '<td class="number" data-sort="1">a &lt; b</td>'
    """
    head = element
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        head += f" {key.rstrip('_').replace('_', '-')}"
        if value is not True:
            words = f"{value:g}" if isinstance(value, float) else html.escape(str(value))
            head += f'="{words}"'
    if element in _VOID:
        return Markup(f"<{head}>")
    if element in _SHAPES:
        return Markup(f"<{head}/>")
    return Markup(f"<{head}>{markup(*children)}</{element}>")


def web_link(address: str, *children: Child) -> Markup:
    """Make a link out of the site; with an address that is not of the web, only its children."""
    if not _WEB.fullmatch(address):
        return markup(*children)
    return tag("a", *children, href=address, rel="noopener nofollow")


def foreign_text(text: str) -> Markup:
    """Isolate a text of an entry, so that its direction of writing does not affect the page."""
    return tag("bdi", text)


def badge(words: str, kind: str) -> Markup:
    """Make a short mark; ``kind`` is ``"good"``, ``"warn"``, ``"bad"`` or ``"plain"``."""
    return tag("span", words, class_=f"badge {kind}")


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Make a list of names and values."""
    rows = (tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs)
    return tag("dl", rows, class_="facts")


def bar(share: float) -> Markup:
    """Draw a bar of a share in [0, 1], to stand beside its number."""
    fill = tag("rect", width=round(100 * share, 1), height=6)
    return tag(
        "svg", fill, class_="bar", viewBox="0 0 100 6", preserveAspectRatio="none",
        aria_hidden="true",
    )  # fmt: skip


def scrolling(words: str, content: Child) -> Markup:
    """Put content in a frame that scrolls sideways if needed, by keyboard as well.

    Args:
        words: name of the frame for screen readers.
        content: its content.
    """
    return tag("div", content, class_="scroll", tabindex=0, role="group", aria_label=words)


def page(title: str, trail: Iterable[tuple[str, str]], depth: int, *content: Child) -> str:
    """Make a whole page.

    Args:
        title: title of the page.
        trail: name, and address from the root, of each page above this one.
        depth: number of folders between the root and this page.
        content: content of ``main``.
    """
    root = "../" * depth
    crumbs = [tag("a", name, href=root + address) for name, address in trail]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content=GENERATOR),
        tag("title", title),
        tag("link", rel="stylesheet", href=f"{root}assets/style.css"),
        tag("script", src=f"{root}assets/theme.js"),
        tag("script", src=f"{root}assets/table.js", defer=True),
    )
    brand = tag("a", "parenvs", tag("span", " leaderboard"), href=f"{root}index.html")
    body = tag(
        "body",
        tag("a", "Skip to the content", class_="skip", href="#content"),
        tag(
            "header",
            tag("div", brand, class_="brand"),
            tag("button", "Dark", type="button", id="theme", hidden=True),
        ),
        tag("nav", tag("ol", (tag("li", c) for c in crumbs)), aria_label="Breadcrumb")
        if crumbs
        else None,
        tag("main", *content, id="content"),
        tag(
            "footer",
            tag(
                "p",
                "Written by ",
                tag("code", COMMAND),
                " from the plans in the entries, all judged anew. No number was typed.",
            ),
        ),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"
