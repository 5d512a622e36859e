"""The readers that ``fuzz.py`` tries: valid files for each, and what must hold of what is read."""

from __future__ import annotations

import contextlib
import io
import json
import math
import multiprocessing
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.framework import ROOT
from benchmarks.hybrid_predictions import predictions
from benchmarks.make_sets import save_pipelines
from drawn_intra_op import draw
from killed_commands import prepare
from parenvs import Graph, ParenvsError, Pipeline, StageProfile, from_hlo, judge, load_plan
from parenvs import problem as problem_from
from parenvs.agents.elastic.policies import RULES
from parenvs.clock.calibration import Calibration
from parenvs.cluster import Cluster
from parenvs.datasets.banks import Bank
from parenvs.datasets.partition import problems as partition_sets
from parenvs.datasets.pipeline import problems as pipeline_sets
from parenvs.exports.checkpoint import INDEX, Checkpoint
from parenvs.files import read_json
from parenvs.graph.text import parse
from parenvs.instances import load_graph
from parenvs.jobs.journal import INTERVALS, JOB, STEPS, Interval, Journal, Step
from parenvs.leaderboard.check import check
from parenvs.leaderboard.entry import Entry, load_entry
from parenvs.tasks.elastic.problem import Elastic, follow
from parenvs.tasks.elastic.problems import MEASURED, Trace, bank, load_library, read_trace
from parenvs.tasks.hybrid.layers import Split, TransformerBlock
from parenvs.tasks.hybrid.model import HybridModel, load_model, load_shape, shapes
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.rows import Published, read_rows, shipped
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import STACKS, Stack
from parenvs.tasks.pipeline.profile import load_profile
from parenvs.tasks.sharding.files import load_iopddl, load_strategies, save_iopddl, to_json
from parenvs.tasks.sharding.problem import Sharding

CORPUS = ROOT / "tests" / "corpus"
"""``READER/NAME``: files that went wrong once, each to be read now, or refused in a line."""
SEEDS = CORPUS / "seeds"
"""Valid files: HLO with every kind of instruction, StableHLO, a chain, traces of nodes."""
SHAPE, GRAPH = "bert-large", "vgg-19"
JOB_FIELDS = {"trace": "four-nodes", "batch": 8, "interval": 60.0, "cluster": None}


class Reader(NamedTuple):
    """A reader of files: their ending, its share of all inputs, valid files, reading, a check.

    The check raises a ``WrongAcceptanceError`` if what was read must not be.
    """

    suffix: str
    weight: int
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], Any]
    check: Callable[[Any], None]


class WrongAcceptanceError(AssertionError):
    """Something was read that must not be."""


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


def again(save: Callable[[Path], Any], read: Callable[[Path], Any], suffix: str) -> Any:
    """Return what is read from the file that is saved of something."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"again{suffix}"
        save(path)
        try:
            return read(path)
        except ParenvsError as error:
            raise WrongAcceptanceError(f"read, but not from its own file: {error}") from None


def file_of(save: Callable[[Path], Any], suffix: str) -> bytes:
    """Return the content of a file that a function writes."""
    return again(save, Path.read_bytes, suffix)


def apart(make: Callable[..., dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
    """Let a process of its own make files, once.

    JAX and PyTorch start threads, and a fork of a process that has some may wait for them for ever.
    """

    @cache
    @wraps(make)
    def made(*given: str) -> dict[str, bytes]:
        if multiprocessing.current_process().daemon:  # one that reads files, and forks no more
            return make(*given)
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        process = fork.Process(target=lambda: theirs.send(make(*given)))
        process.start()
        theirs.close()
        files: dict[str, bytes] = ours.recv()
        process.join()
        return files

    return made


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _folder(path: Path, files: Mapping[str, bytes], name: str) -> Path:
    """Make a folder beside a file, with that in place of the folder's own of a name."""
    folder = path.parent / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for own, data in files.items():
        (folder / own).write_bytes(data)
    shutil.copy(path, folder / name)
    return folder


def seeds(suffix: str) -> list[bytes]:
    """Return the valid files of an ending."""
    return [path.read_bytes() for path in sorted(SEEDS.glob(f"*{suffix}"))]


# Graphs, chains, clusters.


def graph_files() -> list[bytes]:
    """Return the three modules as graph files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graphs = [from_hlo(path) for path in sorted(SEEDS.glob("*.txt"))]
    return [file_of(graph.save, ".npz") for graph in graphs]


def check_graph(graph: Graph) -> None:
    """Check that a graph's numbers are possible, that it outlives its file, and its problems."""
    for key in ("flops", "bytes_accessed", "tensor_bytes"):
        values = getattr(graph, key)
        must(np.isfinite(values).all() and (values >= 0).all(), f"{key} negative or not finite")
    must((graph.dims >= 0).all() and graph.batch_size >= 1, "negative dimensions or batch size")
    other = again(graph.save, Graph.load, ".npz")
    must(other.fingerprint == graph.fingerprint, "another fingerprint from its own file")
    with refusable():
        check_pipeline(problem_from(graph, "2x2:v100", micro_batch=1))
    with refusable():
        problem: Any = problem_from(graph, "1x2:v100", "partition")
        must(math.isfinite(problem.replicate_seconds), "seconds that are not finite")


def check_pipeline(problem: Pipeline) -> None:
    """Check the costs of a chain, and of a plan of it with stages of equal length."""
    chain, stages = problem.profile, problem.stages
    for key in ("forward", "backward", "cut_bytes", "parameter_bytes"):
        values = getattr(chain, key)
        must(np.isfinite(values).all() and (values >= 0).all(), f"{key} negative or not finite")
    cuts, device_cuts = (
        np.arange(1, stages) * size // stages for size in (len(chain), problem.cluster.devices)
    )
    check_report(judge(problem.plan(cuts, device_cuts), problem))


def check_report(report: Any) -> None:
    """Check a verdict: its figures are finite, and a legal plan has a positive cost."""
    must(math.isfinite(report.value), f"a plan's value is {report.value}")
    if report.legal and hasattr(report, "length_seconds"):
        must(0 < report.length_seconds < math.inf, f"its length is {report.length_seconds}")
    if report.legal and getattr(report, "mfu", None) is not None:
        must(0 < report.mfu <= 1, f"its MFU is {report.mfu}")
    try:
        json.dumps(report.to_json(), allow_nan=False, default=float)
    except ValueError:
        raise WrongAcceptanceError("a figure of its report is not finite") from None


def check_profile(profile: StageProfile) -> None:
    """Check a chain, and that it outlives its file."""
    read = partial(StageProfile.from_csv, micro_batch=profile.micro_batch)
    other = again(profile.to_csv, read, ".csv")
    must(other.fingerprint == profile.fingerprint, "another fingerprint from its own file")
    with refusable():
        check_pipeline(Pipeline(profile, Cluster.parse("2x2:v100"), 2))


def clusters() -> list[bytes]:
    """Return clusters of a known device and of one's own."""
    known = {"servers": 2, "devices_per_server": 4, "inter_bw": 3e9, "intra_bw": 1e11}
    device = {"name": "x", "peak_flops": 1e13, "memory_bw": 1e12, "memory_bytes": 1e10}
    both = ({**known, "device": "v100"}, {**known, "device": device, "name": "mine"})
    return [json.dumps(cluster).encode() for cluster in both]


@cache
def _forward() -> Graph:
    return load_graph(GRAPH, "forward")


def check_cluster(cluster: Cluster) -> None:
    """Check that a cluster outlives its object, and a plan on it."""
    other = Cluster.parse(json.loads(json.dumps(cluster.to_json(), allow_nan=False)))
    must(other == cluster, "another cluster from its own object")
    must(0 < cluster.memory_limit < math.inf, "its memory is not finite")
    with refusable():
        check_pipeline(Pipeline(StageProfile.from_graph(_forward(), cluster.device), cluster, 2))


# Plans, entries, sets.


def plans() -> list[bytes]:
    """Return a plan of a pipeline and of a partition."""
    pipeline = Pipeline(load_profile(GRAPH, "2x2:v100"), Cluster.parse("2x2:v100"))
    problem: Any = problem_from(GRAPH, "1x4:v100", task="partition")
    chosen = np.zeros(len(problem.counts()), dtype=bool)
    chosen[problem.decidable()[:2]] = True
    both = (pipeline.plan(np.array([9]), np.array([2])), problem.plan(chosen))
    return [json.dumps(plan.to_json()).encode() for plan in both]


def check_plan(plan: Any) -> None:
    """Check that a plan outlives its file, and the verdict on it."""
    must(again(plan.save, load_plan, ".json") == plan, "another plan from its own file")
    if plan.instance != GRAPH or plan.cluster.devices > 64:
        return  # that would take long to load
    with refusable():
        check_report(judge(plan, GRAPH))


@cache
def model_of(name: str) -> HybridModel:
    """Return the chain of a shipped instance, those of the valid files alone."""
    if name not in (SHAPE, GRAPH):
        raise ParenvsError("another instance, which would take long to load")
    return load_model(name)


def hybrid_plans() -> list[bytes]:
    """Return hybrid plans of a shape, with interleaved stages too, and of a graph."""
    shape = Hybrid(model_of(SHAPE), Cluster.parse("2x4:a100"), 64, instance=SHAPE)
    halves = (
        HybridStage(((0, 12),), 4, 2, 1, {"full": 5, "selective": 2}),
        HybridStage(((12, 24),), 4, 4),
    )
    chunks = tuple(
        HybridStage(tuple((4 * k + 8 * v, 4 * k + 8 * v + 4) for v in range(3)), 4, 2)
        for k in range(2)
    )
    more = {"schedule": "interleaved", "chunks": 3, "sequence_parallel": True, "servers": (1, 0)}
    graph = Hybrid(model_of(GRAPH), Cluster.parse("1x4:v100"), 64, instance=GRAPH)
    size = len(graph.model)
    whole = HybridStage(((0, size),), 4, 1, 2, ("full",) + ("none",) * (size - 1))
    three = (shape.plan(halves, 1), shape.plan(chunks, 2, **more), graph.plan([whole], 8))
    return [json.dumps(plan.to_json()).encode() for plan in three]


def check_hybrid_plan(plan: Any) -> None:
    """Check that a hybrid plan outlives its file, and the verdict on it."""
    must(again(plan.save, load_plan, ".json") == plan, "another plan from its own file")
    with refusable():
        check_report(judge(plan, model_of(plan.instance)))


def shape_files() -> list[bytes]:
    """Return shapes: a small one, and a mixture of experts."""
    small = {"name": "x", "layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 99}
    mixture = next(shape for shape in shapes().values() if shape.experts > 1)
    return [json.dumps(small).encode(), json.dumps(asdict(mixture)).encode()]


def check_shape(shape: TransformerShape) -> None:
    """Check a shape's figures, and that it outlives its object."""
    other = TransformerShape.from_json(json.loads(json.dumps(asdict(shape))))
    must(other.fingerprint == shape.fingerprint, "another fingerprint from its own object")
    must(0 < shape.parameters < math.inf, f"{shape.parameters} parameters")
    must(0 < shape.flops(1.0) < math.inf and 0 < shape.token_flops(1.0) < math.inf, "FLOPs")


def stacks() -> list[bytes]:
    """Return stacks with constants of every kind."""
    attention = {"h100": 0.29, "other": 0.35}
    objects = (
        {"name": "roofline"},
        {"name": "torch-2024", "attention_share": attention, "early_stop": False},
        {"name": "megatron-2021", "matmul_share": 0.5, "hop_in": 1e-6, "link_rule": "node"},
    )
    return [json.dumps(content).encode() for content in objects]


def check_stack(stack: Stack) -> None:
    """Check a stack's constants."""
    for cluster, precision in (("2x4:a100", "bf16"), ("2x4:v100", "fp16")):
        with refusable():
            machine = stack.machine(Cluster.parse(cluster), precision)
            for key in ("flops", "attention_flops", "memory_bw"):
                value = getattr(machine, key)
                must(value is None or 0 < value < math.inf, f"{key} is {value}")


def rows() -> list[bytes]:
    """Return one published row of each source and table, in files of four."""
    content = json.loads(shipped("published.json").read_text(encoding="utf-8"))
    first = {(row.get("source"), row.get("table")): row for row in content["rows"]}
    chosen = list(first.values())
    return [json.dumps({"rows": chosen[k : k + 4]}).encode() for k in range(0, len(chosen), 4)]


def first_rows(published: Published) -> Published:
    """Return a hundred rows: to predict what thousands take is no part of reading them."""
    return replace(published, rows=published.rows[:100])


def check_predictions(read: Any) -> None:
    """Check what published rows are predicted to be."""
    for row in read[0]:
        must(0 < row.predicted < math.inf, f"row {row.row}: {row.column} is {row.predicted}")


def entries() -> list[bytes]:
    """Return the smallest entry of each task of plans, with two that are soon judged."""
    found = []
    for folder in sorted((ROOT / "leaderboard" / "submissions").iterdir()):
        entry = json.loads(min((path.read_bytes() for path in folder.glob("*.json")), key=len))
        if "plans" in entry:
            by_size = sorted(entry["plans"].items(), key=lambda item: "t5" in item[0])
            entry["plans"] = dict(by_size[:2])
            entry["seconds"] = {key: entry["seconds"].get(key, 1.0) for key in entry["plans"]}
            found.append(json.dumps(entry).encode())
    return found


def check_entry(entry: Entry) -> None:
    """Judge an entry; no verdict may raise, and every score is a share."""
    checked = check(entry)
    must(0 < checked.score <= 1, f"its score is {checked.score}")
    for verdict in checked.verdicts:
        must(0 < verdict.cost < math.inf, f"a cost is {verdict.cost}")
        must(all("\n" not in reason for reason in verdict.reasons), "a reason of several lines")


def check_set(problems: list[Any]) -> None:
    """Check the chains and clusters of a set."""
    for problem in problems:
        with refusable():
            check_pipeline(problem.pipeline)


PARTITIONS = {
    "t5-000": partition_sets.SetRow("t5-3b", "2x8:a100"),
    "lstm-001": partition_sets.SetRow(
        "big-lstm", "C", 3.2e9, micro_batch=8, micro_batches=4, recompute="full", uneven="forbid"
    ),
}


def check_partitions(read: Any) -> None:
    """Check that a set outlives its file."""
    save = partial(partition_sets.save_set, rows=read)
    other = again(save, partition_sets.read_set, ".json")
    must(other == read, "another set from its own file")


def check_iopddl(problem: Sharding) -> None:
    """Check that a problem outlives its file, and a plan's cost."""
    other = again(lambda path: save_iopddl(problem, path), load_iopddl, ".json.gz")
    must(other.fingerprint == problem.fingerprint, "another one from its own file")
    report = problem.report(problem.plan(problem.sizes - 1))
    must(report.cost is not None and report.cost >= 0, "no cost of a plan")


def strategies() -> list[bytes]:
    """Return a solution as solvers of the contest print it, and as a plan file."""
    problem = draw(0)
    listed = json.dumps((problem.sizes - 1).tolist()).encode()
    return [listed, json.dumps(problem.plan(problem.sizes - 1).to_json()).encode()]


def check_trace(trace: Trace) -> None:
    """Check that a rule's plans fit the nodes, and earn no more than free changes would."""
    with refusable():
        problem = Elastic(load_library(MEASURED[0]), trace, 60.0, name="trace")
        run = follow(problem, problem.drawn(0), RULES["fastest"]())
        must(np.isfinite(run.total), "samples that are no number")
        must(-1e-9 <= run.share <= 1 + 1e-9, f"a share of {run.share}")


def policies() -> list[bytes]:
    """Return entries of a rule and of a table."""
    table = [[[0, 1], [1, 0]]] * 8
    both = (
        {"kind": "rule", "rule": "fastest"},
        {"kind": "table", "tables": {load_library(MEASURED[0]).name: table}},
    )
    entries = [Entry("elastic", "mine", ("Ada",), "By hand.", policy=policy) for policy in both]
    return [json.dumps(entry.to_json()).encode() for entry in entries]


def check_policy(entry: Entry) -> None:
    """Check that the policy holds numbers alone."""
    json.dumps(entry.to_json(), allow_nan=False)


# Runs, checkpoints, journals, pools, measured machines.


@apart
def run_of(agent: str) -> dict[str, bytes]:
    """Return the files of a short run's folder by name, with a checkpoint amid episodes."""
    from parenvs.agents.learning.config import TrainConfig
    from parenvs.agents.learning.trainer import train

    settings: dict[str, Any] = {"envs": 4, "turns": 5, "width": 4}
    if agent == "rainbow":
        settings |= {"memory": 60, "first": 20, "minibatch": 8, "quantiles": 2}
    kwargs = {"instance": GRAPH, "cluster": "B", "stages": 3}
    config = TrainConfig(
        env_id="PipelineCut-v0", env_kwargs=kwargs, agent=agent, steps=60, settings=settings
    )
    with tempfile.TemporaryDirectory() as folder:
        train(config, folder)
        names = ("config.json", "model.pt", "state.pt")
        return {name: data for name, data in _files(Path(folder)).items() if name in names}


def read_config(path: Path) -> Any:
    """Read a run's folder with a configuration as ``parenvs evaluate`` and ``train`` do."""
    import gymnasium as gym

    from parenvs.agents.learning.config import building
    from parenvs.agents.learning.trainer import load, load_config

    folder = _folder(path, run_of("ppo"), "config.json")
    config = load_config(folder)
    load(folder)
    with building(folder):
        return gym.make(config.env_id, **config.env_kwargs)


def check_env(env: Any) -> None:
    """Take a step: its reward is a number."""
    env.reset(seed=0)
    mask = env.get_wrapper_attr("action_masks")()
    must(mask.any(), "no action is legal")
    must(np.isfinite(env.step(int(np.flatnonzero(mask)[-1]))[1]), "a reward is no number")
    env.close()


def read_model(path: Path) -> Any:
    """Load a trained agent, and its environment."""
    from parenvs.agents.learning.play import Envs, Play, Share
    from parenvs.agents.learning.trainer import load, load_config

    folder = _folder(path, run_of("rainbow"), "model.pt")
    config = load_config(folder)
    return load(folder), Play(Envs(config, Share(0, 4, 4)))


def read_checkpoint(path: Path) -> Any:
    """Load a checkpoint into a fresh agent, as ``parenvs train --resume`` does."""
    from parenvs.agents.learning.trainer import Training, load_config

    folder = _folder(path, run_of("rainbow"), "state.pt")
    training = Training(load_config(folder), folder)
    return training.agent, training.team.learners[0].play


def check_model(read: Any) -> None:
    """Let the agent act, where it may."""
    agent, play_of = read
    play_of.restart(0)
    batch = play_of.collect(agent, 3)
    legal = batch.seen.mask.gather(2, batch.actions[..., None])
    must(bool(legal.all()), "illegal action")
    play_of.envs.close()


@apart
def checkpoint() -> dict[str, bytes]:
    """Return the files of a checkpoint of two processes."""
    sys.path.append(str(ROOT / "examples"))
    with tempfile.TemporaryDirectory() as folder:
        prepare("reshard", Path(folder))
        graph = {"net.npz": Path(folder, "net.npz").read_bytes()}
        return {**_files(Path(folder, "state")), **graph}


def read_index(path: Path) -> Checkpoint:
    """Read a checkpoint with another index."""
    read = Checkpoint(_folder(path, checkpoint(), INDEX))
    read.verify()
    return read


def check_checkpoint(read: Checkpoint) -> None:
    """Check that every tensor can be read whole."""
    place = next(iter(read.files.places()))
    for name, tensor in read.head.tensors.items():
        box = tuple((0, size) for size in tensor.shape)
        for kind in tensor.kinds:
            must(read.box(name, kind, box, place, 1).shape == tensor.shape, "another shape")


@cache
def journal() -> dict[str, bytes]:
    """Return the files of a journal of two intervals."""
    with tempfile.TemporaryDirectory() as name:
        opened = Journal.open(Path(name), {**JOB_FIELDS, "measured": 0.5, "tracing": 2})
        for k in range(4):
            opened.add(Step(k, k // 2, 2.0 - k / 4, [2 * k, 2 * k + 1], 0.25))
        for t in range(2):
            opened.add(Interval(t, 2, plan=t, way="start", seconds=1.0, steps=2 * t + 2, trained=2))
        return _files(Path(name))


def read_journal(name: str) -> Callable[[Path], Journal]:
    """Return what reads a journal with another file of a name."""
    return lambda path: Journal.open(_folder(path, journal(), name), JOB_FIELDS)


def check_journal(read: Journal) -> None:
    """Check what a driver goes on from."""
    numbers = [row.interval for row in read.intervals]
    must(numbers == [*range(len(numbers))], "intervals out of order")
    must(all(math.isfinite(step.loss) for step in read.trained), "a loss is not finite")
    must(0 < read.measured < math.inf, f"a step of {read.measured} s")


def pools() -> list[bytes]:
    """Return a pool of three problems."""
    problems = [bank("gone")[k] for k in range(3)]
    stream = io.BytesIO()
    np.savez(stream, **{name: np.stack([x[name] for x in problems]) for name in problems[0]})
    return [stream.getvalue()]


def read_pool(path: Path) -> Bank:
    """Read a pool that stands where those that ship do."""
    folder = path.parent / "banks"
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / "fuzzed.npz")
    pool = Bank("fuzzed", 3)
    with patch("parenvs.datasets.banks.data_folder", lambda: path.parent):
        assert pool.arrays
    return pool


def check_pool(pool: Bank) -> None:
    """Check that its rows are of the form of problems."""
    for number in range(len(pool)):
        row, like = pool[number], bank("gone")[number]
        must(row.keys() == like.keys(), "other arrays")
        must(all(row[key].shape == like[key].shape for key in row), "arrays of other shapes")


def machines() -> list[bytes]:
    """Return a file as ``parenvs calibrate`` writes it."""
    cluster = Cluster.parse("1x2:b200-server.json")
    known = cluster.measured
    few = replace(known, products=known.products[::99], attention=known.attention[::20])
    machine = Calibration(replace(cluster, measured=few), {"by": "hand", "missing": []})
    return [file_of(machine.save, ".json")]


def check_machine(read: Calibration) -> None:
    """Check that a layer takes a finite, positive time by what was measured."""
    if "bf16" in dict(read.cluster.device.peaks):
        machine = STACKS["megatron-2025"].machine(read.cluster, "bf16")
        layer = TransformerBlock(load_shape("llama3-8b"))
        must(0 < layer.seconds(machine, Split(1, 1.0)).forward < math.inf, "impossible seconds")


READERS: dict[str, Reader] = {
    "pb": Reader(
        ".pb", 12, lambda: [parse(x.decode()).SerializeToString() for x in seeds(".txt")],
        from_hlo, check_graph,
    ),
    "txt": Reader(".txt", 11, lambda: seeds(".txt"), from_hlo, check_graph),
    "mlir": Reader(".mlir", 5, lambda: seeds(".mlir"), from_hlo, check_graph),
    "npz": Reader(".npz", 12, graph_files, Graph.load, check_graph),
    "csv": Reader(
        ".csv", 3, lambda: [(SEEDS / "profile.csv").read_bytes()],
        lambda path: load_profile(path, "1x2:v100"), check_profile,
    ),
    "cluster": Reader(".json", 3, clusters, lambda path: Cluster.parse(str(path)), check_cluster),
    "plan": Reader(".json", 5, plans, load_plan, check_plan),
    "hybrid": Reader(".json", 6, hybrid_plans, load_plan, check_hybrid_plan),
    "shape": Reader(".json", 4, shape_files, load_shape, check_shape),
    "stack": Reader(
        ".json", 4, stacks, lambda path: Stack.parse(read_json(path)), check_stack
    ),
    "rows": Reader(
        ".json", 3, rows, lambda path: predictions(first_rows(read_rows(path))), check_predictions
    ),
    "entry": Reader(".json", 4, entries, load_entry, check_entry),
    "set": Reader(
        ".npz", 4,
        lambda: [file_of(lambda path: save_pipelines(
            path, pipeline_sets.load_set("plan-validation")[:3]), ".npz")],
        pipeline_sets.load_set, check_set,
    ),
    "partitions": Reader(
        ".json", 2, lambda: [file_of(
            lambda path: partition_sets.save_set(path, PARTITIONS), ".json")],
        partition_sets.read_set, check_partitions,
    ),
    "iopddl": Reader(
        ".json", 6, lambda: [json.dumps(to_json(draw(seed))).encode() for seed in range(3)],
        load_iopddl, check_iopddl,
    ),
    "strategies": Reader(
        ".json", 2, strategies, lambda path: load_strategies(path, draw(0)),
        lambda plan: json.dumps(draw(0).report(plan).to_json(), allow_nan=False),
    ),
    "trace": Reader(
        ".csv", 3, lambda: [(SEEDS / f"{name}.csv").read_bytes() for name in ("events", "counts")],
        read_trace, check_trace,
    ),
    "policy": Reader(".json", 2, policies, load_entry, check_policy),
    "config": Reader(".json", 2, lambda: [run_of("ppo")["config.json"]], read_config, check_env),
    "model": Reader(".pt", 2, lambda: [run_of("rainbow")["model.pt"]], read_model, check_model),
    "checkpoint": Reader(
        ".pt", 2, lambda: [run_of("rainbow")["state.pt"]], read_checkpoint, check_model
    ),
    "index": Reader(".json", 3, lambda: [checkpoint()[INDEX]], read_index, check_checkpoint),
    "job": Reader(".json", 1, lambda: [journal()[JOB]], read_journal(JOB), check_journal),
    "intervals": Reader(
        ".txt", 1, lambda: [journal()[INTERVALS]], read_journal(INTERVALS), check_journal
    ),
    "losses": Reader(".txt", 1, lambda: [journal()[STEPS]], read_journal(STEPS), check_journal),
    "pool": Reader(".npz", 2, pools, read_pool, check_pool),
    "machine": Reader(".json", 2, machines, Calibration.load, check_machine),
}  # fmt: skip
"""Name -> reader."""
