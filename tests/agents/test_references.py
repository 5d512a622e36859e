"""Files of references: resumed, checked, never below what any plan can reach."""

import json

import pytest

from benchmarks.references import ReferenceFile, hybrid_fault
from parenvs.agents.hybrid.entries import plan_of_row
from parenvs.datasets.hybrid.problems import find_hybrid, problem_sets
from parenvs.datasets.references import HYBRID, read, references
from parenvs.errors import ParenvsError, UnknownInstanceError


def test_references__are_of_the_shipped_problems():
    rows = references(HYBRID)
    for name, number in (("hybrid-validation", 7), ("hybrid-test", 31)):
        problem = problem_sets()[name][number]
        row = rows[problem.instance]
        assert hybrid_fault(problem, row) == ""
        assert plan_of_row(problem, row).instance == problem.instance
        assert row["value"] == pytest.approx(problem.report(plan_of_row(problem, row)).value)
    for name in ("hybrid-validation", "hybrid-test"):
        assert {problem.instance for problem in problem_sets()[name]} <= set(rows)
    for row in rows.values():
        assert 0 < row["bound"] <= row["length"] * (1 + 1e-9)


def test_references__faults_are_found():
    problem = problem_sets()["hybrid-test"][1]
    row = references(HYBRID)[problem.instance]
    assert "of another model" in hybrid_fault(problem, {**row, "fingerprint": "sha256:0"})
    assert "its plan takes" in hybrid_fault(problem, {**row, "length": 0.9 * row["length"]})
    assert "its bound" in hybrid_fault(problem, {**row, "bound": 0.9 * row["bound"]})
    assert "its bound" in hybrid_fault(problem, {**row, "bound": 1.1 * row["length"]})
    with pytest.raises(UnknownInstanceError, match="unknown set 'llama3-70b"):
        find_hybrid("llama3-70b")


def test_references__are_resumed(tmp_path, capsys):
    """What is there and right stays; what is missing or wrong is made, and written at once."""
    made, path = [], tmp_path / "some.json"

    def make(number):
        if number == 4 and not made[3:]:
            made.append(number)
            raise KeyboardInterrupt
        made.append(number)
        return {"length": float(number), "bound": 1.0}

    fault = lambda number, row: "" if row["length"] == number else "is wrong"  # noqa: E731
    names = lambda: map(str, range(2, 6))  # noqa: E731
    file = ReferenceFile("some.json", "python -m some", names, int, make, fault)
    path.write_text(json.dumps({"3": {"length": 9.0, "bound": 1.0}}))
    made.append(None)
    with pytest.raises(KeyboardInterrupt):
        file.main(["--out", str(path)])
    assert set(read(path)) == {"2", "3"} and made == [None, 2, 3, 4]
    assert file.main(["--check", "--out", str(path)]) == 1
    assert "4: is missing" in capsys.readouterr().out
    assert file.main(["--out", str(path)]) == 0
    assert made[4:] == [4, 5] and file.main(["--check", "--out", str(path)]) == 0
    rows = {**read(path), "9": {"length": 1.0, "bound": 1.0}}  # none of those that are listed
    path.write_text(json.dumps(rows))
    assert file.main(["--out", str(path)]) == 0 and made[6:] == [9]
    path.write_text("[]")
    with pytest.raises(ParenvsError, match="damaged"):
        file.main(["--out", str(path)])


def test_references__made_again_are_never_worse(tmp_path):
    """The shorter plan stays, and the higher bound, whichever had it."""
    path = tmp_path / "some.json"

    def row(length, bound, order, proven=False):
        return {"length": length, "bound": bound, "proven": proven, "order": order}

    rows = {"1": row(5.0, 3.0, "old"), "2": row(5.0, 4.0, "old"), "3": row(4.0, 3.0, "old")}
    path.write_text(json.dumps(rows))
    new, meets = row(4.5, 3.5, "new"), row(9.0, 4.0, "new")
    file = ReferenceFile(
        "some.json", "python -m some", lambda: rows, int,
        lambda number: meets if number == 3 else new, lambda *_: "",
    )  # fmt: skip
    assert file.main(["--out", str(path)]) == 0 and read(path) == rows
    assert file.main(["--again", "--out", str(path)]) == 0
    better = {"1": row(4.5, 3.5, "new"), "2": row(4.5, 4.0, "new")}
    assert read(path) == {**better, "3": row(4.0, 4.0, "old", proven=True)}


def test_references__of_several_commands_are_all_kept(tmp_path):
    path, row = tmp_path / "some.json", {"length": 1.0, "bound": 1.0}

    def make(number):
        if number == 1:  # another command writes in the meantime
            assert file.main(["2", "--out", str(path)]) == 0
        return row

    file = ReferenceFile("some.json", "python -m some", tuple, int, make, lambda *_: "")
    assert file.main(["1", "--out", str(path)]) == 0
    assert read(path) == {"1": row, "2": row}
