"""Puts results into README, and writes docs/results, a page per area.

    python benchmarks/pages.py

A table goes wherever README has ``<!-- begin NAME -->`` and, below it, ``<!-- end NAME -->``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.framework import ROOT, Measurement

AREAS = {
    "paper": (
        "Auto-MAP's experiments",
        "Exact answers, agents and networks on the tasks of arXiv 2007.04069.",
        ("paper",),
    ),
    "agents": (
        "What learning adds",
        "Agents, heuristics and planners on held-out problems; ways to distribute a training.",
        ("environments", "learners", "relocations", "instead", "distributions", "clients"),
    ),
    "pipelines": (
        "Pipelines: search, proofs, time limits, growth",
        "The search of pipelines beside the optimum and other planners, proofs against brute "
        "force, time limits of every planner, and how planners grow.",
        ("stages", "proofs", "limits", "scaling"),
    ),
    "partitions": (
        "Partitions: propagation and memory",
        "Shardings beside those of Shardy, and memory beside what XLA assigns.",
        ("shardy", "memory"),
    ),
    "hybrid": (
        "Hybrid plans: predicted step times",
        "The cost model beside published measurements, tuning by it, and one strategy by three "
        "tasks.",
        ("hybrid", "tune", "cases", "price"),
    ),
    "sharding": (
        "Sharding: problems of a contest",
        "The solver on the problems of the ASPLOS 2025 contest on intra-operator parallelism.",
        ("iopddl",),
    ),
    "elastic": (
        "Elastic plans: policies on traces",
        "Policies on traces of spot nodes, and a training that follows one.",
        ("elastic", "elastic_run"),
    ),
    "exports": (
        "Exports and runs",
        "Plans compiled by XLA, configurations of frameworks, models of public code, trainings "
        "that change their plan.",
        ("exports", "frameworks", "hub_models", "live"),
    ),
    "speed": ("Speed of environments", "Environment steps per second.", ("speed",)),
}
"""Page of docs/results -> title, what it shows, measurements."""
BLOCK = re.compile(r"<!-- begin (\w+) -->\n.*?<!-- end \1 -->", re.S)


def of(name: str) -> Measurement:
    """Return the measurement of a script."""
    return getattr(import_module(f"benchmarks.{name}"), name)


def sections(name: str) -> list[str]:
    """Return the command of a measurement and the sections of its page."""
    measured = of(name)
    parts = measured.sections(measured.read())
    return [
        f"`{measured.command()}`",
        *(re.sub("^## ", "### ", part, flags=re.M) for part in parts),
    ]


def page(area: str) -> str:
    """Return the page of an area."""
    title, words, names = AREAS[area]
    parts = [f"# {title}", f"{words} Written by `python benchmarks/pages.py` from the files of "
             "`benchmarks/results`; the command above each table makes its file."]  # fmt: skip
    for name in names:
        parts += [f"## {of(name).title}", *sections(name)]
    return "\n\n".join(parts) + "\n"


def filled(text: str) -> str:
    """Return a page with the summaries of today's results between its markers."""

    def block(match: re.Match[str]) -> str:
        summary = import_module(f"benchmarks.{match[1]}").summary(of(match[1]).read())
        return f"<!-- begin {match[1]} -->\n{summary}\n<!-- end {match[1]} -->"

    return BLOCK.sub(block, text)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield the paths and texts of README and of the page of each area."""
    readme = ROOT / "README.md"
    yield readme, filled(readme.read_text(encoding="utf-8"))
    for area in AREAS:
        yield ROOT / "docs" / "results" / f"{area}.md", page(area)


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
