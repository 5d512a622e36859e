"""Predictions against the clock of this machine: cuts, stages that sleep, collectives, gradients.

Needs the extra ``torch``. Every part is written to ``clock.jsonl`` as soon as it is measured, and
the page is made of what is there; ``--only`` measures some parts anew. Numbers of runs are fixed
beforehand, all runs are in the file, and the load is noted. Take it on idle cores.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks import clock_models
from benchmarks.common import ROOT, parser, percent, progress, publish, table
from benchmarks.synchronisation import measured as synchronised
from benchmarks.synchronisation import section as synchronisation_section
from jax_transformer import plans as jax_plans
from parenvs import Cluster, Graph, HybridPlan, HybridStage, Pipeline, StageProfile, from_torch
from parenvs.cli.model import Model
from parenvs.clock.calibration import SIZES, Calibration, calibrated
from parenvs.clock.collectives import reduced
from parenvs.clock.layers import profiled
from parenvs.clock.processes import together
from parenvs.clock.runs.prediction import torch_of_chain
from parenvs.clock.runs.run import run
from parenvs.clock.runs.torch import race
from parenvs.clock.xla.calibration import calibrated as calibrated_by_jax
from parenvs.files import replacing
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


def machine(settings: dict[str, Any], processes: int, **options: Any) -> Calibration:
    """Calibrate this machine."""
    sizes = {} if settings["sizes"] is None else {"sizes": settings["sizes"]}
    shapes = [(256, 256, 256)]
    return calibrated("cpu", processes, settings["repeats"], shapes=shapes, **sizes, **options)


def collectives(settings: dict[str, Any]) -> list[dict[str, Any]]:
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


def cuts(settings: dict[str, Any]) -> list[dict[str, Any]]:
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


def sleep(settings: dict[str, Any]) -> list[dict[str, Any]]:
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
    settings: dict[str, Any],
    began: float,
) -> list[dict[str, Any]]:
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
    found = [torch_of_chain(plan, profiles[first]) for plan in plans]
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


def synchronisation(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Data-parallel steps that synchronise in four ways, on 2 to 4 workers."""
    quick = settings["sizes"] is not None
    return synchronised(settings["repeats"], (2, 3, 4), quick)


def runs(settings: dict[str, Any]) -> list[dict[str, Any]]:
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
    Model(file, {"arguments": "arguments"}).save(place / "jax.json")
    graph = Graph.load(place / "jax.npz")
    for name, plan in jax_plans(graph).items():
        if few and name != "hybrid":
            continue
        plan = replace(plan, instance=str(place / "jax.npz"))
        plan.save(place / f"jax {name}.json")
        yield f"jax {name}", plan, file, "arguments"


MEASURED: dict[str, Callable[[dict[str, Any]], list[dict[str, Any]]]] = {
    "collectives": collectives,
    "cuts": cuts,
    "sleep": sleep,
    "runs": runs,
    "synchronisation": synchronisation,
}


def median(row: dict[str, Any]) -> float:
    """Median seconds."""
    return float(np.median(row["seconds"]))


def quartiles(row: dict[str, Any]) -> str:
    """Quartiles in milliseconds."""
    low, high = 1e3 * np.quantile(row["seconds"], (0.25, 0.75))
    return f"{low:.3g} to {high:.3g}"


def ranked(rows: Sequence[dict[str, Any]], key: str = "predicted") -> dict[str, Any]:
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


def _plans_section(part: dict[str, Any]) -> list[str]:
    """Tables on plans: how they are ranked, and every one of them."""
    rows = part["rows"]
    names = list(dict.fromkeys(x["model"] for x in rows))
    summary = []
    for name in names:
        own = [x for x in rows if x["model"] == name]
        kinds = {"predicted": "closed form", "simulated": "event simulation"}
        if own[0]["alone"]:
            kinds["alone"] = "closed form, profiled in one process"
        for key, words in kinds.items():
            found = ranked(own, key)
            summary.append([
                name, words, len(own), f"{found['spearman']:.2f}",
                f"{found['place']} of {len(own)}", percent(found["behind"], 1),
                percent(found["error"], 1), percent(found["worst"], 1),
            ])  # fmt: skip
    head = ["model", "prediction", "plans", "Spearman", "place of the predicted best"]
    head += ["behind the measured best", "median error", "largest error"]
    cells = [
        [
            x["model"], ", ".join(x["before"]), f"{1e3 * x['predicted']:.1f}",
            f"{1e3 * x['simulated']:.1f}", f"{1e3 * median(x):.1f}", quartiles(x),
            f"{x['predicted'] / median(x):.2f}", f"{x['load']:.2f}",
        ]
        for x in rows
    ]  # fmt: skip
    header = ["model", "cut before", "ms predicted", "simulated", "median", "quartiles"]
    return [table(head, summary), table([*header, "predicted / median", "load"], cells)]


def _runs_section(rows: Sequence[dict[str, Any]], when: str) -> list[str]:
    """Tables on what plans of the examples send, hold and take."""
    steps = len(rows[0]["losses"]) - 1
    same = sum(x["agrees"] for x in rows)
    sent = [(x, kind, one) for x in rows for kind, one in x["traffic"].items()]
    equal = sum(one["agrees"] for _, _, one in sent)
    words = (
        "## Plans that run\n\n`parenvs run` on plans of `examples/torch_transformer.py` (processes "
        "of gloo) and `examples/jax_transformer.py` (8 virtual devices), with "
        f"{steps} timed steps each. Losses are those of one device in {same} of {len(rows)}. Bytes "
        "of whole arrays over all processes, a step; single numbers aside. As predicted: "
        f"{equal} of {len(sent)}. With tp ranks, DTensor gathers the logits for a loss over words "
        f"that are split, and so it is predicted; the judge prices partial sums. {when}"
    )
    cells = [
        [
            x["name"], kind, f"{one['operations']:,}", f"{one['predicted']:,.0f}",
            f"{one['bytes']:,.0f}", "yes" if one["agrees"] else "no",
        ]
        for x, kind, one in sent
    ]  # fmt: skip
    bytes_table = table(
        ["plan", "collective", "operations", "predicted", "counted", "equal"], cells
    )
    cells = [
        [
            x["name"], x["words"], f"{x['difference']:.1e}",
            f"{max(x['predicted_memory']) / 1e6:.3f}", f"{max(x['memory']) / 1e6:.3f}",
            f"{max(x['predicted_memory']) / max(x['memory']):.2f}",
            f"{1e3 * (x['seconds'] or np.nan):.2f}", f"{1e3 * x['step']['seconds']:.2f}",
            f"{1e3 * x['step']['low']:.2f} to {1e3 * x['step']['high']:.2f}",
            f"{(x['seconds'] or np.nan) / x['step']['seconds']:.2f}", f"{x['load']:.2f}",
        ]
        for x in rows
    ]  # fmt: skip
    header = ["plan", "as what", "loss difference", "MB predicted", "MB", "ratio", "ms predicted"]
    header += ["median", "quartiles", "predicted / median", "load"]
    more = (
        "Memory of the fullest device, and seconds of a step, predicted by a calibration of peak "
        "rates and bandwidths: layers of 32 features are all overhead, which no such model sees."
    )
    return [words, bytes_table, more, table(header, cells)]


def section(name: str, part: dict[str, Any]) -> list[str]:
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
        cells = [
            [
                x["processes"], f"{x['bytes']:,}", f"{1e3 * x['predicted']:.3f}",
                f"{1e3 * median(x):.3f}", quartiles(x),
                percent(x["predicted"] / median(x) - 1, 1), f"{x['load']:.2f}",
            ]
            for x in rows
        ]  # fmt: skip
        header = ["processes", "bytes", "ms predicted", "median", "quartiles", "error", "load"]
        return [words, table(header, cells)]
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
    return [words, *_plans_section(part)]


def main() -> None:
    """Measure what is asked for or missing, and write the page."""
    options = parser(__doc__)
    options.add_argument("--only", choices=PARTS, nargs="+", help="measure these anew")
    options.add_argument("--render-only", action="store_true", help="measure nothing")
    options.add_argument("--quick", action="store_true", help="tiny settings, to try it")
    chosen = options.parse_args()
    file = chosen.out / "clock.jsonl"
    known: dict[str, Any] = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            part = json.loads(line)
            if part["quick"] == chosen.quick or chosen.render_only:
                known[part["part"]] = part
    settings = _QUICK if chosen.quick else _FULL
    wanted = () if chosen.render_only else chosen.only or [x for x in PARTS if x not in known]
    for name in wanted:
        begin = time.perf_counter()
        rows = MEASURED[name](settings)
        runs = settings["rounds"] if name in ("cuts", "sleep") else settings["repeats"]
        known[name] = {
            "part": name, "runs": runs, "micro_batches": settings["micro_batches"],
            "quick": chosen.quick, "took": round(time.perf_counter() - begin, 1), "rows": rows,
        }  # fmt: skip
        chosen.out.mkdir(parents=True, exist_ok=True)
        with replacing(file) as stream:
            lines = [json.dumps(known[x]) + "\n" for x in PARTS if x in known]
            stream.write("".join(lines).encode())
        progress(f"{name}: {known[name]['took']:.0f} s")
    sections = [
        "What is predicted, beside what this machine takes; all runs are in `clock.jsonl`. On a "
        "machine that does other things, seconds are noise: the load when each part began stands "
        "in the tables. Processes of gloo are held on their cores, and the cores kept awake by "
        "processes of the lowest class, which the load behind the first part counts.",
        *(text for x in PARTS if x in known for text in section(x, known[x])),
    ]
    if any(part["quick"] for part in known.values()):
        sections.insert(
            0, "**Tiny settings, to try the benchmark: no figure here means anything.**"
        )
    publish("clock", sections, None, chosen.out)


if __name__ == "__main__":
    main()
