"""Makes the references of the shipped sets: the best plan known, or an optimum, and a bound.

    python benchmarks/references.py hybrids             # what is missing or outdated
    python benchmarks/references.py hybrids --again hybrid-test/gpt-001 ...    # keeps the better
    python benchmarks/references.py pipelines --check   # judge all, change nothing
    python benchmarks/references.py optima              # of pipelines of few stages, proven
    python benchmarks/references.py shardings

Each row is written when it is known, so an interruption loses one problem; several commands may
write one file at once. Plans of pipelines are those of the planner ``search`` without a limit, so
that every machine finds the same, and so are their bounds: about half a minute a problem. Those of
shardings are of ``solve_iopddl`` after ``SECONDS``. ``parenvs.datasets.references`` has the form of
the files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.leaderboard_references import engine_options, mapper_of
from parenvs.agents.hybrid.entries import HEAD, HETERO_FIRST, MAX_EXACT, best_known, plan_of_row
from parenvs.agents.hybrid.orders import AMONG, Orders, swap_search
from parenvs.agents.hybrid.subset_dp import lower_bound, rounded_down, subset_search
from parenvs.agents.pipeline.bounds import SLACK, least_length
from parenvs.agents.pipeline.exact import by_search, exact_points
from parenvs.agents.sharding.planners import solve_iopddl
from parenvs.datasets.hybrid.problems import TIERS, find_hybrid, problem_sets
from parenvs.datasets.pipeline.problems import (
    LARGE,
    OPTIMA,
    PROVEN,
    REFERENCES,
    load_set,
    pipeline_of,
)
from parenvs.datasets.references import HYBRID, INTRA_OP, SAME, Row, read, write
from parenvs.datasets.sharding.problems import BANKS, SETS, find, name_of, set_names
from parenvs.errors import ParenvsError, printable
from parenvs.files import locked
from parenvs.instances import data_folder
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import PointSpace
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.turns import board_of

WAIT = 60.0
"""Seconds that a row waits until another command has written its own."""
DUE, CHECK, AGAIN = "due", "check", "again"
"""What is solved: what is missing or outdated, nothing, or everything."""


@dataclass(frozen=True)
class ReferenceFile:
    """A file of references and how its rows are made.

    Attributes:
        file: its name among the shipped ones.
        command: the command that makes it.
        names: lists the problems; those that are in the file are looked at, too.
        load: loads a problem by name.
        make: solves a problem, and returns its row.
        fault: says what is wrong with a row in words, or returns an empty text.
    """

    file: str
    command: str
    names: Callable[[], Iterable[str]]
    load: Callable[[str], Any]
    make: Callable[[Any], Row]
    fault: Callable[[Any, Row], str]

    def main(self, arguments: Iterable[str] | None = None) -> int:
        """Run the command line, and return the exit status."""
        parser = argparse.ArgumentParser(
            prog=self.command, description="Make the references that are missing or outdated."
        )
        parser.add_argument("problems", nargs="*", metavar="NAME", help="default: all")
        parser.add_argument("--check", action="store_true", help="judge all, change nothing")
        parser.add_argument(
            "--again", action="store_true", help="solve all anew, and keep the better of both"
        )
        parser.add_argument("--out", type=Path, default=data_folder() / self.file)
        engine_options(parser)
        options = parser.parse_args(None if arguments is None else list(arguments))
        rows, faults = read(options.out), 0
        due = CHECK if options.check else AGAIN if options.again else DUE
        names = options.problems or dict.fromkeys((*self.names(), *rows))
        items = [(name, rows.get(name), due) for name in names]
        try:
            for name, fault, row in mapper_of(options)(self.look, items):
                faults += bool(fault)
                if row is not None:
                    # Read again under the lock: another command may have written since.
                    with locked(options.out, beside=True, wait=WAIT):
                        rows = {**rows, **read(options.out), name: row}
                        write(options.out, rows)
                if fault or row is not None:
                    words = fault if row is None else f"{row['length']}"
                    print(f"{name}: {words}", flush=True)
        except ParenvsError as error:
            print(printable(str(error)), file=sys.stderr)
            return 2
        verb = "wrong" if options.check else "made"
        print(f"{options.out}: {len(rows)} references, {faults} {verb}")
        if rows:
            over = sorted(row["length"] / row["bound"] - 1 for row in rows.values())
            print(f"length over bound: median {median(over):.2%}, most {over[-1]:.2%}")
        return 1 if options.check and faults else 0

    def look(self, item: tuple[str, Row | None, str]) -> tuple[str, str, Row | None]:
        """Look at ``item``: a problem's name, its row if any, and ``DUE``, ``CHECK`` or ``AGAIN``.

        Returns:
            its name, what is wrong with the row in words, and the new row, if one was made.
        """
        name, row, due = item
        problem = self.load(name)
        fault = self.fault(problem, row) if row is not None else "is missing"
        if due == CHECK or not (fault or due == AGAIN):
            return name, fault, None
        made = self.make(problem)
        return name, fault, made if fault or row is None else better(row, made)


def better(one: Row, other: Row) -> Row:
    """Return the shorter plan of two references of a problem, with the higher bound of both."""
    shorter = min(one, other, key=lambda row: row["length"])
    row = {**shorter, "bound": max(one["bound"], other["bound"])}
    if "proven" in row:
        row["proven"] = shorter["proven"] or row["bound"] >= row["length"]
    return row


def pipeline_row(problem: Pipeline) -> dict[str, Any]:
    """Compute the reference of a problem, as an object of JSON types (seconds)."""
    answer = by_search(problem)
    return {
        "fingerprint": problem.profile.fingerprint,
        "bound": answer.bound,
        "length": answer.cost,
        "cuts": list(answer.plan.cuts),
        "device_cuts": list(answer.plan.device_cuts),
    }


def optimum_row(problem: Pipeline) -> Row:
    """Prove the optimum of a problem over points and units, and return its reference.

    Raises:
        ParenvsError: it is not proven.
    """
    answer = exact_points(PointSpace.build(problem))
    if not answer.proven:
        raise ParenvsError(f"{problem.instance}: the optimum is not proven")
    length = problem.bubble_free / answer.value
    fingerprint = problem.profile.fingerprint
    return {"fingerprint": fingerprint, "length": length, "bound": length, "proven": True}


def pipeline_fault(problem: Pipeline, row: dict[str, Any]) -> str:
    """Return what is wrong with a reference in words, or an empty string."""
    if row["fingerprint"] != problem.profile.fingerprint:
        return "is of another chain"
    report = problem.report(problem.plan(np.array(row["cuts"]), np.array(row["device_cuts"])))
    if not report.legal or abs(report.length_seconds / row["length"] - 1) > SAME:
        return f"its plan takes {report.length_seconds} s, not {row['length']}, or is not legal"
    least = least_length(problem) * (1 - 2 * SLACK)
    if not least <= row["bound"] <= row["length"] * (1 + SAME):
        return f"its bound {row['bound']} s is not between that of the work and the length"
    return ""


PIPELINE_REFERENCES = ReferenceFile(
    REFERENCES,
    "python benchmarks/references.py pipelines",
    lambda: (problem.name for name in LARGE for problem in load_set(name)),
    pipeline_of,
    pipeline_row,
    pipeline_fault,
)
"""References of the sets of pipelines of 16 stages and more."""
OPTIMA_REFERENCES = ReferenceFile(
    OPTIMA,
    "python benchmarks/references.py optima",
    lambda: (problem.name for name in PROVEN for problem in load_set(name)),
    pipeline_of,
    optimum_row,
    lambda x, row: "" if row["fingerprint"] == x.profile.fingerprint else "is of another chain",
)
"""Proven optima of the sets of pipelines of few stages."""


SECONDS = 20.0
"""Processor seconds of the search on a problem; it ends sooner where the bound is met."""


def sharding_row(problem: Sharding) -> dict[str, Any]:
    """Compute the reference of a problem, as an object of JSON types.

    Returns:
        Its fingerprint; the costs of the greedy plan without advice and of the best plan known, a
        proven lower bound of costs, whether that plan is proven optimal, and its strategies.
    """
    answer = solve_iopddl(problem, SECONDS, processor=True)
    return {
        "fingerprint": problem.fingerprint,
        "greedy": int(board_of(problem).reference),
        "length": int(answer.cost),
        "bound": min(answer.bound or 0, answer.cost),
        "proven": answer.proven,
        "strategies": list(answer.plan.strategies),
    }


def sharding_fault(problem: Sharding, row: dict[str, Any]) -> str:
    """Return what is wrong with a reference in words, or an empty string."""
    if row["fingerprint"] != problem.fingerprint:
        return "is of another problem"
    report = problem.report(problem.plan(row["strategies"]))
    if not report.legal or report.cost != row["length"]:
        return f"its plan costs {report.cost}, not {row['length']}"
    if not 0 <= row["bound"] <= row["length"]:
        return f"its bound {row['bound']} is above the cost"
    if row["greedy"] != board_of(problem).reference:
        return f"the greedy plan costs {board_of(problem).reference}, not {row['greedy']}"
    return ""


def _shardings() -> Iterator[str]:
    for name in SETS:
        yield from set_names(name)
    for family, count in BANKS.items():
        yield from (name_of(family, number, "inside") for number in range(count))


HYBRID_SECONDS = 120.0
"""Wall seconds of each exact search. Other searches end by counts of plans or of sets of servers,
so that a reference has the same bound on every machine."""
FIRST = {
    **dict.fromkeys(("hybrid-validation", "hybrid-test"), None),
    "hybrid-outside": 12,
    **dict.fromkeys([f"{tier}-test" for tier in TIERS], HETERO_FIRST),
}
"""Set -> problems that references are made of by default, the first ones; None: all."""


def hybrid_names() -> Iterator[str]:
    """Yield the names of the problems whose references are made by default."""
    for name, first in FIRST.items():
        yield from (problem.instance for problem in problem_sets()[name][:first])


def hybrid_fault(problem: Hybrid, row: Row) -> str:
    """Return what is wrong with a reference in words, or an empty text."""
    if row["fingerprint"] != problem.model.fingerprint:
        return "is of another model"
    report = problem.report(plan_of_row(problem, row))
    if not report.legal or abs(report.length_seconds / row["length"] - 1) > SAME:
        return f"its plan takes {report.length_seconds} s, not {row['length']}"
    least = problem.kernel_bound_seconds
    if not least * (1 - SAME) <= row["bound"] <= row["length"] * (1 + SAME):
        return f"its bound {row['bound']} s is not between {least} s and the length"
    return ""


Found = tuple[HybridPlan, float, float, str, str]
"""A plan, its length, and seconds that no plan takes less than; the plans of which it is the proven
optimum, in words, empty if of none; and how it was found, in words."""


def hybrid_row(problem: Hybrid) -> Row:
    """Compute the reference of a problem, as an object of JSON types."""
    find = hetero_plan if problem.cluster.speeds else equal_plan
    plan, length, bound, among, method = find(problem)
    return {
        "fingerprint": problem.model.fingerprint,
        "length": length,
        "value": problem.bound_seconds / length,
        "bound": bound,
        "among": among,
        "method": method,
        "plan": {key: value for key, value in plan.to_json().items() if key not in HEAD},
    }


def equal_plan(problem: Hybrid) -> Found:
    """Return the best plan known for equal servers.

    An optimum is that among uniform plans and 1F1B plans of free stages; where a local search wins,
    none is proven.
    """
    answer = best_known(problem, HYBRID_SECONDS)
    among = answer.among if answer.proven else ""
    bound = min(problem.kernel_bound_seconds, answer.cost)
    return answer.plan, answer.cost, bound, among, answer.method


SWAPS, SEEDS = 800, (0, 1)
"""Plans that each swap search judges, and the seeds of the searches."""
STATES = 8_000
"""Sets of servers by type, at most, of more than 32 servers; 20,000 of fewer."""


def hetero_plan(problem: Hybrid) -> Found:
    """Return the best plan known for unequal servers.

    The plan is the best of swap searches, of speeds rounded down and, with few servers, of the
    subset program. The bound is that of speeds rounded up, which holds for every plan of one
    server per stage, however much it recomputes; the subset program proves optima ``among`` those
    that recompute no more than they must.
    """
    servers = problem.cluster.servers
    # Time grows with sets and servers: fewer sets keep large clusters within minutes.
    states = STATES if servers > 32 else 20_000
    orders = Orders(problem)
    orders.start()
    method = "sorted servers"
    for seed in SEEDS:
        answer = swap_search(problem, np.random.default_rng(seed), None, SWAPS)
        if answer.cost < orders.length and orders.setting is not None:
            orders.keep(answer.plan, orders.setting, answer.cost)
            method = f"swap search, {SWAPS} plans, seed {seed}"
    before = orders.length
    rounded_down(orders, states=states)
    method = method if orders.length == before else "speeds rounded down"
    before, among = orders.length, ""
    bound = lower_bound(orders, states=states)[0]
    method = method if orders.length == before else "speeds rounded up"
    if servers <= MAX_EXACT and bound < orders.length:
        before = orders.length
        exact = subset_search(problem, time_limit=HYBRID_SECONDS, orders=orders)
        among = AMONG if exact.proven else ""
        method = method if orders.length == before else "subset program"
        bound = min(bound, exact.cost)
    assert orders.best is not None
    return orders.best, orders.length, bound, among, method


INTRA_OP_REFERENCES = ReferenceFile(
    INTRA_OP,
    "python benchmarks/references.py shardings",
    _shardings,
    find,
    sharding_row,
    sharding_fault,
)
"""References of all shipped sets of sharding problems, and of the banks."""
HYBRIDS = ReferenceFile(
    HYBRID,
    "python benchmarks/references.py hybrids",
    hybrid_names,
    find_hybrid,
    hybrid_row,
    hybrid_fault,
)
"""References of the shipped sets of hybrid problems."""
COMMANDS: dict[str, Callable[[Iterable[str]], int]] = {
    "hybrids": HYBRIDS.main,
    "pipelines": PIPELINE_REFERENCES.main,
    "optima": OPTIMA_REFERENCES.main,
    "shardings": INTRA_OP_REFERENCES.main,
}


if __name__ == "__main__":
    if sys.argv[1:2] == [] or sys.argv[1] not in COMMANDS:
        sys.exit(f"references: give one of {', '.join(COMMANDS)}")
    sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
