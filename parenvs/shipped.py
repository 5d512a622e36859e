"""What ships with the package: graphs, shapes and problems by name, and where their files are."""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from parenvs.cluster import Cluster
from parenvs.datasets.hybrid import drawing
from parenvs.datasets.hybrid.servers import TIERS, drawn
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean
from parenvs.files import DuplicateFieldError, no_duplicates
from parenvs.tasks.elastic.files import Row
from parenvs.tasks.elastic.files import read_set as read_elastic_set
from parenvs.tasks.elastic.library import Library
from parenvs.tasks.elastic.problem import SECONDS, Elastic
from parenvs.tasks.elastic.state import State
from parenvs.tasks.elastic.trace import Trace, read_trace
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.order.files import read_problem, read_set
from parenvs.tasks.order.packing import PackedStep
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order
from parenvs.tasks.partition.drawn.files import SetRow
from parenvs.tasks.partition.drawn.files import read_set as read_partition_set

PAPER = ("vgg-19", "t5-base", "t5-3b", "t5-11b", "bert-48")
"""Shipped instances of Auto-MAP's paper (arXiv 2007.04069), which the leaderboard plans."""

ORDER_SETS = ("order-validation", "order-test", "order-outside")
"""Shipped sets of problems of task ``"order"``; ``SET/NAME`` is one of a set."""

PARTITION_SETS = ("partition-train", "partition-validation", "partition-test")
"""Shipped sets of problems of ``PartitionPlan-v0``; ``SET/FAMILY-NUMBER`` is one of a set."""

ELASTIC_SETS = ("elastic-train", "elastic-validation", "elastic-test")
"""Shipped sets of problems of ``ElasticPlan-v0``; ``SET/NAME`` is one of a set."""
TRACES = {"p3": "aws-p3-spot.csv", "g4dn": "aws-g4dn-spot.csv"}
"""Shipped traces of spot clusters."""
MEASURED = ("gpt-1.5b", "bert-large")
"""Models whose steps on many degrees were measured."""
_SET = re.compile(
    r"(plan|partition|order|hybrid|hetero-\d+|intra-op|elastic)-(train|validation|test|outside)"
)
"""Names of sets of problems, see ``parenvs.datasets.sets``."""
_TASK_OF_SET = {"order": OrderPlan.task, "hybrid": HybridPlan.task, "hetero": HybridPlan.task}
"""Task that plans the problems of a set by their names, by the set's first word."""
_ENV_OF_SET = {"intra": "IntraOpSharding-v0", "elastic": "ElasticPlan-v0"}
"""Environment that alone plays the problems of a set, by the set's first word."""


def data_folder() -> Path:
    """Return the folder of the shipped graphs."""
    return Path(str(resources.files("parenvs.datasets"))) / "data"


@lru_cache(maxsize=1)
def manifest() -> dict[str, Any]:
    """Read the list of shipped instances: sizes, checksums and the command that made them."""
    return json.loads((data_folder() / "manifest.json").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Return the names of the shipped instances."""
    return list(manifest()["instances"])


@lru_cache(maxsize=1)
def shapes() -> dict[str, TransformerShape]:
    """Read the shipped shapes, by name."""
    rows = json.loads((data_folder() / "shapes.json").read_text(encoding="utf-8"))
    return {row["name"]: TransformerShape.from_json(row) for row in rows}


def hetero_sets() -> dict[str, tuple[Hybrid, ...]]:
    """Read the shipped sets of hetero problems: set -> its problems, called ``SET/FAMILY-NUMBER``.

    Raises:
        ParenvsError: the file is damaged.
    """
    return _sets("hetero.json", "hetero_sets")


def problem_sets() -> dict[str, tuple[Hybrid, ...]]:
    """Read all shipped sets of hybrid problems, hetero ones among them; see ``hetero_sets``."""
    return {**_sets("hybrid.json", "hybrid_sets"), **hetero_sets()}


@lru_cache(maxsize=2)
def _sets(file: str, maker: str) -> dict[str, tuple[Hybrid, ...]]:
    """Read a file of sets, which a module of ``parenvs.datasets`` made."""
    path = data_folder() / file
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: tuple(
                Hybrid(
                    HybridModel.of_shape(TransformerShape.from_json(row["shape"])),
                    Cluster.parse(row["cluster"]),
                    row["batch"],
                    row["stack"],
                    row["precision"],
                )
                for row in rows
            )
            for name, rows in content["sets"].items()
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ParenvsError(
            f"{path}: damaged ({error}); make it anew with python -m parenvs.datasets.{maker}"
        ) from None


def load_hetero(instance: str | os.PathLike[str]) -> Hybrid | None:
    """Load a hetero problem: ``SET/FAMILY-NUMBER`` of a set, ``TIER/SEED`` drawn; None if neither.

    Raises:
        UnknownInstanceError: there is no such problem in the set, or the seed is none.
    """
    text = os.fspath(instance)
    place, _, number = text.partition("/")
    if place in TIERS or (place == drawing.TIER and number):
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            raise UnknownInstanceError(
                f"instance {text!r}: give a seed, like {place}/7, or a set, like {place}-test"
            )
        return drawing.drawn(int(number)) if place == drawing.TIER else drawn(place, int(number))
    if place.startswith((f"{drawing.TIER}-", "hetero-")) and place in problem_sets():
        problems = {problem.instance: problem for problem in problem_sets()[place]}
        if text not in problems:
            raise UnknownInstanceError(
                f"unknown problem {text!r}; {place} holds {len(problems)}: {', '.join(problems)}"
            )
        return problems[text]
    return None


def load_shape(instance: str | os.PathLike[str]) -> TransformerShape | None:
    """Load a transformer's shape by shipped name or from a ``.json`` file; None if it has none.

    Hetero problems are known by their names, see ``load_hetero``.

    Raises:
        UnknownInstanceError: a ``.json`` file is missing, or does not hold a shape.
    """
    text = os.fspath(instance)
    if text in shapes():
        return shapes()[text]
    hetero = load_hetero(text)
    if hetero is not None:
        return hetero.model.shape
    if not text.endswith(".json"):
        return None
    try:
        content = json.loads(
            Path(text).read_text(encoding="utf-8"), object_pairs_hook=no_duplicates
        )
    except DuplicateFieldError as error:
        raise UnknownInstanceError(f"{text}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "nested too deeply"
        raise UnknownInstanceError(f"{text}: not a JSON file ({reason})") from None
    return TransformerShape.from_json(content, text)


def load_ordering(instance: str | os.PathLike[str]) -> Order:
    """Load a problem of ordering micro-batches.

    Args:
        instance: a problem of a shipped set, ``"order-test/p8-m32-003"``, or the path of a
            ``.json`` file of a problem or of a set, ``"FILE.json"`` or ``"FILE.json/NAME"``.

    Raises:
        UnknownInstanceError: there is no such set, problem or file.
        ParenvsError: the file is wrong; the line names the file and the field.
    """
    text = os.fspath(instance)
    name, _, member = text.rpartition("/")
    if text.endswith(".json"):
        if not Path(text).exists():
            raise UnknownInstanceError(f"instance {text!r}: no such file")
        return read_problem(text, shapes(), text)
    if name not in ORDER_SETS and not name.endswith(".json"):
        hint = did_you_mean(text.split("/")[0], ORDER_SETS)
        raise UnknownInstanceError(
            f"unknown instance {text!r}{hint}; give SET/NAME "
            f"of the sets {', '.join(ORDER_SETS)}, or the path of a .json file of a problem"
        )
    steps = ordering_steps(name)
    if member not in steps:
        ends = f", from {min(steps)} to {max(steps)}" if steps else ""
        raise UnknownInstanceError(
            f"unknown problem {text!r}{did_you_mean(member, steps)}; {name} holds "
            f"{len(steps)}{ends}"
        )
    return Order.of_step(steps[member], text)


def ordering_steps(name: str) -> dict[str, PackedStep]:
    """Read the packed steps of a shipped set, or of a ``.json`` file of a set, by their names.

    Raises:
        ParenvsError: there is no such file, or it is wrong.
    """
    if name in ORDER_SETS:
        return _shipped_steps(name)
    return read_set(name, shapes())


@lru_cache(maxsize=len(ORDER_SETS))
def _shipped_steps(name: str) -> dict[str, PackedStep]:
    """Read a shipped set of ordering problems once."""
    return read_set(data_folder() / f"{name}.json", shapes())


def partition_rows(name: str) -> dict[str, SetRow]:
    """Read the problems of a shipped set of ``PartitionPlan-v0``, or of a ``.json`` file of a set.

    Raises:
        UnknownInstanceError: there is no such set or file.
        ParenvsError: the file is wrong; the line names the file, the problem and the field.
    """
    if name in PARTITION_SETS:
        return _shipped_partitions(name)
    if name.endswith(".json") and Path(name).exists():
        return read_partition_set(name)
    if name.endswith(".json"):
        raise UnknownInstanceError(f"instance {name!r}: no such file")
    raise UnknownInstanceError(
        f"unknown set {name!r}{did_you_mean(name, PARTITION_SETS)}; known: "
        f"{', '.join(PARTITION_SETS)}, or give the path of a .json file of a set"
    )


@lru_cache(maxsize=len(PARTITION_SETS))
def _shipped_partitions(name: str) -> dict[str, SetRow]:
    """Read a shipped set of partition problems once."""
    return read_partition_set(data_folder() / f"{name}.json")


def load_trace(name: str | os.PathLike[str]) -> Trace:
    """Load a shipped trace by its name, or a file of either form.

    Raises:
        ParenvsError: the file is missing or wrong; the line names file, row and field.
    """
    text = os.fspath(name)
    if text in TRACES:
        return _shipped_trace(text)
    if not text.endswith(".csv"):
        raise UnknownInstanceError(
            f"unknown trace {text!r}{did_you_mean(text, TRACES)}; give one of {', '.join(TRACES)}, "
            "or the path of a .csv file"
        )
    return read_trace(text)


@lru_cache(maxsize=8)
def load_library(
    model: str = MEASURED[0], cluster: str | None = None, batch: int | None = None
) -> Library:
    """Load the candidate plans of a model.

    Args:
        model: a shape, by shipped name or path.
        cluster: its nodes are the servers; None takes the measured steps of one of ``MEASURED``.
        batch: samples of a step, with a cluster (default: 512).

    Raises:
        ParenvsError: the model or the cluster is unknown, or nothing was measured of the model.
    """
    shape = load_shape(model)
    if shape is None:
        raise UnknownInstanceError(
            f"unknown model {model!r}{did_you_mean(model, shapes())}; give the name of a shape or "
            "the path of its .json file"
        )
    chain = HybridModel.of_shape(shape)
    if cluster is not None:
        return Library.modelled(Hybrid(chain, Cluster.parse(cluster), batch or 512))
    if model not in MEASURED:
        raise ParenvsError(
            f"model {model!r}: no steps were measured; give a cluster, such as 16x8:a100, for the "
            f"cost model, or one of {', '.join(MEASURED)}"
        )
    if batch is not None:
        raise ParenvsError(
            f"batch: the steps of {model} were measured with their own; leave it out"
        )
    path = data_folder() / "measured" / f"{model}.json"
    content = {**json.loads(path.read_text(encoding="utf-8")), "model": model}
    return Library.measured(content, State.of(chain))


def elastic_rows(name: str) -> dict[str, Row]:
    """Read the problems of a shipped set of ``ElasticPlan-v0``, by their names.

    Raises:
        UnknownInstanceError: there is no such set.
    """
    if name not in ELASTIC_SETS:
        raise UnknownInstanceError(
            f"unknown set {name!r}{did_you_mean(name, ELASTIC_SETS)}; known: "
            f"{', '.join(ELASTIC_SETS)}"
        )
    return _shipped_rows(name)


def load_elastic(
    instance: str | os.PathLike[str], model: str | None = None, interval: float = SECONDS,
    cluster: str | None = None, batch: int | None = None,
) -> Elastic:  # fmt: skip
    """Load a problem of a job on nodes that come and go.

    Args:
        instance: a problem of a shipped set, ``"elastic-test/bulk-gpt-1.5b-000"``; or a trace:
            ``"p3"``, ``"g4dn"`` or the path of a ``.csv`` file.
        model: of a trace, see ``load_library`` (default: ``gpt-1.5b``).
        interval: seconds of an interval, of a trace.
        cluster: of a trace, see ``load_library``.
        batch: of a trace, see ``load_library``.

    Raises:
        ParenvsError: a name is unknown, a file is wrong, or the problem has settings of its own.
    """
    text = os.fspath(instance)
    place, _, member = text.partition("/")
    if place not in ELASTIC_SETS:
        library = load_library(model or MEASURED[0], cluster, batch)
        trace = load_trace(text)
        return Elastic(library, trace, interval, name=f"{trace.name}/{library.name}")
    for name, value in (("model", model), ("cluster", cluster), ("batch", batch)):
        if value is not None:
            raise ParenvsError(f"{name}: problems of {place} have one of their own; leave it out")
    if interval != SECONDS:
        raise ParenvsError(f"interval: problems of {place} have {SECONDS:g} s; leave it out")
    return _elastic_problem(place, member)


@lru_cache(maxsize=512)
def _elastic_problem(name: str, member: str) -> Elastic:
    """Make a problem of a shipped set once."""
    rows = elastic_rows(name)
    if member not in rows:
        raise UnknownInstanceError(
            f"unknown problem {f'{name}/{member}'!r}{did_you_mean(member, rows)}; {name} holds "
            f"{len(rows)}, from {min(rows)} to {max(rows)}"
        )
    row = rows[member]
    return Elastic(
        load_library(row.model), row.chain, intervals=row.intervals, name=f"{name}/{member}"
    )


@lru_cache(maxsize=len(ELASTIC_SETS))
def _shipped_rows(name: str) -> dict[str, Row]:
    """Read a shipped set of elastic problems once."""
    return read_elastic_set(data_folder() / f"{name}.json", MEASURED)


@lru_cache(maxsize=len(TRACES))
def _shipped_trace(name: str) -> Trace:
    """Read a shipped trace once."""
    return read_trace(data_folder() / "measured" / TRACES[name], name)


def use_of(text: str) -> str:
    """Say what a shipped name without a graph, of a set or a shape, is for; "" if it is neither."""
    set_name, _, member = text.partition("/")
    if text in shapes():
        return (
            f"instance {text!r} is a shape without a graph: task {HybridPlan.task} alone plans it"
        )
    if not _SET.fullmatch(set_name):
        return ""
    if not member:
        return f"{text!r} is a set of problems: parenvs evaluate AGENT --set {set_name} plays it"
    first = set_name.partition("-")[0]
    if first in _TASK_OF_SET:
        task = _TASK_OF_SET[first]
        return f"{text!r} is a problem of a set: give --task {task}, in Python task={task!r}"
    if first in _ENV_OF_SET:
        return (
            f"{text!r} is a problem of a set, without a model: "
            f"gymnasium.make({_ENV_OF_SET[first]!r}, instance={text!r}) plays it"
        )
    return (
        f"{text!r} is a problem of a set, without a model: parenvs.datasets.sets.set_of("
        f"{set_name!r}).load({text!r}) gives it to parenvs.solve"
    )
