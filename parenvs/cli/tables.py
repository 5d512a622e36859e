"""The rich tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from parenvs.cluster import PRESETS
from parenvs.core.registry import task_of
from parenvs.errors import printable
from parenvs.graph import roles
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.instances import manifest
from parenvs.view.tables import empty
from parenvs.view.words import duration, kind_of, merged, size

if TYPE_CHECKING:
    from parenvs.agents.evaluation.evaluate import Evaluation
    from parenvs.agents.evaluation.evaluate_set import SetEvaluation
    from parenvs.agents.learning.config import TrainResult
    from parenvs.clock.calibration import Timed
    from parenvs.clock.members import Layers
    from parenvs.core.plan import Answer
    from parenvs.leaderboard.check import CheckedEntry


_ROLES = {
    "VARIABLE": "variables",
    "OPTIMIZER": "optimizer state",
    "BATCH": "batch inputs",
    "SCALAR": "scalars and random keys",
    "STATISTICS": "statistics",
    "FROZEN": "frozen weights",
}
"""Name of a role -> words for the parameters that have it."""


_MAX_ROWS = 8
"""Rows for the entry parameters of one argument that are taken for the same, or for devices."""


def instances() -> Table:
    """The shipped instances."""
    rows = []
    for name, entry in manifest()["instances"].items():
        train, pivots = entry["graphs"]["train"], entry["graphs"]["forward"]["pivots"]
        figures = (f"{train['parameters']:,}", f"{train['flops']:.3e}", str(pivots))
        rows.append((name, str(train["variables"]), *figures, entry["description"]))
    columns = ("name", "variables", "parameters", "FLOPs a step", "pivots", "description")
    return empty("instances", *columns, rows=rows)


def clusters() -> Table:
    """The preset clusters."""
    rows = [
        (
            name,
            f"{cluster.servers} x {cluster.devices_per_server} {cluster.device.name}",
            f"{cluster.intra_bw / 1e9:g} GB/s",
            f"{cluster.inter_bw / 1e9:g} GB/s",
            f"{cluster.device.memory_bytes / 1e9:g} GB",
        )
        for name, cluster in PRESETS.items()
    ]
    columns = ("name", "shape", "inside a server", "between servers", "memory")
    return empty("clusters", *columns, rows=rows)


def graph(graph: Graph) -> Table:
    """Sizes of a graph."""
    table = empty(f"graph {graph.name}", "what", "count", "size")
    bytes_ = graph.tensor_bytes[graph.parameter_tensor]
    for role in Role:
        chosen = graph.parameter_role == role
        if chosen.any() or role in (Role.VARIABLE, Role.BATCH):
            size = f"{bytes_[chosen].sum() / 1e9:.3f} GB"
            table.add_row(_ROLES[role.name], str(int(chosen.sum())), size)
    top = graph.parent < 0
    for phase in Phase:
        chosen = top & (graph.phase == phase)
        if chosen.any():
            flops = f"{graph.flops[chosen].sum():.4e} FLOPs"
            table.add_row(f"{phase.name.lower()} instructions", str(int(chosen.sum())), flops)
    table.add_row("free of them", str(int((top & graph.free).sum())), "")
    table.add_row("batch size", str(graph.batch_size), "")
    return table


def parameters(graph: Graph) -> Table:
    """What the entry parameters are taken for, and why: a row for each group of equal ones."""
    reasons = roles.reasons(graph)
    bytes_ = graph.tensor_bytes[graph.parameter_tensor]
    groups: dict[tuple[int, int, str], list[int]] = {}
    for k, reason in enumerate(reasons):
        key = (int(graph.parameter_argument[k]), int(graph.parameter_role[k]), kind_of(reason))
        groups.setdefault(key, []).append(k)
    table = empty("entry parameters", "path", "count", "size", "taken for", "because")
    for column in table.columns[3:]:
        column.justify = "left"
    for (_, role, _), members in groups.items():
        for name, indices in _collapsed([graph.paths[k] for k in members]):
            row = [members[index] for index in indices]
            bytes_held = size(float(bytes_[row].sum()))
            words = Role(role).name.lower(), reasons[row[0]]
            table.add_row(name, str(len(row)), bytes_held, *words)
    return table


def _collapsed(paths: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Paths in few rows: equal layers merged, then all below one first part, then all of them."""
    rows = merged(paths, [None] * len(paths))
    if len(rows) <= _MAX_ROWS:
        return rows
    by_part: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        by_part.setdefault(path.split("/")[0], []).append(index)
    rows = [
        (paths[indices[0]] if len(indices) == 1 else f"{part}/*", indices)
        for part, indices in by_part.items()
    ]
    return rows if len(rows) <= _MAX_ROWS else [("*", list(range(len(paths))))]


def comparison(answers: Sequence[Answer]) -> Table:
    """Several plans of one problem side by side: the task's own columns, or costs."""
    best = min((x.report.cost for x in answers if x.report.legal), default=0)
    rows = []
    for answer in answers:
        report, over = answer.report, "illegal"
        if report.legal:
            over = f"{report.cost / best - 1:.2%}" if best > 0 else ""
        unit = report.bound_words[1].strip()
        cost = {f"cost ({unit})" if unit else "cost": _cost(report.cost)}
        columns = task_of(report).views().compared(report) or cost
        others = {"over best": over, "proof": answer.claim, "found (s)": f"{answer.seconds:.2f}"}
        rows.append({"agent": answer.method, **columns, **others})
    return empty(answers[0].plan.instance, *rows[0], rows=[[*row.values()] for row in rows])


def _cost(cost: float | None) -> str:
    if isinstance(cost, int):
        return f"{cost:,}"
    return "" if cost is None else f"{cost:,.6g}"


def training(result: TrainResult, best: float | None, folder: Path) -> Table:
    """The outcome of a training run; ``best`` is the optimum, None if it is not known."""
    if result.interval is not None:
        low, high = result.interval
        rows = [
            (f"score on {result.judged_on}", f"{result.value:.6f}"),
            ("95 % over the problems", f"{low:.6f} to {high:.6f}"),
            ("references", result.reference or "none"),
            ("legal plans", f"{result.coverage:.1%}"),
        ]
    else:
        value = "no episode has ended" if result.value is None else f"{result.value:.6f}"
        is_best = result.actions or result.value is None
        rows = [("best return" if is_best else "mean return of the last episodes", value)]
    if best is not None:
        reached = result.value or 0.0
        gap = f"{100 * (best / reached - 1):.3f} %" if reached > 0 else "no legal plan"
        rows += [("exact optimum", f"{best:.6f}"), ("gap", gap)]
    rows += [
        ("steps", f"{result.steps:,}"),
        ("episodes", f"{result.episodes:,}"),
        ("seconds", f"{result.seconds:.1f}"),
    ]
    if result.target_steps is not None:
        rows.append(("steps to the optimum", f"{result.target_steps:,}"))
        rows.append(("seconds to the optimum", f"{result.target_seconds:.1f}"))
    return empty(f"run {folder}", "what", "value", rows=rows)


def evaluation(result: Evaluation) -> Table:
    """How a trained agent does, beside the best answer."""
    reference, returns = result.reference, result.returns
    plans = [("greedy policy", f"{result.value:.6f}", result.report)]
    if len(returns):
        plans.append(("best episode", f"{result.best_value:.6f}", result.best_report))
    rows = []
    for name, value, report in plans:
        known = reference is not None and report.legal
        gap = f"{report.cost / reference - 1:.3%}" if known else ""
        rows.append((name, value, _cost(report.cost) if report.legal else "illegal", gap))
    if reference is not None:
        rows.append(("optimum" if result.proven else "best known", "", _cost(reference), ""))
    if len(returns):
        spread = f"{returns.mean():.6f} +- {returns.std():.6f}"
        rows.append((f"mean of {len(returns)} samples", spread, "", ""))
    return empty("evaluation", "plan of", "return", "cost", "gap", rows=rows)


def set_evaluation(result: SetEvaluation, other: SetEvaluation | None = None) -> Table:
    """How the runs of an agent do on a set of problems, beside those of another agent."""
    several = [result] if other is None else [result, other]
    names = ["value"] if other is None else ["value", "of the other agent"]
    rows: list[tuple[str, list[str]]] = [
        ("runs", [f"{len(x.scores)}" for x in several]),
        ("references", [x.reference for x in several]),
        ("score (mean of reference / cost)", [f"{x.score:.4f}" for x in several]),
        ("95 % interval, from", [f"{x.interval[0]:.4f} over {x.over}" for x in several]),
        ("95 % interval, to", [f"{x.interval[1]:.4f} over {x.over}" for x in several]),
        ("within 0.1 % of the reference", [f"{x.optimal:.1%}" for x in several]),
        ("legal plans", [f"{x.coverage:.1%}" for x in several]),
    ]
    for number, threshold in enumerate(result.thresholds):
        rows.append((f"gap <= {threshold:g}", [f"{x.profile[number]:.1%}" for x in several]))
    if other is not None:
        share, (low, high) = result.improvement_over(other)
        rows.append(("probability of improvement", [f"{share:.1%}", f"{low:.1%} to {high:.1%}"]))
    title = f"{result.set_name}, {len(result.problems):,} problems"
    return empty(title, "what", *names, rows=[(what, *cells) for what, cells in rows])


def standings(entries: Sequence[CheckedEntry]) -> Table:
    """The entries of every task of the leaderboard, best first."""
    from parenvs.leaderboard.ranking import by_version, compare, ranking

    table = empty("", "task", "entry", "score", "at the reference", "marked", names=2)
    table.columns[-1].justify = "left"
    rankings = (
        ranking(task, group)
        for known, group in by_version(entries)
        for task in known.tasks.values()
    )
    for ranked in rankings:
        marks = compare(ranked)
        for standing in ranked:
            checked = standing.checked
            reached = f"{standing.reached} of {len(checked.verdicts)}"
            marked = "; ".join(filter(None, (standing.mark, marks[standing.name].words)))
            row = (checked.task.name, standing.name, f"{standing.score:.4f}", reached, marked)
            table.add_row(*row)
    return table


def verdicts(entry: CheckedEntry) -> Table:
    """The verdicts on one entry of the leaderboard, a row for each problem."""
    rows = []
    for verdict in entry.verdicts:
        reference = verdict.problem.reference
        figures = (_cost(verdict.cost), _cost(reference.cost), reference.status)
        rows.append((verdict.problem.name, *figures, f"{verdict.score:.4f}", verdict.state))
    columns = ("problem", "cost", "reference", "proof", "score", "verdict")
    table = empty("", *columns, rows=rows)
    for index in (3, 5):
        table.columns[index].justify = "left"
    return table


def calibration(rows: Sequence[Timed]) -> Table:
    """What was measured on a machine, with rates: of kernels FLOP/s, else bytes/s."""
    table = empty("", "what", "size", "processes", "median", "quartiles", "rate", names=2)
    for row in rows:
        numbers, timing = row.size, row.timing
        kind, words, unit, share = row.kind, size(numbers[0]), "GB/s", ""
        if row.precision:
            what = "product" if len(numbers) == 4 else "attention"
            kind, words = f"{what} {row.kind} {row.precision}", " x ".join(map(str, numbers))
            unit, share = "GFLOP/s", f", {row.share:.0%}"
        table.add_row(
            kind,
            words,
            str(row.group),
            duration(timing.seconds),
            f"{duration(timing.low)} to {duration(timing.high)}",
            f"{row.rate / 1e9:.3g} {unit}{share}",
        )
    return table


def layers(measured: Layers) -> Table:
    """The measured layers of a module, the whole step in the last row."""
    chain = measured.profile
    columns = ("forward", "quartiles", "backward", "quartiles", "weights", "border")
    table = empty("", "layer", *columns)
    parts = (measured.forward, measured.backward, chain.parameter_bytes, chain.cut_bytes)
    for name, forward, back, weights, border in zip(chain.names, *parts, strict=True):
        times = [
            words
            for x in (forward, back)
            for words in (duration(x.seconds), f"{duration(x.low)} to {duration(x.high)}")
        ]
        table.add_row(printable(name), *times, size(weights), size(border))
    whole = [duration(x.seconds) for x in measured.whole]
    table.add_row("whole step", whole[0], "", whole[1], "", "", "")
    return table
