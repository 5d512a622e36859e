"""Predictions against the clock of this machine: cuts, stages that sleep, collectives, gradients.

Needs the extra ``torch``. Numbers of runs are fixed beforehand, all runs are in the file, and the
load is noted. Take it on idle cores; ``--only PART --again`` measures a part anew.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks import clock_models
from benchmarks.framework import (
    ROOT,
    Case,
    Column,
    Row,
    columns,
    main,
    measurement,
    percent,
    progress,
)
from benchmarks.synchronisation import measured as synchronised
from benchmarks.synchronisation import section as synchronisation_section
from jax_transformer import plans as jax_plans
from parenvs import Cluster, Graph, HybridPlan, HybridStage, Pipeline, StageProfile, from_torch
from parenvs.cli.model import Model
from parenvs.clock.calibration import SIZES, Calibration, calibrated
from parenvs.clock.collectives import reduced
from parenvs.clock.layers import profiled
from parenvs.clock.processes import together
from parenvs.clock.runs.run import run
from parenvs.clock.runs.torch import race
from parenvs.clock.xla.calibration import calibrated as calibrated_by_jax
from parenvs.core.registry import TASKS
from parenvs.exports.torch import torch_plan
from parenvs.machine import counted
from torch_transformer import batch, loss, make

MODELS = ("conv", "transformer")
PARTS = ("collectives", "cuts", "sleep", "runs", "synchronisation")
SOURCE = str(Path(__file__).with_name("clock_models.py"))
CHECKED = (1200, *(2 * 4**k for k in range(5, 13)), 60_000_000)
"""Bytes of all-reduces that no calibration measures: between its sizes, and at both ends."""
TOLERANCE = 0.2
MICRO_BATCHES = 8
SLEEPERS = 8
"""Cuts of 4 stages that are drawn, beside the predicted best."""
_QUICK = {"repeats": 2, "rounds": 2, "sizes": [1024, 65536], "micro_batches": 4}
_FULL = {"repeats": 20, "rounds": 12, "sizes": None, "micro_batches": MICRO_BATCHES}


def load() -> float:
    """Processes that wanted a core in the last minute, on average."""
    return round(os.getloadavg()[0], 2)


def machine(settings: Row, processes: int, **options: Any) -> Calibration:
    """Calibrate this machine."""
    sizes = {} if settings["sizes"] is None else {"sizes": settings["sizes"]}
    shapes = [(256, 256, 256)]
    return calibrated("cpu", processes, settings["repeats"], shapes=shapes, **sizes, **options)


def collectives(settings: Row) -> list[Row]:
    """All-reduces of sizes that were not calibrated, beside the calibration."""
    rows = []
    for processes in (2, 4):
        began = load()
        progress(f"calibrating {processes} processes")
        found = machine(settings, processes, groups=(processes,), kinds=("all-reduce",))
        checked = [x for x in CHECKED if settings["sizes"] is None or x < 40_000]
        progress(f"{settings['repeats']} all-reduces of each of {len(checked)} sizes")
        samples = together(reduced, processes, (checked, settings["repeats"]), limit=600.0)
        for size in checked:
            exact = next(iter(x for x in samples[0] if abs(x - size) <= 4 * processes))
            seconds = np.array([own[exact] for own in samples]).max(axis=0)
            rows.append({
                "processes": processes, "bytes": exact, "load": began,
                "predicted": found.seconds("all-reduce", exact, processes),
                "seconds": seconds.tolist(),
            })  # fmt: skip
    return rows


def cuts(settings: Row) -> list[Row]:
    """Every cut of two real models in two stages, predicted by measured profiles, and run."""
    rows = []
    progress("calibrating 2 processes")
    cluster = machine(settings, 2, kinds=("all-reduce",)).cluster
    for name in MODELS:
        began = load()
        names = (SOURCE + ":" + name, name + "_batch")
        profiles = {}
        for processes in (2, 1):
            progress(f"profiling {name} in {processes} processes at once")
            found = profiled(*names, name, settings["repeats"], processes=processes)
            profiles[processes] = _of_batch(found.profile, clock_models.SAMPLES[name])
        rows += _raced(name, names, profiles, cluster, _pairs(profiles[2]), settings, began)
    return rows


def sleep(settings: Row) -> list[Row]:
    """Four stages of layers that sleep for the seconds of their chain."""
    began = load()
    naps = 1e-3 * np.array(clock_models.NAPS_MS)
    count = len(naps)
    names = np.array([f"layers.{k}" for k in range(count)], dtype=object)
    sizes = np.full(count, 4.0 * 8 * clock_models.SAMPLES["sleepers"])
    chain = StageProfile(
        "sleepers", names, naps, 2 * naps, sizes, np.full(count, 32.0), sizes,
        clock_models.SAMPLES["sleepers"],
    )  # fmt: skip
    cluster = Cluster.parse("1x4:v100")
    problem = Pipeline(chain, cluster, 4, micro_batches=settings["micro_batches"])
    every = [
        (a, b, c) for a in range(1, count) for b in range(a + 1, count) for c in range(b + 1, count)
    ]
    lengths = [float(problem.length(np.array(x), np.array([1, 2, 3]))) for x in every]
    order = np.argsort(lengths)
    ranks = np.linspace(0, len(order) - 1, SLEEPERS + 1).round().astype(int)
    chosen = [every[order[k]] for k in ranks]
    names_of = (SOURCE + ":sleepers", "sleepers_batch")
    return _raced("sleepers", names_of, {1: chain}, cluster, chosen, settings, began)


def _pairs(chain: StageProfile) -> list[tuple[int]]:
    """Every cut in two stages that leaves both some of a hundredth of the seconds."""
    share = np.cumsum(chain.seconds)[:-1] / chain.seconds.sum()
    return [(k + 1,) for k in range(len(share)) if 0.01 < share[k] < 0.99]


def _of_batch(chain: StageProfile, samples: int) -> StageProfile:
    """A chain that knows the samples that it was measured with."""
    return replace(chain, micro_batch=samples)


def _raced(
    name: str,
    source: tuple[str, str],
    profiles: dict[int, StageProfile],
    cluster: Cluster,
    chosen: Sequence[tuple[int, ...]],
    settings: Row,
    began: float,
) -> list[Row]:
    """Predict plans by each profile, and run them by turns."""
    first, *others = profiles
    stages = len(chosen[0]) + 1
    problems = {
        key: Pipeline(
            chain, cluster, stages, micro_batches=settings["micro_batches"], recompute="none"
        )
        for key, chain in profiles.items()
    }
    device_cuts = np.arange(1, stages)
    plans = [problems[first].plan(np.array(cut), device_cuts) for cut in chosen]
    reports = [problems[first].report(plan) for plan in plans]
    found = [torch_plan(plan, profiles[first]) for plan in plans]
    progress(f"{settings['rounds']} steps of each of {len(plans)} plans of {name}")
    laps = race(*source, found, settings["rounds"])
    return [
        {
            "model": name, "load": began, "load_after": load(), "stages": stages,
            "cuts": list(plan.cuts), "before": list(one.cuts),
            "predicted": report.length_seconds, "simulated": report.simulated_seconds,
            "alone": [
                float(problems[key].length(np.array(plan.cuts), device_cuts)) for key in others
            ],
            "seconds": seconds.max(axis=0).tolist(),
        }
        for plan, one, report, seconds in zip(plans, found, reports, laps, strict=True)
    ]  # fmt: skip


def synchronisation(settings: Row) -> list[Row]:
    """Data-parallel steps that synchronise in four ways, on 2 to 4 workers."""
    quick = settings["sizes"] is not None
    return synchronised(settings["repeats"], (2, 3, 4), quick)


def runs(settings: Row) -> list[Row]:
    """Plans of the examples, each run by ``parenvs.clock.runs.run``: bytes, memory, losses."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="parenvs-") as place:
        found = {}
        small = {**settings, "sizes": settings["sizes"] or SIZES[:6]}  # the models are small
        for processes in (2, 4):
            progress(f"calibrating {processes} processes")
            found[processes] = Path(place) / f"torch-{processes}.json"
            machine(small, processes).save(found[processes])
        progress("calibrating 8 devices of JAX")
        found[8] = Path(place) / "jax-8.json"
        calibrated_by_jax(
            "cpu", 8, settings["repeats"], small["sizes"], shapes=[(256, 256, 256)]
        ).save(found[8])
        for name, plan, source, arguments in planned(Path(place), settings["sizes"] is not None):
            progress(name)
            steps = 3 if settings["sizes"] is not None else 20
            file = found[plan.cluster.devices]
            one = run(Path(place) / f"{name}.json", source, arguments, steps, calibration=file)
            rows.append({**one.to_json(), "name": name, "plan": name})
    return rows


def planned(place: Path, few: bool) -> Iterator[tuple[str, Any, str, str]]:
    """Write plans of the examples' models, with their graphs; yield name, plan and model.

    Args:
        place: the folder.
        few: whether to leave most of them out.
    """
    source = str(ROOT / "examples" / "torch_transformer.py")
    words, targets = batch()
    model = make()[0]
    graph = from_torch(model, words, loss=loss, targets=(targets,))
    graph.save(place / "torch.npz")
    whole, uneven = ((0, 3),), ((0, 1), (1, 3))
    kinds = {
        "torch data": (2, whole, 1, 0), "torch tensor": (2, whole, 2, 0),
        "torch ZeRO 3": (2, whole, 1, 3), "torch pipeline": (2, uneven, 1, 0),
        "torch pipeline x data": (4, uneven, 1, 0), "torch pipeline x tensor": (4, uneven, 2, 0),
        "torch pipeline x ZeRO 1": (4, uneven, 1, 1),
    }  # fmt: skip
    for name, (processes, stages, tp, zero) in kinds.items():
        if few and name not in ("torch tensor", "torch pipeline x data"):
            continue
        own = processes // len(stages)
        plan = HybridPlan(
            str(place / "torch.npz"), graph.fingerprint, Cluster.parse(f"1x{processes}:v100"),
            "roofline", "fp32", batch=8, micro_batch=4 * tp // own,
            stages=tuple(HybridStage((part,), own, tp=tp, zero=zero) for part in stages),
        )  # fmt: skip
        plan.save(place / f"{name}.json")
        yield name, plan, f"{source}:make", "batch"
    source = str(ROOT / "examples" / "jax_transformer.py")
    file = f"{source}:step"
    Model(TASKS["partition"], file, options={"arguments": "arguments"}).save(place / "jax.json")
    graph = Graph.load(place / "jax.npz")
    for name, plan in jax_plans(graph).items():
        if few and name != "hybrid":
            continue
        plan = replace(plan, instance=str(place / "jax.npz"))
        plan.save(place / f"jax {name}.json")
        yield f"jax {name}", plan, file, "arguments"


MEASURED: dict[str, Callable[[Row], list[Row]]] = {
    "collectives": collectives,
    "cuts": cuts,
    "sleep": sleep,
    "runs": runs,
    "synchronisation": synchronisation,
}


def median(row: Row) -> float:
    """Median seconds."""
    return float(np.median(row["seconds"]))


def quartiles(row: Row) -> str:
    """Quartiles in milliseconds."""
    low, high = 1e3 * np.quantile(row["seconds"], (0.25, 0.75))
    return f"{low:.3g} to {high:.3g}"


def ranked(rows: Sequence[Row], key: str = "predicted") -> Row:
    """How a prediction ranks plans: Spearman, errors, and the place of the predicted best."""
    told = np.array([x[key] if key != "alone" else x[key][0] for x in rows])
    taken = np.array([median(x) for x in rows])
    error = told / taken - 1
    return {
        "spearman": float(spearmanr(told, taken).statistic),
        "place": int(np.argsort(np.argsort(taken))[np.argmin(told)]) + 1,
        "behind": float(taken[np.argmin(told)] / taken.min() - 1),
        "error": float(np.median(np.abs(error))),
        "worst": float(error[np.argmax(np.abs(error))]),
    }


PLANS: list[Column] = [
    ("model", "{model}"),
    ("cut before", lambda row: ", ".join(row["before"])),
    ("ms predicted", "{predicted:.1f*1e3}"),
    ("simulated", "{simulated:.1f*1e3}"),
    ("median", lambda row: f"{1e3 * median(row):.1f}"),
    ("quartiles", quartiles),
    ("predicted / median", lambda row: f"{row['predicted'] / median(row):.2f}"),
    ("load", "{load:.2f}"),
]
RANKS: list[Column] = [
    ("model", "{model}"),
    ("prediction", "{prediction}"),
    ("plans", "{plans}"),
    ("Spearman", "{spearman:.2f}"),
    ("place of the predicted best", "{place} of {plans}"),
    ("behind the measured best", "{behind:.1%}"),
    ("median error", "{error:.1%}"),
    ("largest error", "{worst:.1%}"),
]
KINDS = {
    "predicted": "closed form",
    "simulated": "event simulation",
    "alone": "closed form, profiled in one process",
}


def _plans_section(rows: Sequence[Row]) -> list[str]:
    """Tables on plans: how they are ranked, and every one of them."""
    ranks = []
    for name in dict.fromkeys(x["model"] for x in rows):
        own = [x for x in rows if x["model"] == name]
        for key, words in KINDS.items():
            if own[0][key]:
                head = {"model": name, "prediction": words, "plans": len(own)}
                ranks.append({**head, **ranked(own, key)})
    return [columns(ranks, RANKS), columns(rows, PLANS)]


COLLECTIVES: list[Column] = [
    ("processes", "{processes}"),
    ("bytes", "{bytes:,}"),
    ("ms predicted", "{predicted:.3f*1e3}"),
    ("median", lambda row: f"{1e3 * median(row):.3f}"),
    ("quartiles", quartiles),
    ("error", lambda row: percent(row["predicted"] / median(row) - 1, 1)),
    ("load", "{load:.2f}"),
]
RUNS: list[Column] = [
    ("plan", "{name}"),
    ("as what", "{words}"),
    ("loss difference", "{difference:.1e}"),
    ("MB predicted", lambda row: f"{max(row['predicted_memory']) / 1e6:.3f}"),
    ("MB", lambda row: f"{max(row['memory']) / 1e6:.3f}"),
    ("ratio", lambda row: f"{max(row['predicted_memory']) / max(row['memory']):.2f}"),
    ("ms predicted", lambda row: f"{1e3 * (row['seconds'] or np.nan):.2f}"),
    ("median", "{step[seconds]:.2f*1e3}"),
    ("quartiles", "{step[low]:.2f*1e3} to {step[high]:.2f*1e3}"),
    (
        "predicted / median",
        lambda row: f"{(row['seconds'] or np.nan) / row['step']['seconds']:.2f}",
    ),
    ("load", "{load:.2f}"),
]
TRAFFIC: list[Column] = [
    ("plan", "{name}"),
    ("collective", "{kind}"),
    ("operations", "{operations:,}"),
    ("predicted", "{predicted:,.0f}"),
    ("counted", "{bytes:,.0f}"),
    ("equal", lambda row: "yes" if row["agrees"] else "no"),
]


def _runs_section(rows: Sequence[Row], when: str) -> list[str]:
    """Tables on what plans of the examples send, hold and take."""
    steps = len(rows[0]["losses"]) - 1
    same = sum(x["agrees"] for x in rows)
    sent = [
        {"name": x["name"], "kind": kind, **one} for x in rows for kind, one in x["traffic"].items()
    ]
    equal = sum(one["agrees"] for one in sent)
    words = (
        "## Plans that run\n\n`parenvs run` on plans of `examples/torch_transformer.py` (processes "
        "of gloo) and `examples/jax_transformer.py` (8 virtual devices), with "
        f"{steps} timed steps each. Losses are those of one device in {same} of {len(rows)}. Bytes "
        "of whole arrays over all processes, a step; single numbers aside. As predicted: "
        f"{equal} of {len(sent)}. With tp ranks, DTensor gathers the logits for a loss over words "
        f"that are split, and so it is predicted; the judge prices partial sums. {when}"
    )
    more = (
        "Memory of the fullest device, and seconds of a step, predicted by a calibration of peak "
        "rates and bandwidths: layers of 32 features are all overhead, which no such model sees."
    )
    return [words, columns(sent, TRAFFIC), more, columns(rows, RUNS)]


def section(name: str, part: Row) -> list[str]:
    """The paragraphs and tables of a part."""
    rows, runs = part["rows"], part["runs"]
    when = f"Measured in {part['took']:.0f} s."
    if name == "collectives":
        pairs = [x for x in rows if x["processes"] == 2]
        near = sum(abs(x["predicted"] / median(x) - 1) <= TOLERANCE for x in pairs)
        words = (
            "## Calibration against itself\n\nAll-reduces of gloo of sizes that the calibration "
            f"did not measure: {runs} each by turns, in processes of their own behind it, one "
            f"thread a process. Within {percent(TOLERANCE, 0)} of the median: {near} of "
            f"{len(pairs)} sizes with 2 processes; 4 processes share {counted(os.cpu_count() or 1)}"
            f" and stand beside. {when}"
        )
        return [words, columns(rows, COLLECTIVES)]
    if name == "runs":
        return _runs_section(rows, when)
    if name == "synchronisation":
        return ["## Synchronisation", *synchronisation_section(rows, runs, when)]
    if name == "cuts":
        words = (
            "## Cuts of real models\n\nEvery cut of two PyTorch models in two stages, 1F1B, "
            f"{part['micro_batches']} micro-batches. Layers are profiled in two processes at once, "
            "as stages run, and in one; the cluster is calibrated before. Then "
            f"{runs} steps of each plan by turns, in an order drawn anew every round, one thread a "
            f"process, behind one round that does not count. {when}"
        )
    else:
        words = (
            "## Stages that sleep\n\nFour stages of twelve layers that sleep for the seconds of "
            "their chain, 1F1B: what the schedule alone takes. The predicted best of all cuts, the "
            f"worst, and others between in even ranks. {runs} steps each by turns. {when}"
        )
    return [words, *_plans_section(rows)]


@measurement(
    title="Predictions against this machine's clock",
    key="part quick",
    among={"only": PARTS},
    about={"quick": "tiny settings, to try it"},
)
def clock(only: tuple[str, ...] = PARTS, quick: bool = False) -> list[Case]:
    return [({"part": name, "quick": quick}, partial(measured, name, quick)) for name in only]


def measured(name: str, quick: bool) -> Row:
    settings, begin = _QUICK if quick else _FULL, time.perf_counter()
    rows = MEASURED[name](settings)
    return {
        "runs": settings["rounds"] if name in ("cuts", "sleep") else settings["repeats"],
        "micro_batches": settings["micro_batches"],
        "took": round(time.perf_counter() - begin, 1),
        "rows": rows,
    }


@clock.page
def page(parts: list[Row], quick: bool) -> list[str]:
    known = {part["part"]: part for part in parts}
    sections = [
        "What is predicted, beside what this machine takes; all runs are in `clock.jsonl`. On a "
        "machine that does other things, seconds are noise: the load when each part began stands "
        "in the tables. Processes of gloo are held on their cores, and the cores kept awake by "
        "processes of the lowest class, which the load behind the first part counts.",
        *(text for x in PARTS if x in known for text in section(x, known[x])),
    ]
    warning = "**Tiny settings, to try the benchmark: no figure here means anything.**"
    return [warning, *sections] if quick else sections


if __name__ == "__main__":
    main(clock)
