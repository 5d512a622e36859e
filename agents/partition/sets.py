"""Fixed sets of partition problems of many graphs, and their references, both stored as data.

    python -m parenvs.agents.partition.sets                   # draw and solve all sets anew
    python -m parenvs.agents.partition.sets partition-test    # of these
    python -m parenvs.agents.partition.sets --check           # solve again, change nothing

A problem is a shipped training step of a family on a drawn cluster, with drawn micro-batches and
recomputation, and the memory of a device as its limit. It is drawn until

* some plan fits, as the exact solver proves; of every other draw the replicated step does not;
* the shortest step that fits saves a tenth of the replicated one's seconds or more;
* the plan of the constant action 1 does not fit, or its return is 1 % or more below the optimum's.

No family is in two sets. Three are in none: ``gpt``, whose graph is too large, and ``dlrm`` and
``mixtral``, of which few draws suit.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.partition.heuristics import partition_all
from parenvs.cluster import Cluster
from parenvs.datasets.references import PARTITIONS, Row, read, write
from parenvs.datasets.set_commands import command_line, read_options
from parenvs.errors import NO_PLAN, ParenvsError, printable
from parenvs.instances import load_graph
from parenvs.shipped import manifest
from parenvs.tasks.partition.drawn.files import SetRow, save_set
from parenvs.tasks.partition.drawn.outlook import Outlook
from parenvs.tasks.partition.plan import REMADE
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.sets import PARTITION_SETS, build, members, row_of
from parenvs.tasks.partition.space import OPEN, PartitionSpace
from parenvs.tasks.partition.step import Step

MODULE = "parenvs.agents.partition.sets"
SEED = 2007
"""Seed of the shipped sets."""
FAMILIES: dict[str, tuple[str, ...]] = dict(
    zip(
        PARTITION_SETS,
        (
            ("bert", "llama", "vit", "clip", "vgg", "resnet", "lstm"),
            ("dit", "mixer", "convnext"),
            ("t5", "whisper", "unet"),
        ),
        strict=True,
    )
)
"""Shipped set -> its families."""
COUNT = 4
"""Problems of each family."""
MOST_INSTRUCTIONS = 50_000
"""Instructions of the largest graphs that are drawn, so that problems are read in seconds."""
SCANNED = "-scanned"
"""End of the names of graphs with loops, of five classes or so; the same networks without loops
have a hundred."""
CLUSTERS = (
    "1x4:v100", "1x8:v100", "2x8:v100", "1x4:a100", "1x8:a100", "2x8:a100", "4x8:a100",
    "1x8:h100", "2x8:h100", "4x8:h100", "8x8:h100",
)  # fmt: skip
"""Clusters that are drawn."""
MOST_SAMPLES = 32
"""The largest micro-batch that is drawn, a power of two."""
MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Numbers of micro-batches that are drawn."""
VARIANTS = 8
"""Clusters of as many devices, micro-batches and recomputations that are tried of a draw."""
LEAST_RETURN, LEAST_LOSS = 0.1, 0.01
"""Least return of an optimum, and least share of it that the constant action 1 loses."""
TAKEN = 2
"""Most problems that are taken of a draw."""
DRAWS = 100
"""Draws of a family before it is given up."""


def draw_rows(rng: np.random.Generator, family: str) -> list[SetRow]:
    """Draw a graph of a family, its micro-batch and a number of devices, and variants of the rest.

    They have the same dimension classes, and a plan may fit all, some or none of them.
    """
    entries = manifest()["instances"]
    names = [
        name
        for name, entry in entries.items()
        if entry["family"] == family
        and entry["graphs"]["train"]["instructions"] <= MOST_INSTRUCTIONS
        and not name.endswith(SCANNED)
    ]
    name = names[int(rng.integers(len(names)))]
    max_power = int(np.log2(min(entries[name]["batch_size"], MOST_SAMPLES)))
    samples = 2 ** int(rng.integers(1, max_power + 1))
    devices = Cluster.parse(CLUSTERS[int(rng.integers(len(CLUSTERS)))]).devices
    alike = [text for text in CLUSTERS if Cluster.parse(text).devices == devices]
    every = [
        SetRow(name, cluster, micro_batch=samples, micro_batches=count, recompute=remade)
        for cluster, count, remade in itertools.product(alike, MICRO_BATCHES, REMADE)
    ]
    return [every[number] for number in rng.permutation(len(every))[:VARIANTS].tolist()]


def variant(problem: Partitioning, row: SetRow) -> Partitioning:
    """Return the problem of another variant of the same draw, whose classes are the same."""
    cluster = Cluster.parse(row.cluster)
    step = Step.of(
        cluster, row.micro_batch, row.micro_batches, row.recompute, row.memory_limit
    )  # fmt: skip
    return replace(problem, cluster=cluster, step=step.on(problem.graph))


def reference_of(problem: Partitioning) -> Row:
    """Solve a problem.

    Returns:
        Its fingerprint, seconds of the replicated step, of the shortest step that fits and a proven
        bound of those, and the return of the constant action 1, -1 if that exceeds the limit.

    Raises:
        InfeasibleError: no plan fits.
    """
    best, replicated = exact_partition(problem), problem.replicate_seconds
    assert best.bound is not None
    return {
        "fingerprint": problem.graph.fingerprint,
        "replicated": replicated,
        "length": float(problem.step_seconds(best.report.chosen)),
        "bound": (1.0 - best.bound) * replicated,
        "proven": best.proven,
        "ones": partition_all(PartitionSpace.of(problem)).value,
    }


def suits(problem: Partitioning, strict: bool = False) -> Row | None:
    """Return the reference of a drawn problem if the sets take it, else None.

    Args:
        problem: the problem.
        strict: whether to refuse those whose replicated step fits.
    """
    free = float(problem.returns.value(exact_partition(problem, np.inf).report.chosen))
    chosen = partition_all(PartitionSpace.of(problem)).report.chosen
    ones = float(problem.returns.value(chosen))
    if free < LEAST_RETURN or (ones >= (1.0 - LEAST_LOSS) * free and problem.fits(chosen)):
        return None
    splits = ~problem.classes.blocked
    if strict and problem.fits(np.zeros_like(splits)):
        return None
    if problem.footprint.least(splits) > problem.memory_limit:
        return None
    outlook = Outlook.of(problem)
    if not outlook.fits(outlook.look(np.full(len(outlook.gain), OPEN), 0).least).any():
        return None  # the solver takes long to find that out
    try:
        row = reference_of(problem)
    except NO_PLAN:
        return None
    best = 1.0 - row["length"] / row["replicated"]
    is_lost = row["ones"] < (1.0 - LEAST_LOSS) * best
    return row if row["proven"] and best >= LEAST_RETURN and is_lost else None


def make_set(name: str, seed: int = SEED) -> Iterator[tuple[str, SetRow, Row]]:
    """Draw the problems of a shipped set, each from ``seed``, its family and its draw.

    Yields:
        Its name within the set, the problem in words, and its reference.

    Raises:
        ParenvsError: ``DRAWS`` draws of a family have too few problems that suit.
    """
    families = [entry["family"] for entry in manifest()["instances"].values()]
    for family in FAMILIES[name]:
        rows: dict[SetRow, Row] = {}
        for draw in range(DRAWS):
            rng = np.random.default_rng([seed, families.index(family), draw])
            of_draw = _suiting(draw_rows(rng, family), strict=draw % 2 == 0)
            for row, reference in itertools.islice(of_draw, TAKEN):
                if row not in rows and len(rows) < COUNT:
                    yield f"{family}-{len(rows):03d}", row, reference
                    rows[row] = reference
            if len(rows) == COUNT:
                break
        else:
            raise ParenvsError(f"{name}: {len(rows)} problems of {family} suit; draw other ones")


def _suiting(rows: list[SetRow], strict: bool) -> Iterator[tuple[SetRow, Row]]:
    """Yield the variants of a draw that suit, with their references."""
    graph, clusters = load_graph(rows[0].instance), [Cluster.parse(row.cluster) for row in rows]
    parameter_bytes = float(graph.tensor_bytes[graph.parameter_tensor].sum())
    if all(parameter_bytes / cluster.devices > cluster.memory_limit for cluster in clusters):
        return  # as quick to see as it is common
    try:
        problem = build(replace(rows[0], recompute=REMADE[0]), rows[0].instance)
    except ParenvsError:  # a dimension is no multiple of the batch
        return
    for row in rows:
        try:
            reference = suits(variant(problem, row), strict)
        except ParenvsError:  # a forward pass in a loop is not recomputed
            continue
        if reference is not None:
            yield row, reference


def fault(row: Row | None, anew: Row) -> str:
    """Return what is wrong with a stored reference in words, or an empty text."""
    if row is None:
        return "is missing"
    if row.get("fingerprint") != anew["fingerprint"]:
        return "is of another graph"
    for key in ("replicated", "length", "bound"):
        if not np.isclose(row[key], anew[key], rtol=1e-6):
            return f"field {key!r} is {row[key]}, solved anew {anew[key]}"
    return ""


def check(sets: Iterable[str], references: dict[str, Row]) -> int:
    """Solve all problems of sets again, print faults, and return their number."""
    faults = 0
    for set_name in sets:
        for name in members(set_name):
            wrong = fault(references.get(name), reference_of(build(row_of(name), name)))
            faults += bool(wrong)
            if wrong:
                print(f"{name}: {wrong}", flush=True)
    return faults


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = command_line(MODULE, __doc__, SEED)
    parser.add_argument("--check", action="store_true", help="solve again, change nothing")
    options = read_options(parser, PARTITION_SETS, arguments)
    if options is None:
        return 2
    sets, path = options.sets, options.out / PARTITIONS
    try:
        references = read(path)
        if options.check:
            faults = check(sets, references)
            print(f"{path}: {len(references)} references, {faults} wrong")
            return 1 if faults else 0
        for set_name in sets:
            rows: dict[str, SetRow] = {}
            others = {k: v for k, v in references.items() if not k.startswith(f"{set_name}/")}
            for member, row, reference in make_set(set_name, options.seed):
                rows[member] = row
                others[f"{set_name}/{member}"] = reference
                best = 1.0 - reference["length"] / reference["replicated"]
                words = f"{row.instance} on {row.cluster}, {row.micro_batches} x {row.micro_batch}"
                print(
                    f"{set_name}/{member}: {words}, recompute {row.recompute}: return {best:.4f}, "
                    f"action 1 {reference['ones']:.4f}",
                    flush=True,
                )
            save_set(options.out / f"{set_name}.json", rows)
            references = others
            write(path, references)
    except ParenvsError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
