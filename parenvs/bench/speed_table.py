"""Speeds as tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from parenvs.machine import counted
from parenvs.markdown import table

Row = dict[str, Any]
NAMES = {
    "steps_per_second": "steps/s",
    "over_single": "steps/s over the single one's",
    "over_cartpole": "steps/s over CartPole's",
}


def markdown(data: Mapping[str, Any], command: str) -> str:
    """The results of ``bench_speed.measure`` as a page."""
    effort = data["effort"]
    sections = [
        "# Speed",
        f"`{command}`",
        _machine(data["machine"]),
        preface(effort["seconds"], effort["repeats"]),
        environments(data["environments"]),
        *asked(data["targets"]),
        "## Growth",
        "Steps a second against the number of environments are above.",
        *pivots(data["growth"]["pivots"]),
        *classes(data["growth"]["classes"]),
        *memory(data["memory"]),
        "## Reading, solving, judging",
        "Processor time of a call.",
        parts(data["parts"]),
        "## Training",
        *training(data, effort),
    ]
    return "\n\n".join(sections) + "\n"


def summary(data: Mapping[str, Any], command: str) -> str:
    """Steps a second alone, as a page of its own: a row for each environment."""
    rows, effort = data["environments"], data["effort"]
    counts = sorted({row["envs"] for row in rows})
    found = {(row["what"], row["envs"]): row for row in rows}
    cells = []
    for what in dict.fromkeys(row["what"] for row in rows):
        some = [found.get((what, count)) for count in counts]
        cells.append([what, *("" if row is None else _short(row) for row in some)])
    words = (
        "Random legal steps a second on one thread, resets included, observations and masks "
        f"written; processor time, median of {effort['repeats']} runs. `single`: by `gym.make`; "
        "numbers: as many at once by `gym.make_vec`. In brackets: over gymnasium's `CartPole-v1` "
        "with as many envs in the same round."
    )
    header = ["environment", *("single" if count == 0 else f"{count:,}" for count in counts)]
    sections = ["# Speed", f"`{command}`", _machine(data["machine"]), words, table(header, cells)]
    return "\n\n".join([*sections, *asked(data["targets"])]) + "\n"


def preface(seconds: float, repeats: int) -> str:
    """What is measured, and how."""
    return (
        "Random legal steps on one thread, resets included, observations and masks written; steps "
        f"a second of processor time, median of {repeats} runs of {seconds:g} s, all environments "
        'in turns. `envs`: at once, by `gym.make_vec`; "single" by `gym.make`. `/ single`: over '
        "the single environment; `/ CartPole`: over gymnasium's `CartPole-v1` with as many envs, "
        "median and worst, both of the same round. `of copying`: the time that `np.copyto` takes "
        "for the bytes of the observation, over that of a step; more than 100 % where what all "
        "share is written from one row. With `copy=False` it is a view. `reset`: of all."
    )


def environments(rows: Sequence[Row]) -> str:
    """Steps a second, case by case; the sizes of one below each other."""
    order = list(dict.fromkeys(row["what"] for row in rows))
    header = ["environment", "actions", "envs", "steps/s", "/ single", "/ CartPole", "worst"]
    header += ["observation, bytes an env", "of copying", "reset, µs"]
    return table(
        header,
        [
            [
                row["what"],
                row["actions"],
                row["envs"] or "single",
                f"{median(row['steps_per_second']):,.0f}",
                f"{median(row['over_single']):.1f}",
                f"{median(row['over_cartpole']):.2f}",
                f"{min(row['over_cartpole']):.2f}",
                f"{row['observation_bytes']:,.0f}",
                _percent(row["of_copying"]),
                f"{1e6 * median(row['reset_seconds']):,.1f}",
            ]
            for row in sorted(rows, key=lambda row: order.index(row["what"]))
        ],
    )


def asked(rows: Sequence[Row]) -> list[str]:
    """What is asked, and the ratio that is reached."""
    if not rows:
        return []
    cells = [
        [
            row["what"],
            f"{row['envs']:,}" if row["envs"] else "single",
            NAMES[row["of"]],
            f"{row['asked']:,g}" if row["asked"] < 1000 else f"{row['asked']:,.0f}",
            f"{row['reached']:,.2f}" if row["asked"] < 1000 else f"{row['reached']:,.0f}",
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    header = ["environment", "envs", "of", "asked, at least", "reached", "reached / asked"]
    return ["What is asked of them:", table(header, cells)]


def pivots(rows: Sequence[Row]) -> list[str]:
    """Growth with the number of pivots."""
    words = (
        f"Growth with the number of pivots, `PipelineCut-v0`, {_envs(rows)} envs, 4 stages on "
        "cluster C. `stages by`: where tables of stages would be too large, they are computed in "
        "every step."
    )
    header = ["pivots", "candidates", "stages by", "tables, MB", "making, s", "steps/s"]
    cells = [
        [
            f"{row['pivots']:,}",
            f"{row['actions']:,}",
            "table" if row["tabulated"] else "computing",
            f"{row['table_bytes'] / 1e6:,.1f}",
            f"{row['making_s']:.2f}",
            f"{median(row['steps_per_second']):,.0f}",
            f"{median(row['steps_per_second']) * row['actions']:,.0f}",
            _percent(row["of_copying"]),
        ]
        for row in rows
    ]
    return [words, table([*header, "candidates/s", "of copying"], cells)]


def classes(rows: Sequence[Row]) -> list[str]:
    """Growth with the number of classes."""
    words = (
        "Growth with the number of classes, `OperatorPartition-v0`: chains of dense layers, "
        f"{_envs(rows)} envs. Where whole rows would take a table of more than 32 MiB, lists of "
        "changes take its place."
    )
    header = ["layers", "classes", "dimensions", "by", "making, s", "steps/s", "of copying"]
    cells = [
        [
            row["layers"],
            row["classes"],
            row["dimensions"],
            "table" if row["tables"] else "lists",
            f"{row['making_s']:.2f}",
            f"{median(row['steps_per_second']):,.0f}",
            _percent(row["of_copying"]),
        ]
        for row in rows
    ]
    return [words, table(header, cells)]


def memory(rows: Sequence[Row]) -> list[str]:
    """Memory of each environment."""
    words = (
        "Memory that each environment of a batch adds, in bytes, tables that all share left out: "
        "the arrays of its state; all that the batch keeps; of that, the bounds that gymnasium "
        "keeps of a batched observation space; what a step allocates at most, results included:"
    )
    keys = ("state", "held", "bounds", "in_a_step")
    cells = [
        [row["what"], f"{row['envs']:,}", *(f"{row[key]:,.0f}" for key in keys)] for row in rows
    ]
    header = ["environment", "envs", "state", "held", "bounds", "in a step"]
    return [words, table(header, cells)]


def parts(rows: Iterable[Row]) -> str:
    """Everything but environments."""
    cells = [
        [
            row["what"],
            row["instance"],
            f"{1e3 * median(row['seconds']):,.2f}",
            f"{1e3 * min(row['seconds']):,.2f}",
            f"{1e3 * max(row['seconds']):,.2f}",
            f"{row['plans'] / median(row['seconds']):,.0f}" if row["plans"] > 1 else "",
        ]
        for row in rows
    ]
    return table(["what", "instance", "ms", "best", "worst", "plans/s"], cells, left=2)


def training(data: Mapping[str, Any], effort: Mapping[str, Any]) -> list[str]:
    """Samples a second of agents, or why there are none."""
    if data["training_missing"]:
        return [f"Left out: {data['training_missing']}."]
    words = (
        "Environment steps a second in training, updates included, on native batches; median of "
        f"{effort['repeats']} turns of {effort['train_steps']:,} steps or the whole updates that "
        "hold them."
    )
    cells = [
        [
            row["agent"],
            f"{row['id']}, {row['kwargs']['instance']}",
            row["envs"],
            f"{median(row['steps_per_second']):,.0f}",
        ]
        for row in data["training"]
    ]
    return [words, table(["agent", "environment", "envs", "samples/s"], cells, left=2)]


def _machine(machine: Mapping[str, Any]) -> str:
    """Processor, cores and versions, in words."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"{machine['processor']}, {counted(machine['cores'])}; {versions}"


def _short(row: Row) -> str:
    """Steps a second, and in brackets over CartPole's."""
    speed, ratio = median(row["steps_per_second"]), median(row["over_cartpole"])
    words = f"{speed / 1e6:.2f} M" if speed >= 1e6 else f"{speed / 1e3:,.1f} k"
    return f"{words} ({ratio:.2f})"


def _envs(rows: Sequence[Row]) -> str:
    return " or ".join(dict.fromkeys(f"{row['envs']:,}" for row in rows))


def _percent(shares: Sequence[float]) -> str:
    return f"{100 * median(shares):.0f} %"
