"""Makes shipped sets and problem pools again: files of ``datasets/data``.

    python benchmarks/make_sets.py plan-test.npz hybrid.json             # as they ship
    python benchmarks/make_sets.py plan-test.npz --seed 1 --out other    # a set of your own
    python benchmarks/make_sets.py banks/hybrid-hetero-8.npz             # pools have one seed

Sets of partition problems take hours, as each is solved; ``benchmarks/partition_sets.py`` has how.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks.partition_sets import pool_row
from benchmarks.partition_sets import write_set as write_partitions
from parenvs.datasets.banks import ENDS, FOLDER, Bank, write_arrays
from parenvs.datasets.hybrid import problems as hybrid
from parenvs.datasets.partition import problems as partition
from parenvs.datasets.pipeline import problems as pipeline
from parenvs.datasets.pipeline.families import FAMILIES
from parenvs.datasets.sharding import problems as sharding
from parenvs.errors import ParenvsError, among, printable, shown
from parenvs.fields import write_rows
from parenvs.files import write_text
from parenvs.instances import data_folder
from parenvs.tasks.elastic import problems as elastic
from parenvs.tasks.elastic.problem import INTERVALS, known_samples
from parenvs.tasks.hybrid.plan_arrays import fastest
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.sharding.turns import board_of

HYBRID_OUTSIDE = hybrid.Ranges(
    layers=(64, 128),
    hidden=(8192, 20_480),
    sequences=(2048, 16_384),
    servers=(20, 40, 48, 64),
    batch=(9, 12),
    networks=(6.25e9, 100e9),
)
"""Larger models on larger clusters, with other networks, than agents train on."""
HYBRID_SETS: dict[str, tuple[int, hybrid.Ranges]] = {
    "hybrid-validation": (60, hybrid.INSIDE),
    "hybrid-test": (120, hybrid.INSIDE),
    "hybrid-outside": (60, HYBRID_OUTSIDE),
}
"""Set of equal servers -> number of its problems, and their ranges; families take turns."""
PARTS = {"validation": 16, "test": 16, "outside": 8}
"""Part of each tier of unequal servers -> number of its problems; families take turns."""
HETERO_SETS = [f"{tier}-{part}" for tier in hybrid.TIERS for part in PARTS]
ELASTIC_COUNTS = dict(zip(elastic.ELASTIC_SETS, (16, 2, 4), strict=True))
"""Set of chains -> problems of each family and model."""


def watched(items: Sequence[Any], words: str) -> Iterable[Any]:
    """Return the items, with a progress bar where someone looks."""
    # Before rich 14.3 a disabled bar prints an empty line.
    return track(items, words) if sys.stderr.isatty() else items


def pipeline_set(name: str, seed: int) -> list[pipeline.DrawnProblem]:
    """Generate a set of pipelines, each problem from the seed, its set's place and its number."""
    count, ranges = pipeline.SETS[name]
    families, place = list(FAMILIES), list(pipeline.SETS).index(name)
    return [
        pipeline.draw(np.random.default_rng([seed, place, i]), families[i % len(families)], ranges)
        for i in watched(range(count), name)
    ]


def save_pipelines(path: Path, problems: Sequence[pipeline.DrawnProblem]) -> None:
    """Write problems as ``pipeline.draw`` generates them; their names are not stored."""
    families, clusters = list(FAMILIES), [x.pipeline.cluster for x in problems]
    arrays: dict[str, Any] = {
        "schema": [pipeline.SCHEMA],
        "families": np.frombuffer("\n".join(families).encode(), dtype=np.uint8),
        "offset": np.cumsum([0, *(len(problem.pipeline.profile) for problem in problems)]),
        "family": [families.index(problem.family) for problem in problems],
        "memory_bytes": [cluster.device.memory_bytes for cluster in clusters],
        "micro_batches": [problem.pipeline.micro_batches for problem in problems],
        "stages": [problem.pipeline.stages for problem in problems],
    }
    for key in pipeline.CLUSTER[:-1]:
        arrays[key] = [getattr(cluster, key) for cluster in clusters]
    for key in pipeline.CHAIN:
        parts = [getattr(problem.pipeline.profile, key) for problem in problems]
        mantissa, exponent = np.frexp(np.concatenate([np.empty(0), *parts]))
        arrays[f"{key}_mantissa"] = np.ldexp(mantissa, pipeline.BITS)
        arrays[f"{key}_exponent"] = exponent - pipeline.BITS
    write_arrays(path, {k: np.asarray(arrays[k]).astype(x) for k, x in pipeline.TYPES.items()})


def write_pipelines(name: str, path: Path, seed: int) -> int:
    """Write a set of pipelines."""
    problems = pipeline_set(name, seed)
    save_pipelines(path, problems)
    return len(problems)


def hybrid_set(name: str, seed: int) -> list[Hybrid]:
    """Generate a set of hybrid problems, each from the seed, its set's place and its number."""
    if name in HYBRID_SETS:
        kind, place, (count, ranges) = "hybrid", list(HYBRID_SETS).index(name), HYBRID_SETS[name]
        generate: Callable[..., Hybrid] = partial(hybrid.make, ranges)
    else:
        kind, _, part = name.rpartition("-")
        tier, place, count = hybrid.TIERS[kind], HETERO_SETS.index(name), PARTS[part]
        if part == "outside":  # chains and servers that training never generates
            tier = replace(tier, layers=(3.0, 4.0), slowest=0.4, hidden=(4096, 14_336))
            tier = replace(tier, sequences=(2048, 16_384), experts=(4, 32))
        generate = partial(hybrid.make_hetero, tier)
    counts, problems = Counter[str](), []
    for number in range(count):
        family = hybrid.family_of(kind, number)
        rng = np.random.default_rng([seed, place, number])
        problems.append(generate(family, rng, f"{name}/{family}-{counts[family]:03d}"))
        counts[family] += 1
    return problems


def write_hybrids(names: Iterable[str], path: Path, seed: int) -> int:
    """Write sets of hybrid problems to one file."""
    sets = {name: [_hybrid_json(x) for x in hybrid_set(name, seed)] for name in names}
    lines = (f'"{x}": [\n' + ",\n".join(map(json.dumps, sets[x])) + "\n]" for x in sets)
    write_text(path, f'{{"schema": 1, "seed": {seed}, "sets": {{\n' + ",\n".join(lines) + "\n}}\n")
    return sum(map(len, sets.values()))


def _hybrid_json(problem: Hybrid) -> dict[str, Any]:
    assert problem.model.shape is not None
    return {
        "shape": problem.model.shape.to_json(),
        "cluster": problem.cluster.to_json(),
        "batch": problem.batch,
        "stack": problem.stack.to_json(),
        "precision": problem.precision,
    }


def write_chains(name: str, path: Path, seed: int) -> int:
    """Write a set of Markov chains of elastic problems."""
    place, rows = list(ELASTIC_COUNTS).index(name), {}
    chains, models = list(enumerate(elastic.CHAINS)), list(enumerate(elastic.MEASURED))
    for (i, family), (k, model), which in product(chains, models, range(ELASTIC_COUNTS[name])):
        # Each problem has a generator of its own, so a set can grow without changing others.
        rng = np.random.default_rng([seed, place, i, k, which])
        chain = elastic.draw_markov(rng, family, elastic.NODES)
        rows[f"{family}-{model}-{which:03d}"] = asdict(elastic.Row(model, INTERVALS, chain))
    write_rows(path, rows)
    return len(rows)


def write_pool(
    pool: Callable[[str], Bank],
    row: Callable[[str, int], Mapping[str, np.ndarray]],
    kind: str,
    path: Path,
    seed: int,
) -> int:
    """Write the pool of a family or set; ``row`` makes the arrays of a problem from its number.

    Their shapes may differ along the first axis only.
    """
    bank = pool(kind)
    rows = [row(kind, i) for i in watched(range(len(bank)), f"making {bank.name}")]
    arrays: dict[str, Any] = {}
    for name in rows[0]:
        each = [row[name] for row in rows]
        if len({values.shape for values in each}) == 1:
            arrays[name] = np.stack(each)
        else:
            arrays[name] = np.concatenate(each)
            arrays[ENDS + name] = np.cumsum([len(values) for values in each])
    write_arrays(path, arrays)
    return len(rows)


def hybrid_row(kind: str, seed: int) -> Mapping[str, np.ndarray]:
    """Return what a pool stores of a problem: all that is generated, and its best uniform plan."""
    problem = hybrid.drawn(kind, seed)
    cluster, shape = problem.cluster, problem.model.shape
    return {
        "shape": np.array([getattr(shape, name) for name in hybrid.SHAPE], dtype=np.int32),
        "device": np.array(hybrid.DEVICES.index(cluster.device.name), dtype=np.uint8),
        "servers": np.array(cluster.servers, dtype=np.uint8),
        "network": np.array(cluster.device_nic_bw),
        "speeds": np.round(np.array(cluster.speeds) * hybrid.SPEED_STEPS).astype(np.uint16),
        "batch": np.array(problem.batch, dtype=np.int32),
        "start": fastest(problem)[0].astype(np.int16),
    }


def elastic_row(family: str, number: int) -> Mapping[str, np.ndarray]:
    """Return what a pool stores of a course, and what hindsight and the fastest plans earn."""
    course = elastic.generated_course(family, number)
    known = [known_samples(elastic.job(model, course, ""), course) for model in elastic.MEASURED]
    return {
        "joined": course.joined.astype(np.uint8),
        "gone": course.bits().astype(np.uint32),
        "hindsight": np.array([samples.best for samples in known]),
        "fastest": np.array([samples.start for samples in known]),
    }


def sharding_row(family: str, number: int) -> Mapping[str, np.ndarray]:
    """Return what a pool stores of a problem: reduced, with plans, messages and fingerprint."""
    problem = sharding.drawn(family, number)
    board = board_of(problem)
    return {
        **{name: getattr(board.reduced, name) for name in sharding.ARRAYS},
        "constant": np.array(board.reduced.constant),
        "witness": board.witness,
        "first": board.greedy,
        "messages": board.messages,
        "fingerprint": np.array(problem.fingerprint),
    }


Makers = dict[str, tuple[int | None, Callable[[Path, int], int]]]
"""File -> the seed that it ships of, None if it takes none, and the function that writes it to a
path from a seed and returns the number of its problems."""


def pools(prefix: str, kinds: Iterable[str], *makers: Callable[..., Any]) -> Makers:
    """Return the makers of the pools of families or sets; see ``write_pool``."""
    return {f"{FOLDER}/{prefix}{x}.npz": (None, partial(write_pool, *makers, x)) for x in kinds}


FILES: Makers = {
    **{f"{name}.npz": (2007, partial(write_pipelines, name)) for name in pipeline.SETS},
    "hybrid.json": (1104, partial(write_hybrids, HYBRID_SETS)),
    "hetero.json": (2307, partial(write_hybrids, HETERO_SETS)),
    **{f"{name}.json": (2024, partial(write_chains, name)) for name in ELASTIC_COUNTS},
    **{f"{x}.json": (2007, partial(write_partitions, x)) for x in partition.PARTITION_SETS},
    **pools("hybrid-", hybrid.BANKS, hybrid.bank, hybrid_row),
    **pools("elastic-", elastic.FAMILIES, elastic.bank, elastic_row),
    **pools("intra-op-", sharding.BANKS, sharding.bank, sharding_row),
    **pools("", partition.PARTITION_SETS, partition.bank, pool_row),
}


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="plan-test.npz, hybrid.json, ...")
    parser.add_argument("--seed", type=int, help="default: that of the shipped file")
    parser.add_argument("--out", type=Path, default=data_folder(), help="folder of the files")
    options = parser.parse_args(None if arguments is None else list(arguments))
    for file in options.files:
        if file not in FILES:
            parser.error(f"no file {shown(file)}{among(file, FILES)}")
        if options.seed is not None and FILES[file][0] is None:
            parser.error(f"--seed: {file} has one seed; leave it out")
    if options.seed is not None and options.seed < 0:
        parser.error(f"--seed is {options.seed}; give 0 or more")
    for file in options.files:
        seed, write = FILES[file]
        path = options.out / file
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            count = write(path, seed or 0 if options.seed is None else options.seed)
        except ParenvsError as error:
            print(printable(str(error)), file=sys.stderr)
            return 2
        print(f"{path}: {count:,} problems, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
