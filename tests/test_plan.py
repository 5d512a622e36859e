import json
from dataclasses import replace

import pytest
import toys
from cases import each, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

import parenvs
from parenvs.cluster import PRESETS, Cluster
from parenvs.core.plan import load_plan
from parenvs.errors import ParenvsError
from parenvs.tasks.partition.problem import PartitionPlan
from parenvs.tasks.pipeline.plan import PipelinePlan

PLAN = PipelinePlan(
    instance="toy",
    fingerprint="sha256:00",
    cluster=PRESETS["C"],
    cuts=(3, 5),
    device_cuts=(8, 16),
    micro_batch=4,
    micro_batches=2,
    cut_after=("p2", "p4"),
)
NAMES = st.text(min_size=1)
WHOLE = st.integers(-(2**31) + 1, 2**31 - 1)
COUNTS = st.integers(1, 2**31 - 1)
CLUSTERS = st.one_of(
    st.sampled_from([*PRESETS.values(), Cluster.parse("2x3:a100,10Gbps,1GB/s")]), toys.clusters()
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plan.json"


def test_plan__file_of_the_design(path):
    """Schema version first, keys in the documented order, the preset by name."""
    PLAN.save(path)
    assert path.read_text().endswith("\n")
    assert list(json.loads(path.read_text()).items()) == [
        ("schema", 1),
        ("task", "pipeline"),
        ("instance", "toy"),
        ("fingerprint", "sha256:00"),
        ("cluster", "C"),
        ("micro_batch", 4),
        ("micro_batches", 2),
        ("cuts", [3, 5]),
        ("device_cuts", [8, 16]),
        ("cut_after", ["p2", "p4"]),
    ]


def test_plan__unknown_key(path):
    content = PLAN.to_json()
    content["device_cut"] = content["device_cuts"]
    words = refusal(path, content)
    assert "unknown field 'device_cut' (did you mean 'device_cuts'?)" in words
    words = refusal(path, {**PLAN.to_json(), "zzz": 1})
    assert "unknown field 'zzz'" in words
    assert "did you mean" not in words


WRONG = {
    "schema": [0, 2, -1, "1", True, None, [1], {}, 1.5, 1.0],
    "task": ["pipelines", "", 1, None, ["pipeline"], {}],
    "instance": ["", 1, None, True, ["toy"], {}],
    "fingerprint": ["", 1, None, False, [], {}],
    "cluster": ["Z", "", 3, None, True, [], {}, "4x8:v1000", {"servers": 1}, "nowhere.json"],
    "micro_batch": [0, -1, True, 1.0, 16.5, "16", None, [16], 2**31, 10**30],
    "micro_batches": [0, -1, True, 1.0, 16.5, "16", None, [16], 2**31, 10**30],
    "cuts": [3, "35", None, True, {}, [3.0], [True], ["3"], [None], [[3]], [2**31], [10**30]],
    "device_cuts": [8, "8", None, True, {}, [8.0], [False], ["8"], [None], [[8]], [-(2**31)]],
    "cut_after": ["p2", 1, None, True, {}, [1], [None], [["p2"]]],
}


@each(
    "text",
    ["", " ", "{", "plan", "[1, 2", "{'schema': 1}", '{"schema": 1,}', "\0", '{"schema": 1} x'],
)
def test_plan__not_json(path, text):
    assert "not a JSON file" in refusal(path, text)


@pytest.mark.parametrize("depth", [500, 5_000, 200_000])
def test_plan__deep_nesting(path, depth):
    refusal(path, "[" * depth)
    refusal(path, "[" * depth + "]" * depth)
    refusal(path, '{"schema":' * depth + "1" + "}" * depth)
    for key in ("schema", "task", "instance", "cluster", "cuts", "cut_after", "micro_batch"):
        text = json.dumps({**PLAN.to_json(), key: "HERE"})
        for start, end in (("[", "]"), ('{"device":', "}")):
            deep = start * depth + "1" + end * depth
            assert len(refusal(path, text.replace('"HERE"', deep))) < 10_000


# Partition plans.

SPLIT = PartitionPlan(
    instance="toy",
    fingerprint="sha256:00",
    cluster=Cluster.parse("1x8:v100"),
    partition={"w": 1, "layer/bias": 0},
    rules="automap",
    uneven="forbid",
)
BATCH = PartitionPlan("toy", "sha256:00", PRESETS["A"], {"inputs": 0}, "inputs")
SEVERAL = CLUSTERS.filter(lambda cluster: cluster.devices > 1)


def test_plan__partition_file_of_the_design(path):
    """Keys in the documented order, paths sorted; one server of V100 needs no cluster."""
    SPLIT.save(path)
    assert list(json.loads(path.read_text()).items()) == [
        ("schema", 1),
        ("task", "partition"),
        ("instance", "toy"),
        ("fingerprint", "sha256:00"),
        ("devices", 8),
        ("rules", "automap"),
        ("uneven", "forbid"),
        ("partition", {"layer/bias": 0, "w": 1}),
    ]
    assert list(json.loads(path.read_text())["partition"]) == ["layer/bias", "w"]
    BATCH.save(path)
    assert list(json.loads(path.read_text()).items()) == [
        ("schema", 1),
        ("task", "partition"),
        ("instance", "toy"),
        ("fingerprint", "sha256:00"),
        ("devices", 16),
        ("cluster", "A"),
        ("scope", "inputs"),
        ("rules", "shardy"),
        ("uneven", "pad"),
        ("partition", {"inputs": 0}),
    ]


def test_plan__data_parallel_file_as_documented(path):
    """Without rules, uneven and cluster."""
    content = {
        "schema": 1, "task": "data-parallel", "instance": "t5-base", "fingerprint": "sha256:0",
        "devices": 4, "partition": {"inputs": 0, "targets": 0},
    }  # fmt: skip
    path.write_text(json.dumps(content))
    plan = load_plan(path)
    cluster, partition = Cluster.parse("1x4:v100"), {"inputs": 0, "targets": 0}
    assert plan == PartitionPlan("t5-base", "sha256:0", cluster, partition, "inputs")
    assert (plan.rules, plan.uneven) == ("shardy", "pad")


def test_plan__tasks_are_not_mixed_up(path):
    split = replace(SPLIT)
    batch = replace(split, scope="inputs")
    assert split != batch
    for plan in (split, batch):
        plan.save(path)
        assert load_plan(path) == plan
    words = refusal(path, {**SPLIT.to_json(), "task": "pipeline"})
    assert "field 'cluster' is missing" in words
    words = refusal(path, {**PLAN.to_json(), "task": "partition"})
    assert "field 'devices' is missing" in words


def test_plan__variable_that_stands_twice(path):
    """The same with another dimension would otherwise win."""
    text = json.dumps(SPLIT.to_json()).replace('"w": 1', '"w": 1, "w": 0')
    assert "field 'w' stands twice" in refusal(path, text)


WRONG_SPLIT = {
    "schema": [0, 2, "1", True, None, 1.0],
    "task": ["operator", "", 1, None, ["partition"], {}],
    "scope": ["all", "", 1, None, True, [], {}, ["inputs"]],
    "instance": ["", 1, None, True, ["toy"], {}],
    "fingerprint": ["", 1, None, False, [], {}],
    "devices": [0, 1, -8, True, False, 8.0, 2.5, "8", None, [8], {}, 2**31, 10**30],
    "cluster": ["Z", "", 3, None, True, [], {}, "4x8:v1000", {"servers": 1}, "nowhere.json"],
    "rules": ["gspmd", "", 1, None, True, [], {}, ["shardy"], "Shardy"],
    "uneven": ["drop", "", 1, None, True, [], {}, ["pad"]],
    "partition": [None, 1, "w", True, [], [["w", 1]], ["w"]]
    + [{"w": x} for x in (-1, True, False, None, 1.0, "1", [1], {}, {"w": 1}, 2**31, 10**30)],
}


def test_plan__devices_and_cluster_must_agree(path):
    words = refusal(path, {**BATCH.to_json(), "devices": 8})
    assert "field 'devices' is 8, but the cluster has 16" in words
    words = refusal(path, {**SPLIT.to_json(), "cluster": "1x1:v100"})
    assert "field 'devices' is 8, but the cluster has 1" in words
    words = refusal(path, {**SPLIT.to_json(), "devices": 1, "cluster": "1x1:v100"})
    assert "field 'devices' must be a whole number from 2, not 1" in words


def test_plan__a_loaded_partition_is_its_own(path):
    """Changing what was given does not change the plan."""
    content = SPLIT.to_json()
    plan = PartitionPlan.from_json(content)
    content["partition"]["w"] = 0
    content["partition"]["new"] = 0
    assert plan == SPLIT
    SPLIT.to_json()["partition"]["w"] = 0
    assert SPLIT.partition["w"] == 1


@pytest.mark.parametrize("key", ["micro_batch", "cuts"])
def test_plan__half_a_character(path, key):
    """JSON can hold a lone surrogate, and msgspec fails on one where a number should be."""
    text = json.dumps({**PLAN.to_json(), key: "HERE" if key == "micro_batch" else [3, "HERE"]})
    words = refusal(path, text.replace("HERE", "\\ud800"))
    assert f": field '{key}" in words and "must be a whole number" in words


# Of every kind.

PLANS = (PLAN, SPLIT, BATCH)


def round_trip(folder, plan):
    """A file gives the plan that it was written from, and the same bytes again."""
    path = folder / "made" / "plan.json"
    plan.save(path)
    again, first = load_plan(str(path)), path.read_bytes()
    assert again == plan and again.to_json() == plan.to_json()
    again.save(path)
    assert path.read_bytes() == first


@pytest.mark.thorough
@given(
    st.builds(
        PipelinePlan,
        instance=NAMES,
        fingerprint=NAMES,
        cluster=CLUSTERS,
        cuts=st.lists(WHOLE).map(tuple),
        device_cuts=st.lists(WHOLE).map(tuple),
        micro_batch=COUNTS,
        micro_batches=COUNTS,
        cut_after=st.lists(st.text()).map(tuple),
    )
    | st.builds(
        PartitionPlan,
        instance=NAMES,
        fingerprint=NAMES,
        cluster=SEVERAL,
        partition=st.dictionaries(st.text(), st.integers(0, 2**31 - 1)),
        scope=st.sampled_from(["variables", "inputs"]),
        rules=st.sampled_from(["shardy", "automap"]),
        uneven=st.sampled_from(["pad", "forbid"]),
    )
)
@settings(max_examples=80)
def test_plan__round_trip(tmp_path_factory, plan):
    round_trip(tmp_path_factory.mktemp("plan"), plan)


def test_plan__required_and_repeated_keys(path):
    for plan in PLANS:
        content = plan.to_json()
        for key, value in content.items():
            twice = json.dumps(content)[:-1] + f", {json.dumps(key)}: {json.dumps(value)}}}"
            assert f"field {key!r} stands twice" in refusal(path, twice)
            if key in ("cut_after", "rules", "uneven", "scope", "cluster") and plan is not PLAN:
                continue
            rest = {name: x for name, x in content.items() if name != key}
            if key == "cut_after":
                path.write_text(json.dumps(rest))
                assert load_plan(path) == plan
            else:
                assert f"field {key!r} is " in refusal(path, rest)


@each("plan", PLANS)
def test_plan__wrong_values(path, plan):
    for key, values in (WRONG if plan is PLAN else WRONG_SPLIT).items():
        for value in values:
            assert f": field '{key}" in refusal(path, {**plan.to_json(), key: value}), value


NO_OBJECT = (
    b"[]",
    b"1",
    b'"plan"',
    b"null",
    b"true",
    b"[{}]",
    b"\xff\xfe{}",
    b"\x80",
    b"\xef\xbb\xbf\xff",
)


@each("data", [*NO_OBJECT, b'{"instance": "\xe9"}', b'{"cuts": [3, ' + b"9" * 10_000 + b"]}"])
def test_plan__no_object_of_json(path, data):
    assert refusal(path, data)


def test_judge__refuses_another_cluster_than_the_problems():
    problem = parenvs.problem("vgg-19", cluster="B")
    plan = parenvs.plan(problem, agent="even").plan
    assert parenvs.judge(plan, problem, "B").legal
    with pytest.raises(ParenvsError, match=r"cluster: the problem is for B .*, not C; leave one"):
        parenvs.judge(plan, problem, "C")
