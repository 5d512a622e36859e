"""What a user would take instead, beside what is here: scores of the leaderboard, in one table.

    python benchmarks/instead.py

Every score is that of ``parenvs leaderboard table``: the entries' plans, judged anew.
"""

from __future__ import annotations

from benchmarks.framework import ROOT, main, measurement, table
from parenvs.leaderboard.check import CheckedEntry, PlanState, check_file
from parenvs.leaderboard.entry import entry_files
from parenvs.leaderboard.ranking import by_version, ranking

PLANS = (
    ("even", "GPipe's even cut"),
    ("pipedream", "PipeDream's planner"),
    ("random", "random search"),
)
OURS = (("exact", "exact"), ("pretrained", "network of an older version"), ("ppo", "PPO"))
SPLITS = (
    ("data-parallel", "data parallelism"),
    ("expert", "Megatron's splits"),
    ("random", "random search"),
)
LEARNED = (("ppo", "PPO"), ("rainbow", "Rainbow"))
ROWS = (
    ("pipeline-cut", "cut a model into a stage a server", PLANS, OURS),
    ("pipeline-plan", "stages and devices of a pipeline", PLANS, OURS),
    (
        "operator-partition-step-time",
        "which tensors to split",
        SPLITS,
        (("exact", "exact"), *LEARNED),
    ),
    (
        "operator-partition-memory",
        "the same, within the memory of a device",
        SPLITS,
        (("exact", "exact"), ("greedy", "greedy"), *LEARNED),
    ),
    (
        "hybrid",
        "all axes together",
        (("rule-of-thumb", "rule of thumb"), ("uniform", "best plan of equal stages")),
        (("exact", "exact search"),),
    ),
)
"""Task, what it asks, entries that people would take, entries of this project."""


def scores(checked: list[CheckedEntry]) -> dict[str, dict[str, str]]:
    """Task -> entry -> its score in words; an entry of several versions has its oldest."""
    found: dict[str, dict[str, str]] = {}
    for known, group in by_version(checked):
        for task in known.tasks.values():
            for standing in ranking(task, group):
                missing = standing.checked.count(PlanState.MISSING)
                note = f" ({missing} of {len(task.counted)} without a plan)" if missing else ""
                found.setdefault(task.name, {})[standing.name] = f"{standing.score:.3f}{note}"
    return found


@measurement(title="What one would take instead", derived=True)
def instead() -> list[list[str]]:
    named = {task for task, *_ in ROWS}
    files = [x for x in entry_files(ROOT / "leaderboard/submissions") if x.parent.name in named]
    found = scores([check_file(path) for path in files])
    return [[words, *(_in_words(found[task], x) for x in groups)] for task, words, *groups in ROWS]


def _in_words(scores: dict[str, str], group: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{title} {scores[entry]}" for entry, title in group if entry in scores)


@instead.page
def page(rows: list[list[str]]) -> list[str]:
    return [table(["question", "what one would take", "what is here"], rows, 3)]


if __name__ == "__main__":
    main(instead)
