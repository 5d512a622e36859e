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
from benchmarks.pipelines import CLUSTERS, layers, problem, solve
from parenvs.agents.pipeline.exact import exact_candidates
from parenvs.agents.pipeline.least_memory import least_excess_pruned
from parenvs.tasks.pipeline.spaces import CutSpace

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


@measurement(title="Known cuts")
def known_cuts() -> Iterator[Row]:
    """Solve graphs, one stage a server."""
    for name in INSTANCES:
        for cluster in CLUSTERS:
            yield known(name, cluster)


def known(instance: str, cluster: str) -> Row:
    """The optimum of an instance among the candidates."""
    pipeline = problem(instance, cluster)
    space = CutSpace.build(pipeline)
    found = solve(pipeline, lambda: exact_candidates(space))
    is_none = found["status"] == "infeasible"
    return {
        "instance": instance,
        "cluster": cluster,
        "stages": space.stages,
        "after_layers": layers(pipeline, found["after"]),
        "excess_bytes": least_excess_pruned(space).excess_bytes if is_none else None,
        "expected": EXPECTED.get((instance, cluster)),
        "paper": PAPER.get((instance, cluster), ""),
        "pruned": found,
    }


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


@known_cuts.page
def page(rows: list[Row]) -> list[str]:
    """Show optima and expectations."""
    wrong = sum(bool(differences(row)) for row in rows)
    compared = sum(row["expected"] is not None for row in rows)
    return [
        "Proven optima among the pruned candidates, one stage a server. Layers count from 0, as in "
        "the models' names; a cut falls after the layer's last pivot or inside the layer.",
        columns(rows, KNOWN, left=5),
        f"{compared} compared with the known cuts, {wrong} differ.",
    ]


if __name__ == "__main__":
    main(known_cuts)
