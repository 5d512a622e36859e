"""The picture of a study: what was expected of its trials, what they took, the best so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parenvs.tasks.hybrid.view import title
from parenvs.view.page import HEIGHT, INK, LINK, RED, WIDTH, Page, stage_color
from parenvs.view.words import duration, plural, time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parenvs.tasks.hybrid.tune.study import Study


def draw(study: Study) -> Figure:
    """Draw the trials in their order; ``parenvs.view.page.style`` has to be in force.

    A bar is the interval of 80 % before a trial, a dot its seconds; plans of one's own have none.
    """
    trials, best = study.trials, study.best
    done = [trial for trial in trials if trial.seconds]
    verdict = [plural(len(trials), "trial")]
    if best is not None:
        verdict.append(f"best {duration(float(np.mean(best.seconds)))}: {best.plan.words}")
    page = Page()
    top = page.heading(title(study.problem), verdict) + 0.25
    axes = page.axes(0.9, top, WIDTH - 1.3, HEIGHT - top - 0.7)
    expected = [trial for trial in trials if trial.interval is not None]
    known = [x for trial in expected for x in trial.interval or ()]
    known += [x for trial in done for x in trial.seconds]
    scale, unit = time_unit(min(known, default=1.0))
    axes.set(xlabel="trial", ylabel=f"seconds of a step ({unit})", yscale="log")
    look: dict[str, Any] = {"color": LINK, "linewidth": 5, "alpha": 0.5}
    for trial in expected:
        low, high = trial.interval or (0.0, 0.0)
        axes.vlines(trial.number, low / scale, high / scale, gid="interval", **look)
    middles = [(trial.number, (trial.expected_seconds or 0.0) / scale) for trial in expected]
    if middles:
        axes.scatter(*zip(*middles, strict=True), marker="_", color=INK, label="expected")
    if done:
        numbers, took = zip(*((x.number, np.mean(x.seconds) / scale) for x in done), strict=True)
        axes.scatter(numbers, took, color=stage_color(0), label="measured", zorder=3)
        line: Any = {"drawstyle": "steps-post", "color": stage_color(1), "label": "best so far"}
        axes.plot(numbers, np.minimum.accumulate(took), **line)
    for name, lost in (("out of memory", [trial.number for trial in trials if trial.oom]),
                       ("failed", [trial.number for trial in trials if trial.failed])):  # fmt: skip
        if lost:
            mark: Any = {"marker": "x" if name == "failed" else "v", "color": RED, "label": name}
            where = np.full(len(lost), 0.98)
            axes.scatter(lost, where, transform=axes.get_xaxis_transform(), **mark)
    axes.set_xticks(range(len(trials)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(visible=True, axis="y", which="both")
    axes.spines[["bottom", "left"]].set_visible(True)
    if expected or done:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False)
    return page.figure
