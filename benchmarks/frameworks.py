"""What frameworks run of plans: the best plan for each, beside the best of all, and read back.

The plan for a framework is proven to be the best of the uniform plans that it runs as they are, by
the closed form. The file that is exported of it is read back, and the plan that it says is judged.
"""

from __future__ import annotations

from functools import partial

import parenvs
from benchmarks.framework import Case, Row, main, measurement, percent, table
from parenvs.agents.hybrid.baseline import baseline
from parenvs.errors import ParenvsError
from parenvs.exports.formats import export, runs_in
from parenvs.exports.formats import read_back as settings
from parenvs.tasks.hybrid.export import read_back

CASES = (
    ("llama3-8b", "1x8:h100", 128),
    ("llama3-8b", "8x8:h100", 512),
    ("llama3-8b", "64x8:h100", 2048),
    ("llama3-70b", "8x8:h100", 256),
    ("llama3-70b", "64x8:h100", 1024),
    ("llama3-405b", "128x8:h100", 1024),
    ("gpt3-175b", "16x8:h100", 1536),
    ("gpt3-175b", "128x8:h100", 1536),
    ("mixtral-8x7b", "2x8:h100", 128),
    ("mixtral-8x7b", "32x8:h100", 1024),
)
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed")
SECONDS = 20.0


def best(shape: str, cluster: str, batch: int) -> Row:
    target = parenvs.problem(shape, cluster, task="hybrid", batch=batch)
    free = parenvs.plan(target, "exact", time_limit=SECONDS)
    runs = runs_in(free.plan)
    rows = []
    for framework in FRAMEWORKS:
        row: Row = {"framework": framework, "free_runs": runs[framework]}
        try:
            answer = parenvs.plan(target, "exact", constraints={"framework": framework})
        except ParenvsError as error:
            rows.append({**row, "refused": str(error)})
            continue
        found = export(answer.plan, framework)
        again = read_back(target, settings(found.text, len(target.model)))
        try:
            usual = baseline(answer.report, None, framework)[1]
        except ParenvsError:
            usual = None
        rows.append({
            **row, "plan": answer.plan.words, "seconds": answer.cost, "took": answer.seconds,
            "export_loss": found.loss, "again": target.report(again).length_seconds,
            "same": again == answer.plan, "usual": usual,
        })  # fmt: skip
    plan = free.plan.words
    return {"free": free.cost, "free_plan": plan, "took": free.seconds, "stack": target.stack.name,
            "rows": rows}  # fmt: skip


@measurement(title="Plans for frameworks", key="shape cluster batch")
def frameworks() -> list[Case]:
    names = ("shape", "cluster", "batch")
    return [(dict(zip(names, case, strict=True)), partial(best, *case)) for case in CASES]


@frameworks.page
def page(rows: list[Row]) -> list[str]:
    every = [{**case, **row} for case in rows for row in case["rows"]]
    flat = [row for row in every if "plan" in row]
    lines = []
    for name in FRAMEWORKS:
        mine = [row for row in flat if row["framework"] == name]
        gaps = sorted(row["seconds"] / row["free"] - 1 for row in mine)
        usual = sorted(row["usual"] / row["seconds"] for row in mine if row["usual"])
        lines.append([
            name, len(mine), sum(x["export_loss"] == 0 for x in mine), sum(x["same"] for x in mine),
            percent(gaps[len(gaps) // 2], 2), percent(gaps[-1], 2),
            f"{usual[len(usual) // 2]:.2f}" if usual else "",
        ])  # fmt: skip
    return [
        f"{len(rows)} problems of large language models on up to 1,024 H100. The best uniform plan "
        "that a framework runs, exported and read back; its step time over that of the best plan "
        "of all; and the default of the framework's users over it. In "
        f"{len(every) - len(flat)} cases a framework has no plan that fits.",
        table(
            ["framework", "plans", "exported without loss", "read back equal",
             "median over the best", "most", "default / plan, median"],
            lines,
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(frameworks)
