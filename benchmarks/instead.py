"""What a user would take instead, beside what is here: scores of the leaderboard, in one table.

    python benchmarks/instead.py

Every score is that of ``parenvs leaderboard table``: the entries' plans, judged anew.
"""

from __future__ import annotations

import re

from benchmarks.framework import ROOT, main, measurement, table
from parenvs.leaderboard.check import check_file
from parenvs.leaderboard.entry import entry_files
from parenvs.leaderboard.ranking import page as rankings

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
LEARNT = (("ppo", "PPO"), ("rainbow", "Rainbow"))
ROWS = (
    ("pipeline-cut", "cut a model into a stage a server", PLANS, OURS),
    ("pipeline-plan", "stages and devices of a pipeline", PLANS, OURS),
    (
        "operator-partition-step-time",
        "which tensors to split",
        SPLITS,
        (("exact", "exact"), *LEARNT),
    ),
    (
        "operator-partition-memory",
        "the same, within the memory of a device",
        SPLITS,
        (("exact", "exact"), ("greedy", "greedy"), *LEARNT),
    ),
    (
        "hybrid",
        "all axes together",
        (("rule-of-thumb", "Megatron's rule of thumb"), ("uniform", "best plan of equal stages")),
        (("exact", "exact search"),),
    ),
)
"""Task, what it asks, entries that people would take, entries of this project."""


def scores(text: str) -> dict[str, dict[str, str]]:
    """Task -> entry -> its score in words, of the leaderboard's rankings."""
    found: dict[str, dict[str, str]] = {}
    for section in re.split("^## ", text, flags=re.M)[1:]:
        lines = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
        titles = [title.strip("| ") for title in lines[0]] if lines else []
        if not {"rank", "entry", "score", "marked"} <= set(titles):
            continue
        entries = found.setdefault(section.split("\n", 1)[0], {})
        count = re.search(r"(\d+) problems", section)
        for line in lines[2:]:
            if not line[0].strip("| ").isdigit():
                break  # the table of problems
            cells = dict(zip(titles, (cell.strip() for cell in line), strict=True))
            name = cells["entry"].partition("]")[0].strip("[")
            missing = re.match(r"(\d+) missing", cells["marked"])
            note = f" ({missing[1]} of {count[1]} without a plan)" if missing and count else ""
            entries[name] = f"{float(cells['score']):.3f}{note}"
    return found


@measurement(title="What one would take instead", derived=True)
def instead() -> list[list[str]]:
    named = {task for task, *_ in ROWS}
    files = [x for x in entry_files(ROOT / "leaderboard/submissions") if x.parent.name in named]
    found = scores(rankings([check_file(path) for path in files]))
    return [
        [
            words,
            *(
                ", ".join(
                    f"{title} {found[task][entry]}"
                    for entry, title in group
                    if entry in found[task]
                )
                for group in groups
            ),
        ]
        for task, words, *groups in ROWS
    ]


@instead.page
def page(rows: list[list[str]]) -> list[str]:
    return [table(["question", "what one would take", "what is here"], rows, 3)]


if __name__ == "__main__":
    main(instead)
