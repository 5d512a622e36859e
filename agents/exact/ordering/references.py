"""Makes the references of the shipped sets of orders: a bound and a good order of each problem.

    python -m parenvs.agents.exact.ordering.references             # what is missing or outdated
    python -m parenvs.agents.exact.ordering.references --check     # judge all, change nothing

Problems of at most ``FEW`` micro-batches are solved by ``exact_order``; of others the bound is
``path_bound`` (``relaxed_bound`` is seldom higher, and takes seconds), and the order is the best of
two long local searches, from the pyramid and from NEH. Each row is written when it is known, so an
interruption loses one problem.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.agents.exact.ordering.bounds import path_bound
from parenvs.agents.exact.ordering.search import exact_order
from parenvs.agents.heuristics.ordering import local_search, neh
from parenvs.files import write_text
from parenvs.ordering.problem import Ordering
from parenvs.shipped import ORDER_SETS, data_folder, load_ordering, ordering_steps

FILE = "order-references.json"
FEW = 8
"""Most micro-batches of problems that are solved exactly."""
JUDGED, WIDTH = 4_096, 64
"""Orders that each local search judges, and how many together."""
SAME = 1e-9
"""Share by which lengths may differ by rounding."""


@lru_cache(maxsize=1)
def order_references() -> dict[str, dict[str, Any]]:
    """Read the references: name of a problem -> fingerprint, bound, length, proven and order."""
    return _read(data_folder() / FILE)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def reference_of(problem: Ordering) -> dict[str, Any]:
    """Compute the reference of a problem, as an object of JSON types (seconds)."""
    if problem.micro_batches <= FEW:
        answer = exact_order(problem)
        found = {"bound": answer.bound, "length": answer.length, "proven": answer.proven}
        order = answer.order
    else:
        starts = (None, neh(problem).order)
        answers = [
            local_search(problem, JUDGED, np.random.default_rng(k), start, WIDTH)
            for k, start in enumerate(starts)
        ]
        best = min(answers, key=lambda answer: answer.length)
        bound = path_bound(problem)
        found = {"bound": bound, "length": best.length, "proven": False}
        order = best.order
    return {"fingerprint": problem.fingerprint, **found, "order": order.tolist()}


def fault_of(problem: Ordering, row: dict[str, Any]) -> str:
    """Return what is wrong with a reference in words, or an empty string."""
    if row["fingerprint"] != problem.fingerprint:
        return "is of other seconds"
    report = problem.report(problem.plan(row["order"]))
    if not report.legal or abs(report.length_seconds / row["length"] - 1) > SAME:
        return f"its order takes {report.length_seconds} s, not {row['length']}"
    if not problem.bound_seconds * (1 - 1e-5) <= row["bound"] <= row["length"] * (1 + SAME):
        return f"its bound {row['bound']} s is not between the machine bound and the length"
    return ""


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="judge all, change nothing")
    parser.add_argument("--out", type=Path, default=data_folder() / FILE)
    options = parser.parse_args(None if arguments is None else list(arguments))
    rows, faults = _read(options.out), 0
    for set_name in ORDER_SETS:
        for member in ordering_steps(set_name):
            name = f"{set_name}/{member}"
            problem = load_ordering(name)
            fault = fault_of(problem, rows[name]) if name in rows else "is missing"
            faults += bool(fault)
            if fault and not options.check:
                rows[name] = reference_of(problem)
                _write(options.out, rows)
            if fault:
                words = f"{name}: {fault}" if options.check else f"{name}: {rows[name]['length']}"
                print(words, flush=True)
    print(f"{options.out}: {len(rows)} references, {faults} {'wrong' if options.check else 'made'}")
    return 1 if options.check and faults else 0


def _write(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    sys.exit(main())
