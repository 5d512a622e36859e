"""What the paper says of its agent, beside what ours do in ``parenvs bench agents``.

parenvs bench agents --jobs 2 --out benchmarks/results
python benchmarks/paper_claims.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from benchmarks.common import INSTANCES, parser, problem, publish, table
from benchmarks.known_cuts import PAPER
from parenvs.agents.names import TRAINED
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.pipeline.exact import exact_pruned
from parenvs.bench import agents as bench
from parenvs.bench.agents_table import agent_cell
from parenvs.bench.problems import CLUSTERS, TASKS, BenchProblem, solve_problems
from parenvs.bench.runs import read
from parenvs.cluster import choose_cluster
from parenvs.tasks.partition.load import load_partitioning
from parenvs.tasks.pipeline.cuts import CutSpace

Runs = Mapping[tuple[str, str], list[dict]]

PARTITIONS = {
    "vgg-19": "Table 4: fc1, fc2 and the last layer split, 5 variables",
    "t5-base": "with 6+6 layers, 108 of the 111 variables of the target",
    "t5-3b": "Table 3: the target's 432 variables",
    "t5-11b": "Table 3: the target's 432 variables, after 1.45 hours",
}
"""What arXiv 2007.04069 says of operator partitioning."""
BATCHES = {
    "vgg-19": "Table 6: dimension 0 of the inputs",
    "t5-base": "Table 6: dimension 0 of the inputs",
}
"""What arXiv 2007.04069 says of data-parallel detection."""


def runs_of(path: str) -> Runs:
    """The records of the bench by problem and agent."""
    runs: dict[tuple[str, str], list[dict]] = {}
    for record in read(path, bench.key_of).values():
        runs.setdefault((record["problem"], record["agent"]), []).append(record)
    return runs


def agents(problem_: BenchProblem, runs: Runs) -> list[str]:
    """A cell for each agent, on one problem."""
    return [agent_cell(problem_, runs.get((problem_.name, agent), [])) for agent in TRAINED]


def optimum_of(instance: str, rules: str, scope: str) -> str:
    """What the proven optimum of the paper's reward partitions."""
    target = load_partitioning(instance, choose_cluster(), rules, scope=scope)
    best = target.partition(exact_partition(target).report.chosen)
    if target.scope == "inputs":
        return ", ".join(f"{path} {d}" for path, d in sorted(best.items()))
    return f"{len(best)} variables"


def cuts_of(instance: str, cluster: str) -> str:
    """Device cuts of the proven optimum among the candidates."""
    best = exact_pruned(CutSpace.build(problem(instance, cluster)))
    return str(tuple(np.asarray(best.device_cuts).tolist())).replace(",)", ")")


def lines(problems: Sequence[BenchProblem], runs: Runs) -> Iterable[tuple[str, list[str]]]:
    """Yields the rows, each with its task."""
    for p in problems:
        if p.task == "operator-partition" and p.setting.startswith("paper"):
            if p.instance in PARTITIONS:
                best = optimum_of(p.instance, p.env_kwargs["rules"], "variables")
                said = [p.instance, p.env_kwargs["rules"], PARTITIONS[p.instance], best]
                yield p.task, [*said, *agents(p, runs)]
        elif p.task == "data-parallel" and p.instance in BATCHES:
            best = optimum_of(p.instance, "shardy", "inputs")
            yield p.task, [p.instance, "shardy", BATCHES[p.instance], best, *agents(p, runs)]
        elif p.task == "pipeline-cut":
            said = PAPER.get((p.instance, p.setting), "")
            best = cuts_of(p.instance, p.setting)
            yield p.task, [p.instance, p.setting, said, best, *agents(p, runs)]


def main() -> None:
    """Read, print and write."""
    options = parser(__doc__)
    chosen = options.parse_args()
    path = chosen.out / "agents.jsonl"
    if not path.exists():
        sys.exit(f"{path}: not there; make it with `parenvs bench agents --out {chosen.out}`")
    problems, skipped = solve_problems(TASKS, INSTANCES, CLUSTERS)
    rows: dict[str, list[list[str]]] = {}
    for task, line in lines(problems, runs_of(path)):
        rows.setdefault(task, []).append(line)
    sections = [
        "The paper (arXiv 2007.04069) says in its abstract that it finds optimal solutions in two "
        "hours. Cells of an agent: seeds that reach the proven optimum; environment steps and "
        "processor seconds until then, medians; if not all do, the median gap (see agents.md)."
    ]
    for task, title, second in (
        ("operator-partition", "Operator partitioning with the paper's reward.", "rules"),
        ("data-parallel", "Data-parallel detection.", "rules"),
        ("pipeline-cut", "Pipelines.", "cluster"),
    ):
        header = ["instance", second, "the paper", "optimum", *TRAINED]
        sections += [title, table(header, rows.get(task, []), left=3)]
    none = [n.removeprefix("pipeline-cut ") for n in skipped if n.startswith("pipeline-cut")]
    sections.append(f"No plan fits the memory, as in the paper: {', '.join(none)}.")
    publish("paper_claims", sections, {}, chosen.out)


if __name__ == "__main__":
    main()
