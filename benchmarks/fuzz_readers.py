"""The readers that ``fuzz.py`` tries: valid files for each, and what must hold of what is read."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.framework import ROOT
from drawn_intra_op import draw
from parenvs import (
    Graph,
    ParenvsError,
    Partitioning,
    Pipeline,
    StageProfile,
    from_hlo,
    judge,
    load_plan,
)
from parenvs import problem as problem_from
from parenvs.cluster import Cluster
from parenvs.core.plan import ILLEGAL, Plan
from parenvs.datasets.pipeline.generators import DrawnProblem
from parenvs.datasets.pipeline.sets import load_set, save_set
from parenvs.graph.formats.text import parse
from parenvs.instances import load_graph
from parenvs.leaderboard.check import check
from parenvs.leaderboard.entry import Entry, load_entry
from parenvs.tasks.order.load import load_ordering, ordering_steps
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order
from parenvs.tasks.partition.drawn import files as partition_files
from parenvs.tasks.partition.load import load_partitioning
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.pipeline.load import load_profile
from parenvs.tasks.sharding.files import load_iopddl, save_iopddl, to_json
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.reduced import NEVER
from parenvs.tasks.sharding.reduction import reduce

ORDER = "order-test/p4-m8-000"
"""A problem of ordering micro-batches."""
SMALL = """\
HloModule small

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

body {
  p = (s32[], f32[4,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  h = f32[4,8] get-tuple-element(p), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  t = f32[4,8] tanh(h)
  ROOT r = (s32[], f32[4,8]) tuple(n, t)
}

test {
  p = (s32[], f32[4,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}

scope {
  p = f32[4,8] parameter(0)
  ROOT n = f32[4,8] negate(p)
}

ENTRY main {
  params__layers___0___q__ = f32[8,8] parameter(0)
  params__table__ = f32[16,8] parameter(1)
  batch = s32[4,1] parameter(2)
  e = f32[4,8] gather(params__table__, batch), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
  d = f32[4,8] dot(e, params__layers___0___q__), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  zero = f32[] constant(0)
  none = s32[] constant(0)
  s = (s32[], f32[4,8]) tuple(none, d)
  w = (s32[], f32[4,8]) while(s), condition=test, body=body
  o = f32[4,8] get-tuple-element(w), index=1
  v = f32[4,8,1,1] reshape(o)
  k = f32[1,1,8,8] reshape(params__layers___0___q__)
  g = f32[4,1,1,8] transpose(v), dimensions={0,2,3,1}
  f = f32[4,1,1,8] convolution(g, k), window={size=1x1}, dim_labels=b01f_01io->b01f
  q = f32[4,8] reshape(f)
  m = f32[4,8] call(q), to_apply=scope, metadata={op_name="jit(f)/block"}
  x = f32[8,8] concatenate(m, q), dimensions={0}
  y = f32[4,8] slice(x), slice={[0:8:2], [0:8]}
  z = f32[4,10] pad(y, zero), padding=0_0x1_1
  ROOT l = f32[4] reduce(z, zero), dimensions={1}, to_apply=sum
}
"""
"""A gather, a product, a counted loop, a call, a convolution and changes of shape."""
WIDE = """\
HloModule wide

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

greater {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=GT
}

left {
  p = f32[2,4,4,3] parameter(0)
  ROOT n = f32[2,4,4,3] exponential(p)
}

right {
  p = f32[2,4,4,3] parameter(0)
  ROOT n = f32[2,4,4,3] negate(p)
}

ENTRY main {
  kernel = f32[3,3,3,6] parameter(0), metadata={op_name="params['kernel']"}
  images = f32[2,9,9,3] parameter(1), metadata={op_name="images"}
  labels = s32[2,1] parameter(2), metadata={op_name="labels"}
  zero = f32[] constant(0)
  which = pred[] constant(true)
  c = f32[2,5,5,6] convolution(images, kernel), window={size=3x3 stride=2x2 pad=1_1x1_1}, \
dim_labels=b01f_01io->b01f
  p = f32[2,4,4,6] reduce-window(c, zero), window={size=1x2x2x1}, to_apply=sum
  g = f32[2,5,5,6] select-and-scatter(c, p, zero), window={size=1x2x2x1}, select=greater, \
scatter=sum
  h = f32[2,4,4,3] slice(p), slice={[0:2], [0:4], [0:4], [0:6:2]}
  b = f32[2,4,4,3] conditional(which, h, h), true_computation=left, false_computation=right
  r = f32[2,4,12] reshape(b)
  j = s32[2,4,12] iota(), iota_dimension=2
  t = (f32[2,4,12], s32[2,4,12]) sort(r, j), dimensions={2}, to_apply=greater
  u = f32[2,4,12] get-tuple-element(t), index=0
  s = f32[2,4] reduce(u, zero), dimensions={2}, to_apply=sum
  at = f32[4,2] transpose(s), dimensions={1,0}
  one = s32[] constant(1)
  d = f32[2,2] dynamic-slice(at, one, one), dynamic_slice_sizes={2,2}
  o = f32[4,2] dynamic-update-slice(at, d, one, one)
  w = f32[4,2] scatter(o, labels, d), update_window_dims={1}, inserted_window_dims={0}, \
scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum
  m = f32[4,2] multiply(w, o)
  k = c64[4,2] fft(m), fft_type=FFT, fft_length={2}
  y = f32[4,2] real(k)
  a = f32[2,4,2] broadcast(y), dimensions={1,2}
  v = f32[4,2] reverse(y), dimensions={0}
  q = f32[2,4,4] dot(a, v), lhs_contracting_dims={2}, rhs_contracting_dims={1}
  gs = f32[] reduce(g, zero), dimensions={0,1,2,3}, to_apply=sum
  ROOT out = (f32[2,4,4], f32[]) tuple(q, gs)
}
"""
"""Windows, a branch, a sort, scattering and slices at places that the module computes."""
LAYERS = """\
HloModule layers

body {
  p = (s32[], f32[4,8], f32[3,8,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  h = f32[4,8] get-tuple-element(p), index=1
  w = f32[3,8,8] get-tuple-element(p), index=2
  zero = s32[] constant(0)
  one = s32[] constant(1)
  n = s32[] add(i, one)
  l = f32[1,8,8] dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={1,8,8}
  m = f32[8,8] reshape(l)
  d = f32[4,8] dot(h, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[4,8] tanh(d), metadata={op_name="layer/tanh"}
  ROOT r = (s32[], f32[4,8], f32[3,8,8]) tuple(n, t, w)
}

test {
  p = (s32[], f32[4,8], f32[3,8,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}

ENTRY main {
  params__layers__ = f32[3,8,8] parameter(0)
  params__head__ = f32[8,5] parameter(1)
  batch = f32[4,8] parameter(2)
  none = s32[] constant(0)
  s = (s32[], f32[4,8], f32[3,8,8]) tuple(none, batch, params__layers__)
  loop = (s32[], f32[4,8], f32[3,8,8]) while(s), condition=test, body=body
  o = f32[4,8] get-tuple-element(loop), index=1
  ROOT y = f32[4,5] dot(o, params__head__), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
"""A loop over layers, which a chain writes out."""
STABLEHLO = """\
module @m {
  func.func public @main(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : \
(tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %1 = stablehlo.tanh %0 : tensor<4x6xf32>
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %3 = stablehlo.maximum %1, %2 : tensor<4x6xf32>
    %4 = stablehlo.reshape %3 : (tensor<4x6xf32>) -> tensor<2x12xf32>
    %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<2x12xf32>) -> tensor<12x2xf32>
    %6 = stablehlo.slice %5 [0:12:3, 0:2] : (tensor<12x2xf32>) -> tensor<4x2xf32>
    %7 = stablehlo.pad %6, %c, low = [0, 1], high = [0, 3], interior = [0, 0] : \
(tensor<4x2xf32>, tensor<f32>) -> tensor<4x6xf32>
    return %7 : tensor<4x6xf32>
  }
}
"""
CSV = """\
# measured on one device
name,forward_ms,backward_ms,cut_bytes,parameter_bytes,resident_bytes
embedding,0.25,0.5,4096,1048576,8192
"layer 0, attention",1.5,3.0,4096,524288,16384
layer 0 mlp,1.25,2.5,4096,524288,16384
head,0.75,1.5,64,1048576,128
"""
CLUSTERS = (
    {
        "servers": 2,
        "devices_per_server": 4,
        "device": "v100",
        "inter_bw": 3.125e9,
        "intra_bw": 1.3e11,
    },
    {
        "name": "mine",
        "servers": 1,
        "devices_per_server": 8,
        "device": {"name": "x", "peak_flops": 1e13, "memory_bw": 1e12, "memory_bytes": 1e10},
        "inter_bw": 1e10,
        "intra_bw": 1e11,
    },
)
SUBMISSIONS = ROOT / "leaderboard" / "submissions"


class WrongAcceptanceError(AssertionError):
    """Something was read that must not be."""


class Reader(NamedTuple):
    """A reader of files.

    Attributes:
        suffix: ending of its files.
        weight: share of the inputs that it gets when all readers are tried, in per cent.
        seeds: makes valid files, which are to be changed.
        read: reads a file.
        check: raises a ``WrongAcceptanceError`` if what was read must not be.
    """

    suffix: str
    weight: int
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], Any]
    check: Callable[[Any], None]


def must(holds: object, what: str) -> None:
    """Raise an error with the words ``what`` unless something holds."""
    if not holds:
        raise WrongAcceptanceError(what)


@contextlib.contextmanager
def refusable() -> Iterator[None]:
    """Let go what cannot be planned, as long as one line says so."""
    try:
        yield
    except ParenvsError as error:
        must("\n" not in str(error), f"an error of several lines: {error}")


def check_graph(graph: Graph) -> None:
    """Check that a graph's numbers are possible, that it outlives its file, and its problems."""
    for key in ("flops", "bytes_accessed", "tensor_bytes"):
        values = getattr(graph, key)
        must(np.isfinite(values).all() and (values >= 0).all(), f"{key} negative or not finite")
    tensors, rows, texts = len(graph.element_type), len(graph.opcode), len(graph.strings)
    for key, size in (
        ("operands", tensors), ("results", tensors), ("outputs", tensors), ("op_name", texts),
        ("attribute", texts), ("parameter_path", texts), ("parameter_tensor", tensors),
        ("opcode", len(graph.opcodes)), ("parent", rows),
    ):  # fmt: skip
        values = getattr(graph, key)
        least = -1 if key == "parent" else 0
        must(((values >= least) & (values < size)).all(), f"{key} out of range")
    must((graph.dims >= 0).all() and graph.batch_size >= 1, "negative dimensions or batch size")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.npz"
        try:
            graph.save(path)
            again = Graph.load(path)
        except ParenvsError as error:
            raise WrongAcceptanceError(f"read, but not from its own file: {error}") from None
        must(again.fingerprint == graph.fingerprint, "another fingerprint from its own file")
        must((again.name, again.notes) == (graph.name, graph.notes), "another name or other notes")
    with refusable():
        check_pipeline(problem_from(graph, "2x2:v100", micro_batch=1))
    with refusable():
        check_partitioning(problem_from(graph, "1x2:v100", "partition"))


def check_pipeline(problem: Pipeline) -> None:
    """Check the costs of a chain, and of a plan of it with stages of equal length."""
    chain = problem.profile
    for key in ("forward", "backward", "cut_bytes", "parameter_bytes"):
        values = getattr(chain, key)
        must(np.isfinite(values).all() and (values >= 0).all(), f"{key} negative or not finite")
    stages = problem.stages
    cuts, device_cuts = (
        np.arange(1, stages) * size // stages for size in (len(chain), problem.cluster.devices)
    )
    check_verdict(problem.plan(cuts, device_cuts), problem)


def check_partitioning(problem: Partitioning) -> None:
    """Check what no partition costs, and one of all variables along their first dimension."""
    graph = problem.graph
    for partition in ({}, {graph.paths[i]: 0 for i in graph.variables.tolist()}):
        plan = PartitionPlan(graph.name, graph.fingerprint, problem.cluster, partition)
        check_verdict(plan, problem)
    must(math.isfinite(problem.replicate_seconds), "seconds that are not finite")


def check_verdict(plan: Plan, problem: Any) -> None:
    """Check that the judge gives a plan a finite value, and -1 exactly if it is illegal."""
    report = judge(plan, problem)
    value = report.value
    must(math.isfinite(value), f"a plan's value is {value}")
    must(report.legal or value == ILLEGAL, f"an illegal plan's value is {value}")
    if report.legal and isinstance(problem, Pipeline):
        must(0 < report.length_seconds < math.inf, f"its length is {report.length_seconds}")
    try:
        json.dumps(report.to_json(), allow_nan=False, default=float)
    except ValueError:
        raise WrongAcceptanceError("a figure of its report is not finite") from None


def check_profile(profile: StageProfile) -> None:
    """Check a chain, and that it outlives its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.csv"
        profile.to_csv(path)
        try:
            again = StageProfile.from_csv(path, profile.micro_batch)
        except ParenvsError as error:
            raise WrongAcceptanceError(f"read, but not from its own file: {error}") from None
    must(again.fingerprint == profile.fingerprint, "another fingerprint from its own file")
    must(list(again.names) == list(profile.names), "other names from its own file")
    with refusable():
        check_pipeline(Pipeline(profile, Cluster.parse("2x2:v100"), 2))


def check_plan(plan: Plan) -> None:
    """Check that a plan outlives its file, and that the judge can judge it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.json"
        plan.save(path)
        must(load_plan(path) == plan, "another plan from its own file")
    with refusable():
        check_verdict(plan, _problem_of(plan))


@cache
def _forward() -> Graph:
    return load_graph("vgg-19", "forward")


def _problem_of(plan: Any) -> Any:
    """Return a problem of a plan's task on its cluster."""
    if isinstance(plan, OrderPlan):
        return load_ordering(ORDER)
    if isinstance(plan, PartitionPlan):
        if plan.cluster.devices > 64:
            raise ParenvsError("a cluster that is larger than needed here")
        return load_partitioning("vgg-19", plan.cluster, scope=plan.scope)
    return Pipeline(StageProfile.from_graph(_forward(), plan.cluster.device), plan.cluster)


def check_entry(entry: Entry) -> None:
    """Judge an entry; no verdict may raise, and every score is a share."""
    checked = check(entry)
    must(0 < checked.score <= 1, f"its score is {checked.score}")
    for verdict in checked.verdicts:
        must(0 < verdict.cost < math.inf, f"a cost is {verdict.cost}")
        must(all("\n" not in reason for reason in verdict.reasons), "a reason of several lines")
    json.dumps(entry.to_json(), allow_nan=False)


def check_set(problems: list[DrawnProblem]) -> None:
    """Check the chains and clusters of a set."""
    for problem in problems:
        with refusable():
            check_pipeline(problem.pipeline)


def check_cluster(cluster: Cluster) -> None:
    """Check that a cluster outlives its object, and a plan on it."""
    again = Cluster.parse(json.loads(json.dumps(cluster.to_json(), allow_nan=False)))
    must(again == cluster, "another cluster from its own object")
    must(0 < cluster.memory_limit < math.inf, "its memory is not finite")
    with refusable():
        check_pipeline(Pipeline(StageProfile.from_graph(_forward(), cluster.device), cluster, 2))


def check_partitions(rows: dict[str, partition_files.SetRow]) -> None:
    """Check that a set outlives its file, and that its settings can be asked for."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.json"
        partition_files.save_set(path, rows)
        must(partition_files.read_set(path) == rows, "another set from its own file")
    for row in rows.values():
        must(0 < Cluster.parse(row.cluster).memory_limit < math.inf, "its memory is not finite")


def check_iopddl(problem: Sharding) -> None:
    """Check that a problem outlives its file, and that what is left of it costs what it says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.json.gz"
        save_iopddl(problem, path)
        must(load_iopddl(path).fingerprint == problem.fingerprint, "another one from its own file")
    report = problem.report(problem.plan(problem.sizes - 1))
    must(report.cost is not None and report.cost >= 0, "no cost of a plan")
    with refusable():
        reduced = reduce(problem)
        chosen = np.zeros(len(reduced), dtype=np.int64)
        cost = reduced.cost(chosen)
        must(cost >= NEVER or problem.cost(reduced.lift(chosen)) == cost, "lifted at another cost")


def file_of(write: Callable[[Path], Any], suffix: str) -> bytes:
    """Return the content of a file that a function writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"seed{suffix}"
        write(path)
        return path.read_bytes()


def graphs() -> list[Graph]:
    """Return the three modules as graphs."""
    made = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "seed.txt"
        for text in (SMALL, WIDE, LAYERS):
            path.write_text(text, encoding="utf-8")
            made.append(from_hlo(path))
    return made


def entries() -> list[bytes]:
    """Return the smallest entry of each task of plans, with those that are soon judged."""
    made = []
    for folder in sorted(SUBMISSIONS.iterdir()):
        content = min((path.read_bytes() for path in folder.glob("*.json")), key=len)
        entry = json.loads(content)
        if "plans" not in entry:  # a policy
            continue
        entry["plans"] = dict(sorted(entry["plans"].items(), key=lambda item: "t5" in item[0])[:2])
        entry["seconds"] = {key: entry["seconds"].get(key, 1.0) for key in entry["plans"]}
        made.append(json.dumps(entry).encode())
    return made


def orderings() -> list[bytes]:
    """Return a problem of ordering micro-batches in both forms."""
    problem = load_ordering(ORDER)
    step = {"schema": 1, **ordering_steps(ORDER.split("/")[0])[ORDER.split("/")[1]].to_json()}
    arrays = {"forward": problem.forward.tolist(), "backward": problem.backward.tolist()}
    return [json.dumps(content).encode() for content in (step, {"schema": 1, **arrays})]


def check_ordering(problem: Order) -> None:
    """Check the bound and an order of a problem."""
    must(0 < problem.bound_seconds < math.inf, f"a bound is {problem.bound_seconds}")
    check_verdict(problem.plan(range(problem.micro_batches)), problem)


def plans() -> list[bytes]:
    """Return a plan of each task."""
    pipeline = Pipeline(load_profile("vgg-19", "2x2:v100"), Cluster.parse("2x2:v100"))
    made = [pipeline.plan(np.array([9]), np.array([2])).to_json()]
    made.append({**made[0], "cluster": CLUSTERS[1], "copies": 3, "recompute": "none"})
    for scope in ("variables", "inputs"):
        problem = load_partitioning("vgg-19", Cluster.parse("1x4:v100"), scope=scope)
        chosen = np.zeros(len(problem.counts()), dtype=bool)
        chosen[problem.decidable()[:2]] = True
        made.append(problem.plan(chosen).to_json())
    made.append(load_ordering(ORDER).plan(range(8)).to_json())
    return [json.dumps(plan).encode() for plan in made]


PARTITIONS = {
    "t5-000": partition_files.SetRow("t5-3b", "2x8:a100"),
    "lstm-001": partition_files.SetRow(
        "big-lstm", "C", 3.2e9, micro_batch=8, micro_batches=4, recompute="full", uneven="forbid"
    ),
}
READERS: dict[str, Reader] = {
    "pb": Reader(
        ".pb",
        12,
        lambda: [parse(text).SerializeToString() for text in (SMALL, WIDE, LAYERS)],
        from_hlo,
        check_graph,
    ),
    "txt": Reader(
        ".txt",
        11,
        lambda: [text.encode() for text in (SMALL, WIDE, LAYERS)],
        from_hlo,
        check_graph,
    ),
    "mlir": Reader(".mlir", 5, lambda: [STABLEHLO.encode()], from_hlo, check_graph),
    "npz": Reader(
        ".npz",
        12,
        lambda: [file_of(graph.save, ".npz") for graph in graphs()],
        Graph.load,
        check_graph,
    ),
    "csv": Reader(
        ".csv",
        3,
        lambda: [CSV.encode(), file_of(load_profile("vgg-19", "1x2:v100").to_csv, ".csv")],
        lambda path: load_profile(path, "1x2:v100"),
        check_profile,
    ),
    "plan": Reader(".json", 5, plans, load_plan, check_plan),
    "ordering": Reader(".json", 4, orderings, load_ordering, check_ordering),
    "entry": Reader(".json", 4, entries, load_entry, check_entry),
    "set": Reader(
        ".npz",
        4,
        lambda: [file_of(lambda path: save_set(path, load_set("plan-validation")[:3]), ".npz")],
        load_set,
        check_set,
    ),
    "partitions": Reader(
        ".json",
        2,
        lambda: [file_of(lambda path: partition_files.save_set(path, PARTITIONS), ".json")],
        partition_files.read_set,
        check_partitions,
    ),
    "cluster": Reader(
        ".json",
        3,
        lambda: [json.dumps(cluster).encode() for cluster in CLUSTERS],
        lambda path: Cluster.parse(str(path)),
        check_cluster,
    ),
    "iopddl": Reader(
        ".json",
        6,
        lambda: [json.dumps(to_json(draw(seed))).encode() for seed in range(3)],
        load_iopddl,
        check_iopddl,
    ),
}
"""Name -> reader. With those of the other ``fuzz_*.py`` weights sum to 100."""
