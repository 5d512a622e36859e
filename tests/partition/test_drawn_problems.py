"""The shipped sets of partition problems: families, references, names."""

import numpy as np
import pytest
from cases import each

from benchmarks import make_sets, partition_sets
from parenvs import evaluate_set
from parenvs.agents.partition.exact import exact_partition
from parenvs.core import sets
from parenvs.datasets import references as reference_files
from parenvs.datasets.partition import problems
from parenvs.datasets.partition.problems import (
    LIMITS,
    PARTITION_SETS,
    partition_rows,
    problem_named,
)
from parenvs.datasets.references import PARTITIONS, read, references
from parenvs.errors import ParenvsError
from parenvs.instances import manifest
from parenvs.tasks.partition.linear import Linear

SMALL = ("partition-train/vgg-000", "partition-train/vgg-007", "partition-train/resnet-004")


def test_sets__families_are_disjoint():
    found = {name: set(map(sets.family_named, problems.members(name))) for name in PARTITION_SETS}
    assert sum(map(len, found.values())) == len(set.union(*found.values())) >= 12
    for name, families in found.items():
        assert families == set(partition_sets.FAMILIES[name])
        for member, row in partition_rows(name).items():
            family = manifest()["instances"][row.instance]["family"]
            assert sets.family_named(member) == family


def test_sets__problems_differ_and_are_proven():
    every = [row for name in PARTITION_SETS for row in partition_rows(name).values()]
    count = sum(sum(families.values()) for families in partition_sets.FAMILIES.values())
    assert len(set(map(str, every))) == len(every) == count * LIMITS
    rows = references(PARTITIONS)
    assert set(rows) == {name for one in PARTITION_SETS for name in problems.members(one)}
    for name, row in rows.items():
        reference = sets.set_of(name.partition("/")[0]).kind.costs(name)
        assert (reference.kind, row["proven"]) == ("optimum", True)
        assert reference.value == row["length"] >= row["bound"] == reference.bound


def same(row, again):
    """Whether a reference is that of the same graph, with the same costs."""
    assert row["fingerprint"] == again["fingerprint"]
    for key in ("replicated", "length", "bound"):
        assert row[key] == pytest.approx(again[key], rel=1e-6)


@each("name", SMALL)
def test_sets__references_are_the_solvers(name):
    """Of both: the one of all moments, and the one of the graph."""
    problem, row = problem_named(name), references(PARTITIONS)[name]
    best = exact_partition(problem)
    assert best.proven and problem.report(best.plan).legal
    assert best.cost == pytest.approx(row["length"], rel=1e-9)
    again, _ = partition_sets.solved(Linear.of(problem, name), problem)
    same(row, again)


@pytest.mark.thorough
def test_sets__are_what_the_command_makes(monkeypatch, tmp_path):
    monkeypatch.setattr(partition_sets, "FAMILIES", {"partition-train": {"vgg": 1}})
    shipped = partition_rows("partition-train")
    assert make_sets.main(["partition-train.json", "--out", str(tmp_path)]) == 0
    rows, made = problems.read_set(tmp_path / "partition-train.json"), read(tmp_path / PARTITIONS)
    assert list(rows) == [f"vgg-{number:03d}" for number in range(LIMITS)]
    for member, row in rows.items():
        assert shipped[member] == row
        name = f"partition-train/{member}"
        same(references(PARTITIONS)[name], made[name])


def test_sets__reference_of_another_graph(monkeypatch):
    rows = {SMALL[0]: {**references(PARTITIONS)[SMALL[0]], "fingerprint": "sha256:0"}}
    monkeypatch.setattr(reference_files, "references", lambda file: rows)
    found = sets.set_of("partition-train")
    with pytest.raises(ParenvsError, match=r"partition-references\.json: .*: of another problem"):
        found.kind.costs(SMALL[0])
    assert found.kind.costs("partition-train/vgg-001") is None


def test_sets__are_evaluated():
    played = evaluate_set("exact", "partition-train", "vgg", first=3)
    assert played.reference == "optima"
    assert np.abs(played.gaps).max() < 1e-9
    with pytest.raises(ParenvsError, match="no problem of family 'dlrn'"):
        evaluate_set("exact", "partition-validation", "dlrn")
