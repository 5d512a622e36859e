"""The readers that ``fuzz.py`` tries: valid files for each, and what must hold of what is read."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.framework import ROOT
from benchmarks.fuzz_states import STATES, WrongAcceptanceError, apart, must
from benchmarks.hybrid_predictions import Prediction, Skipped, predictions
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
from parenvs import (
    problem as problem_from,
)
from parenvs.agents.elastic.formats import OWN, SHAPES, loaded
from parenvs.agents.elastic.play import play
from parenvs.agents.elastic.policies import RULES
from parenvs.agents.evaluation.evaluate_set import SetEvaluation
from parenvs.agents.learning import network
from parenvs.cluster import Cluster
from parenvs.core.plan import ILLEGAL, Plan
from parenvs.core.sets import set_of
from parenvs.datasets.partition import problems as partition_files
from parenvs.datasets.pipeline import problems as pipeline_sets
from parenvs.datasets.pipeline.problems import DrawnProblem, load_set
from parenvs.graph import python_source
from parenvs.graph.text import parse
from parenvs.instances import load_graph
from parenvs.leaderboard.check import check
from parenvs.leaderboard.entry import Entry, load_entry
from parenvs.tasks.elastic import problems as elastic_files
from parenvs.tasks.elastic.library import Library
from parenvs.tasks.elastic.problem import Elastic, follow
from parenvs.tasks.elastic.problems import MEASURED, Trace, load_elastic, load_library, read_trace
from parenvs.tasks.hybrid.model import HybridModel, load_model, load_shape, shapes
from parenvs.tasks.hybrid.plan import HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.rows import read_json, read_rows, shipped
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.uniform import Uniform
from parenvs.tasks.partition.problem import PartitionPlan, load_partitioning
from parenvs.tasks.pipeline.profile import load_profile
from parenvs.tasks.sharding.files import load_iopddl, load_strategies, save_iopddl, to_json
from parenvs.tasks.sharding.problem import NEVER, Sharding, reduce

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
CORPUS = ROOT / "tests" / "corpus"
"""``READER/NAME``: files that went wrong once, each to be read now, or refused in a line."""
SEEDS = CORPUS / "seeds"
"""Valid files: HLO with every kind of instruction, StableHLO, a chain, traces of nodes."""


class Reader(NamedTuple):
    """A reader of files.

    Attributes:
        suffix: ending of its files.
        weight: how many of the inputs it gets when all readers are tried, beside the others.
        seeds: makes valid files, which are to be changed.
        read: reads a file.
        check: raises a ``WrongAcceptanceError`` if what was read must not be.
    """

    suffix: str
    weight: int
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], Any]
    check: Callable[[Any], None]


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [from_hlo(path) for path in sorted(SEEDS.glob("*.txt"))]


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
    return [json.dumps(plan).encode() for plan in made]


PARTITIONS = {
    "t5-000": partition_files.SetRow("t5-3b", "2x8:a100"),
    "lstm-001": partition_files.SetRow(
        "big-lstm", "C", 3.2e9, micro_batch=8, micro_batches=4, recompute="full", uneven="forbid"
    ),
}
SHAPE, GRAPH = "bert-large", "vgg-19"
MIXTURE = next(shape for shape in shapes().values() if shape.experts > 1)


@cache
def model_of(name: str) -> HybridModel:
    """Return the chain of a shipped instance, those of the valid files alone."""
    if name not in (SHAPE, GRAPH, MIXTURE.name):
        raise ParenvsError("another instance, which would take long to load")
    return load_model(name)


def check_hybrid_plan(plan: HybridPlan) -> None:
    """Check that a hybrid plan outlives its file, and the judge's verdict on it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.json"
        plan.save(path)
        must(load_plan(path) == plan, "another plan from its own file")
    with refusable():
        check_report(judge(plan, model_of(plan.instance)), plan.stack)


def check_report(report: Any, stack: Any) -> None:
    """Check a verdict: finite figures, -1 exactly if illegal, and no plan below its bound."""
    must(math.isfinite(report.value), f"a plan's value is {report.value}")
    must(report.legal == (report.value != ILLEGAL), f"value {report.value}, legal {report.legal}")
    if report.legal:
        must(0 < report.length_seconds < math.inf, f"its length is {report.length_seconds}")
        must(report.devices_used <= report.cluster.devices, "more devices than there are")
        names = [n for s in report.plan.stages for a, b in s.layers for n in range(a, b)]
        must(names == sorted(names) or report.plan.chunks > 1, "layers out of order")
        must(sorted(names) == list(range(len(report.model))), "a layer is missing, or held twice")
        held = [stage.memory for stage in report.stages]
        must(all(0 <= x < math.inf for s in held for x in s.values()), "impossible bytes")
        full = max(stage["total"] for stage in held)
        must(full <= report.memory_limit_bytes * (1 + 1e-12), "more memory than there is")
        if isinstance(stack, str) and report.mfu is not None:  # shares of a stack are below 1
            must(0 < report.mfu <= 1, f"its MFU is {report.mfu}")
            must(report.value <= 1 + 1e-9, f"value {report.value}, faster than its bound")
    try:
        json.dumps(report.to_json(), allow_nan=False)
    except ValueError:
        raise WrongAcceptanceError("a figure of its report is not finite") from None
    must(not re.search(r"\bnan\b", str(report)), "its text has no numbers")


def check_uniform(problem: Hybrid) -> None:
    """Check an even plan of a problem: one stage for each server, tensor parallelism inside."""
    cluster = problem.cluster
    uniform = Uniform(
        tp=cluster.devices_per_server, pp=cluster.servers, dp=1, micro_batch=1,
        batch=problem.batch, recompute="full",
    )  # fmt: skip
    check_report(problem.report(problem.uniform_plan(uniform, 0)), problem.stack.to_json())


def check_shape(shape: TransformerShape) -> None:
    """Check a shape's figures, that it outlives its object, and a plan of it."""
    again = TransformerShape.from_json(json.loads(json.dumps(asdict(shape))))
    must(again.fingerprint == shape.fingerprint, "another fingerprint from its own object")
    must(0 < shape.parameters < math.inf, f"{shape.parameters} parameters")
    must(0 < shape.flops(1.0) < math.inf and 0 < shape.token_flops(1.0) < math.inf, "FLOPs")
    with refusable():
        check_uniform(Hybrid(HybridModel.of_shape(shape), Cluster.parse("2x4:a100"), 8))


def check_stack(stack: Stack) -> None:
    """Check a stack's constants, that it outlives its object, and a plan with it."""
    again = Stack.parse(json.loads(json.dumps(stack.to_json(), allow_nan=False)), stored=True)
    must(replace(again, source=stack.source) == stack, "another stack from its own object")
    for cluster, precision in (("2x4:a100", "bf16"), ("2x4:v100", "fp16")):
        with refusable():
            machine = stack.machine(Cluster.parse(cluster), precision)
            for key in ("flops", "attention_flops", "memory_bw"):
                value = getattr(machine, key)
                must(value is None or 0 < value < math.inf, f"{key} is {value}")
            model = model_of(SHAPE)
            check_uniform(Hybrid(model, Cluster.parse(cluster), 8, stack, precision))


def check_predictions(found: tuple[list[Prediction], list[Skipped]]) -> None:
    """Check what published rows are predicted to be."""
    for row in found[0]:
        must(0 < row.predicted < math.inf, f"row {row.row}: {row.column} is {row.predicted}")
        must(math.isfinite(row.error), "an error that is not finite")


def hybrid_plans() -> list[bytes]:
    """Return hybrid_plans of a shape, of experts, and of a graph."""
    halves = (
        HybridStage(((0, 12),), 4, 2, 1, {"full": 5, "selective": 2}),
        HybridStage(((12, 24),), 4, 4),
    )
    shape = Hybrid(model_of(SHAPE), Cluster.parse("1x8:a100"), 64, instance=SHAPE)
    made = [shape.plan(halves, 1, p2p="overlapped")]
    chunks = tuple(
        HybridStage(tuple((4 * k + 8 * v, 4 * k + 8 * v + 4) for v in range(3)), 4, 2)
        for k in range(2)
    )
    stack = {"name": "megatron-2022", "link_share": 0.5, "matmul_share": {"a100": 0.6}}
    problem = Hybrid(
        model_of(SHAPE), Cluster.parse("2x4:a100"), 64, Stack.parse(stack, stored=True)
    )
    more = {"schedule": "interleaved", "chunks": 3, "sequence_parallel": True, "servers": (1, 0)}
    made.append(problem.plan(chunks, 2, **more))
    layers = len(model_of(MIXTURE.name))
    experts = Hybrid(model_of(MIXTURE.name), Cluster.parse("4x8:h100"), 64)
    ranges = (((0, layers // 2),), ((layers // 2, layers),))
    made.append(experts.plan([HybridStage(r, 16, 2, 1) for r in ranges], 1, expert=4, context=2))
    new = {"p2p": "overlapped", "gradient_bytes": 2, "gradient_overlap": True, "shard": 2}
    own = replace(made[-1], offload=True, expert_tp=1, schedule="early", precision="fp8", **new)
    slower = replace(own.cluster, speeds=(1.0, 1.0, 0.5, 0.75))
    made += [own, replace(own, cluster=slower, servers=(1, 0, 3, 2), schedule="zb-h1")]
    graph = Hybrid(model_of(GRAPH), Cluster.parse("1x4:v100"), 64, instance=GRAPH)
    size = len(graph.model)
    whole = HybridStage(((0, size),), 4, 1, 2, ("full",) + ("none",) * (size - 1))
    made += [graph.plan([whole], 8), graph.plan([replace(whole, tp=2, split={_variable(): 1})], 8)]
    return [json.dumps(plan.to_json()).encode() for plan in made]


def _variable() -> str:
    graph = _forward()
    return graph.paths[int(graph.variables[0])]


def rows() -> list[bytes]:
    """Return one published row of each source and table, in files of four."""
    content = json.loads(shipped("published.json").read_text(encoding="utf-8"))
    first = {(row.get("source"), row.get("table")): row for row in content["rows"]}
    chosen = list(first.values())
    return [json.dumps({"rows": chosen[k : k + 4]}).encode() for k in range(0, len(chosen), 4)]


def stacks() -> list[bytes]:
    """Return stacks with constants of every kind."""
    attention = {"h100": 0.29, "other": 0.35}
    objects = (
        {"name": "roofline"},
        {"name": "torch-2024", "attention_share": attention, "early_stop": False},
        {"name": "megatron-2021", "matmul_share": 0.5, "hop_in": 1e-6, "link_rule": "node"},
        {"name": "deepspeed-2022", "state_bytes": 4.0, "waves": True, "attention_share": None},
    )
    return [json.dumps(content).encode() for content in objects]


def shape_files() -> list[bytes]:
    """Return shapes: a small one, and a mixture of experts."""
    small = {"name": "x", "layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 99}
    return [json.dumps(small).encode(), json.dumps(asdict(MIXTURE)).encode()]


@cache
def library() -> Library:
    """Return the plans of a measured model."""
    return load_library(MEASURED[0])


def check_trace(trace: Trace) -> None:
    """Check that a job on the nodes earns what is possible."""
    with refusable():
        check_problem(Elastic(library(), trace, 60.0, name="trace"))


def check_problem(problem: Elastic) -> None:
    """Check that a rule's plans fit the nodes, and earn no more than free changes would."""
    run = follow(problem, problem.drawn(0), RULES["fastest"]())
    nodes = problem.drawn(0).nodes
    must((nodes >= 0).all() and np.isfinite(run.total), "nodes or samples that are no numbers")
    must(-1e-9 <= run.share <= 1 + 1e-9, f"a share of {run.share}")


def _problems() -> bytes:
    """Return a set of two shipped problems."""
    names = [f"elastic-test/bulk-gpt-1.5b-00{number}" for number in range(2)]
    rows = {name: elastic_files.Row(MEASURED[0], 30, load_elastic(name).source) for name in names}
    return file_of(lambda path: elastic_files.save_set(path, rows), ".json")


def check_chains(rows: dict[str, elastic_files.Row]) -> None:
    """Check that each problem can be played."""
    for name, row in rows.items():
        with refusable():
            check_problem(Elastic(library(), row.chain, 60.0, row.intervals, name=name))


def policies() -> list[bytes]:
    """Return an entry of each kind of policy."""
    layer = {"weights": [[0.1]] * OWN, "biases": [0.0], "activation": "none"}
    weights = {name: array.tolist() for name, array in _ratings().items()}
    made = [
        {"kind": "rule", "rule": "fastest"},
        {"kind": "table", "tables": {library().name: [[[0, 1], [1, 0]]] * 8}, "observation": 1},
        {"kind": "network", "layers": {"each": [layer]}, "observation": 1},
        {"kind": "ratings", "weights": weights, "observation": 1},
    ]
    entries = [Entry("elastic", "mine", ("Ada",), "By hand.", policy=policy) for policy in made]
    return [json.dumps(entry.to_json()).encode() for entry in entries]


def check_policy(entry: Entry) -> None:
    """Check that a policy can be played."""
    problem = "elastic-test/bulk-gpt-1.5b-000"
    with refusable():
        chosen = play({"policy": entry.policy, "problems": [problem], "seed": 0})[problem]
        must(all(0 <= plan < 64 for course in chosen for plan in course), "no plan was chosen")


FUNCTION = '''\
"""A function of arrays, and its arguments, which a file describes."""

import json

import jax
import jax.numpy as jnp


def made(value):
    if isinstance(value, dict) and "shape" in value:
        return jax.ShapeDtypeStruct(tuple(value["shape"]), value["dtype"])
    if isinstance(value, dict):
        return {key: made(one) for key, one in value.items()}
    return value


def arguments():
    with open(PLACE) as stream:
        return made(json.load(stream))


def step(weights, batch, axis=0):
    for name in sorted(weights):
        batch = jnp.tanh(jnp.dot(batch, weights[name]))
    return jnp.sum(jnp.take(batch, jnp.arange(2), axis=0), axis=0)
'''


@apart
def run_of(agent: str) -> dict[str, bytes]:
    """Return the files of a short run's folder by name, with a checkpoint amid episodes."""
    from parenvs.agents.learning.config import TrainConfig
    from parenvs.agents.learning.trainer import train

    settings: dict[str, Any] = {"envs": 4, "turns": 5, "width": 4}
    if agent == "rainbow":
        settings |= {"memory": 60, "first": 20, "minibatch": 8, "quantiles": 2}
    kwargs = {"instance": "vgg-19", "cluster": "B", "stages": 3}
    config = TrainConfig(
        env_id="PipelineCut-v0", env_kwargs=kwargs, agent=agent, steps=60, settings=settings
    )
    with tempfile.TemporaryDirectory() as folder:
        train(config, folder)
        names = ("config.json", "model.pt", "state.pt")
        files = [Path(folder) / name for name in names]
        return {file.name: file.read_bytes() for file in files if file.exists()}


def run_folder(agent: str, path: Path, name: str) -> Path:
    """Make the folder of a run, with one of its files in place of the run's own."""
    folder = path.parent / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for own, data in run_of(agent).items():
        (folder / own).write_bytes(data)
    shutil.copy(path, folder / name)
    return folder


def read_config(path: Path) -> Any:
    """Read a run's folder with a configuration as ``parenvs evaluate`` and ``train`` do."""
    import gymnasium as gym

    from parenvs.agents.learning.config import building
    from parenvs.agents.learning.trainer import load, load_config

    folder = run_folder("ppo", path, "config.json")
    config = load_config(folder)
    load(folder)
    with building(folder):
        return gym.make(config.env_id, **config.env_kwargs)


def read_model(path: Path) -> Any:
    """Load a trained agent, and its environment."""
    from parenvs.agents.learning.play import Envs, Play, Share
    from parenvs.agents.learning.trainer import load, load_config

    folder = run_folder("rainbow", path, "model.pt")
    config = load_config(folder)
    return load(folder), Play(Envs(config.env_id, config.env_kwargs, Share(0, 4, 4)))


def read_checkpoint(path: Path) -> Any:
    """Load a checkpoint into a fresh agent, as ``parenvs train --resume`` does."""
    from parenvs.agents.learning.trainer import Training, load_config

    folder = run_folder("rainbow", path, "state.pt")
    training = Training(load_config(folder), folder)
    return training.agent, training.team.learner.play


def check_env(env: Any) -> None:
    """Play an episode: its reward is a number, and its plan a plan."""
    env.reset(seed=0)
    ended, steps = False, 0
    while not ended and steps < 200:
        mask = env.get_wrapper_attr("action_masks")()
        must(mask.any(), "no action is legal")
        _, reward, terminated, truncated, _ = env.step(int(np.flatnonzero(mask)[-1]))
        must(np.isfinite(reward), f"a reward is {reward}")
        ended, steps = terminated or truncated, steps + 1
    if terminated:
        json.dumps(env.get_wrapper_attr("plan")().to_json(), allow_nan=False)
    env.close()


def check_model(read: Any) -> None:
    """Let the agent act, where it may."""
    agent, play = read
    play.restart(0)
    batch = play.collect(agent, 3)
    legal = batch.seen.mask.gather(2, batch.actions[..., None])
    must(bool(legal.all()), "illegal action")
    play.envs.close()


def read_function(path: Path) -> Graph:
    """Lower a function with the arguments that a file describes."""
    code = path.with_name(f"function_{path.stem}.py")
    code.write_text(FUNCTION.replace("PLACE", repr(str(path))), encoding="utf-8")
    python_source._lowered.cache_clear()
    return python_source.graph_of(f"{code}:step", "arguments")


def arguments() -> list[bytes]:
    """Return arguments of the function: abstract ones, and numbers."""
    weights = {f"layer_{k}": {"shape": [8, 8], "dtype": "float32"} for k in range(2)}
    batch = {"shape": [4, 8], "dtype": "bfloat16"}
    small = {"weights": {"w": {"shape": [2, 3], "dtype": "int32"}}, "batch": 1.5, "axis": 0}
    return [
        json.dumps({"weights": weights, "batch": batch}).encode(),
        json.dumps({**small, "batch": {"shape": [2, 2], "dtype": "int32"}}).encode(),
    ]


def _with_options() -> bytes:
    """Return the configuration with every kind of option of its environment."""
    content = json.loads(run_of("ppo")["config.json"])
    content["env_kwargs"] |= {
        "micro_batch": 8,
        "sync": "parameter-server",
        "copies": 4,
        "recompute": "none",
    }
    return json.dumps(content).encode()


def seeds(suffix: str) -> list[bytes]:
    """Return the valid files of an ending."""
    return [path.read_bytes() for path in sorted(SEEDS.glob(f"*{suffix}"))]


def strategies() -> list[bytes]:
    """Return a solution as solvers of the contest print it, and as a plan file."""
    problem = draw(0)
    listed = json.dumps((problem.sizes - 1).tolist()).encode()
    return [listed, json.dumps(problem.plan(problem.sizes - 1).to_json()).encode()]


def evaluations() -> list[bytes]:
    """Return what two agents earned on some problems of a set."""
    problems = list(set_of("plan-validation").problems[:3])
    content = {"set": "plan-validation", "problems": problems, "values": [[0.5] * 3, [0.9] * 3]}
    return [json.dumps(content).encode()]


def check_weights(weights: Mapping[str, np.ndarray]) -> None:
    """Check that the weights of a network are numbers."""
    for array in weights.values():
        must(np.isfinite(array).all(), "a weight that is no number")


def _arrays(weights: Mapping[str, np.ndarray]) -> list[bytes]:
    return [file_of(lambda path: np.savez(path, **weights), ".npz")]


def _ratings() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.random(size).astype(np.float32) for name, size in SHAPES.items()}


_REGISTRY: tuple[tuple[str, str, int, Callable, Callable, Callable], ...] = (
    (
        "pb", ".pb", 12, lambda: [parse(x.decode()).SerializeToString() for x in seeds(".txt")],
        from_hlo, check_graph,
    ),
    ("txt", ".txt", 11, lambda: seeds(".txt"), from_hlo, check_graph),
    ("mlir", ".mlir", 5, lambda: seeds(".mlir"), from_hlo, check_graph),
    (
        "npz", ".npz", 12, lambda: [file_of(graph.save, ".npz") for graph in graphs()],
        Graph.load, check_graph,
    ),
    (
        "csv", ".csv", 3,
        lambda: [
            (SEEDS / "profile.csv").read_bytes(),
            file_of(load_profile("vgg-19", "1x2:v100").to_csv, ".csv"),
        ],
        lambda path: load_profile(path, "1x2:v100"), check_profile,
    ),
    ("plan", ".json", 5, plans, load_plan, check_plan),
    ("entry", ".json", 4, entries, load_entry, check_entry),
    (
        "set", ".npz", 4,
        lambda: [
            file_of(lambda x: pipeline_sets.save_set(x, load_set("plan-validation")[:3]), ".npz")
        ],
        load_set, check_set,
    ),
    (
        "partitions", ".json", 2,
        lambda: [file_of(lambda path: partition_files.save_set(path, PARTITIONS), ".json")],
        partition_files.read_set, check_partitions,
    ),
    (
        "cluster", ".json", 3, lambda: [json.dumps(cluster).encode() for cluster in CLUSTERS],
        lambda path: Cluster.parse(str(path)), check_cluster,
    ),
    (
        "words", ".words", 2, lambda: [b"2x4:v100,10Gbps", b"C", b"16x8:h100,400Gbps,900GBps"],
        lambda path: Cluster.parse(path.read_text(encoding="utf-8", errors="surrogateescape")),
        check_cluster,
    ),
    (
        "iopddl", ".json", 6,
        lambda: [json.dumps(to_json(draw(seed))).encode() for seed in range(3)],
        load_iopddl, check_iopddl,
    ),
    (
        "strategies", ".json", 2, strategies, lambda path: load_strategies(path, draw(0)),
        lambda plan: json.dumps(draw(0).report(plan).to_json(), allow_nan=False),
    ),
    ("hybrid", ".json", 6, hybrid_plans, load_plan, check_hybrid_plan),
    ("shape", ".json", 4, shape_files, load_shape, check_shape),
    (
        "stack", ".json", 4, stacks, lambda path: Stack.parse(read_json(path, str(path))),
        check_stack,
    ),
    ("rows", ".json", 3, rows, lambda path: predictions(read_rows(path)), check_predictions),
    (
        "trace", ".csv", 3,
        lambda: [(SEEDS / f"{name}.csv").read_bytes() for name in ("events", "counts")],
        read_trace, check_trace,
    ),
    (
        "chains", ".json", 3, lambda: [_problems()],
        lambda path: elastic_files.read_set(path, MEASURED), check_chains,
    ),
    ("policy", ".json", 2, policies, load_entry, check_policy),
    ("evaluation", ".json", 1, evaluations, SetEvaluation.load, lambda found: must(
        math.isfinite(found.regret), "a regret that is no number"
    )),
    (
        "weights", ".npz", 1, lambda: [network.file_of("PipelinePlan-v1").read_bytes()],
        network.Network.load, lambda found: check_weights(found.weights),
    ),
    ("ratings", ".npz", 1, lambda: _arrays(_ratings()), loaded, check_weights),
    (
        "config", ".json", 2, lambda: [run_of("ppo")["config.json"], _with_options()],
        read_config, check_env,
    ),
    ("model", ".pt", 2, lambda: [run_of("rainbow")["model.pt"]], read_model, check_model),
    (
        "checkpoint", ".pt", 2, lambda: [run_of("rainbow")["state.pt"]],
        read_checkpoint, check_model,
    ),
    ("function", ".json", 1, arguments, read_function, check_graph),
)  # fmt: skip
READERS = {name: Reader(*rest) for name, *rest in (*_REGISTRY, *STATES)}
"""Name -> reader."""


def _some(rows: Mapping[str, Any]) -> dict[str, Any]:
    return dict(list(rows.items())[:3])
