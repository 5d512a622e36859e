"""Entries that cannot be trusted: every mutant is refused with a reason that names the field."""

import copy
import json
import os

import pytest
from cases import each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parenvs import cluster
from parenvs.core.plan import judge
from parenvs.leaderboard.check import PlanState, check, check_file, judged
from parenvs.leaderboard.entry import (
    MAX_BYTES,
    Entry,
    EntryError,
    author_fault,
    entry_fault,
    load_entry,
    parse_json,
)
from parenvs.leaderboard.tasks import tasks

PIPELINE, PARTITION = "vgg-19-B-3", "vgg-19-shardy-8"


def entry_of(task, problem, **changes):
    plan = changes.pop("plan")
    return Entry(
        task=task,
        entry="mine",
        authors=("Ada Lovelace",),
        method="By hand.",
        plans={problem: plan},
        seconds={problem: 1.5},
        seeds=(0, 7),
        link="https://example.org/mine",
        search_budget="none",
        hardware="an abacus",
        **changes,
    )


@pytest.fixture(scope="module")
def bases():
    """A sound entry of a pipeline and one of a partition, as JSON types."""
    cut = tasks().task("pipeline-cut").problems[PIPELINE]
    split = tasks().task("operator-partition-step-time").problems[PARTITION]
    partition = {"fc1/kernel": 1, "fc1/bias": 0, "fc2/kernel": 0}
    return {
        PIPELINE: entry_of(
            "pipeline-cut", PIPELINE, plan=cut.pipeline_plan([59, 88], [13, 21]).to_json()
        ).to_json(),
        PARTITION: entry_of(
            "operator-partition-step-time",
            PARTITION,
            plan=split.partition_plan(partition).to_json(),
            learned=True,
            trained_on=("the problem itself", "other: hand-made graphs"),
        ).to_json(),
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "entry.json"


def refusal(path, content):
    """Every reason for refusing a file; each is one printable line."""
    if not isinstance(content, bytes):
        content = content if isinstance(content, str) else json.dumps(content)
        content = content.encode()
    path.write_bytes(content)
    try:
        reasons = check_file(path).reasons
    except EntryError as error:
        reasons = error.reasons
        assert str(error).startswith(str(path))
    for reason in reasons:
        assert reason.isprintable()
        assert len(reason) <= 400
    return reasons


@pytest.mark.parametrize("problem", [PIPELINE, PARTITION])
def test_entry__sound(bases, path, problem):
    assert refusal(path, bases[problem]) == ()
    entry = load_entry(path)
    assert entry.to_json() == bases[problem]
    checked = check(entry)
    assert checked.count(PlanState.LEGAL) == 1
    assert checked.count(PlanState.MISSING) == len(checked.verdicts) - 1
    first = path.with_name("saved.json")
    entry.save(first)
    load_entry(first).save(path)
    assert path.read_bytes() == first.read_bytes()


def test_entry__of_before_says_that_its_commit_is_not_recorded(bases, path):
    content = {k: x for k, x in bases[PIPELINE].items() if k not in ("commit", "settings")}
    path.write_text(json.dumps(content))
    entry = load_entry(path)
    assert (entry.commit, entry.settings) == ("not recorded", {})
    content |= {"commit": "83feaaebb8b3", "settings": {"agent": "random", "seed": 7, "deep": None}}
    path.write_text(json.dumps(content))
    entry = load_entry(path)
    assert (entry.commit, entry.settings) == (content["commit"], content["settings"])


# Values that no field of a kind may have.

_NO_TEXT = [None, True, 3, 1.5, [], {}, [[]], "\x00", "\ud800", "\u202egnp.exe", " ", "a\nb"]
_LONG = "x" * 100_000
_NO_COUNT = [None, True, "8", 8.5, -1, 0, 10**19, 1e308, [], {}, [8], "NaN"]
_NO_LIST = [None, True, 3, "x", {}, [None], [[]], [{"a": 1}], [1.5], [True]]
_NO_OBJECT = [None, True, 3, "x", [], [1], ""]
_PATHS = ["../../etc/passwd", "/dev/zero", "mine.json", "\\\\host\\share", "t5-3b.npz", "vgg-19/.."]
_WRONG = {
    "schema": [*_NO_COUNT, 2, "1"],
    "tasks": [*_NO_COUNT, 2],
    "task": [*_NO_TEXT, _LONG, *_PATHS, "pipeline-cuts", "", "Pipeline-Cut"],
    "entry": [*_NO_TEXT, _LONG, *_PATHS[:2], "", "Mine", "a b", ".hidden", "a/b", "é"],
    "authors": [*_NO_LIST, [], [""], ["x" * 101], ["\u202e"], ["x"] * 21],
    "link": [*_NO_TEXT, _LONG, "javascript:alert(1)", "ftp://x", "https://x/ y", "https://x/)<b>"],
    "method": [*_NO_TEXT, _LONG, ""],
    "learned": [None, 0, 1, "true", [], {}],
    "trained_on": [
        *_NO_LIST,
        ["t5-base"],
        ["generated "],
        ["other:x"],
        ["other: "],
        ["generated"] * 11,
    ],
    "seeds": [None, True, 3, "x", {}, [None], [1.5], [True], [-1], ["0"], [10**19], [0] * 1001],
    "search_budget": [*_NO_TEXT, _LONG, ""],
    "hardware": [*_NO_TEXT, _LONG, ""],
    "commit": [*_NO_TEXT, _LONG, ""],
    "settings": [*_NO_OBJECT, {"a": [1]}, {"a": {}}, {"a": "\x00"}, {_LONG: 1}, {"a": _LONG}],
    "seconds": [*_NO_OBJECT, {"nowhere": 1.0}, {PIPELINE: -1}, {PARTITION: -1}, {_LONG: 1}],
    "plans": [*_NO_OBJECT, {}, {"t5-3b": {}}, {"../t5-3b": {}}, {_LONG: {}}, {"": {}}],
}
_CUTS = [
    *_NO_LIST, [], [59], [88, 59], [59, 59], [0, 88], [59, 164], [-59, 88], [59, 10**19],
    [59, 10**9], [1, 2], ["59", "88"], [59.0, 88.0], [59, 88, 102], list(range(1, 5000)),
]  # fmt: skip
_WRONG_PLAN = {
    "schema": [*_NO_COUNT, 2],
    "task": [*_NO_TEXT, _LONG, "hybrid", "iopddl", "pipeline-plan"],
    "instance": [*_NO_TEXT, _LONG, *_PATHS, "t5-base", "VGG-19"],
    "fingerprint": [*_NO_TEXT, _LONG, "sha256:00", "sha256:" + "0" * 64],
    "cluster": [*_NO_TEXT, _LONG, *_PATHS, "A", "C", {"servers": 1}, "3x8:v100,26Gbps"],
    "unknown": [1],
}
_WRONG_PIPELINE = {
    **_WRONG_PLAN,
    "micro_batch": [*_NO_COUNT, 8],
    "micro_batches": [*_NO_COUNT, 8],
    "cuts": _CUTS,
    "device_cuts": [*_CUTS[:-6], [13], [21, 13], [13, 13], [0, 21], [13, 24], [13, 10**19]],
    "cut_after": [None, True, 3, "x", {}, [1], ["x", "y"], ["\ud800", _LONG], ["x"] * 3],
}
_WRONG_PARTITION = {
    **_WRONG_PLAN,
    "devices": [*_NO_COUNT, 4, 10**9],
    "rules": [*_NO_TEXT, _LONG, "automap", "Shardy"],
    "uneven": [*_NO_TEXT, _LONG, "forbid"],
    "partition": [
        *_NO_OBJECT, {"nope": 0}, {_LONG: 0}, {"\ud800": 0}, {"../x": 0}, {"fc1/kernel": -1},
        {"fc1/kernel": True}, {"fc1/kernel": 1.0}, {"fc1/kernel": "1"}, {"fc1/kernel": 2},
        {"fc1/kernel": 10**19}, {"fc1/kernel": None}, {"fc1/kernel": 1},
        {"fc1/kernel": 0, "fc1/bias": 0}, {f"x{i}": 0 for i in range(5000)},
        {"block1_conv1/kernel": 0},
    ],
}  # fmt: skip


def whole_files(text):
    """(what is said, bytes) of files that are wrong as a whole."""
    deep = "[" * 100_000 + "]" * 100_000
    return [
        ("nested", deep),
        ("nested", '{"plans": ' + '{"a":' * 5000 + "1" + "}" * 5000 + "}"),
        ("nested", text.replace('"By hand."', "[" * 12 + "]" * 12)),
        ("NaN", text.replace("1.5", "NaN")),
        ("Infinity", text.replace("1.5", "-Infinity")),
        ("1e999", text.replace("1.5", "1e999")),
        ("digits", text.replace("1.5", "9" * 5000)),
        ("field 'seconds", text.replace("1.5", "-" + "9" * 21)),
        ("'task' stands twice", text.replace('"task":', '"task": "x", "task":', 1)),
        ("stands twice", text.replace('"instance":', '"instance": "x", "instance":', 1)),
        ("no JSON", text[:-20]),
        ("no JSON", text + "x"),
        ("no JSON", "\ufeff" + text),
        ("no JSON", ""),
        ("no JSON", "\x00" * 100),
        ("no JSON", text.encode("utf-16")),
        ("no JSON", text.encode().replace(b"By hand", b"\xff\xfe")),
        ("no JSON", b"\x80\x04\x95cos\nsystem\n."),
        ("one JSON object", "[]"),
        ("one JSON object", "3"),
        ("file", "[" + "1," * 3_000_000 + "1]"),
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("base", [PIPELINE, PARTITION])
def test_entry__every_wrong_value_of_every_field(bases, path, base):
    plan = _WRONG_PIPELINE if base == PIPELINE else _WRONG_PARTITION
    for in_plan, wrong in ((False, _WRONG), (True, plan)):
        for key, values in wrong.items():
            for value in values:
                refuse_mutant(bases, path, base, "replace", in_plan, key, value)
            for what in ("remove", "rename", "wrap"):
                refuse_mutant(bases, path, base, what, in_plan, key, values[0])


def refuse_mutant(bases, path, base, what, in_plan, key, value):
    content = copy.deepcopy(bases[base])
    holder = content["plans"][base] if in_plan else content
    if what == "replace" or key not in holder:
        holder[key] = value
    elif what == "remove":
        del holder[key]
    elif what == "rename":
        holder[f"{key}_"] = holder.pop(key)
    else:
        holder[key] = [holder[key]]
    reasons = refusal(path, content)
    if what == "remove" and key in ("cut_after", "rules", "uneven", "commit", "settings"):
        assert reasons == ()  # files of before, and plans, may leave these out
        return
    assert reasons, (key, value)
    named = (key, f"{key}_") if what == "rename" else (key,)
    # What the judge says of a plan names its decisions by what they break.
    named += (f"plans.{base}",) if key in ("cuts", "device_cuts", "partition") else ()
    assert any(name in reason for name in named for reason in reasons), reasons
    if in_plan:
        assert all(f"plans.{base}" in reason for reason in reasons)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_entry__anything_anywhere(bases, path, data):
    """Any JSON anywhere causes no crash, and the judge finds every accepted plan legal."""
    base = data.draw(st.sampled_from([PIPELINE, PARTITION]))
    content = copy.deepcopy(bases[base])
    holder = data.draw(st.sampled_from([content, content["plans"][base], content["plans"]]))
    key = data.draw(st.sampled_from(list(holder)) | st.text())
    holder[key] = data.draw(_JSON)
    if refusal(path, content) == ():
        entry = load_entry(path)
        problem = tasks().task(entry.task).problems[base]
        plan = problem.plan_class.from_json(entry.plans[base])
        report = judge(plan, problem.target)
        assert report.legal
        verdict = next(v for v in check(entry).verdicts if v.problem is problem)
        assert (verdict.state, verdict.cost) == (PlanState.LEGAL, problem.cost(report))
        assert verdict.score <= 1


@each("case", range(21))
def test_entry__files_that_are_wrong_as_a_whole(bases, path, case):
    words, content = whole_files(json.dumps(bases[PIPELINE], indent=1))[case]
    (reason,) = refusal(path, content)
    assert words in reason
    assert "field" in reason or "file" in reason or "JSON object" in reason


def test_entry__files_that_are_none(path, tmp_path):
    with path.open("wb") as stream:
        stream.truncate(100 * 2**20)  # as large as it says, and empty
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for place, words in (
        (path, "more than 4,194,304"),
        (pipe, "not a regular one"),
        (tmp_path, "not a regular one"),
        (tmp_path / "none.json", "no such file"),
        ("/dev/zero", "not a regular one"),
        ("a\0b", "file"),
        ("x" * 5000, "file"),
    ):
        with pytest.raises(EntryError, match=words):
            check_file(place)
    with pytest.raises(EntryError, match="more than"):
        parse_json(b" " * (MAX_BYTES + 1), "bytes")


@pytest.mark.parametrize("key", ["instance", "cluster"])
def test_entry__opens_no_path(bases, path, tmp_path, monkeypatch, key):
    """A file that would fit, under a name in the plan, is not even looked at."""

    def opened(*_):
        raise AssertionError("a path of the entry was opened")

    monkeypatch.setattr(cluster, "read_json", opened)
    place = tmp_path / "cluster.json"
    place.write_text(json.dumps({"servers": 3}))
    content = copy.deepcopy(bases[PIPELINE])
    content["plans"][PIPELINE][key] = str(place)
    (reason,) = refusal(path, content)
    assert f"field {key!r} must be" in reason


def test_entry__many_reasons_at_once(bases, path):
    content = {**bases[PIPELINE], "learned": True, "entry": "A", "seeds": -1, "more": 1}
    reasons = refusal(path, content)
    assert len(reasons) == 4
    for words in ("'learned' is true", "'entry' must", "'seeds' must", "unknown field 'more'"):
        assert any(words in reason for reason in reasons), reasons


def test_entry__saving_what_is_not_sound_writes_nothing(bases, path):
    entry = Entry.from_json({**bases[PIPELINE]})
    bad = Entry(**{**vars(entry), "entry": "../escape"})
    with pytest.raises(EntryError, match="'entry'"):
        bad.save(path)
    assert not path.exists()


def test_judged__plan_by_the_old_name_of_its_task(bases):
    """Entries of before a task had one name are judged as they were."""
    problem = tasks().task("operator-partition-step-time").problems[PARTITION]
    plan = bases[PARTITION]["plans"][PARTITION]
    new, old = judged(problem, plan), judged(problem, {**plan, "task": "operator-partition"})
    assert new.state == old.state == PlanState.LEGAL
    assert new.cost == old.cost


@each(
    ("name", "words"),
    [
        *((name, "a device of Windows") for name in ("con", "com1", "nul.tar.gz")),
        ("exact.", "leave out the dot"),
        ("exact ", "must be up to 40"),
        ("ex\u0430ct", "must be up to 40"),
        (None, "must be up to 40"),
        *((name, "") for name in ("exact", "console", "com10", "v1.2", "0-a")),
    ],
)
def test_entry_fault(name, words):
    fault = entry_fault(name)
    assert words in fault and fault.isprintable() and bool(fault) == bool(words)


@each(
    ("name", "words"),
    [
        (" Ada", "leave out the spaces"),
        ("\uff21da", "plain form, 'Ada'"),
        ("Zoe\u0308", "plain form, 'Zo\u00eb'"),
        ("A\u0336da", "combining character U+0336"),
        ("Ada\u115f", "invisible character U+115F"),
        *((name, "") for name in ("Ada Lovelace", "Zo\u00eb", "\u674e\u96ea", "J. R. O'Neil Jr.")),
    ],
)
def test_author_fault(name, words):
    fault = author_fault(name)
    assert words in fault and bool(fault) == bool(words)
    content = Entry("data-parallel", "mine", (name,), "x", {"vgg-19-shardy-8": {}}).to_json()
    if words:
        with pytest.raises(EntryError, match="field 'authors'"):
            Entry.from_json(content)
