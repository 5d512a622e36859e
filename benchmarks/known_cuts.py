"""Where the proven optima cut, beside the cuts that are known from the design and the paper."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.framework import (
    INSTANCES,
    Column,
    Row,
    columns,
    main,
    measurement,
    numbers,
)
from benchmarks.pipelines import CLUSTERS, layers, longer, problem, profiles, solve
from parenvs.agents.pipeline.exact import exact_full, exact_pruned
from parenvs.agents.pipeline.least_memory import least_excess, least_excess_pruned
from parenvs.tasks.pipeline.cuts import CutSpace

OUT_OF_MEMORY = ((), ())
Cuts = tuple[tuple[int, ...], tuple[str, ...]]

EXPECTED: dict[tuple[str, str], Cuts] = {
    ("bert-48", "A"): ((8,), ("24",)),
    ("bert-48", "B"): ((8, 16), ("16", "32")),
    ("bert-48", "C"): ((8, 16, 24), ("11", "24", "36")),
    ("t5-3b", "B"): ((8, 16), ("enc 20", "dec 11")),
    ("t5-3b", "C"): ((8, 16, 24), ("enc 13", "dec 3", "dec 14")),
    ("t5-11b", "A"): OUT_OF_MEMORY,
    ("t5-11b", "B"): OUT_OF_MEMORY,
    ("t5-11b", "C"): ((8, 16, 24), ("enc 14", "dec 3", "dec 14")),
    ("t5-base", "C"): ((8, 16, 23), ("enc 7", "dec 2", "dec 7")),
    ("profile bert-48", "A"): ((8,), ("24",)),
    ("profile bert-48", "C"): ((8, 16, 24), ("11", "23", "35")),
}
"""The prototype's answers: design page, section 7, "Known device cuts"."""

PAPER = {
    ("bert-48", "A"): "(8)",
    ("bert-48", "B"): "(8, 16); 17, 32",
    ("bert-48", "C"): "(8, 16, 24); 14, 27, 40",
    ("t5-3b", "B"): "(8, 16); enc 19, dec 11",
    ("t5-3b", "C"): "(8, 16, 24); dec 5, dec 17",
    ("t5-11b", "A"): "out of memory",
    ("t5-11b", "B"): "out of memory",
    ("t5-11b", "C"): "(8, 16, 24); enc 13, dec 3, dec 15",
    ("t5-base", "C"): "(8, 16, 22), a model half as deep",
}
"""The cuts of arXiv 2007.04069, Table 7, as far as the design page quotes it."""

OTHERS = ("bert-24", "gnmt-16", "resnet-50", "vgg-16", "vgg-19")


@measurement()
def known_cuts() -> Iterator[tuple[str, Row]]:
    """Solve graphs and measured profiles, one stage a server."""
    cases = [(name, name, cluster) for name in INSTANCES for cluster in CLUSTERS]
    for path in profiles("bert-48"):
        cases += [("profile bert-48", str(path), cluster) for cluster in ("A", "C")]
    for case in cases:
        yield "known", known(*case)
    for path in profiles(*OTHERS):
        for cluster in CLUSTERS:
            yield "measured", measured(path.stem, str(path), cluster)


def known(label: str, instance: str, cluster: str) -> Row:
    """The optimum of an instance among the candidates."""
    pipeline = problem(instance, cluster)
    space = CutSpace.build(pipeline)
    found = solve(pipeline, lambda: exact_pruned(space))
    is_none = found["status"] == "infeasible"
    return {
        "instance": label,
        "cluster": cluster,
        "stages": space.stages,
        "after_layers": layers(pipeline, found["after"]),
        "excess_bytes": least_excess_pruned(space).excess_bytes if is_none else None,
        "expected": EXPECTED.get((label, cluster)),
        "paper": PAPER.get((label, cluster), ""),
        "pruned": found,
    }


def measured(label: str, path: str, cluster: str) -> Row:
    """The optima of a measured profile among the candidates, and over all pivots."""
    pipeline = problem(path, cluster)
    space = CutSpace.build(pipeline)
    row: Row = {
        "profile": label,
        "cluster": cluster,
        "stages": space.stages,
        "pruned": solve(pipeline, lambda: exact_pruned(space)),
        "full": solve(pipeline, lambda: exact_full(pipeline)),
    }
    for kind, least in (("pruned", lambda: least_excess_pruned(space)),
                        ("full", lambda: least_excess(pipeline))):  # fmt: skip
        if row[kind]["status"] == "infeasible":
            row[kind]["excess_bytes"] = least().excess_bytes
    return row


def differences(row: Row) -> str:
    """How the optimum differs from the expected one; empty if it does not."""
    if row["expected"] is None:
        return ""
    (devices, expected), found = row["expected"], row["pruned"]
    if (not devices) != (found["status"] == "infeasible"):
        return "memory"
    what = ["device cuts"] if devices != found["device_cuts"] else []
    pairs = zip(expected, row["after_layers"], strict=True)
    others = [f"{after}, not {other}" for other, after in pairs if other != after]
    return "; ".join(what + [f"layers: {'; '.join(others)}"] * bool(others))


def device_cuts(found: Row, excess: float | None) -> str:
    """Where a plan cuts the devices, or by how many bytes the best plan misses the memory."""
    if excess is None:
        return numbers(found["device_cuts"])
    return f"infeasible by {excess:,.0f} bytes"


def expected_cuts(row: Row) -> str:
    """The expected cuts in words."""
    if not row["expected"]:
        return ""
    devices, after = row["expected"]
    return f"{numbers(devices)}; {', '.join(after)}" if devices else "infeasible"


KNOWN: list[Column] = [
    ("instance", "{instance}"),
    ("cluster", "{cluster}"),
    ("stages", "{stages}"),
    ("device cuts", lambda row: device_cuts(row["pruned"], row["excess_bytes"])),
    ("after layer", lambda row: ", ".join(row["after_layers"])),
    ("L (s)", "{pruned[length_seconds]:.4f}"),
    ("simulated (s)", "{pruned[simulated_seconds]:.4f}"),
    ("1/L", "{pruned[value]:.4f}"),
    ("expected", expected_cuts),
    ("Table 7", "{paper}"),
    ("differs", differences),
]
"""Columns of the graphs."""


def both(kind: str) -> list[Column]:
    """Columns of one of two plans."""
    return [
        (f"device cuts, {kind}", lambda row: device_cuts(row[kind], row[kind].get("excess_bytes"))),
        ("first pivots", lambda row: ", ".join(map(str, row[kind]["cuts"]))),
        ("L (s)", f"{{{kind}[length_seconds]:.4f}}"),
        ("1/L", f"{{{kind}[value]:.4f}}"),
    ]


MEASURED: list[Column] = [
    ("profile", "{profile}"),
    ("cluster", "{cluster}"),
    ("stages", "{stages}"),
    *both("pruned"),
    *both("full"),
    ("pruned / full - 1", lambda row: longer(row["pruned"], row["full"])),
]
"""Columns of the profiles."""


@known_cuts.page
def page(data: dict[str, list[Row]]) -> list[str]:
    """Show optima and expectations."""
    wrong = sum(bool(differences(row)) for row in data["known"])
    compared = sum(row["expected"] is not None for row in data["known"])
    sections = [
        "Proven optima among the pruned candidates, one stage a server. Layers count from 0, as in "
        "the models' names; a cut falls after the layer's last pivot or inside the layer.",
        columns(data["known"], KNOWN, left=5),
        f"{compared} compared with the known cuts, {wrong} differ.",
    ]
    if "measured" in data:
        sections += [
            "Other measured profiles: proven optima among the pruned candidates and over all "
            "pivots and device cuts.",
            columns(data["measured"], MEASURED, left=3),
        ]
    return sections


if __name__ == "__main__":
    main(known_cuts)
