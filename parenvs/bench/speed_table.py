"""The pages of ``parenvs bench speed``: all tables, and a short one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from parenvs.bench.page import Column, Row, columns, percent


def page(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """The tables of ``bench_speed``, and one of steps per second alone.

    Args:
        data: the results of ``speed.bench_speed``.
    """
    effort, rows = data["effort"], data["environments"]
    preface = (
        "Random legal steps on one thread, resets included, observations and masks written; steps "
        f"a second of processor time, median of {effort['repeats']} runs of {effort['seconds']:g} "
        's, all environments in turns. `envs`: at once, by `gym.make_vec`; "single" by '
        "`gym.make`. `/ single`: over the single environment; `/ CartPole`: over gymnasium's "
        "`CartPole-v1` with as many envs, median and worst, both of the same round; `ahead`: rows "
        "that look ahead, `bare`: rows that do not. `of copying`: "
        "the time that `np.copyto` takes for the bytes of the observation, over that of a step; "
        "more than 100 % where what all share is written from one row. With `copy=False` it is a "
        "view. `reset`: of all."
    )
    order = list(dict.fromkeys(row["what"] for row in rows))
    sections = [
        preface,
        columns(sorted(rows, key=lambda row: order.index(row["what"])), ENVIRONMENTS),
        "## Rows that look ahead",
        f"Plans judged a second of processor time, {_envs(data['ahead'])} envs after some random "
        "turns. `rows`: all that an environment makes of a turn, features and masks included; "
        "`formulas`: the same plans as arrays, judged by what rows ask, and nothing else; `rows "
        "cost`: as many times the processor time, median and worst. `ElasticPlan-v1` looks up what "
        "was judged once, and is beside the formulas of all changes between plans.",
        columns(data["ahead"], LOOKING),
        "## Growth",
        "Steps a second against the number of environments are above.",
        f"Growth with the number of pivots, `PipelineCut-v0`, {_envs(data['growth']['pivots'])} "
        "envs, 4 stages on cluster C. `stages by`: where tables of stages would be too large, they "
        "are computed in every step.",
        columns(data["growth"]["pivots"], PIVOTS),
        "Growth with the number of classes, `OperatorPartition-v0`: chains of dense layers, "
        f"{_envs(data['growth']['classes'])} envs. Where whole rows would take a table of more "
        "than 32 MiB, lists of changes take its place.",
        columns(data["growth"]["classes"], CLASSES),
        "Memory that each environment of a batch adds, in bytes, tables that all share left out: "
        "the arrays of its state; all that the batch keeps; of that, the bounds that gymnasium "
        "keeps of a batched observation space; what a step allocates at most, results included:",
        columns(data["memory"], MEMORY),
        "## Reading, solving, judging",
        "Processor time of a call.",
        columns(data["parts"], PARTS, left=2),
        "## Training",
    ]
    if data["training_missing"]:
        sections.append(f"Left out: {data['training_missing']}.")
    else:
        sections += [
            "Environment steps a second in training, updates included, on native batches; median "
            f"of {effort['repeats']} turns of {effort['train_steps']:,} steps or the whole updates "
            "that hold them.",
            columns(data["training"], TRAINING, left=2),
        ]
    return {
        "bench_speed": sections,
        "bench_speed_summary": _summary(rows, effort["repeats"]),
    }


def _summary(rows: Sequence[Row], repeats: int) -> list[str]:
    """Steps per second alone: a row for each environment, a column for each size."""
    counts = sorted({row["envs"] for row in rows})
    lines: dict[str, Row] = {}
    for row in rows:
        lines.setdefault(row["what"], {"what": row["what"]})[f"by_{row['envs']}"] = _short(row)
    shown: list[Column] = [("environment", "{what}")]
    shown += [(f"{count:,}" if count else "single", f"{{by_{count}}}") for count in counts]
    words = (
        "Random legal steps a second on one thread, resets included, observations and masks "
        f"written; processor time, median of {repeats} runs. `single`: by `gym.make`; "
        "numbers: as many at once by `gym.make_vec`. In brackets: over gymnasium's `CartPole-v1` "
        "with as many envs in the same round."
    )
    return [words, columns(lines.values(), shown)]


def _middle(key: str, form: str, factor: float = 1.0) -> Any:
    """A column: the median of a row's runs."""
    return lambda row: format(factor * median(row[key]), form)


def _copying(row: Row) -> str:
    return percent(median(row["of_copying"]), 0)


def _cost(row: Row) -> list[float]:
    """Processor time of rows over that of formulas, of each run."""
    return [b / a for a, b in zip(row["rows"], row["formulas"], strict=True)]


def _short(row: Row) -> str:
    """Steps per second, and in brackets their ratio to CartPole's."""
    speed, ratio = median(row["steps_per_second"]), median(row["over_cartpole"])
    words = f"{speed / 1e6:.2f} M" if speed >= 1e6 else f"{speed / 1e3:,.1f} k"
    return f"{words} ({ratio:.2g})"


def _envs(rows: Sequence[Row]) -> str:
    """The sizes of the rows' batches, in words."""
    return " or ".join(dict.fromkeys(f"{row['envs']:,}" for row in rows))


ENVIRONMENTS: list[Column] = [
    ("environment", "{what}"),
    ("actions", "{actions}"),
    ("envs", lambda row: row["envs"] or "single"),
    ("steps/s", _middle("steps_per_second", ",.0f")),
    ("/ single", _middle("over_single", ".1f")),
    ("/ CartPole", _middle("over_cartpole", ".2g")),
    ("worst", lambda row: f"{min(row['over_cartpole']):.2g}"),
    ("observation, bytes an env", "{observation_bytes:,.0f}"),
    ("of copying", _copying),
    ("reset, µs", _middle("reset_seconds", ",.1f", 1e6)),
]
LOOKING: list[Column] = [
    ("environment", "{what}"),
    ("plans", "{plans:,}"),
    ("rows, plans/s", _middle("rows", ",.0f")),
    ("formulas, plans/s", _middle("formulas", ",.0f")),
    ("rows cost", lambda row: f"{median(_cost(row)):.2f}"),
    ("worst", lambda row: f"{max(_cost(row)):.2f}"),
]
PIVOTS: list[Column] = [
    ("pivots", "{pivots:,}"),
    ("candidates", "{actions:,}"),
    ("stages by", lambda row: "table" if row["tabulated"] else "computing"),
    ("tables, MB", "{table_bytes:,.1f/1e6}"),
    ("making, s", "{making_s:.2f}"),
    ("steps/s", _middle("steps_per_second", ",.0f")),
    ("candidates/s", lambda row: f"{median(row['steps_per_second']) * row['actions']:,.0f}"),
    ("of copying", _copying),
]
CLASSES: list[Column] = [
    ("layers", "{layers}"),
    ("classes", "{classes}"),
    ("dimensions", "{dimensions}"),
    ("by", lambda row: "table" if row["tables"] else "lists"),
    ("making, s", "{making_s:.2f}"),
    ("steps/s", _middle("steps_per_second", ",.0f")),
    ("of copying", _copying),
]
MEMORY: list[Column] = [
    ("environment", "{what}"),
    ("envs", "{envs:,}"),
    ("state", "{state:,.0f}"),
    ("held", "{held:,.0f}"),
    ("bounds", "{bounds:,.0f}"),
    ("in a step", "{in_a_step:,.0f}"),
]
PARTS: list[Column] = [
    ("what", "{what}"),
    ("instance", "{instance}"),
    ("ms", _middle("seconds", ",.2f", 1e3)),
    ("best", lambda row: f"{1e3 * min(row['seconds']):,.2f}"),
    ("worst", lambda row: f"{1e3 * max(row['seconds']):,.2f}"),
    (
        "plans/s",
        lambda row: f"{row['plans'] / median(row['seconds']):,.0f}" if row["plans"] > 1 else "",
    ),
]
TRAINING: list[Column] = [
    ("agent", "{agent}"),
    ("environment", "{id}, {kwargs[instance]}"),
    ("envs", "{envs}"),
    ("samples/s", _middle("steps_per_second", ",.0f")),
]
