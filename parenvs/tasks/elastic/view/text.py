"""What a job earned while nodes came and left, in plain text: totals, a line over time, changes."""

from __future__ import annotations

import numpy as np

from parenvs.errors import printable
from parenvs.tasks.elastic.library import GONE
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.run import Run, replay
from parenvs.view.words import SEPARATOR, clip, duration, plural, reason_lines

COLUMNS = 110
"""Columns of the text."""
_BARS = " ▁▂▃▄▅▆▇█"
_MAX_CHANGES = 12
_BAR_COLUMNS = 96  # of the line over time


def run_of(viewable: Run | Elastic) -> Run:
    """A run as it is; of a problem, one of the seed 0 in which nothing is chosen yet."""
    return viewable if isinstance(viewable, Run) else replay(viewable, viewable.drawn(0), [])


def title(run: Run) -> str:
    """The problem and who chose, in one line."""
    by = f", {run.policy}" if run.policy else ""
    return printable(f"{run.problem.name}: {clock(run, run.problem.intervals)} of nodes{by}")


def verdict(run: Run) -> list[str]:
    """The parts of the verdict."""
    if not run.legal:
        return ["illegal", f"{len(run.plans):,} intervals before the first fault"]
    if not len(run.plans):
        best = run.problem.library.candidates
        return ["nothing chosen yet", f"{plural(len(best), 'candidate plan')}"]
    return [
        f"{run.total:,.0f} samples in {clock(run, len(run.plans))}",
        f"{run.share:.2%} of the ideal",
        plural(int(run.changed.sum()), "change"),
        plural(int(run.stopped.sum()), "stop"),
        f"state lost {plural(int(run.gone.sum()), 'time')}",
    ]


def answer(run: Run) -> str:
    """What the job trained, in one line."""
    return SEPARATOR.join(verdict(run))


def plan_name(run: Run, plan: int) -> str:
    """A candidate in words."""
    if plan == 0:
        return "wait"
    candidate = run.problem.library.candidates[plan - 1]
    spares = f" +{candidate.spares}" if candidate.spares else ""
    return f"{candidate.degrees}{spares}"


def clock(run: Run, interval: int) -> str:
    """The time of an interval, as hours and minutes, or minutes and seconds."""
    seconds = round(interval * run.problem.seconds)
    hours, remainder = divmod(seconds, 3600)
    return (
        f"{hours}:{remainder // 60:02d} h"
        if hours
        else f"{remainder // 60}:{remainder % 60:02d} min"
    )


def bars(values: np.ndarray, top: float) -> str:
    """One letter for each part of the time, as high as the mean of its values."""
    parts = np.array_split(values, min(len(values), _BAR_COLUMNS))
    level = [float(part.mean()) / (top or 1.0) * (len(_BARS) - 1) for part in parts]
    return "".join(_BARS[min(max(round(x), 0), len(_BARS) - 1)] for x in level)


def text(viewable: Run | Elastic, colour: bool = False) -> str:
    """What a job earned, as text of at most 110 columns, without a newline at the end.

    ``colour`` changes nothing: lines over time have one.
    """
    run = run_of(viewable)
    lines = [clip(title(run), COLUMNS), SEPARATOR.join(verdict(run))]
    lines += reason_lines(run.reasons, COLUMNS)
    count = len(run.plans)
    if not count:
        return "\n".join(lines)
    library = run.problem.library
    nodes = run.course.nodes[:count]
    lines += [
        f"nodes    {bars(nodes, float(nodes.max()))}",
        f"in use   {bars(library.used[run.plans], float(nodes.max()))}",
        f"samples  {bars(run.samples, float(run.problem.best[nodes].max()))}",
    ]
    changes = np.flatnonzero(run.changed)
    for t in changes[:_MAX_CHANGES].tolist():
        lines.append(clip(_change(run, t), COLUMNS))
    if len(changes) > _MAX_CHANGES:
        lines.append(f"and {plural(len(changes) - _MAX_CHANGES, 'change')} more")
    return "\n".join(lines)


def _change(run: Run, t: int) -> str:
    """One line on the change of an interval."""
    before, after = plan_name(run, int(run.plans[t - 1])), plan_name(run, int(run.plans[t]))
    words = f"{before} -> {after}" if before != after else f"{after} repaired"
    reason = ""
    if run.events[t]:
        reason = ", state lost" if run.events[t] == GONE else ", nodes lost"
    moved = run.problem.library.tables[1][run.events[t], run.plans[t - 1], run.plans[t]]
    return (
        f"{clock(run, t):>10}  {int(run.course.nodes[t]):2d} nodes  {words}{reason}: "
        f"{duration(float(run.seconds[t]))}, busiest node sends {moved / 1e9:.2f} GB"
    )
