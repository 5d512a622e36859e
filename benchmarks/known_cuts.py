"""Where the proven optima cut, beside the cuts that are known from the design and the paper."""

from __future__ import annotations

from typing import Any

from benchmarks.common import (
    CLUSTERS,
    INSTANCES,
    Solved,
    layers,
    numbers,
    parser,
    percent,
    problem,
    profiles,
    progress,
    publish,
    solve,
    table,
)
from parenvs import Pipeline
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


def differences(expected: Cuts, found: Solved, after: tuple[str, ...]) -> str:
    """How the optimum differs from the expected one; empty if it does not."""
    if (expected == OUT_OF_MEMORY) != (found.status == "infeasible"):
        return "memory"
    what = []
    if expected[0] != found.device_cuts:
        what.append("device cuts")
    if expected[1] != after:
        pairs = [f"{b}, not {a}" for a, b in zip(expected[1], after, strict=True) if a != b]
        what.append(f"layers: {'; '.join(pairs)}")
    return "; ".join(what)


def excess_text(excess: float) -> str:
    """By how many bytes the best plan misses the memory, in words."""
    return f"infeasible by {excess:,.0f} bytes"


def known(label: str, instance: str, cluster: str) -> tuple[list[str], dict[str, Any]]:
    """One row of the first table, and its raw figures."""
    pipeline = problem(instance, cluster)
    space = CutSpace.build(pipeline)
    found = solve(pipeline, lambda: exact_pruned(space))
    after = layers(pipeline, found.after)
    expected = EXPECTED.get((label, cluster))
    excess = least_excess_pruned(space).excess_bytes if found.status == "infeasible" else None
    paper = PAPER.get((label, cluster), "")
    raw = {
        "instance": label,
        "cluster": cluster,
        "stages": space.stages,
        "after_layers": after,
        "excess_bytes": excess,
        "expected": expected,
        "paper": paper,
        "pruned": found,
    }
    row = [label, cluster, str(space.stages)]
    if excess is not None:
        row += [excess_text(excess), "", "", "", ""]
    else:
        row += [numbers(found.device_cuts), ", ".join(after), f"{found.length:.4f}"]
        row += [f"{found.simulated_seconds:.4f}", f"{found.value:.4f}"]
    if expected is None:
        row += ["", paper, ""]
    else:
        text = f"{numbers(expected[0])}; {', '.join(expected[1])}"
        row.append("infeasible" if expected == OUT_OF_MEMORY else text)
        row += [paper, differences(expected, found, after)]
    return row, raw


def measured(label: str, path: str, cluster: str) -> tuple[list[str], dict[str, Any]]:
    """One row of the second table, and its raw figures."""
    pipeline = problem(path, cluster)
    space = CutSpace.build(pipeline)
    pruned = solve(pipeline, lambda: exact_pruned(space))
    full = solve(pipeline, lambda: exact_full(pipeline.with_stages(space.stages)))
    row = [label, cluster, str(space.stages)]
    for found in (pruned, full):
        if found.status == "infeasible":
            row += [excess_text(_excess(pipeline, space, found is pruned)), "", "", ""]
        else:
            places = ", ".join(map(str, found.cuts))
            row += [numbers(found.device_cuts), places]
            row += [f"{found.length:.4f}", f"{found.value:.4f}"]
    row.append(percent(pruned.length / full.length - 1))
    raw = {"profile": label, "cluster": cluster, "stages": space.stages}
    return row, {**raw, "pruned": pruned, "full": full}


def _excess(pipeline: Pipeline, space: CutSpace, pruned: bool) -> float:
    return (
        least_excess_pruned(space).excess_bytes
        if pruned
        else least_excess(pipeline.with_stages(space.stages)).excess_bytes
    )


def main() -> None:
    """Solve, print and write."""
    options = parser(__doc__).parse_args()
    cases = [(name, name, cluster) for name in INSTANCES for cluster in CLUSTERS]
    for path in profiles("bert-48"):
        cases += [("profile bert-48", str(path), cluster) for cluster in ("A", "C")]
    first, second = [], []
    for case in cases:
        progress(" ".join(case[::2]))
        first.append(known(*case))
    for path in profiles(*OTHERS):
        for cluster in CLUSTERS:
            progress(f"{path.stem} {cluster}")
            second.append(measured(path.stem, str(path), cluster))
    wrong = sum(bool(row[-1]) for row, _ in first)
    compared = sum(raw["expected"] is not None for _, raw in first)
    header = ["instance", "cluster", "stages", "device cuts", "after layer", "L (s)"]
    header += ["simulated (s)", "1/L", "expected", "Table 7", "differs"]
    sections = [
        "Proven optima among the pruned candidates, one stage a server. Layers count from 0, as in "
        "the models' names; a cut falls after the layer's last pivot or inside the layer.",
        table(header, [row for row, _ in first], left=5),
        f"{compared} compared with the known cuts, {wrong} differ.",
    ]
    if second:
        header = ["profile", "cluster", "stages"]
        for kind in ("pruned", "full"):
            header += [f"device cuts, {kind}", "first pivots", "L (s)", "1/L"]
        sections += [
            "Other measured profiles: proven optima among the pruned candidates and over all "
            "pivots and device cuts.",
            table([*header, "pruned / full - 1"], [row for row, _ in second], left=3),
        ]
    data = {"known": [raw for _, raw in first], "measured": [raw for _, raw in second]}
    publish("known_cuts", sections, data, options.out)


if __name__ == "__main__":
    main()
