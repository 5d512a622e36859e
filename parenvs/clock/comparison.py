"""A run of a plan beside what was predicted, as text and as JSON types."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from parenvs.clock.calibration import Calibration
from parenvs.clock.members import ELEMENT, Timing
from parenvs.cluster import Links
from parenvs.compiled import Array
from parenvs.core.plan import Plan, judge
from parenvs.core.registry import task_with
from parenvs.core.stages import Step
from parenvs.core.task import Task
from parenvs.errors import ParenvsError, listed
from parenvs.exports.torch import TorchPlan, export
from parenvs.graph.graph import Graph
from parenvs.graph.layout import Layout
from parenvs.machine import cores, processor
from parenvs.view.words import duration, plural, size

TOLERANCE = 1e-3
"""Relative difference of losses up to which two runs count as the same training."""
STATE_TOLERANCE = 0.1
"""Difference of an array of the state, as a share of its change, up to which it counts as equal."""
# The same of a gradient of the first step, as a share of its length.
_GRADIENT_TOLERANCE = 1e-4
# Share of the largest gradient's length below which one is rounding: a key's bias, for example.
_NEGLIGIBLE = 1e-6
# Times what rounding moves an array, up to which a difference is rounding's, too.
_NOISE = 10.0
# Share of an array that counts as its least change.
_UNIT = 1e-6
_TINY = 1e-12


def relative_error(actual: float, expected: float) -> float:
    """Return the relative difference of two numbers; infinite if either is not finite."""
    if not (math.isfinite(actual) and math.isfinite(expected)):
        return math.inf
    return abs(actual - expected) / max(abs(expected), _TINY)


def change_error(actual: Array, expected: Array, start: Array) -> float:
    """Return how far two arrays are apart that a training made of one, as a share of its change.

    Both are norms (the root of a sum of squares). Whole numbers have to be equal: else the result
    is infinite, as it is where anything is not finite.
    """
    if actual.shape != expected.shape:
        return math.inf
    if expected.dtype.kind in "iub":
        return 0.0 if np.array_equal(actual, expected) else math.inf
    actual, expected, start = (np.asarray(x, np.float64) for x in (actual, expected, start))
    if not (np.isfinite(actual).all() and np.isfinite(expected).all()):
        return math.inf
    # An array that hardly changes is compared by a millionth of its own length, not by zero.
    minimum = _UNIT * float(np.linalg.norm(expected.ravel()))
    change = max(float(np.linalg.norm((expected - start).ravel())), minimum, _TINY)
    return float(np.linalg.norm((actual - expected).ravel())) / change


def nudged(values: Array, seed: int, width: int = 0) -> Array:
    """Return numbers moved by the last place of ``width`` bytes, as rounding may move them."""
    values = np.asarray(values)
    # Last places of bfloat16, float32 and float64.
    unit = {2: 2.0**-8, 4: 2.0**-23}.get(width or values.dtype.itemsize, 2.0**-52)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], values.shape)
    return np.asarray(values * (1 + unit * signs)).astype(values.dtype)


@dataclass(frozen=True)
class States:
    """Weights, the optimizer's arrays and counters after the last step, beside one device.

    Attributes:
        worst: name of the one that is furthest from what is allowed; "" if there is none.
        difference: of that one, as a share of its change; see ``change_error``.
        allowed: ``STATE_TOLERANCE``, or more where rounding alone moves it further.
        untold: how many tell nothing, as rounding moves them as far as the training does.
        still: names of those that no step changed on one device; of gradients, the negligible ones.
    """

    arrays: int
    worst: str = ""
    difference: float = 0.0
    allowed: float = STATE_TOLERANCE
    untold: int = 0
    still: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether they are those of one device."""
        return self.difference <= self.allowed

    @classmethod
    def of(
        cls,
        start: Mapping[str, Array],
        single: Mapping[str, Array],
        again: Mapping[str, Array],
        actual: Mapping[str, Array],
        *,
        tolerance: float = STATE_TOLERANCE,
    ) -> States:
        """Compare, by name.

        Args:
            start: what they were in the beginning.
            single: on one device.
            again: on one device, from values that were ``nudged``.
            actual: in the run; what is missing differs.
            tolerance: see ``allowed``.
        """
        worst, largest, allowed, untold, still = "", 0.0, tolerance, 0, []
        for name, expected in single.items():
            noise = change_error(again[name], expected, start[name])
            # Adam divides by roots of tiny moments: what rounding does there is measured.
            limit = max(tolerance, _NOISE * noise)
            result = actual.get(name)
            difference = math.inf if result is None else change_error(result, expected, start[name])
            untold += math.isfinite(difference) and limit >= 1
            # What is finite on one device has to be finite in the run, whatever rounding does.
            if not (math.isfinite(difference) and math.isfinite(limit)):
                limit = tolerance
            if np.array_equal(expected, start[name]):
                still.append(name)
            if not worst or difference / limit > largest / allowed:
                worst, largest, allowed = name, difference, limit
        return cls(len(single), worst, largest, allowed, untold, tuple(still))

    @classmethod
    def of_gradients(
        cls,
        single: Mapping[str, Array],
        again: Mapping[str, Array],
        actual: Mapping[str, Array],
    ) -> States:
        """Compare gradients of the first step, as shares of their lengths."""
        norms = {name: float(np.linalg.norm(x.ravel())) for name, x in single.items()}
        least = _NEGLIGIBLE * max(norms.values(), default=0.0)
        large = {name: x for name, x in single.items() if not norms[name] < least}
        zeros = {name: np.zeros_like(x) for name, x in large.items()}
        states = cls.of(zeros, large, again, actual, tolerance=_GRADIENT_TOLERANCE)
        return replace(states, still=tuple(norms.keys() - large.keys()))

    def text(self, what: str = "state after the last step", whole: str = "change") -> str:
        """Return the comparison in a line."""
        words = (
            f"{what}: {plural(self.arrays, 'array')}; largest difference {self.difference:.1e} "
            f"of its {whole} ({self.worst}; {self.allowed:.1g} is allowed)"
        )
        if self.untold:
            words += f"; {self.untold} tell nothing, as rounding moves them as far"
        if self.still:
            still = "no step changes" if whole == "change" else "negligible:"
            words += f"; {still} {listed(sorted(self.still))}"
        return words


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in a step, of all processes together.

    Attributes:
        operations: how many ran; of those in a compiled loop, one.
        predicted: bytes.
    """

    operations: int
    bytes: float
    predicted: float

    @property
    def agrees(self) -> bool:
        """Whether the bytes are those predicted."""
        return self.bytes == self.predicted


@dataclass(frozen=True)
class Run:
    """A plan that was run. R devices.

    Attributes:
        step: seconds of a step, of the last process to end.
        seconds: predicted; None without a calibration.
        traffic: kind -> what was sent.
        memory: (R,) bytes on each device when most is in use.
        predicted_memory: (R,) bytes, or empty.
        states: what the training made of its state; None if that was not compared.
        gradients: those of the first step, beside those of the whole batch on one device.
        loss: which output of the step the loss is, in words; "" if there is one alone.
        load: processes that wanted a core in the last minute, on average, when it began.
    """

    plan: str
    words: str
    devices: int
    losses: tuple[float, ...]
    single: tuple[float, ...]
    step: Timing
    single_step: Timing
    seconds: float | None
    traffic: dict[str, Traffic]
    memory: tuple[float, ...]
    predicted_memory: tuple[float, ...]
    load: float
    states: States | None = None
    gradients: States | None = None
    loss: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def difference(self) -> float:
        """Largest relative difference of a loss to that of one device; see ``relative_error``."""
        return max(map(relative_error, self.losses, self.single), default=math.inf)

    @property
    def agrees(self) -> bool:
        """Whether it is the same training as on one device."""
        return not self.faults

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it is not the same training as on one device, in clauses; empty if it is."""
        # Differences say nothing once a loss is not finite.
        for where, losses in (("on one device", self.single), ("of the plan", self.losses)):
            for step, loss in enumerate(losses):
                if not math.isfinite(loss):
                    return (f"the loss {where} is {loss} in step {step}: nothing can be compared",)
        reasons = []
        if len(self.losses) != len(self.single) or not self.difference <= TOLERANCE:
            reasons.append(
                f"losses differ from those of one device by up to {self.difference:.1e}, and "
                f"{TOLERANCE:g} is allowed"
            )
        compared = ("the gradient of ", self.gradients, "length"), ("", self.states, "change")
        for prefix, states, whole in compared:
            if states is not None and not states.agrees:
                reasons.append(
                    f"{prefix}{states.worst} differs from that of one device by "
                    f"{states.difference:.1e} of its {whole}, and {states.allowed:.1g} is allowed"
                )
        return tuple(reasons)

    def to_json(self) -> dict[str, Any]:
        """Return the run as an object of JSON types."""
        content = asdict(self)
        content["step"], content["single_step"] = self.step._asdict(), self.single_step._asdict()
        for key in ("losses", "single"):
            content[key] = list(map(_finite, content[key]))
        for key in ("states", "gradients"):
            if (compared := getattr(self, key)) is not None:
                content[key]["agrees"] = compared.agrees
                content[key]["difference"] = _finite(compared.difference)
        for kind, counts in self.traffic.items():
            content["traffic"][kind]["agrees"] = counts.agrees
        head = {"agrees": self.agrees, "faults": self.faults}
        return {**head, "difference": _finite(self.difference), **content}

    def text(self) -> str:
        """Return the run in lines."""
        steps = len(self.losses)
        lines = [
            f"{self.plan}: {self.words}, on {plural(self.devices, 'device')}",
            f"losses{f' ({self.loss})' if self.loss else ''} of {plural(steps, 'step')}: "
            f"{self.losses[0]:.6g} -> {self.losses[-1]:.6g}; "
            f"one device: {self.single[0]:.6g} -> {self.single[-1]:.6g}; largest relative "
            f"difference {self.difference:.1e}",
        ]
        if self.gradients is not None:
            lines.append(self.gradients.text("gradients of the first step", "length"))
        if self.states is not None:
            lines.append(self.states.text())
        for kind, counts in self.traffic.items():
            verdict = "equal" if counts.agrees else _ratio(counts.predicted, counts.bytes)
            lines.append(
                f"{kind}: {plural(counts.operations, 'operation')}, {counts.bytes:,.0f} bytes; "
                f"predicted {counts.predicted:,.0f} bytes ({verdict})"
            )
        if not self.traffic:
            lines.append("collectives: none, as predicted")
        ranks: dict[tuple[float, ...], list[str]] = {}  # devices that hold as many bytes
        rows = [self.memory, self.predicted_memory] if self.predicted_memory else [self.memory]
        for rank, figures in enumerate(zip(*rows, strict=True)):
            ranks.setdefault(figures, []).append(str(rank))
        for (used, *predicted), group in ranks.items():
            comparisons = (f"; predicted {size(x)} ({_ratio(x, used)})" for x in predicted)
            lines.append(f"memory of device {', '.join(group)}: {size(used)}{''.join(comparisons)}")
        lines.append(_seconds("step", self.step, self.seconds))
        lines.append(_seconds("one device", self.single_step, None))
        lines.append(f"load when it began: {self.load:.1f}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def traffic_of(
    measured: Sequence[dict[str, Any]], predicted: dict[str, float]
) -> dict[str, Traffic]:
    """Put what every process counted beside what was predicted.

    Args:
        measured: of each process, kind -> (operations, bytes).
        predicted: kind -> bytes of all.
    """
    traffic = {}
    for kind in sorted({kind for counts in measured for kind in counts} | set(predicted)):
        operations, sizes = zip(*(counts.get(kind, (0, 0)) for counts in measured), strict=True)
        expected = float(predicted.get(kind, 0.0))
        traffic[kind] = Traffic(sum(operations), float(sum(sizes)), expected)
    return traffic


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _seconds(what: str, taken: Timing, predicted: float | None) -> str:
    words = (
        f"{what}: median {duration(taken.seconds)}, quartiles {duration(taken.low)} to "
        f"{duration(taken.high)}"
    )
    if predicted is None:
        return words
    return f"{words}; predicted {duration(predicted)} ({_ratio(predicted, taken.seconds)})"


def _ratio(predicted: float, measured: float) -> str:
    return f"{predicted / measured:.2f} of it" if measured else "there is none"


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a step.

    Attributes:
        seconds: of the step; None if the plan's devices are not those of a calibration.
        memory: bytes on each device, by rank; empty if nothing is predicted.
        traffic: kind of a collective -> bytes of its arrays over all processes.
        adam: whether the step updates by Adam, whose states the memory counts.
        updates: whether the seconds count the update.
        measured: bytes of the weights of each layer of a measured chain, by name.
    """

    seconds: float | None
    memory: tuple[float, ...]
    traffic: dict[str, float]
    adam: bool = False
    updates: bool = False
    notes: tuple[str, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Traced:
    """What the module that runs says of the bytes of a step.

    Attributes:
        shapes: of its parameters, by name: those of weights that are several in one are planned
            with a dimension for the parts.
        sent: bytes that stages send each other, both ways, over all processes: with masks,
            positions and labels, which a trace of the module passes from stage to stage; None of
            one stage.
        traffic: of a step that was rehearsed with collectives that send nothing, as in
            ``Prediction``: DTensor gathers and sums what the plan's placements leave to it; None if
            it was not.
    """

    shapes: Mapping[str, tuple[int, ...]]
    sent: float | None = None
    traffic: Mapping[str, float] | None = None
    notes: tuple[str, ...] = ()


def on_machine(calibration: Calibration, plan: Any, kind: str, where: str) -> Any:
    """Return a plan on the devices of a calibration.

    Args:
        calibration: of this machine.
        plan: the plan.
        kind: ``"cpu"`` or ``"cuda"``, of the devices that will run it.
        where: the calibration's file.

    Raises:
        ParenvsError: the calibration is of other devices, or of fewer.
    """
    facts, cluster = calibration.provenance, calibration.cluster
    device, fault = cluster.device.name, ""
    here: dict[str, Any] = {"processor": processor(), "cores": cores()}
    other = next((key for key in here if facts.get(key, here[key]) != here[key]), None)
    if (device == "cpu") != (kind == "cpu"):
        fault = (
            f"a calibration of {device}, and the plan runs on {kind}; run parenvs calibrate "
            f"--device {kind}"
        )
    elif other is not None:
        fault = (
            f"a calibration of another machine ({other} {facts[other]}, here {here[other]}); run "
            "parenvs calibrate here"
        )
    elif cluster.devices < plan.cluster.devices:
        fault = (
            f"of {cluster.devices} devices, and the plan has {plan.cluster.devices}; run parenvs "
            f"calibrate --processes {plan.cluster.devices}"
        )
    if fault:
        raise ParenvsError(f"--calibration {where}: {fault}")
    return replace(plan, cluster=cluster.part(plan.cluster.devices))


def of_plan(
    plan: Plan,
    graph: Graph | None,
    calibration: Calibration | None,
    kind: str,
    where: str = "",
    trace: Callable[[TorchPlan], Traced] | None = None,
) -> tuple[TorchPlan, Prediction]:
    """Return a plan in PyTorch's words, and what is predicted of its run.

    Args:
        plan: a plan of a task with a layout or with stages; also of a measured chain.
        graph: what it was made for (default: the plan's instance).
        calibration: of this machine, or None.
        kind: of the devices that will run it.
        where: the calibration's file.
        trace: asks the module that runs, where it says more than its graph, of stages, ZeRO and
            tensor parallelism; a measured chain knows its own.

    Raises:
        ParenvsError: the plan cannot be run, or the calibration is of other devices.
    """
    exported, layout, stages = export(plan, graph, measured=True)
    run = plan if stages is None else stages.run
    target = graph if layout is None else layout.graph
    target = target if stages is None else stages.target
    seconds, cluster = None, run.cluster
    if calibration is not None:
        timed = on_machine(calibration, run, kind, where)
        seconds, cluster = seconds_of(timed, target), timed.cluster
    step = task_with(plan, Task.step).step(run, target, ELEMENT)
    ranks = exported.data * exported.model
    traffic: dict[str, float] = defaultdict(float)
    shared = exported.pipe > 1 or exported.zero or exported.model > 1
    traced = trace(exported) if trace and shared and not step.measured else Traced({})
    if layout is not None and stages is None:
        for axis in range(len(layout.axes)):
            for key, size in layout.rank_bytes(axis).items():
                traffic[key] += size * ranks
    else:
        traffic["send"] += step.sent if traced.sent is None else traced.sent
        shapes = {x: shape for x, shape in traced.shapes.items() if x not in exported.placements}
        with_shapes = replace(exported, shapes={**exported.shapes, **shapes})
        _add_gradients(traffic, with_shapes, layout, step)
    if layout is not None and stages is not None and exported.model > 1:
        scale = exported.batch / layout.graph.batch_size * exported.model
        for key, size in layout.rank_bytes(len(layout.axes) - 1).items():
            traffic[key] += size * scale
    notes = (*exported.notes, *traced.notes)
    if traced.traffic is not None:
        rehearsed = traced.traffic
        extra = {key: rehearsed.get(key, 0.0) - traffic[key] for key in {*rehearsed, *traffic}}
        links = Links(cluster.devices_per_server, cluster.intra_bw, cluster.device_nic_bw)
        formulas = {"all-reduce": links.all_reduce, "all-to-all": links.all_to_all}
        longer = sum(
            float(formulas.get(key, links.all_gather)(x / ranks, exported.model, 1))
            for key, x in extra.items()
        )
        if any(extra.values()):
            notes += (
                f"PyTorch's tensors exchange {sum(rehearsed.values()):,.0f} bytes a step "
                f"where the plan counts {sum(traffic.values()):,.0f}: {longer:.3g} s more on "
                f"{cluster}",
            )
        seconds = None if seconds is None else seconds + longer
        traffic = dict(rehearsed)
    return exported, Prediction(
        seconds,
        memory=tuple(held for held in step.memory for _ in range(ranks)),
        traffic={key: float(size) for key, size in sorted(traffic.items()) if size},
        adam=step.adam,
        updates=step.updates,
        notes=notes,
        measured=step.measured,
    )


def seconds_of(timed: Plan, target: Any) -> float | None:
    """Return the seconds of a step as the judge has them; None of a plan that cannot be run."""
    seconds = float(judge(timed, target).step_seconds)
    return seconds if math.isfinite(seconds) else None


def _add_gradients(
    traffic: dict[str, float], exported: TorchPlan, layout: Layout | None, step: Step
) -> None:
    """Add the bytes in which replicas sum gradients, by collective, and batch statistics."""
    if exported.data == 1:
        return
    ranks = exported.data * exported.model
    trained, frozen = [], []
    if layout is not None:
        trained = [layout.graph.paths[i].replace("/", ".") for i in layout.graph.variables]
        frozen = [path.replace("/", ".") for path in layout.graph.frozen]
    if exported.zero:
        # PyTorch pads the first dimension of each parameter to whole shares
        padded = float(sum(_local(exported, name, exported.data) for name in trained))
        gathered = padded + sum(_local(exported, name, exported.data) for name in frozen)
        # Without stages FSDP gathers and reduces in every micro-batch, with stages once a step.
        passes = exported.micro_batches if exported.pipe == 1 else 1
        # ZeRO-3 frees gathered weights, so the backward pass gathers them again.
        gathers = 2 * passes if exported.zero == 3 else 1
        traffic["all-gather"] += gathers * gathered * ranks
        traffic["reduce-scatter"] += passes * padded * ranks
    else:
        weights = step.trained or float(sum(_local(exported, name) for name in trained))
        traffic["all-reduce"] += weights * ranks
    if layout is not None and (exported.zero or exported.apart):
        graph = layout.graph
        elements = sum(
            math.prod(graph.shape(tensor))
            for path, tensor in zip(graph.paths, graph.parameter_tensor.tolist(), strict=True)
            if path.rpartition("/")[2] == "running_mean"
        )
        traffic["all-reduce"] += 4.0 * ELEMENT * elements * exported.micro_batches * ranks


def _local(exported: TorchPlan, name: str, multiple: int = 1) -> float:
    """Bytes of a rank's share of a parameter, its first dimension padded to a multiple."""
    shape = list(exported.shapes[name])
    split = exported.placements.get(name, (None, None))[1]
    # Tensor parallelism splits first; ZeRO shares what is left of each weight.
    if split is not None:
        shape[split] //= exported.model
    if shape:
        shape[0] = -(-shape[0] // multiple) * multiple
    elements = math.prod(shape)
    return ELEMENT * elements if elements > 1 else 0.0
