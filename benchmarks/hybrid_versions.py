"""What the references of shipped hybrid sets cost under the newest versions of their stacks.

Sets, references and drawn problems name versions of stacks. Where a newer one costs something else,
they are to be renewed together: ``STACK`` and ``STACKS`` in ``datasets/hybrid``, then
``make renew-hybrid``, which goes on where it was stopped; ``leaderboard/revisions.md`` lists old
and new costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.framework import columns, main, measurement
from parenvs.agents.hybrid.references import HETERO_REFERENCES, HYBRID_REFERENCES, plan_of_row
from parenvs.datasets.references import references
from parenvs.tasks.hybrid.shipped import problem_sets
from parenvs.tasks.hybrid.stack import STACKS


@measurement(title="Versions of the hybrid cost model")
def hybrid_versions() -> Iterator[dict[str, Any]]:
    known = {**references(HYBRID_REFERENCES.file), **references(HETERO_REFERENCES.file)}
    for name, problems in problem_sets().items():
        for kind in ("dense", "experts"):
            ratios, gathering = [], 0
            for problem in problems:
                shape = problem.model.shape
                if problem.instance not in known or (shape.experts > 1) != (kind == "experts"):
                    continue
                plan = plan_of_row(problem, known[problem.instance])
                newest = replace(problem, stack=STACKS[problem.stack.name])
                ratios.append(newest.length(plan) / problem.length(plan) - 1)
                gathering += abs(ratios[-1]) > 1e-12 and plan.stages[0].zero == 3
            if ratios:
                changed = [ratio for ratio in ratios if abs(ratio) > 1e-12]
                yield {
                    "set": name,
                    "models": kind,
                    "references": len(ratios),
                    "changed": len(changed),
                    "zero3": gathering,
                    "mean": float(np.mean(changed)) if changed else 0.0,
                    "least": min(ratios),
                    "most": max(ratios),
                }


def signed(key: str, row: dict[str, Any]) -> str:
    return f"{100 * row[key]:+.1f} %"


@hybrid_versions.page
def page(rows: list[dict[str, Any]]) -> list[str]:
    total = sum(row["changed"] for row in rows)
    return [
        f"{total} of {sum(row['references'] for row in rows)} plans of references would cost "
        "something else by the newest versions of their stacks. Sets, references and drawn "
        "problems name versions; this is what is to be renewed (`make renew-hybrid`) when they "
        "name others.",
        columns(
            rows,
            [
                ("set", "{set}"), ("models", "{models}"), ("references", "{references}"),
                ("changed", "{changed}"), ("with ZeRO 3", "{zero3}"),
                ("mean change", partial(signed, "mean")),
                ("least", partial(signed, "least")), ("most", partial(signed, "most")),
            ],
            left=2,
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(hybrid_versions)
