"""What the paper says of its agent, beside what ours do in ``parenvs bench agents``.

parenvs bench agents --jobs 2 --out benchmarks/results
python benchmarks/paper_claims.py
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.framework import (
    INSTANCES,
    Row,
    Rows,
    main,
    measurement,
    numbers,
    table,
)
from benchmarks.known_cuts import PAPER
from benchmarks.pipelines import problem
from parenvs.agents.names import TRAINED
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.pipeline.exact import exact_candidates
from parenvs.bench import agents as bench
from parenvs.bench.agents_table import agent_cell
from parenvs.bench.problems import BenchProblem, solve_problems, suites
from parenvs.cluster import choose_cluster
from parenvs.errors import ParenvsError
from parenvs.tasks.partition.problem import load_partitioning
from parenvs.tasks.pipeline.spaces import CutSpace

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


def optimum_of(instance: str, rules: str, scope: str) -> str:
    """What the proven optimum of the paper's reward partitions."""
    target = load_partitioning(instance, choose_cluster(), rules, scope=scope)
    best = target.partition(exact_partition(target).report.chosen)
    if target.scope == "inputs":
        return ", ".join(f"{path} {d}" for path, d in sorted(best.items()))
    return f"{len(best)} variables"


def cuts_of(instance: str, cluster: str) -> str:
    """Device cuts of the proven optimum among the candidates."""
    return numbers(exact_candidates(CutSpace.build(problem(instance, cluster))).plan.device_cuts)


def said(p: BenchProblem) -> list[str] | None:
    """What the paper says of a problem, and its optimum; None if it is not compared."""
    if p.env_id == "OperatorPartition-v0" and p.setting.startswith("paper"):
        if p.instance not in PARTITIONS:
            return None
        rules = p.env_kwargs["rules"]
        return [rules, PARTITIONS[p.instance], optimum_of(p.instance, rules, "variables")]
    if p.env_id == "DataParallel-v0" and p.instance in BATCHES:
        return ["shardy", BATCHES[p.instance], optimum_of(p.instance, "shardy", "inputs")]
    if p.env_id == "PipelineCut-v0":
        paper = PAPER.get((p.instance, p.setting), "")
        return [p.setting, paper, cuts_of(p.instance, p.setting)]
    return None


@measurement(title="The paper's claims", derived=True)
def paper_claims(folder: Path) -> Row:
    path = folder / "agents.jsonl"
    if not path.exists():
        raise ParenvsError(f"no {path}; make it with `parenvs bench agents --out {folder}`")
    runs = Rows(path, bench.key_of)
    problems, skipped = solve_problems(suites(), INSTANCES, "ABC")
    data: Row = {"skipped": list(skipped)}
    for p in problems:
        if found := said(p):
            agents = [agent_cell(p, runs.of(problem=p.name, agent=agent)) for agent in TRAINED]
            data.setdefault(p.env_id, []).append([p.instance, *found, *agents])
    return data


@paper_claims.page
def page(data: Row) -> list[str]:
    sections = [
        "The paper (arXiv 2007.04069) says in its abstract that it finds optimal solutions in two "
        "hours. Cells of an agent: seeds that reach the proven optimum; environment steps and "
        "processor seconds until then, medians; if not all do, the median gap (see agents.md)."
    ]
    for task, title, second in (
        ("OperatorPartition-v0", "Operator partitioning with the paper's reward.", "rules"),
        ("DataParallel-v0", "Data-parallel detection.", "rules"),
        ("PipelineCut-v0", "Pipelines.", "cluster"),
    ):
        header = ["instance", second, "the paper", "optimum", *TRAINED]
        sections += [title, table(header, data.get(task, []), left=3)]
    skipped = [n for n in data["skipped"] if n.startswith("PipelineCut-v0")]
    none = ", ".join(name.removeprefix("PipelineCut-v0 ") for name in skipped)
    return [*sections, f"No plan fits the memory, as in the paper: {none}."]


if __name__ == "__main__":
    main(paper_claims)
