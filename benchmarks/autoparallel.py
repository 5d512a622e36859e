"""AutoParallel's own problems by three solvers: objective, bound, processor seconds.

``python benchmarks/autoparallel.py FOLDER`` solves every ``*.json.gz`` of a folder: problems of
meta-pytorch/autoparallel in the form of the IOPDDL contest. The solver of shardings gets the file,
CBC (``pip install pulp``) and HiGHS the same integer program: a binary for each strategy, a share
for each allowed pair of an edge, and a row of memory for each time. Costs are the file's units.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.framework import ROOT, Case, Column, Row, Rows, columns, forked, main, measurement
from parenvs.agents.sharding.solve import solve_iopddl
from parenvs.tasks.sharding.files import load_iopddl
from parenvs.tasks.sharding.problem import FORBIDDEN, Sharding

FOLDER = Path(os.environ.get("PARENVS_AUTOPARALLEL", ROOT.parent / "shared" / "autoparallel"))
LIMIT = 300.0
"""Seconds of each solver."""
UNIT = 1e-6
"""What a unit of the files is in AutoParallel's objective, in which programs are given."""


class Program:
    """The integer program of a problem: binaries of strategies first, then shares of pairs."""

    def __init__(self, problem: Sharding) -> None:
        from scipy.sparse import coo_array

        costs, self.strategies = [problem.costs.astype(float)], len(problem.costs)
        rows, entries, values = [], [], []
        sizes = problem.sizes
        nodes = np.repeat(np.arange(len(problem)), sizes)
        rows.append(nodes)
        entries.append(np.arange(len(nodes)))
        values.append(np.ones(len(nodes)))
        row, column = len(problem), len(nodes)
        for edge, (a, b) in enumerate(problem.ends.tolist()):
            table = problem.edge_costs[problem.edge_offset[edge] : problem.edge_offset[edge + 1]]
            s, t = np.nonzero(table.reshape(sizes[a], sizes[b]) < FORBIDDEN)
            pairs = column + np.arange(len(s))
            ends = np.concatenate(
                [problem.offset[a] + np.arange(sizes[a]), problem.offset[b] + np.arange(sizes[b])]
            )
            rows += [row + s, row + sizes[a] + t, row + np.arange(len(ends))]
            entries += [pairs, pairs, ends]
            values += [np.ones(len(s)), np.ones(len(s)), -np.ones(len(ends))]
            costs.append(table[s * sizes[b] + t].astype(float))
            row, column = row + len(ends), column + len(s)
        self.costs = np.concatenate(costs)
        self.upper = (self.costs < FORBIDDEN).astype(float)
        self.costs = np.where(self.upper > 0, self.costs, 0.0) * UNIT
        self.right = np.zeros(row)
        self.right[: len(problem)] = 1.0
        at = np.concatenate(rows).astype(np.int32), np.concatenate(entries).astype(np.int32)
        self.equal = coo_array((np.concatenate(values), at), shape=(row, column)).tocsr()
        used = problem.usages.astype(float) / max(problem.limit or 1, 1)
        self.memory = []
        begins = problem.intervals[:, 0]
        for moment in sorted({int(t) for t in begins}) if problem.limit is not None else []:
            alive = (begins <= moment) & (moment < problem.intervals[:, 1])
            if alive.any():
                self.memory.append(np.where(np.repeat(alive, sizes), used, 0.0))
        self.offset = problem.offset

    def chosen(self, shares: np.ndarray) -> list[int]:
        """Strategies of the nodes."""
        return [int(np.argmax(shares[a:b])) for a, b in pairwise(self.offset)]


def by_highs(problem: Sharding) -> tuple[list[int], float]:
    """Strategies and bound by SciPy's HiGHS."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    program = Program(problem)
    limits = [LinearConstraint(program.equal, program.right, program.right)]
    if program.memory:
        wide = np.zeros((len(program.memory), len(program.costs)))
        wide[:, : program.strategies] = program.memory
        limits.append(LinearConstraint(wide, -np.inf, 1.0))
    whole = np.arange(len(program.costs)) < program.strategies
    result = milp(
        program.costs,
        integrality=whole.astype(int),
        bounds=Bounds(0, program.upper),
        constraints=limits,
        options={"mip_rel_gap": 0.0, "time_limit": LIMIT},
    )
    return program.chosen(result.x[: program.strategies]), float(result.mip_dual_bound) / UNIT


def by_cbc(problem: Sharding) -> tuple[list[int], float]:
    """Strategies by PuLP's CBC, which tells no bound: its cost if it calls that optimal."""
    import pulp

    program = Program(problem)
    whole = np.arange(len(program.costs)) < program.strategies
    made = pulp.LpProblem("autoparallel", pulp.LpMinimize)
    variables = [
        pulp.LpVariable(f"x{i}", 0, int(up), pulp.LpInteger if is_whole else pulp.LpContinuous)
        for i, (up, is_whole) in enumerate(zip(program.upper, whole, strict=True))
    ]
    made += pulp.LpAffineExpression(zip(variables, program.costs.tolist(), strict=True))
    start, index, value = program.equal.indptr, program.equal.indices, program.equal.data
    for row, right in enumerate(program.right.tolist()):
        part = slice(start[row], start[row + 1])
        terms = zip(index[part].tolist(), value[part].tolist(), strict=True)
        made += pulp.LpAffineExpression([(variables[i], v) for i, v in terms]) == right
    for used in program.memory:
        terms_ = [(variables[i], float(used[i])) for i in np.flatnonzero(used)]
        made += pulp.LpAffineExpression(terms_) <= 1
    made.solve(pulp.PULP_CBC_CMD(msg=False, timeLimit=LIMIT, threads=1, gapRel=0.0))
    shares = np.array([x.varValue or 0.0 for x in variables[: program.strategies]])
    proven = made.sol_status == pulp.LpSolutionOptimal
    return program.chosen(shares), pulp.value(made.objective) / UNIT if proven else -np.inf


def by_ours(problem: Sharding) -> tuple[list[int], float]:
    """Strategies and bound by the solver of shardings."""
    answer = solve_iopddl(problem, LIMIT, processor=True)
    return list(answer.plan.strategies), float(answer.bound or 0)


SOLVERS: dict[str, Callable[[Sharding], tuple[list[int], float]]] = {
    "sharding": by_ours,
    "CBC": by_cbc,
    "HiGHS": by_highs,
}


@measurement(
    title="AutoParallel's own problems",
    key=lambda row: (row["name"], row["solver"]),
    positional=("problems",),
    about={"problems": "folder of the files", "solvers": "which"},
    among={"solvers": tuple(SOLVERS)},
)
def autoparallel(
    rows: Rows, problems: Path = FOLDER, solvers: tuple[str, ...] = tuple(SOLVERS)
) -> Iterator[Case]:
    for path in sorted(problems.glob("*.json.gz"), key=lambda path: path.stat().st_size):
        for solver in solvers:
            key = {"name": path.name.removesuffix(".json.gz"), "solver": solver}
            yield key, partial(forked, partial(solved, path, **key))


def solved(path: Path, name: str, solver: str) -> Row:
    """Solve a problem and judge its plan."""
    problem = load_iopddl(path)
    begin = _processor()
    wall = time.monotonic()
    strategies, bound = SOLVERS[solver](problem)
    taken = _processor() - begin
    report: Any = problem.report(problem.plan(strategies))
    assert report.legal, report.reasons
    return {
        "nodes": len(problem),
        "edges": len(problem.ends),
        "cost": int(report.cost),
        "bound": bound,
        "processor": taken,
        "wall": time.monotonic() - wall,
        "load": os.getloadavg()[0],
    }


def _processor() -> float:
    """Seconds of this process and of those that it has started."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


COLUMNS: list[Column] = [
    ("problem", "{name}"),
    ("nodes", "{nodes:,}"),
    ("edges", "{edges:,}"),
    ("solver", "{solver}"),
    ("objective", lambda row: f"{row['cost'] * UNIT:,.6f}"),
    (
        "bound below it",
        lambda row: (
            "as it says: 0"
            if row["solver"] == "CBC" and np.isfinite(row["bound"])
            else f"{max(1 - row['bound'] / row['cost'], 0.0):.1e}"
        ),
    ),
    ("processor (s)", "{processor:.1f}"),
    ("wall (s)", "{wall:.1f}"),
    ("load", "{load:.1f}"),
]


@autoparallel.page
def page(rows: list[Row]) -> list[str]:
    return [
        "Objectives are AutoParallel's, judged in whole numbers; shares by which the proven bound "
        "is below. CBC tells no bound, only that it calls its plan optimal. Processor seconds are "
        "those of one thread, making the program included, reading the file not; other work "
        "shared the machine (load).",
        columns(sorted(rows, key=lambda row: (row["name"], row["solver"])), COLUMNS),
    ]


if __name__ == "__main__":
    main(autoparallel)
