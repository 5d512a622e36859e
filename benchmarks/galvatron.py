"""Galvatron's profile of Llama-2 7B on 8 devices: its chosen plans by its formulas, and ours.

The profile, the plans and their throughputs are those of the tests of PKU-DAIR/Hetu-Galvatron at
cea12ff (Apache-2.0); they are not part of this repository, and without them there is no table. Its
formulas are written down here as its cost model was read, at another commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.framework import ROOT, Column, columns, main, measurement, percent
from parenvs.agents.hybrid.exact import exact
from parenvs.cluster import Cluster, Device
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.layers import Layer, LayerSeconds, Split
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints
from parenvs.tasks.hybrid.stack import Machine, Stack

FOLDER = ROOT.parent / "shared" / "measured" / "galvatron"
MB = 2.0**20
SEQUENCE, HIDDEN, LAYERS, DEVICES, BATCH = 8192, 4096, 28, 8, 64
MEMORY = 36 * 1024 * MB
FIRST, SECOND = 2.6485091403918064, 2.5246283459057333
"""Samples per second that its search reports, with 32 and with 8 micro-batches a step."""


class Profile:
    """The measurements, milliseconds and MB as they stand in the files."""

    def __init__(self, folder: Path) -> None:
        """Read the files of a folder."""
        self._times = _read(folder, "computation_profiling_bf16_llama2-7b_all.json")
        self._memory = _read(folder, "memory_profiling_bf16_llama2-7b_all.json")
        self._rates = _read(folder, "allreduce_bandwidth_1nodes_8gpus_per_node.json")
        self._collectives = _read(folder, "sp_time_1nodes_8gpus_per_node.json")
        self.slowdown = _read(folder, "overlap_coefficient.json")["overlap_coe"]

    @cached_property
    def forward(self) -> float:
        """Of a layer and sample: a parabola through all sequence lengths."""
        return self._fitted("layertype_0_", 2)

    @cached_property
    def other(self) -> float:
        """Of embedding and head and a sample: a line through all sequence lengths."""
        return self._fitted("layertype_other_", 1)

    def _fitted(self, start: str, degree: int) -> float:
        points = {int(k.split("seq")[1]): v for k, v in self._times.items() if k.startswith(start)}
        fit = np.polyfit(list(points), list(points.values()), degree)
        return float(np.polyval(fit, SEQUENCE))

    @property
    def parameters(self) -> float:
        """Of a layer, four bytes each."""
        return float(self._memory["layertype_0_sp"]["512"]["parameter_size"])

    def saved(self, tp: int | str) -> float:
        """Activations of a layer and sample; ``"checkpoint"`` if it is recomputed."""
        table_ = self._memory["layertype_0_sp"][str(SEQUENCE)]["tp_activation_per_bsz_dict"]
        return float(table_[str(tp)])

    def states(self, tp: int, what: str = "model_states") -> float:
        """Of embedding and head."""
        return float(self._memory["other_memory_pp_off_sp"][str(SEQUENCE)][what][str(tp)])

    def seconds_per_mb(self, group: int) -> float:
        """Milliseconds of an MB, as the bandwidth of its all-reduce says."""
        return 1 / self._rates[f"allreduce_size_{group}_consec_1"] if group > 1 else 0.0

    def all_reduce(self, group: int, size: float) -> float:
        """Milliseconds of an all-reduce: measured at that size, or a line through all sizes."""
        if group == 1:
            return 0.0
        start = f"allreduce_size_{group}_"
        points = {
            int(key.split("_")[3][:-2]): value
            for key, value in self._collectives.items()
            if key.startswith(start)
        }
        line = np.polyfit(list(points), list(points.values()), 1)
        return float(points.get(round(size), np.polyval(line, size)))


def _read(folder: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((folder / name).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Kind:
    """Layers that a plan of Galvatron treats alike: how many, tp, sharded, recomputed."""

    count: int
    tp: int
    sharded: bool
    recomputed: bool


PLANS = {
    "32 micro-batches, tp 4": (
        32, 8, False, FIRST,
        (Kind(14, 4, True, True), Kind(12, 4, True, False), Kind(2, 4, False, False)),
    ),
    "8 micro-batches, dp 8": (8, 1, True, SECOND, (Kind(28, 1, True, True),)),
}  # fmt: skip
"""Plan -> micro-batches, tp of the vocabulary, whether it is sharded, throughput, layers."""


def by_its_formulas(profile: Profile, plan: tuple[Any, ...]) -> float:
    """Samples per second of one of its plans, which have one stage: no gradient is exposed."""
    count, vocabulary, sharded, _, kinds = plan
    seconds = 0.0
    for kind in kinds:
        dp = DEVICES // kind.tp
        samples = BATCH / count / dp
        passes = 4 if kind.recomputed else 3
        compute = passes * profile.forward * samples / kind.tp
        gather = (dp - 1) / dp * profile.parameters / kind.tp / 2 * profile.seconds_per_mb(dp)
        size = samples * SEQUENCE * HIDDEN * 2 / MB
        exchange = 4 * (1.5 if kind.recomputed else 1) * profile.all_reduce(kind.tp, size)
        seconds += kind.count * (compute + (gather if kind.sharded else 0.0) + exchange)
    replicas = DEVICES // vocabulary
    samples = BATCH / count / replicas
    forward = profile.other * samples / vocabulary
    # An eighth of the states are weights in half precision; half of a ring's bytes each way. What
    # is hidden slows the products down.
    weights = profile.states(vocabulary) / 8 * (replicas - 1) / replicas
    gather = weights * profile.seconds_per_mb(replicas) if sharded else 0.0
    slowed = gather * (1 - 1 / profile.slowdown)
    size = samples * SEQUENCE * HIDDEN * 2 / MB
    seconds += 3 * forward + slowed + 2 * profile.all_reduce(vocabulary, size)
    return 1e3 * BATCH / (count * seconds)


@dataclass(frozen=True)
class MeasuredLayer(Layer):
    """A layer of the profile, or the share of embedding and head that one of them has."""

    forward: float
    size: float
    saved: float
    recomputed: float
    profile: Profile
    collectives: int

    def seconds(self, machine: Machine, split: Split) -> LayerSeconds:
        """Measured seconds; tp ranks share them, and wait for each other's collectives."""
        forward = self.forward * split.samples / split.tp / 1e3
        tp, samples = np.broadcast_arrays(split.tp, split.samples)
        messages = samples * SEQUENCE * HIDDEN * 2 / MB
        pairs = zip(tp.ravel(), messages.ravel(), strict=True)
        waits = np.array([self.profile.all_reduce(int(t), float(m)) for t, m in pairs])
        half = self.collectives / 2 * waits.reshape(tp.shape) / 1e3
        return LayerSeconds(forward, 2 * forward, half, half)

    def parameters(self, split: Split) -> tuple[Any, Any]:
        """Parameters, shared by tp ranks."""
        return self.size / split.tp, 0.0

    def saved_bytes(self, machine: Machine, split: Split, mode: str) -> Any:
        """Measured bytes; there is no selective recomputation."""
        if mode == "full":
            return self.recomputed * MB * split.samples
        return self.saved * MB * split.samples / split.tp


def problem_of(profile: Profile) -> Hybrid:
    """The profile as a hybrid problem: measured layers, measured bandwidth."""
    block = MeasuredLayer(
        profile.forward, profile.parameters * MB / 4, profile.saved(1), profile.saved("checkpoint"),
        profile, 4,
    )  # fmt: skip
    half = profile.states(1) * MB / 16 / 2
    activation = profile.states(1, "activation") / 2
    end = MeasuredLayer(profile.other / 2, half, activation, activation, profile, 2)
    model = HybridModel(
        "galvatron-llama2-7b", "sha256:profile", (block,), (0,) * LAYERS,
        (float(SEQUENCE * HIDDEN),) * (LAYERS - 1), end, end,
    )  # fmt: skip
    # Bus bandwidth in the files, MB per millisecond; the ring's share of bytes is counted by both.
    rate = 1e3 * MB / profile.seconds_per_mb(DEVICES)
    device = Device("profiled", 312e12, 2.0e12, MEMORY / 0.9, peaks=(("bf16", 312e12),))
    cluster = Cluster(1, DEVICES, device, rate, rate)
    stack = Stack.parse({"name": "torch-2024", "link_share": 1.0, "send_share": 1.0})
    return Hybrid(model, cluster, BATCH, stack, "bf16")


LIMITS = {
    "ours, any plan": Constraints(recompute=("none", "full")),
    "ours, tp 4": Constraints(tp=4, pp=1, recompute=("none", "full")),
    "ours, dp 8, one sample": Constraints(dp=8, pp=1, micro_batch=1, recompute=("none", "full")),
}


@measurement(title="Galvatron's plans by its formulas and ours")
def galvatron() -> Iterator[dict[str, Any]]:
    if not FOLDER.is_dir():
        raise ParenvsError(f"no folder {FOLDER}: nothing to compare")
    profile = Profile(FOLDER)
    for name, plan in PLANS.items():
        yield {"plan": name, "reported": plan[3], "formulas": by_its_formulas(profile, plan)}
    problem = problem_of(profile)
    for title, limits in LIMITS.items():
        answer = exact(problem, limits, simulate=False)
        memory = answer.report.held.total.max() / 2**30
        yield {"plan": title, "ours": BATCH / answer.cost, "memory": memory,
               "file": answer.plan.to_json()}  # fmt: skip


def words(row: dict[str, Any]) -> str:
    """The stages of a plan."""
    return "; ".join(
        f"layers {s['layers'][0][0]} to {s['layers'][0][1] - 1}: tp {s['tp']}, "
        f"dp {s['devices'] // s['tp']}, ZeRO {s['zero']}, recomputed "
        f"{s.get('recompute', {}).get('full', 0)}"
        for s in row["file"]["stages"]
    )


@galvatron.page
def page(rows: list[dict[str, Any]]) -> list[str]:
    theirs: list[Column] = [
        ("plan", "{plan}"),
        ("reported", "{reported:.10f}"),
        ("formulas", "{formulas:.10f}"),
        ("difference", lambda row: percent(row["formulas"] / row["reported"] - 1, 6)),
    ]
    ours: list[Column] = [
        ("", "{plan}"), ("samples/s", "{ours:.4f}"), ("GiB", "{memory:.1f}"), ("plan", words)
    ]  # fmt: skip
    return [
        "Samples per second of Galvatron's two plans: reported, and by its formulas as read.",
        columns([row for row in rows if "reported" in row], theirs),
        "Our search on the same measured layers, with our collectives, states and schedule.",
        columns([row for row in rows if "ours" in row], ours, left=(0, 3)),
    ]


if __name__ == "__main__":
    main(galvatron)
