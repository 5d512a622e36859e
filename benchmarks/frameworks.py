"""What frameworks run of plans: the best plan for each, beside the best of all, and read back.

The plan for a framework is proven to be the best of the uniform plans that it runs as they are, by
the closed form. The file that is exported of it is read back, and the plan that it says is judged.
"""

from __future__ import annotations

from functools import partial

from benchmarks.framework import Case, Column, Row, columns, main, measurement, percent
from parenvs import problem, solve
from parenvs.agents.hybrid.baseline import degrees, now
from parenvs.errors import ParenvsError
from parenvs.exports.formats import exported, runs_in
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
    target = problem(shape, cluster, task="hybrid", batch=batch)
    free = solve(target, time_limit=SECONDS)
    runs = runs_in(free.plan)
    rows = []
    for framework in FRAMEWORKS:
        row: Row = {"framework": framework, "free_runs": runs[framework]}
        try:
            answer = solve(target, constraints={"framework": framework})
        except ParenvsError as error:
            rows.append({**row, "refused": str(error)})
            continue
        found = exported(answer.plan, framework)
        again = read_back(target, settings(found.text, len(target.model)))
        try:
            usual = now(answer.report, None, framework)[1]
        except ParenvsError:
            usual = None
        rows.append({
            **row, "plan": degrees(answer.plan), "seconds": answer.cost, "took": answer.seconds,
            "export_loss": found.loss, "again": target.report(again).length_seconds,
            "same": again == answer.plan, "usual": usual,
        })  # fmt: skip
    plan = degrees(free.plan)
    return {"free": free.cost, "free_plan": plan, "took": free.seconds, "stack": target.stack.label,
            "rows": rows}  # fmt: skip


@measurement(title="Plans for frameworks", key="shape cluster batch")
def frameworks() -> list[Case]:
    names = ("shape", "cluster", "batch")
    return [(dict(zip(names, case, strict=True)), partial(best, *case)) for case in CASES]


@frameworks.page
def page(rows: list[Row]) -> list[str]:
    every = [{**case, **row} for case in rows for row in case["rows"]]
    flat = [row for row in every if "plan" in row]
    same = sum(x["again"] == x["seconds"] for x in flat)
    plans = sum(x["same"] for x in flat)
    kept = sum(x["export_loss"] == 0 for x in flat)
    worst = {name: max(_over(x) for x in flat if x["framework"] == name) for name in FRAMEWORKS}
    own = ", ".join(f"{name} {percent(x, 2)}" for name, x in worst.items())
    stacks = ", ".join(sorted({case["stack"] for case in rows}))
    return [
        f"{len(rows)} problems under stack {stacks}. Of {len(flat)} plans for a framework, {kept} "
        f"are exported without loss; the plan that the exported file says is the plan exported in "
        f"{plans} cases, and takes the same judged seconds in {same}. The most by which a "
        f"framework's plan is longer than the best of all: {own}. In {len(every) - len(flat)} "
        "cases a framework has no plan that fits.",
        "*Usual* is what users of the framework do by default, as `parenvs plan` says it: how many "
        "times as fast the plan is. The last column is what becomes of the best plan of all, "
        "exported: the share by which it is longer there, or the field that stands against it.",
        columns(flat, COLUMNS, left=5),
        "The best of all, from uniform plans and those of free stages, by simulated seconds; what "
        "free stages take is proven by no more than the time allowed:",
        columns(rows, FREE, left=4),
    ]


def _over(row: Row) -> float:
    """Share by which a plan for a framework is longer than the best of all."""
    return float(row["seconds"] / row["free"] - 1)


def _free(row: Row) -> str:
    """What becomes of the best plan of all in a framework."""
    loss = row["free_runs"]
    return loss.partition(":")[0] if isinstance(loss, str) else percent(loss, 2)


COLUMNS: list[Column] = [
    ("model", "{shape}"),
    ("devices", "{cluster}"),
    ("batch", "{batch:,}"),
    ("framework", "{framework}"),
    ("plan", "{plan}"),
    ("s a step", "{seconds:.4g}"),
    ("over the best of all", lambda row: percent(_over(row), 2)),
    ("read back", lambda row: percent(row["again"] / row["seconds"] - 1, 2)),
    ("faster than usual", lambda row: f"{row['usual'] / row['seconds']:.2f}" if row["usual"]
     else "does not fit"),
    ("s of planning", "{took:.1f}"),
    ("the best of all, exported", _free),
]  # fmt: skip
FREE: list[Column] = [
    ("model", "{shape}"),
    ("devices", "{cluster}"),
    ("batch", "{batch:,}"),
    ("the best plan of all", "{free_plan}"),
    ("s a step", "{free:.4g}"),
    ("s of planning", "{took:.1f}"),
]


if __name__ == "__main__":
    main(frameworks)
