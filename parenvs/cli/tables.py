"""The rich tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from parenvs.cluster import PRESETS, Measurement
from parenvs.errors import InfeasibleError, printable
from parenvs.graph import roles
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.shipped import manifest
from parenvs.tasks.order.problem import OrderReport
from parenvs.tasks.partition.plan import RULE_SETS
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.partition.view.grid import kind_of, merged
from parenvs.tasks.pipeline.cuts import CutSpace
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.view.words import duration, size

if TYPE_CHECKING:
    from parenvs.agents.evaluation.evaluate import Evaluation
    from parenvs.agents.evaluation.set_evaluation import SetEvaluation
    from parenvs.agents.learning.train.run import TrainResult
    from parenvs.agents.pipeline.shapes import Choice
    from parenvs.clock.measured import Layers
    from parenvs.core.answer import Answer
    from parenvs.leaderboard.check import CheckedEntry


_ROLES = {
    "VARIABLE": "variables",
    "OPTIMISER": "optimiser state",
    "BATCH": "batch inputs",
    "SCALAR": "scalars and random keys",
    "STATISTICS": "statistics",
    "FROZEN": "frozen weights",
}
"""Name of a role -> words for the parameters that have it."""


_MOST_ROWS = 8
"""Rows for the entry parameters of one argument that are taken for the same, or for devices."""


def instances() -> Table:
    """The shipped instances."""
    table = empty(
        "instances", "name", "variables", "parameters", "FLOPs a step", "pivots", "description"
    )
    for name, entry in manifest()["instances"].items():
        train, forward = entry["graphs"]["train"], entry["graphs"]["forward"]
        table.add_row(
            name,
            str(train["variables"]),
            f"{train['parameters']:,}",
            f"{train['flops']:.3e}",
            str(forward["pivots"]),
            entry["description"],
        )
    return table


def clusters() -> Table:
    """The preset clusters."""
    table = empty("clusters", "name", "shape", "inside a server", "between servers", "memory")
    for name, cluster in PRESETS.items():
        table.add_row(
            name,
            f"{cluster.servers} x {cluster.devices_per_server} {cluster.device.name}",
            f"{cluster.intra_bw / 1e9:g} GB/s",
            f"{cluster.inter_bw / 1e9:g} GB/s",
            f"{cluster.device.memory_bytes / 1e9:g} GB",
        )
    return table


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
            flops = graph.flops[chosen].sum()
            table.add_row(
                f"{phase.name.lower()} instructions", str(int(chosen.sum())), f"{flops:.4e} FLOPs"
            )
    table.add_row("free of them", str(int((top & graph.free).sum())), "")
    table.add_row("batch size", str(graph.batch_size), "")
    return table


def chain(pipeline: Pipeline) -> Table:
    """A chain of pivots on a cluster, and how much of it ``PipelineCut-v0`` leaves to search."""
    try:
        space = CutSpace.build(pipeline)
        candidates = f"{len(space.pivots)} (radius {space.radius})"
    except InfeasibleError:
        candidates = "none: they allow no plan of so many stages"
    profile = pipeline.profile
    table = empty(f"chain of {profile.name} on {pipeline.cluster}", "what", "value")
    rows = (
        ("pivots", f"{len(profile)}"),
        ("pivots with variables", f"{int(pipeline.variable_sum[-1])}"),
        ("forward, one device", f"{profile.forward.sum():.4f} s a micro-batch"),
        ("backward, one device", f"{profile.backward.sum():.4f} s a micro-batch"),
        ("parameters", f"{pipeline.parameter_sum[-1] / 1e9:.3f} GB"),
        ("largest cut", f"{profile.cut_bytes[:-1].max() / 1e6:.2f} MB"),
        ("smallest cut", f"{profile.cut_bytes[:-1].min() / 1e6:.2f} MB"),
        ("bubble-free step", f"{pipeline.bubble_free:.4f} s"),
        ("stages", f"{pipeline.stages}"),
        ("candidates of PipelineCut-v0", candidates),
    )
    for row in rows:
        table.add_row(*row)
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
        for name, places in _collapsed([graph.paths[k] for k in members]):
            row = [members[place] for place in places]
            held = size(float(bytes_[row].sum()))
            cells = (name, str(len(row)), held, Role(role).name.lower(), reasons[row[0]])
            table.add_row(*cells)
    return table


def _collapsed(paths: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Paths in few rows: equal layers merged, then all below one first part, then all of them.

    Returns:
        The common name of each row, and its positions in ``paths``.
    """
    rows = merged(paths, [None] * len(paths))
    if len(rows) <= _MOST_ROWS:
        return rows
    by_part: dict[str, list[int]] = {}
    for place, path in enumerate(paths):
        by_part.setdefault(path.split("/")[0], []).append(place)
    rows = [
        (paths[places[0]] if len(places) == 1 else f"{part}/*", places)
        for part, places in by_part.items()
    ]
    return rows if len(rows) <= _MOST_ROWS else [("*", list(range(len(paths))))]


def shapes(choice: Choice) -> Table:
    """The numbers of devices among which a pipeline's shape was chosen: the best ones, and all."""
    table = empty(
        "devices and stages tried", "devices", "stages", "shortest found", "none is shorter than"
    )
    chosen = choice.answer.problem.cluster.devices
    nearest = sorted(choice.tried, key=lambda tried: tried.length)[:_MOST_ROWS]
    for tried in choice.tried:
        if tried not in nearest and tried.devices not in (chosen, choice.devices):
            continue
        table.add_row(
            f"{tried.devices}{' *' if tried.devices == chosen else ''}",
            "-" if tried.stages is None else str(tried.stages),
            "-" if tried.stages is None else duration(tried.length),
            duration(tried.bound) if np.isfinite(tried.bound) else "none fits",
        )
    hidden = len(choice.tried) - table.row_count
    table.caption = "*: chosen" + (f"; {hidden} more, found slower" if hidden else "")
    table.caption_justify = "left"
    return table


def classes(problem: Partitioning) -> Table:
    """The dimension classes of a graph, for both rule sets."""
    table = empty(f"dimension classes on {problem.cluster}", "what", *RULE_SETS)
    both = [
        problem
        if rules == problem.rules
        else Partitioning.build(problem.graph, problem.cluster, rules, problem.uneven)
        for rules in RULE_SETS
    ]
    rows = (
        ("variable dimensions", lambda p: len(p.dimensions("variables"))),
        ("classes that hold some and can be partitioned", lambda p: len(p.decidable("variables"))),
        ("variable dimensions in them", lambda p: p.counts("variables")[p.decidable("all")].sum()),
        ("pairs of classes that conflict", lambda p: len(p.classes.conflicts)),
        ("dimensions of batch inputs", lambda p: len(p.dimensions("inputs"))),
        ("of them can be partitioned", lambda p: p.counts("inputs")[p.decidable("all")].sum()),
    )
    for name, count in rows:
        table.add_row(name, *(str(count(p)) for p in both))
    table.add_row("replicated step", *(f"{p.replicate_seconds:.4f} s" for p in both))
    return table


def comparison(rows: Sequence[tuple[Any, Any]]) -> Table:
    """Several plans of one problem side by side."""
    if isinstance(rows[0][1], PartitionReport):
        return _partitions(rows)
    if isinstance(rows[0][1], OrderReport):
        return _orders(rows)
    pipeline = rows[0][1].pipeline
    cluster = pipeline.cluster
    table = empty(
        f"{pipeline.profile.name} on {cluster}",
        "agent",
        "step (s)",
        "simulated (s)",
        "1/L",
        "over best",
        "device cuts",
        "proof",
        "found in (s)",
    )
    legal = [report.length_seconds for _, report in rows if report.legal]
    best = min(legal, default=np.nan)
    for answer, report in rows:
        if report.legal:
            value = f"{report.value:.4f}"
            over = f"{100 * (report.length_seconds / best - 1):.2f} %"
        else:
            value, over = "-1", "illegal"
        table.add_row(
            answer.method,
            f"{report.length_seconds:.4f}",
            f"{report.simulated_seconds:.4f}",
            value,
            over,
            " ".join(map(str, report.plan.device_cuts)),
            answer.claim,
            f"{answer.seconds:.2f}",
        )
    return table


def _orders(rows: Sequence[tuple[Any, OrderReport]]) -> Table:
    problem = rows[0][1].problem
    table = empty(
        f"{problem.instance}: {problem.micro_batches} micro-batches on {problem.stages} stages",
        "agent", "step (s)", "value", "over best", "over bound", "proof", "judged", "found in (s)",
    )  # fmt: skip
    best = min(report.length_seconds for _, report in rows)
    bound = max(answer.bound for answer, _ in rows)
    for answer, report in rows:
        table.add_row(
            answer.method,
            f"{report.length_seconds:.4f}",
            f"{report.value:.4f}",
            f"{report.length_seconds / best - 1:.2%}",
            f"{report.length_seconds / bound - 1:.2%}",
            answer.claim,
            f"{answer.evaluations:,}",
            f"{answer.seconds:.2f}",
        )
    return table


def _partitions(rows: Sequence[tuple[Answer, PartitionReport]]) -> Table:
    problem, reward = rows[0][1].problem, rows[0][1].problem.reward
    table = empty(
        f"{problem.graph.name} on {problem.cluster}, {problem.rules} rules, reward {reward}",
        "agent",
        "return",
        "vars",
        "dims",
        "step (s)",
        "sent (s)",
        "GB each",
        "used",
        "proof",
        "found (s)",
    )
    for answer, report in rows:
        table.add_row(
            answer.method,
            f"{report.value_of(reward):.{4 if reward == 'step_time' else 1}f}",
            str(report.variables),
            f"{report.partitioned_dimensions}/{report.dimensions}",
            f"{report.step_seconds:.4g}",
            f"{report.communication_seconds:.3g}",
            f"{report.memory.peak / 1e9:.3g}" + ("" if report.fits else " !"),
            f"{100 * report.utilisation:.1f} %",
            answer.claim,
            f"{answer.seconds:.2f}",
        )
    table.caption = (
        "vars, dims: partitioned; sent: all-reduces, part of the step; !: more than a device holds"
    )
    table.caption_justify = "left"
    return table


def training(result: TrainResult, best: float | None, folder: Path) -> Table:
    """The outcome of a training run; ``best`` is the optimum, None if it is not known."""
    table = empty(f"run {folder}", "what", "value")
    if result.interval is not None:
        low, high = result.interval
        rows = [
            (f"mean worth on {result.judged_on}", f"{result.value:.6f}"),
            (f"regret to {result.reference}, IQM", f"{result.regret:.6f}"),
            ("95 % over the problems", f"{low:.6f} to {high:.6f}"),
        ]
    else:
        value = "no episode has ended" if result.value is None else f"{result.value:.6f}"
        rows = [("best return", value)]
    if best is not None:
        found = result.value or 0.0
        gap = f"{100 * (best / found - 1):.3f} %" if found > 0 else "no legal plan"
        rows += [("exact optimum", f"{best:.6f}"), ("gap", gap)]
    rows += [
        ("steps", f"{result.steps:,}"),
        ("episodes", f"{result.episodes:,}"),
        ("seconds", f"{result.seconds:.1f}"),
    ]
    if result.target_steps is not None:
        rows.append(("steps to the optimum", f"{result.target_steps:,}"))
        rows.append(("seconds to the optimum", f"{result.target_seconds:.1f}"))
    for row in rows:
        table.add_row(*row)
    return table


def evaluation(result: Evaluation) -> Table:
    """How a trained agent does, beside the proven best answer."""
    best = result.reference.value
    table = empty("evaluation", "what", "return", "share of the optimum")
    for name, value in (
        ("greedy policy", result.value),
        (f"mean of {len(result.returns)} samples", result.returns.mean()),
        ("best sample", result.best_value),
        ("exact optimum", best),
    ):
        table.add_row(name, f"{value:.6f}", f"{100 * value / best:.2f} %")
    table.add_row("spread of samples", f"{result.returns.std():.6f}", "")
    return table


def set_evaluation(result: SetEvaluation, other: SetEvaluation | None = None) -> Table:
    """How the runs of an agent do on a set of problems, beside those of another agent."""
    several = [result] if other is None else [result, other]
    names = ["value"] if other is None else ["value", "of the other agent"]
    table = empty(f"{result.set_name}, {len(result.problems):,} problems", "what", *names)

    shares = [one.profile() for one in several]
    rows: list[tuple[str, list[str]]] = [
        ("runs", [f"{len(x.values)}" for x in several]),
        ("regret to", [x.reference for x in several]),
        ("regret, interquartile mean", [f"{x.regret:.4f}" for x in several]),
        *(
            (f"95 % interval, {word}", [f"{x.interval[end]:.4f} over {x.over}" for x in several])
            for word, end in (("from", 0), ("to", 1))
        ),
        *(
            []
            if result.proven
            else [("regret to certified bounds", [f"{x.bound_regret:.4f}" for x in several])]
        ),
        (
            "optimal (within 0.1 %)" if result.proven else "within 0.1 % of the reference",
            [f"{x.optimal:.1%}" for x in several],
        ),
        ("illegal", [f"{x.illegal:.1%}" for x in several]),
        *(
            (f"regret <= {threshold:g}", [f"{share[number]:.1%}" for share in shares])
            for number, threshold in enumerate(result.thresholds)
        ),
    ]
    for what, cells in rows:
        table.add_row(what, *cells)
    if other is not None:
        share, (low, high) = result.improvement_over(other)
        table.add_row("probability of improvement", f"{share:.1%}", f"{low:.1%} to {high:.1%}")
    return table


def bench_totals(rows: Sequence[Sequence[str]]) -> Table:
    """How often each agent reached the optimum; ``rows`` as of ``agents_table.totals``."""
    from parenvs.bench.agents_table import TOTALS

    table = empty("", *TOTALS, names=2)
    for column in table.columns[:2]:
        column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    return table


def standings(entries: Sequence[CheckedEntry]) -> Table:
    """The entries of every task of the leaderboard, best first."""
    from parenvs.leaderboard.check import ranking, with_drawn
    from parenvs.leaderboard.comparing import compare
    from parenvs.leaderboard.tasks import tasks

    table = empty("", "task", "entry", "score", "at the reference", "marked", names=2)
    table.columns[-1].justify = "left"
    for task in with_drawn(tasks(), entries).tasks.values():
        ranked = ranking(task, list(entries))
        marks = compare(ranked)
        for standing in ranked:
            checked = standing.checked
            reached = f"{standing.reached} of {len(checked.verdicts)}"
            words = marks[checked.entry.entry].words
            marked = "; ".join(filter(None, (standing.mark, words)))
            row = (task.name, checked.entry.entry, f"{standing.score:.4f}", reached, marked)
            table.add_row(*row)
    return table


def verdicts(entry: CheckedEntry) -> Table:
    """The verdicts on one entry of the leaderboard, a row for each problem."""
    table = empty("", "problem", "cost", "reference", "proof", "score", "verdict")
    for index in (3, 5):
        table.columns[index].justify = "left"
    for verdict in entry.verdicts:
        reference = verdict.problem.reference
        figures = (f"{verdict.cost:.6g}", f"{reference.cost:.6g}", reference.status)
        row = (verdict.problem.name, *figures, f"{verdict.score:.4f}", verdict.state)
        table.add_row(*row)
    return table


class _PrintableTable(Table):
    """A table whose cells and title stand as they are: no markup, no control characters."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of texts."""
        super().add_row(*(Text(printable(cell)) for cell in cells), **options)


def calibration(rows: Sequence[Measurement]) -> Table:
    """What was measured on a machine, with rates: of products FLOP/s, else bytes/s."""
    table = empty("", "what", "size", "processes", "median", "quartiles", "rate", names=2)
    for row in rows:
        m, k, n = row.shape or (0, 0, 0)
        rate = (2.0 * m * k * n if row.shape else row.bytes) / row.seconds
        what = f"{row.kind} {row.precision}".strip()
        table.add_row(
            what,
            f"{m} x {k} x {n}" if row.shape else size(row.bytes),
            str(row.group),
            duration(row.seconds),
            f"{duration(row.low)} to {duration(row.high)}",
            f"{rate / 1e9:.3g} GFLOP/s, {row.share:.0%}" if row.shape else f"{rate / 1e9:.3g} GB/s",
        )
    return table


def layers(found: Layers) -> Table:
    """The measured layers of a module, the whole step in the last row."""
    chain = found.profile
    columns = ("forward", "quartiles", "backward", "quartiles", "weights", "border")
    table = empty("", "layer", *columns)
    sizes = [*zip(chain.parameter_bytes, chain.cut_bytes, strict=True)]
    rows = [*zip(chain.names, found.forward, found.backward, sizes, strict=True)]
    for name, there, back, (weights, border) in rows:
        times = [
            words
            for x in (there, back)
            for words in (duration(x.seconds), f"{duration(x.low)} to {duration(x.high)}")
        ]
        table.add_row(printable(name), *times, size(weights), size(border))
    whole = [duration(x.seconds) for x in found.whole]
    table.add_row("whole step", whole[0], "", whole[1], "", "", "")
    return table


def empty(title: str, *columns: str, names: int = 1) -> Table:
    """An empty table; its first ``names`` columns are left-justified and the others right."""
    table = _PrintableTable(
        title=Text(printable(title), style="bold") if title else None,
        title_justify="left",
        header_style="bold",
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < names else "right")
    return table
