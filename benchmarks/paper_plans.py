"""The paper's own partition plans, Tables 3, 4 and 6, against the rules and the optima."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.framework import Column, Row, columns, main, measurement, progress, table
from benchmarks.partition import SIX, judged, kinds, loaders
from parenvs import Graph
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.partition.heuristics import expert
from parenvs.cluster import choose_cluster
from parenvs.tasks.partition.classes import RULE_SETS
from parenvs.tasks.partition.game import PartitionSpace
from parenvs.tasks.partition.problem import Partitioning, PartitionReport

"""arXiv 2007.04069: the search for an operator partitioning."""
PAPER_VARIABLES = {"t5-3b": "432", "t5-11b": "432", SIX: "108, of a target of 111"}
"""arXiv 2007.04069: partitioned variables of the expert plan."""
TABLE_3 = (
    *((f"{block}/{key}", 1) for block in ("self", "cross") for key in "qkv"),
    ("self/o", 0),
    ("cross/o", 0),
    ("conv1/kernel", 1),
    ("conv1/bias", 0),
    ("conv2/kernel", 0),
)
"""arXiv 2007.04069, Table 3: T5's layers; everything else of a layer is replicated."""
TABLE_4 = (
    ("fc1/kernel", 1),
    ("fc1/bias", 0),
    ("fc2/kernel", 0),
    ("fc2/bias", 0),
    ("predictions/kernel", 1),
    ("predictions/bias", 0),
)
"""arXiv 2007.04069, Table 4: VGG-19's dense layers."""
DOUBTFUL = "fc2/bias"
"""The row of Table 4 that contradicts the others."""


def matching(graph: Graph, rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Path -> dimension of the variables, in any layer, that rows of a table name."""
    paths = [graph.paths[i] for i in graph.variables]
    return {
        path: dimension
        for name, dimension in rows
        for path in paths
        if re.fullmatch(rf"((encoder|decoder)/layer_\d+/)?{name}", path)
    }


def added(report: PartitionReport, named: Mapping[str, int]) -> dict[str, int]:
    """The variables that a plan partitions besides those that were named."""
    return {path: d for path, d in report.plan.partition.items() if path not in named}


def verdict(report: PartitionReport | Row) -> str:
    """``yes``, or the reason why a plan is refused."""
    if isinstance(report, PartitionReport):
        report = {"legal": report.legal, "reasons": report.reasons}
    return "yes" if report["legal"] else f"no: {report['reasons'][0]}"


def table_3(problems: Mapping[tuple[str, str], Partitioning]) -> Row:
    """Whether each row can be partitioned by itself in every T5, under both rule sets."""
    names = dict.fromkeys(name for name, _ in problems)
    raw: Row = {"matching": {}}
    for entry in TABLE_3:
        found = {key: matching(problem.graph, [entry]) for key, problem in problems.items()}
        raw["matching"][entry[0]] = {name: len(found[name, "shardy"]) for name in names}
        for rules in RULE_SETS:
            raw[f"{entry[0]}, {rules}"] = {
                name: verdict(judged(problems[name, rules], found[name, rules])) for name in names
            }
    return raw


def expert_of_t5(problem: Partitioning, best: Mapping[str, int]) -> Row:
    """Compare the plan of all rows of Table 3 with the optimum."""
    named = matching(problem.graph, TABLE_3)
    report = judged(problem, named)
    alone = problem.report(replace(report.plan, partition=named))
    kept = sum(best.get(path) == dimension for path, dimension in named.items())
    more = {path: d for path, d in best.items() if path not in named}
    label = problem.graph.name
    return {
        "instance": label,
        "rules": problem.rules,
        "named": len(named),
        "paper": PAPER_VARIABLES.get(label, ""),
        "legal": report.legal,
        "reasons": report.reasons,
        "without_their_classes": alone.reasons,
        "added": added(report, named),
        "partitioned_dimensions": report.partitioned_dimensions,
        "optimum_partitioned_dimensions": len(best),
        "value": report.value,
        "in_optimum": kept,
        "more_in_optimum": kinds(more),
    }


TOGETHER = {
    "fc1/*, fc2/kernel": TABLE_4[:3],
    f"all but {DOUBTFUL}": tuple(entry for entry in TABLE_4 if entry[0] != DOUBTFUL),
    "all": TABLE_4,
}


def table_4(problems: Mapping[str, Partitioning]) -> Row:
    """VGG-19's dense layers: each row by itself, and those before it."""
    raw: Row = {}
    for rules, problem in problems.items():
        for entry in TABLE_4:
            raw[f"{entry[0]}, {rules}"] = verdict(judged(problem, dict([entry])))
        for label, entries in TOGETHER.items():
            report = judged(problem, dict(entries))
            raw[f"{label}, {rules}"] = {
                "variables": report.variables,
                "added": added(report, dict(entries)),
                "legal": report.legal,
                "reasons": report.reasons,
            }
    return raw


def megatron(problem: Partitioning, best: Mapping[str, int]) -> Row:
    """The share of the expert plan that the optimum contains."""
    named = problem.partition(expert(PartitionSpace.of(problem)).report.chosen)
    same = {path for path, d in named.items() if best.get(path) == d}
    more = {path: d for path, d in best.items() if path not in named}
    found = {"rules": problem.rules, "named": len(named), "same": len(same), "more": more}
    return {**found, "missing": sorted(set(named) - same), "partitions": len(best)}


def table_6(problem: Partitioning) -> Row:
    """The optimum of ``DataParallel-v0``, against the first dimension of every batch input."""
    graph = problem.graph
    answer = exact_partition(replace(problem, scope="inputs"))
    best = problem.partition(answer.report.chosen, "inputs")
    batch = {graph.paths[i]: 0 for i in problem.inputs.tolist()}
    return {
        "instance": graph.name, "rules": problem.rules, "inputs": len(batch), "optimum": best,
        "status": answer.status, "is_batch": best == batch,
    }  # fmt: skip


@measurement(title="The paper's plans")
def paper_plans() -> dict[str, Any]:
    problems: dict[tuple[str, str], Partitioning] = {
        (name, rules): Partitioning.build(load(), choose_cluster(), rules)
        for name, load in loaders().items()
        for rules in RULE_SETS
    }
    progress("the optima")
    best = {
        key: problem.partition(exact_partition(problem).report.chosen, "variables")
        for key, problem in problems.items()
    }
    t5 = {key: problem for key, problem in problems.items() if key[0].startswith("t5")}
    return {
        "table_3": table_3(t5),
        "table_4": table_4({rules: problems["vgg-19", rules] for rules in RULE_SETS}),
        "expert_t5": [expert_of_t5(problem, best[key]) for key, problem in t5.items()],
        "megatron": [megatron(problems["bert-48", r], best["bert-48", r]) for r in RULE_SETS],
        "table_6": [table_6(problem) for problem in problems.values()],
    }


EXPERT: list[Column] = [
    ("instance", "{instance}"),
    ("rules", "{rules}"),
    ("variables", "{named}"),
    ("the paper's", "{paper}"),
    ("legal", verdict),
    ("with them", lambda row: kinds(row["added"])),
    ("partitions", "{partitioned_dimensions}"),
    ("optimum partitions", "{optimum_partitioned_dimensions}"),
    ("of Table 3 in the optimum", "{in_optimum}"),
]
MEGATRON: list[Column] = [
    ("rules", "{rules}"),
    ("besides", lambda row: kinds(row["more"])),
    ("Megatron", "{named}"),
    ("in the optimum", "{same}"),
    ("optimum partitions", "{partitions}"),
]
BATCH: list[Column] = [
    ("instance", "{instance}"),
    ("rules", "{rules}"),
    ("batch inputs", "{inputs}"),
    ("optimum", lambda row: kinds(row["optimum"]) or "nothing"),
    ("the batch", lambda row: "yes" if row["is_batch"] else "no"),
]


@paper_plans.page
def page(data: dict[str, Any]) -> list[str]:
    raw_3, raw_4 = data["table_3"], data["table_4"]
    names = list(raw_3[f"{TABLE_3[0][0]}, shardy"])
    rows_3 = [
        [
            name, dimension,
            *(raw_3["matching"][name][x] for x in names),
            *("; ".join(sorted({*raw_3[f"{name}, {rules}"].values()})) for rules in RULE_SETS),
        ]
        for name, dimension in TABLE_3
    ]  # fmt: skip
    rows_4 = [
        [*entry, *(raw_4[f"{entry[0]}, {rules}"] for rules in RULE_SETS)] for entry in TABLE_4
    ]
    for label in TOGETHER:
        found = [raw_4[f"{label}, {rules}"] for rules in RULE_SETS]
        said = [f"yes, {x['variables']} variables" if x["legal"] else verdict(x) for x in found]
        rows_4.append([label, "", *said])
    sections = [
        "Table 3, T5: attention and feed-forward variables of every layer. "
        "The plan is made of exactly these and of what belongs to their classes (`with them`).",
        columns(data["expert_t5"], EXPERT, left=2),
        "Table 3 row by row: number of variables, and whether the row can be partitioned by "
        "itself, in all of these models.",
        table(["row", "dimension", *names, *RULE_SETS], rows_3),
        "Table 4, VGG-19: each row by itself with its class, then together.",
        table(["row", "dimension", *RULE_SETS], rows_4, left=4),
        f"All that the judge says of {DOUBTFUL} with the others under `shardy`:\n\n"
        + "\n".join(f"* {reason}" for reason in raw_4["all, shardy"]["reasons"]),
        "BERT-48: variables that Megatron's plan names (`expert` in the package), those of them "
        "that the optimum partitions on the same dimension, and what else it partitions.",
        columns(data["megatron"], MEGATRON, left=2),
        "Table 6, data-parallel detection: the optimum of `DataParallel-v0`, and whether it is "
        "dimension 0 of every batch input and nothing else. Under `automap` a mean over the batch "
        "is a conflict, so that the batch cannot be partitioned.",
        columns(data["table_6"], BATCH, left=2),
    ]
    if SIX not in names:
        sections.append(f"{SIX} was left out: it needs the extra `jax`.")
    return sections


if __name__ == "__main__":
    main(paper_plans)
