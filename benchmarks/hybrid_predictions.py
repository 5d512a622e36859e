"""What the cost model predicts for the figures of published rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.hybrid_settings import STACKS, Setting, known_source, server_of, setting_of
from parenvs.cluster import MEMORY_FRACTION, send_seconds
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import malformed
from parenvs.tasks.hybrid.rows import MEASURED, PEAKS, PERCENT, RESERVED, Published, Row
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.uniform import uniform_stages

GIB = 2.0**30
STEP_UNITS = ("TFLOP/s", "s", "ms", "tokens/s", "samples/s", "MFU")
"""Units of what a training step can be measured in."""
LARGE = 1e15
"""Bytes of a collective beside which latency is nothing: nccl-tests' asymptote."""
BY_SAVING = {
    "sp": ("none", True),
    "selective": ("selective", False),
    "selective_sp": ("selective", True),
    "full": ("full", False),
}
"""Key of ``percent_of_none`` -> recomputation and sequence parallelism."""


@dataclass(frozen=True)
class Prediction:
    """One figure of one row beside what the model says.

    Attributes:
        row: the row's number in its file.
        source: who published it.
        table: where.
        name: the row's name.
        gpus: devices that the row gives, or None.
        column: the field that was measured.
        unit: of both figures.
        measured: the published figure.
        predicted: the model's.
        stack: the stack.
        device: the device.
        precision: of matrix products.
        assumed: what the row does not say.
        others: tool -> its recorded output.
        details: seconds by part, plan, FLOPs, as JSON types; of a step also ``problem``, what was
            trained on what, ``seconds_measured``, ``mfu`` (measured, no recomputation counted) and
            ``illegal``, the judge's reasons.
    """

    row: int
    source: str
    table: str
    name: str
    gpus: int | None
    column: str
    unit: str
    measured: float
    predicted: float
    stack: str
    device: str
    precision: str
    assumed: tuple[str, ...]
    others: dict[str, float]
    details: dict[str, Any]

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        content = asdict(self)
        return {**content, "assumed": list(self.assumed), "error": self.error}


@dataclass(frozen=True)
class Skipped:
    """A row that nothing is predicted for.

    Attributes:
        row: its number.
        source: who published it.
        table: where.
        name: its name.
        reason: why not.
    """

    row: int
    source: str
    table: str
    name: str
    reason: str


def predictions(published: Published) -> tuple[list[Prediction], list[Skipped]]:
    """Return what the model says of every figure of every row, and the rows it says nothing of.

    Raises:
        ParenvsError: a row leaves out what has no default, or contradicts itself.
    """
    found: list[Prediction] = []
    skipped = []
    for row in published.rows:
        reason = _reason_against(row)
        if reason:
            skipped.append(Skipped(row.number, row.source, row.table, row.name, reason))
            continue
        try:
            found.extend(_of_row(row, published))
        except ParenvsError as error:
            words = str(error)
            where = "" if words.startswith("row ") else f"row {row.number}: "
            raise ParenvsError(f"{published.path}: {where}{words}") from None
    return found, skipped


def _reason_against(row: Row) -> str:
    """Return why nothing is predicted for a row, or an empty string."""
    measured = row.measured
    if not measured and PERCENT not in row.fields:
        return f"it measured none of {', '.join(list(MEASURED)[:6])}, ..."
    if row.source == "megascale" and row.table == "Table 3" and row.name != "baseline":
        return "parallel blocks, window attention and other optimizers are no part of a shape"
    if row.source == "megatron-sc21" and row.table == "section 5.8":
        return "neither devices nor batch are published"
    return ""


def _of_row(row: Row, published: Published) -> Iterator[Prediction]:
    measured = row.measured
    if "algorithm_gb_per_s" in measured:
        yield _collective(row, published)
    elif "gb_per_s" in measured:
        yield _link(row, published)
    elif "forward_ms" in measured or "backward_ms" in measured:
        yield from _layer(row, published)
    elif PERCENT in row.fields:
        yield from _bytes(row, published)
    else:
        columns = [column for column in measured if MEASURED[column] in STEP_UNITS]
        if "tflops_per_gpu" in columns or "seconds" in columns:  # MFU is the same figure again
            columns = [column for column in columns if column != "mfu"]
        if "seconds_full_recompute" in columns:
            columns = [column for column in columns if not column.startswith("mfu")]
        for column in columns:
            yield _step(row, column, published)
        if any(column.startswith("gib_") for column in measured):
            yield from _bytes(row, published)
        yield from (_peak(row, column, published) for column in PEAKS if column in measured)


def _prediction(row: Row, column: str, setting: Setting, value: float, **more: Any) -> Prediction:
    return Prediction(
        row=row.number,
        source=row.source,
        table=row.table,
        name=row.name,
        gpus=row.get("gpus"),
        column=column,
        unit=MEASURED.get(column, "GiB"),
        measured=more.pop("measured", row.measured.get(column, 0.0)),
        predicted=float(value),
        stack=setting.stack.name,
        device=setting.cluster.device.name,
        precision=setting.precision,
        assumed=setting.assumed,
        others=more.pop("others", {}),
        details=more.pop("details", {}),
    )


def _setting(row: Row, published: Published, column: str = "") -> Setting:
    setting, server = setting_of(row, column, published.stacks), published.server
    if server is None or server.device.name != setting.cluster.device.name:
        return setting
    return replace(setting, cluster=replace(setting.cluster, measured=server.measured))


def _step(row: Row, column: str, published: Published) -> Prediction:
    """Return the prediction of a training step in the unit of a column."""
    setting = _setting(row, published, column)
    model = HybridModel.of_shape(setting.shape)
    machine = setting.stack.machine(setting.cluster, setting.precision)
    seconds, held = setting.plan.judged(model, setting.cluster, machine)
    length = float(seconds["length"][0])
    counted, words = flops_of(row, setting)
    tokens = setting.batch * setting.shape.sequence
    peak = setting.cluster.device.peak(setting.precision)
    rate = counted / length / setting.gpus
    unit, measured = MEASURED[column], row.measured[column]
    value = {
        "TFLOP/s": rate / 1e12,
        "s": length,
        "ms": length * 1e3,
        "tokens/s": tokens / length / setting.gpus,
        "samples/s": setting.batch / length,
        "MFU": rate / peak,
    }[unit]
    times = {"s": 1.0, "ms": 1e-3}
    took = measured * times[unit] if unit in times else length * value / measured
    _check_possible(row, column, setting, model, took)
    plan = {
        name: getattr(setting.plan, name)[0].item()
        for name in (
            "tp", "pp", "dp", "context", "expert", "micro_batch", "batch", "chunks",
            "sequence_parallel", "recompute", "zero", "gradient_bytes", "gradient_overlap",
            "shard",
        )
    }  # fmt: skip
    shape, cluster = setting.shape, setting.cluster
    details = {
        "plan": plan,
        "seconds": {name: float(part[0]) for name, part in seconds.items()},
        "gib": float(held["total"][0]) / GIB,
        "flops": counted,
        "flops_counted": words,
        "tflops_per_gpu": rate / 1e12,
        "problem": [
            shape.fingerprint[:19], setting.gpus, cluster.device.name, cluster.intra_bw,
            setting.precision,
        ],
        "tokens": tokens,
        "seconds_measured": took,
        "mfu": shape.flops(setting.batch) / took / setting.gpus / peak,
        "illegal": _reasons(setting, model, float(held["total"][0])),
    }  # fmt: skip
    others = {
        tool: figures[key]
        for tool, figures in published.references.items()
        for key in _reference_keys(row, column)
        if key in figures
    }
    return _prediction(row, column, setting, value, details=details, others=others)


def _peak(row: Row, column: str, published: Published) -> Prediction:
    """Return the prediction of all bytes on the fullest device: allocated, or reserved.

    What is published of a device includes the share that plans leave to the allocator.

    Raises:
        ParenvsError: the device does not have as many.
    """
    setting = _setting(row, published)
    model, size = HybridModel.of_shape(setting.shape), setting.cluster.device.memory_bytes
    if row.measured[column] * GIB > size:
        raise row.error(
            f"{column} {row.measured[column]:g} is more than the {size / GIB:.4g} GiB of a "
            f"{setting.cluster.device.name}; correct one"
        )
    machine = setting.stack.machine(setting.cluster, setting.precision)
    memory = setting.plan.judged(model, setting.cluster, machine)[1]
    parts = {name: float(part[0]) / GIB for name, part in memory.items()}
    held = parts["total"] / (MEMORY_FRACTION if column == RESERVED else 1)
    return _prediction(row, column, setting, held, details={"gib": parts})


def problem_of(setting: Setting, model: HybridModel) -> Hybrid:
    """Return the problem that a row's plan is one of."""
    return Hybrid(
        model, setting.cluster, int(setting.batch), setting.stack, setting.precision, "row"
    )


def _check_possible(
    row: Row, column: str, setting: Setting, model: HybridModel, seconds: float
) -> None:
    """Raise an error for a step that is faster than its products at the devices' peak."""
    device = setting.cluster.device
    peak = device.peak(setting.precision)
    least = problem_of(setting, model).bound_seconds * setting.cluster.devices / setting.gpus
    rate = row.measured[column] * 1e12 if column == "tflops_per_gpu" else 0.0
    if seconds < least or rate > peak:
        raise row.error(
            f"{column} {row.measured[column]:g} is impossible: at the {peak / 1e12:,.4g} TFLOP/s "
            f"of a {device.name} at {setting.precision} a step takes {least:.4g} s at least, and "
            f"this one took {seconds:.4g}; correct the figure, the batch or the device"
        )


def _reasons(setting: Setting, model: HybridModel, held: float) -> list[str]:
    """Why the judge calls the plan of a row illegal; ``held`` are bytes of its fullest stage."""
    problem = problem_of(setting, model)
    plan = problem.uniform_plan(setting.plan, 0)
    reasons = malformed(plan, model, setting.cluster)
    size = setting.cluster.device.memory_bytes
    if held > problem.memory_limit:
        what = "memory" if held > size else f"the {1 - MEMORY_FRACTION:.0%} of memory kept free"
        reasons.append(f"{what}: {held / GIB:.1f} of {problem.memory_limit / GIB:.1f} GiB")
    return reasons


def flops_of(row: Row, setting: Setting) -> tuple[float, str]:
    """Return the FLOPs of a step as the row's source counts them, and how, in words.

    Megatron-LM of 2021 counts recomputation (arXiv 2104.04473, equation 3), Llama 3 attention's
    causal half and parameters; others the whole square and no recomputation. A row's
    ``flops_formula`` decides: it begins with 96, 72 or 6.
    """
    formula = str(row.get("flops_formula", "")).replace(" ", "")
    source = known_source(row, {"megatron-sc21": 0, "llama3": 0})
    shape, batch = setting.shape, setting.batch
    if formula.startswith("6N") or (not formula and source == "llama3"):
        return shape.token_flops(batch), "6 N + 6 l h s a token"
    recomputes = setting.plan.recompute[0] == "full"
    if formula.startswith("96") or (not formula and source is not None):
        return shape.flops(batch, recomputes), "recomputation counted"
    return shape.flops(batch), "no recomputation counted"


def _reference_keys(row: Row, column: str) -> list[str]:
    """Return the names under which other tools' outputs of a row are recorded."""
    if row.source == "megascale":
        tool = "Megatron" if "Megatron" in row.name else "MegaScale"
        return [f"megascale/{tool} {row.get('gpus')}"]
    kind = {"seconds_full_recompute": " full",
            "seconds_selective_sequence_parallel": " sp+sel"}.get(column)  # fmt: skip
    if kind is not None:
        return [f"K5 {row.name}{kind}", f"{row.name}{kind}"]
    return [f"T1 {row.name}", row.name]


def _layer(row: Row, published: Published) -> Iterator[Prediction]:
    """Predict the milliseconds of one layer, forward and backward."""
    words = row.name.lower()
    plan: dict[str, Any] = {"layers": 1, "batch": row.get("micro_batch", 1), "vocab": 51200}
    if "recompute" not in row.fields:
        modes = ("selective", "full")
        plan["recompute"] = next((mode for mode in modes if mode in words), "none")
    if "sequence_parallel" not in row.fields and "sp" not in row.fields:
        plan["sequence_parallel"] = "sequence parallel" in words
    setting = setting_of(replace(row, fields={**plan, **row.fields}), stacks=published.stacks)
    model = HybridModel.of_shape(setting.shape)
    machine = setting.stack.machine(setting.cluster, setting.precision)
    alone = replace(model, embedding=None, head=None, tied_parameters=0.0)
    step = formulas.step(alone, setting.cluster, machine, uniform_stages(alone, setting.plan, 1))
    layer = alone.kinds[0].seconds(machine, uniform_stages(alone, setting.plan, 1).split)
    forward = float(np.ravel(layer.forward + layer.forward_exchange)[0])
    backward = float(step.busy[0, 0]) - forward
    for column, seconds in (("forward_ms", forward), ("backward_ms", backward)):
        if column in row.measured:
            yield _prediction(row, column, setting, 1e3 * seconds)


def _bytes(row: Row, published: Published) -> Iterator[Prediction]:
    """Predict GiB of a device of the first stage, without embeddings, as Korthikanti counts."""
    plain = {"recompute": "none", "sequence_parallel": False, "accumulation": 1}
    setting = setting_of(replace(row, fields={**plain, **row.fields}), stacks=published.stacks)
    model = HybridModel.of_shape(setting.shape)
    alone = replace(model, embedding=None, head=None, tied_parameters=0.0)
    machine = setting.stack.machine(setting.cluster, setting.precision)
    pp = int(setting.plan.pp[0])
    size = pp * int(setting.plan.micro_batch[0]) * 64  # more micro-batches than are in flight

    def first(mode: str, shared: bool, what: str) -> float:
        plan = replace(setting.plan, recompute=mode, sequence_parallel=shared, batch=float(size))
        held = formulas.memory(alone, machine, uniform_stages(alone, plan, pp))
        if what == "states":
            return float((held.weights + held.gradients + held.optimizer)[0, 0]) / GIB
        return float(held.activations[0, 0]) / GIB

    none = first("none", False, "activations")
    values = {
        "gib_parameters_optimiser": first("none", False, "states"),
        "gib_activations_none": none,
        "gib_activations_selective_sp": first("selective", True, "activations"),
    }
    for column, value in values.items():
        if column in row.measured:
            yield _prediction(row, column, setting, value)
    for key, measured in row.get(PERCENT, {}).items():
        share = 100 * first(*BY_SAVING[key], "activations") / none
        prediction = _prediction(row, f"{PERCENT}.{key}", setting, share, measured=measured)
        yield replace(prediction, unit="%")


def _collective(row: Row, published: Published) -> Prediction:
    """Predict the algorithm bandwidth of a collective over some ranks of some servers."""
    nodes, ranks = row.get("nodes", 1), row.get("ranks_per_node", row.get("gpus_per_node", 8))
    server = server_of(row.get("device", "h100" if "h100" in row.source else None))
    cluster = server.cluster(nodes * server.devices)
    try:
        name = row.get("stack", "nccl-2024")
        stack = STACKS.get(name) or Stack.parse(name)
    except ParenvsError as error:
        raise row.error(str(error)) from None
    stack = published.stacks.get(stack.name, stack)
    links = stack.machine(cluster, "bf16").links
    kinds = {
        "all_gather": links.all_gather,
        "reduce_scatter": links.all_gather,
        "all_reduce": links.all_reduce,
        "all_to_all": links.all_to_all,
    }
    kind = re.sub(r"[\s-]", "_", row.name.lower())
    if kind not in kinds:
        raise row.error(f"name must be one of {', '.join(kinds)} for a collective")
    if ranks > server.devices:
        raise row.error(f"ranks_per_node {ranks} is more than {server.devices}, a server's devices")
    if nodes * ranks == 1:
        raise row.error("one rank alone has no collective; give nodes or ranks_per_node over 1")
    stride = server.devices // ranks
    rate = LARGE / float(kinds[kind](LARGE, nodes * ranks, stride)) / 1e9
    setting = _bare(stack, cluster, *filter(None, [server.guess]))
    return _prediction(row, "algorithm_gb_per_s", setting, rate)


def _bare(stack: Stack, cluster: Any, *assumed: str) -> Any:
    """What is left of a setting where no model is trained."""
    return SimpleNamespace(stack=stack, cluster=cluster, precision="", assumed=assumed)


def _link(row: Row, published: Published) -> Prediction:
    """Predict the bus bandwidth of an all-reduce, or of a send, as Galvatron names its files."""
    match = re.match(r"(\d+)x(\d+) (?:size (\d+)(?:.*\((\d+) per node\))?|p2p)", row.name)
    if match is None:
        raise row.error(
            "name must be like '2x8 size 8', '2x8 size 4 spread (2 per node)' or '2x8 p2p' for a "
            "link's gb_per_s"
        )
    nodes, inside = int(match[1]), int(match[2])
    server = server_of(row.get("device"))
    guess = f"{server.guess or row.get('device')}, one 100 Gbit/s card a device"
    server = replace(server, devices=inside, nic_bw=12.5e9)
    cluster = server.cluster(nodes * inside)
    stack = published.stacks.get("nccl-2021", STACKS["nccl-2021"])
    links = stack.machine(cluster, "bf16").links
    if match[3] is None:
        rate = LARGE / float(send_seconds(links, LARGE, nodes == 1, 1))
    else:
        size, ranks = int(match[3]), int(match[4] or min(int(match[3]), inside))
        if "in node" not in row.name and match[4] is None and size > inside:
            ranks = inside
        stride = max(1, inside // ranks if size > ranks else 1)
        rate = 2 * LARGE * (size - 1) / size / float(links.all_reduce(LARGE, size, stride))
    return _prediction(row, "gb_per_s", _bare(stack, cluster, guess), rate / 1e9)
