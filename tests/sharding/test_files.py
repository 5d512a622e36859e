"""Reading and writing: the contest's example, what is refused, and in which words."""

import copy
import gzip

import numpy as np
import pytest
from cases import each
from drawn_intra_op import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from intra_op_files import FOLDER, SMALL, needs_files, written

from parenvs.errors import ParenvsError, PlanError
from parenvs.tasks.sharding.files import (
    CONTEST_RECORDS,
    SHA256,
    add,
    contest_record,
    find,
    load_iopddl,
    load_strategies,
    save_iopddl,
    to_json,
)

BLANKS = gzip.compress(b" " * 40_000_000, mtime=0)


def test_load__reads_what_is_written(tmp_path):
    for name in ("p.json", "p.json.gz"):
        problem = load_iopddl(written(tmp_path, SMALL, name))
        assert (problem.name, problem.limit, len(problem)) == ("small", 14, 3)
        assert to_json(problem) == SMALL
        save_iopddl(problem, tmp_path / f"again-{name}")
        assert load_iopddl(tmp_path / f"again-{name}").fingerprint == problem.fingerprint


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_save__keeps_any_problem(seed, tmp_path_factory):
    problem = draw(seed)
    path = tmp_path_factory.mktemp("drawn") / "p.json.gz"
    save_iopddl(problem, path)
    assert load_iopddl(path).fingerprint == problem.fingerprint


@needs_files
def test_load__the_contests_files(tmp_path, monkeypatch):
    sizes = {"B": (816, 1096), "G": (816, 1023)}
    for letter, (nodes, edges) in sizes.items():
        path = FOLDER / f"asplos-2025-iopddl-{letter}.json.gz"
        problem = load_iopddl(path)
        assert (len(problem), len(problem.ends)) == (nodes, edges)
        assert contest_record(problem.name) == CONTEST_RECORDS[letter]
        monkeypatch.setenv("PARENVS_IOPDDL", str(tmp_path))
        assert add(path)[2] and find(letter).fingerprint == problem.fingerprint


def test_add__names_what_differs(tmp_path, monkeypatch):
    monkeypatch.setenv("PARENVS_IOPDDL", str(tmp_path / "added"))
    assert not add(written(tmp_path, SMALL, "p.json.gz"))[2]
    other = changed(lambda p: p.update(name="asplos-2025-iopddl-B"))
    with pytest.raises(ParenvsError, match="calls itself asplos-2025-iopddl-B, but its SHA-256"):
        add(written(tmp_path, other, "q.json.gz"))
    assert set(SHA256) <= set(CONTEST_RECORDS)


def changed(change):
    content = copy.deepcopy(SMALL)
    change(content["problem"])
    return content


BROKEN = {
    "field 'problem.nodes' is missing": lambda p: p.pop("nodes"),
    "unknown field 'problem.more'": lambda p: p.update(more=1),
    r"field 'problem': field 'name' must be a printable text": lambda p: p.update(name="a\nb"),
    r"field 'problem.usage_limit' must be a whole number from 0, not True": lambda p: p.update(
        usage_limit=True
    ),
    r"nodes.costs\[1\] is empty": lambda p: (
        p["nodes"]["costs"][1].clear(), p["nodes"]["usages"][1].clear(),
    ),
    r"nodes.usages\[0\] has not as many": lambda p: p["nodes"]["usages"][0].pop(),
    r"nodes.costs\[2\]\[0\]' must be a whole number from 0, not -1": lambda p: (
        p["nodes"]["costs"][2].__setitem__(0, -1)
    ),
    r"nodes.costs\[2\]\[0\]' must be .*, not 9223372036854775808": lambda p: (
        p["nodes"]["costs"][2].__setitem__(0, 2**63)
    ),
    r"nodes.costs\[0\]\[0\]' must be a whole number from 0, not False": lambda p: (
        p["nodes"]["costs"][0].__setitem__(0, False)
    ),
    r"'1.5' is no whole number": lambda p: p["nodes"]["costs"][0].__setitem__(0, 1.5),
    r"nodes.intervals\[0\]' must be a pair of whole numbers": lambda p: (
        p["nodes"]["intervals"][0].append(1)
    ),
    r"nodes.costs\[1\]' must be a list of whole numbers from 0, not 7": lambda p: p["nodes"][
        "costs"
    ].__setitem__(1, 7),
    r"have 2, 3 and 3 entries": lambda p: p["nodes"]["intervals"].pop(),
    r"edges.nodes\[1\] names a node that is not below 3": lambda p: p["edges"]["nodes"][
        1
    ].__setitem__(0, 3),
    r"edges.costs\[1\] has not one number for each": lambda p: p["edges"]["costs"][1].pop(),
    r"edges.nodes and edges.costs have 3 and 2": lambda p: p["edges"]["costs"].pop(),
    r"edges.nodes\[0\]' must be a pair of whole numbers": lambda p: (
        p["edges"]["nodes"][0].append(2)
    ),
}  # fmt: skip


@each("message", BROKEN)
def test_load__refuses_in_one_line_that_names_file_and_field(tmp_path, message):
    path = written(tmp_path, changed(BROKEN[message]))
    with pytest.raises(ParenvsError, match=message) as error:
        load_iopddl(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


@each(
    ("data", "message"),
    [
        (b"[" * 100_000, "not a JSON file"),
        (b'{"problem": 1, "problem": 2}', "stands twice"),
        (b"\x1f\x8bbroken", "cannot be read|unpacks to more"),
        (BLANKS, "unpacks to more than 19|unpacks to more than 16"),
        (BLANKS[:-4] + b"\0\0\0\0", "unpacks to more than"),
        (gzip.compress(b"{}", mtime=0)[:-9], "cannot be read|cut short|unpacks to more"),
        (b"NaN", "is no whole number"),
        (b"9" * 5000, "not a JSON file"),
        (b"\xff\xfe\x00", "not a JSON file"),
    ],
)
def test_load__refuses_damage(tmp_path, data, message):
    path = tmp_path / "p.json.gz"
    path.write_bytes(data)
    with pytest.raises(ParenvsError, match=message):
        load_iopddl(path)
    with pytest.raises(ParenvsError, match=r"nothing\.json: cannot be read"):
        load_iopddl(tmp_path / "nothing.json")


def test_load_strategies__takes_plan_files_and_the_contests_lists(tmp_path):
    problem = load_iopddl(written(tmp_path, SMALL))
    plan = problem.plan(np.array([1, 0, 1]))
    plan.save(tmp_path / "plan.json")
    (tmp_path / "list.json").write_text(" [1, 0, 1]\n")
    for name in ("plan.json", "list.json"):
        assert load_strategies(tmp_path / name, problem).strategies == (1, 0, 1)
    (tmp_path / "list.json").write_text("[1, 0, 1.0]")
    with pytest.raises(PlanError, match=r"list.json: '1.0' is no whole number"):
        load_strategies(tmp_path / "list.json", problem)
