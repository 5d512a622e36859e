"""The shipped sets of partition problems: families, references, names."""

import pytest
from cases import each

from parenvs import evaluate_set
from parenvs.agents.partition import sets as partition_sets
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.partition.heuristics import partition_all
from parenvs.core import sets
from parenvs.core.plan import ILLEGAL
from parenvs.datasets import references as reference_files
from parenvs.datasets.references import PARTITIONS, references
from parenvs.errors import ParenvsError
from parenvs.shipped import manifest
from parenvs.tasks.partition import sets as problems
from parenvs.tasks.partition.sets import PARTITION_SETS, partition_rows
from parenvs.tasks.partition.space import PartitionSpace

SMALL = ("partition-train/lstm-000", "partition-train/vgg-000", "partition-train/resnet-001")


def test_sets__families_are_disjoint():
    found = {name: set(map(problems.family_of, problems.members(name))) for name in PARTITION_SETS}
    assert [len(families) for families in found.values()] == [7, 3, 3]
    assert len(set.union(*found.values())) == 13
    for name, families in found.items():
        assert families == set(partition_sets.FAMILIES[name])
        for member, row in partition_rows(name).items():
            family = manifest()["instances"][row.instance]["family"]
            assert problems.family_of(member) == family


def test_sets__problems_differ_and_the_constant_action_loses():
    every = [row for name in PARTITION_SETS for row in partition_rows(name).values()]
    assert len(set(map(str, every))) == len(every) == 13 * partition_sets.COUNT
    rows = references(PARTITIONS)
    assert set(rows) == {name for one in PARTITION_SETS for name in problems.members(one)}
    for name, row in rows.items():
        reference = sets.known_reference(name)
        assert (reference.kind, row["proven"]) == ("optimum", True)
        assert 0.1 <= reference.value <= reference.bound < 1
        assert row["ones"] < 0.99 * reference.value
    assert sum(row["ones"] == ILLEGAL for row in rows.values()) >= 6


@each("name", SMALL)
def test_sets__references_are_the_solvers(name):
    problem = problems.load(name)
    best = exact_partition(problem)
    assert best.proven
    assert best.value == pytest.approx(sets.proven_optimum(name), rel=1e-9)
    assert problem.report(best.plan).legal
    ones = partition_all(PartitionSpace.of(problem)).value
    assert ones == pytest.approx(references(PARTITIONS)[name]["ones"], rel=1e-9)


@pytest.mark.thorough
def test_sets__are_what_the_command_makes(monkeypatch):
    monkeypatch.setattr(partition_sets, "FAMILIES", {"partition-train": ("lstm",)})
    shipped = partition_rows("partition-train")
    made = list(partition_sets.make_set("partition-train"))
    assert [member for member, _, _ in made] == [x for x in shipped if x.startswith("lstm-")]
    for member, row, reference in made:
        assert shipped[member] == row
        stored = references(PARTITIONS)[f"partition-train/{member}"]
        assert partition_sets.fault(stored, reference) == ""


def test_sets__faults_of_references():
    row = references(PARTITIONS)[SMALL[0]]
    assert partition_sets.fault(None, row) == "is missing"
    assert partition_sets.fault({**row, "fingerprint": "x"}, row) == "is of another graph"
    assert "field 'length'" in partition_sets.fault({**row, "length": 2 * row["length"]}, row)


def test_sets__command_refuses_what_it_does_not_know(capsys):
    assert partition_sets.main(["partition-trial"]) == 2
    assert (
        "no set 'partition-trial' (did you mean 'partition-train'?); known: "
        in capsys.readouterr().err
    )
    assert partition_sets.main(["--seed", "-1"]) == 2


def test_sets__reference_of_another_graph(monkeypatch):
    rows = {SMALL[0]: {**references(PARTITIONS)[SMALL[0]], "fingerprint": "sha256:0"}}
    monkeypatch.setattr(reference_files, "references", lambda file: rows)
    found = sets.set_of("partition-train")
    with pytest.raises(ParenvsError, match=r"partition-references\.json: .*: of another graph"):
        found.reference(SMALL[0])
    assert found.reference("partition-train/lstm-001").kind == "bound"


def test_sets__are_evaluated():
    played = evaluate_set("exact", "partition-train", "lstm")
    assert played.proven
    assert played.regrets.max() < 1e-9
    ones = evaluate_set(lambda seen, mask: 1, "partition-train", "lstm")
    assert ones.values[0].tolist() == pytest.approx(
        [references(PARTITIONS)[name]["ones"] for name in ones.problems], rel=1e-9
    )
    assert ones.regrets.min() > 0.009
    with pytest.raises(
        ParenvsError,
        match="no problem of family 'dlrn'",
    ):
        evaluate_set("exact", "partition-validation", "dlrn")
