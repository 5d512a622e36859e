"""Plans where a proof takes long: 8 to 16 stages, 64 to 512 devices, by the network and by search.

python benchmarks/large_plans.py
python benchmarks/large_plans.py --count 1 --limits 1 --real --out /tmp/try   # a quick try
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework import Case, Row, main, measurement, percent, spent, table
from parenvs import problem as problem_from
from parenvs.agents.learning.pretrained.planner import pretrained
from parenvs.agents.pipeline.beam import beam
from parenvs.agents.pipeline.heuristics import even_cut
from parenvs.agents.pipeline.points import exact_points
from parenvs.core.answer import Answer
from parenvs.datasets.pipeline.generators import INSIDE, draw
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.points import PointSpace
from parenvs.view.page import INK, QUIET, TRACK, WIDTH, blank_figure, stage_colour

DEVICES, STAGES = (64, 128, 256, 512), (8, 12, 16)
PIVOTS = (96, 256)
"""Of generated chains: enough for 16 stages to differ."""
REAL = ("t5-11b", "llama3-70b")
SERVERS, NETWORKS = (8, 64), ("25Gbps", "400Gbps")
"""Servers of eight A100 for the shipped graphs, and what connects them."""
LIMITS = (1.0, 20.0)
"""Seconds of exact searches; the longest gives the bound that all are compared with."""
WITHIN = 0.02


@dataclass(frozen=True)
class Problem:
    """What is planned: generated if ``name`` is a number, else a shipped graph on a cluster."""

    name: str
    cluster: str
    devices: int
    stages: int

    @property
    def space(self) -> PointSpace:
        """Its points and units."""
        if self.name.isdecimal():
            size = {"devices": (self.devices,) * 2, "stages": (self.stages,) * 2}
            rng = np.random.default_rng([self.devices, self.stages, int(self.name)])
            pipeline = draw(rng, ranges=replace(INSIDE, pivots=PIVOTS, **size)).pipeline
        else:
            pipeline = problem_from(self.name, cluster=self.cluster, stages=self.stages)
        return PointSpace.build(pipeline, by_network=True)


def planners(limits: list[float]) -> dict[str, Callable[[PointSpace], Answer]]:
    """Name -> planner; the exact ones come last."""
    return {
        "even cut": lambda space: even_cut(space.pipeline),
        "beam search, 64": beam,
        "network, 32 plans": pretrained,
        "network, 256 plans": lambda space: pretrained(space, draws=256),
        "refined": lambda space: pretrained(space, refine=True),
        "refined, 256 plans": lambda space: pretrained(space, draws=256, refine=True),
        **{f"exact, {x:g} s": partial(exact_points, time_limit=x) for x in limits},
    }


def measure(one: Problem, limits: list[float]) -> Row:
    """Run every planner on a problem; lengths and processor seconds."""
    record: Row = {"status": "planned", "planners": {}}
    try:
        space = one.space
    except InfeasibleError:
        return record | {"status": "infeasible"}
    for name, planner in planners(limits).items():
        row: Row = {}
        try:
            with spent(row):
                answer = planner(space)
        except InfeasibleError:
            continue
        if space.pipeline.excess_bytes(answer.plan.cuts, answer.plan.device_cuts) <= 0:
            record["planners"][name] = {
                "length": answer.cost, "seconds": round(row["seconds"], 4)
            }  # fmt: skip
        if name.startswith("exact"):
            record |= {"bound": answer.bound, "proven": answer.proven}
    return record


@measurement(
    key="name cluster devices stages",
    about={"count": "generated problems of each size", "real": "shipped graphs"},
)
def large_plans(
    count: int = 4, real: tuple[str, ...] = REAL, limits: tuple[float, ...] = LIMITS
) -> list[Case]:
    made = [
        Problem(str(number), "", devices, stages)
        for stages in STAGES for devices in DEVICES for number in range(count)
    ]  # fmt: skip
    shipped = [
        Problem(name, f"{servers}x8:a100,{network}", 8 * servers, stages)
        for stages in STAGES for servers in SERVERS for network in NETWORKS for name in real
    ]  # fmt: skip
    return [(asdict(one), partial(measure, one, sorted(limits))) for one in made + shipped]


def by_kind(rows: list[Row]) -> dict[str, list[Row]]:
    planned = [row for row in rows if row["status"] == "planned"]
    return {
        "Generated problems": [row for row in planned if row["name"].isdecimal()],
        "Shipped graphs": [row for row in planned if not row["name"].isdecimal()],
    }


def gaps(rows: list[Row], planner: str) -> np.ndarray:
    """Length over the bound less one, infinite without a plan that fits."""
    found = [row["planners"].get(planner, {"length": np.inf})["length"] for row in rows]
    return np.array(found) / np.array([row["bound"] for row in rows]) - 1


def shown(gap: float) -> str:
    """A gap in per cent, or that there is no plan."""
    return percent(float(gap)) if np.isfinite(gap) else "no plan"


def seconds(rows: list[Row], planner: str) -> np.ndarray:
    """Processor seconds of a planner, where it found a plan."""
    return np.array([r["planners"][planner]["seconds"] for r in rows if planner in r["planners"]])


def summary(rows: list[Row], names: list[str]) -> str:
    """A row for each planner."""
    last = names[-1]
    lines = []
    for name in names:
        gap, spent = gaps(rows, name), seconds(rows, name)
        better = np.mean(gap < gaps(rows, last) - 1e-9)
        middle, high = (np.quantile(gap, q, method="lower") for q in (0.5, 0.95))
        shares = [percent(float(np.mean(x)), 0) for x in (gap <= WITHIN, np.isinf(gap))]
        lines.append([
            name, shown(middle), shown(high), *shares,
            percent(float(better), 0) if name != last else "",
            f"{np.median(spent):.2f}", f"{spent.max():.2f}",
        ])  # fmt: skip
    return table(
        ["planner", "gap, median", "95 %", f"within {percent(WITHIN, 0)}", "no plan that fits",
         f"shorter than {last}", "s, median", "s, most"], lines, left=1)  # fmt: skip


def by_size(rows: list[Row], names: list[str]) -> str:
    """A row for each size."""
    lines = []
    for stages in STAGES:
        for devices in DEVICES:
            some = [r for r in rows if (r["stages"], r["devices"]) == (stages, devices)]
            if some:
                cells = []
                for name in names:
                    gap, spent = np.median(gaps(some, name)), np.median(seconds(some, name))
                    cells.append(f"{shown(gap)} in {spent:.2f}")
                proven = sum(row["proven"] for row in some)
                lines.append([stages, devices, f"{proven} of {len(some)}", *cells])
    return table(["stages", "devices", "proven", *names], lines, left=0)


@large_plans.picture()
def picture(rows: list[Row], limits: tuple[float, ...]) -> Figure:
    """Draw time and gap of each planner: median, and from the first to the third quartile."""
    names, rows = list(planners(sorted(limits))), by_kind(rows)["Generated problems"]
    figure = blank_figure(4.4)
    for k, stages in enumerate(STAGES):
        some = [row for row in rows if row["stages"] == stages]
        third = WIDTH / len(STAGES)
        axes = figure.add_axes(
            ((0.65 + k * third) / WIDTH, 0.14, (third - 0.75) / WIDTH, 0.74)
        )  # fmt: skip
        axes.set_facecolor(TRACK)
        for spine in axes.spines.values():
            spine.set_visible(False)
        for number, name in enumerate(names):
            gap, spent = 100 * gaps(some, name), seconds(some, name)
            (low, middle, high), x = np.quantile(gap, (0.25, 0.5, 0.75)), np.median(spent)
            colour = stage_colour(number)
            axes.plot(np.quantile(spent, (0.25, 0.75)), [middle] * 2, color=colour, lw=1.5)
            axes.plot([x, x], [low, high], color=colour, lw=1.5)
            axes.plot(x, middle, "o", color=colour, label=name, ms=6)
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_yticks([0, 1, 2, 5, 10, 20, 50], ["0", "1", "2", "5", "10", "20", "50"])
        axes.minorticks_off()
        axes.set_ylim(bottom=-0.6)
        axes.set_title(f"{stages} stages", color=INK, size=11)
        axes.set_xlabel("processor seconds", color=QUIET)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.tick_params(color=QUIET, labelcolor=QUIET, labelsize=8.5)
        if not k:
            axes.set_ylabel("% above the bound", color=QUIET)
            axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    return figure


@large_plans.page
def page(rows: list[Row], limits: tuple[float, ...]) -> list[str]:
    names = list(planners(sorted(limits)))
    sections = [
        "`gap`: seconds of a step over a bound that no plan of the same points and units is below "
        f"(proven by the exact search of {max(limits):g} s; the optimum where it ends in time), "
        "less one. Refined plans are cut at any pivot and device, so they may lie below. The "
        "network is the one that ships; it was trained on problems of 2 to 6 stages and 4 to 64 "
        "devices. By size: medians of gap and processor seconds.",
    ]
    for title, some in by_kind(rows).items():
        if some:
            sections += [
                f"**{title}**: {len(some)} problems, "
                f"{sum(row['proven'] for row in some)} of them proven.",
                summary(some, names),
                by_size(some, ["network, 32 plans", "refined", *names[-len(limits) :]]),
            ]
    return sections


if __name__ == "__main__":
    main(large_plans)
