"""Makes the references of the sets of pipelines of many stages: the shortest plan known of each.

    python -m parenvs.agents.pipeline.references             # what is missing or outdated
    python -m parenvs.agents.pipeline.references --again     # all anew; the better of both stays
    python -m parenvs.agents.pipeline.references --check     # judge all, change nothing

The plans are those of the planner ``corridor`` without a limit, so that every machine finds the
same, and so are their bounds. It takes about ten seconds a problem where loops are
compiled (extra ``fast``), a minute where they are not. Each row is written when it is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from parenvs.agents.pipeline.bounds import SLACK, least_length
from parenvs.agents.pipeline.exact import by_corridor
from parenvs.agents.references import SAME, ReferenceFile, run
from parenvs.datasets.pipeline.large import REFERENCES
from parenvs.datasets.pipeline.sets import LARGE, load_set, pipeline_of
from parenvs.tasks.pipeline.problem import Pipeline


def reference_of(problem: Pipeline) -> dict[str, Any]:
    """Compute the reference of a problem, as an object of JSON types (seconds)."""
    answer = by_corridor(problem)
    return {
        "fingerprint": problem.profile.fingerprint,
        "bound": answer.bound,
        "length": answer.cost,
        "cuts": list(answer.plan.cuts),
        "device_cuts": list(answer.plan.device_cuts),
    }


def fault_of(problem: Pipeline, row: dict[str, Any]) -> str:
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


def _names() -> Iterator[str]:
    for set_name in LARGE:
        yield from (problem.name for problem in load_set(set_name))


PIPELINE_REFERENCES = ReferenceFile(
    REFERENCES,
    "python -m parenvs.agents.pipeline.references",
    _names,
    pipeline_of,
    reference_of,
    fault_of,
)
"""References of the sets of pipelines of 16 stages and more."""

if __name__ == "__main__":
    run(PIPELINE_REFERENCES)
