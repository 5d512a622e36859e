"""HTML from Python: elements whose texts are escaped by construction, and the frame of a page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TypeAlias

_VOID = {"br", "input", "link", "meta"}
_SHAPES = {"circle", "path", "rect"}
_POLICY = (
    "default-src 'none'; style-src 'self' file:; script-src 'self' file:; base-uri 'none'; "
    "form-action 'none'"
)
"""Nothing but the site's own files: were a text not escaped, it could still not run."""
_WEB = re.compile(r"https?://[^\s\"'<>\\]+")


class Markup(str):
    """Text that is HTML already; every other text is escaped."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"
"""What an element may hold; None is nothing."""


def markup(*children: Child) -> Markup:
    """Children one after the other."""
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
    """An element.

    Args:
        element: its name.
        children: its content, escaped unless it is ``Markup``.
        attributes: with hyphens for underscores, one at the end is dropped; None and False are left
            out, True has no value.

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
    """A link out of the site; an address that is not of the web becomes plain text."""
    if not _WEB.fullmatch(address):
        return markup(*children)
    return tag("a", *children, href=address, rel="noopener nofollow")


def theirs(text: str) -> Markup:
    """Words of an entry, whose direction of writing must not reach what stands around them."""
    return tag("bdi", text)


def badge(words: str, kind: str) -> Markup:
    """A short mark; ``kind`` is ``"good"``, ``"warn"``, ``"bad"`` or ``"plain"``."""
    return tag("span", words, class_=f"badge {kind}")


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """A list of names and values."""
    rows = (tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs)
    return tag("dl", rows, class_="facts")


def bar(share: float) -> Markup:
    """A bar of a share in [0, 1]; the number stands beside it."""
    fill = tag("rect", width=round(100 * share, 1), height=6)
    return tag(
        "svg", fill, class_="bar", viewBox="0 0 100 6", preserveAspectRatio="none",
        aria_hidden="true",
    )  # fmt: skip


def scrolling(words: str, content: Child) -> Markup:
    """A frame that scrolls sideways where it has to, by keyboard as well."""
    return tag("div", content, class_="scroll", tabindex=0, role="group", aria_label=words)


def page(title: str, trail: Iterable[tuple[str, str]], depth: int, *content: Child) -> str:
    """A whole page.

    Args:
        title: of the page.
        trail: pages above this one, name and address from the root.
        depth: folders between the root and this page.
        content: what stands in ``main``.
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


COMMAND = "parenvs leaderboard site"
GENERATOR = COMMAND
"""By this a folder is known to be a site of ours, which may be replaced."""
