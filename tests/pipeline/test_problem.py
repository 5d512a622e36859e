"""The pipeline's cost by the text of the design; chains of measurements; tied weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import brute_force
import numpy as np
import pytest
import toys
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

import parenvs
from parenvs import from_jax, problem
from parenvs.cluster import DEVICES, Cluster
from parenvs.errors import InfeasibleError, ProfileError
from parenvs.graph.flow import Reads
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import RangeTable, StageProfile, TiedWeights


@pytest.mark.thorough
@given(st.data())
@settings(max_examples=60)
def test_pipeline__vectorized_is_one_by_one(data):
    pipeline = data.draw(toys.pipelines(least=4))
    stages = data.draw(st.integers(2, min(4, pipeline.cluster.devices)))
    drawn = [data.draw(toys.plans(pipeline, stages)) for _ in range(6)]
    cuts = np.array([c for c, _ in drawn]).reshape(2, 3, stages - 1)
    groups = np.array([d for _, d in drawn]).reshape(2, 3, stages - 1)
    times, memory = pipeline.stage_times(cuts, groups), pipeline.stage_memory(cuts, groups)
    length, excess = pipeline.length(cuts, groups), pipeline.excess_bytes(cuts, groups)
    assert times.forward.shape == (2, 3, 2 * stages - 1)
    assert memory.shape == (2, 3, stages)
    assert length.shape == excess.shape == (2, 3)
    for at in np.ndindex(2, 3):
        one = pipeline.stage_times(cuts[at], groups[at])
        for key in ("forward", "backward", "all_reduce"):
            assert np.array_equal(getattr(times, key)[at], getattr(one, key))
        assert length[at] == pipeline.length(cuts[at], groups[at])
        assert excess[at] == pipeline.excess_bytes(cuts[at], groups[at])
        assert np.array_equal(memory[at], pipeline.stage_memory(cuts[at], groups[at]))


@each(
    ("settings_", "words"),
    [
        ({"micro_batches": 0}, "micro_batches must be a whole number from 1"),
        ({"micro_batches": -1}, "micro_batches must be a whole number from 1"),
        (
            {"micro_batches": 10_001},
            "micro_batches must be a whole number from 1 to 10,000, not 10001",
        ),
        ({"micro_batches": 2**31 - 1}, "micro_batches must be a whole number from 1"),
        ({"recompute": "some"}, "unknown recompute 'some'; known: full, none"),
        ({"sync": "some"}, "unknown sync 'some'; known: allreduce"),
        ({"copies": -1}, "copies must be a number from 0"),
        ({"stages": 0}, "stages must be a whole number from 1, not 0"),
        ({"stages": 2.0}, "stages must be a whole number from 1, not 2.0"),
        ({"recompute": "none"}, "no resident_bytes"),
    ],
)
def test_pipeline__refuses_settings(settings_, words):
    with pytest.raises(InfeasibleError, match=words):
        replace(toys.balanced().pipeline, **settings_)


HEADER = "name,forward_ms,backward_ms,cut_bytes,parameter_bytes"
ROWS = "a,1,2,3,4\nb,0.5,0.25,1e3,0\n"


def read(tmp_path, text, **options):
    path = tmp_path / "mine.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return StageProfile.from_csv(path, **options)


def test_profile__from_csv(tmp_path):
    profile = read(tmp_path, f"# measured\n\n{HEADER}\n{ROWS}", micro_batch=8)
    assert profile.name == "mine"
    assert profile.micro_batch == 8
    assert profile.names.tolist() == ["a", "b"]
    assert profile.forward.tolist() == [1e-3, 0.5e-3]
    assert profile.backward.tolist() == [2e-3, 0.25e-3]
    assert profile.cut_bytes.tolist() == [3, 1000]
    assert profile.parameter_bytes.tolist() == [4, 0]
    assert profile.resident_bytes is None
    assert profile.seconds.tolist() == [3e-3, 0.75e-3]
    assert len(profile) == 2


@each("column", HEADER.split(","))
def test_profile__missing_column(tmp_path, column):
    header = ",".join("other" if x == column else x for x in HEADER.split(","))
    with pytest.raises(ProfileError, match=rf"mine\.csv: missing column '{column}'.*must hold"):
        read(tmp_path, f"{header}\n{ROWS}")


@pytest.mark.thorough
@each(
    "value",
    [
        "-1",
        "-1e-9",
        "nan",
        "sNaN",
        "inf",
        "-inf",
        "",
        " ",
        "x",
        "1ms",
        "1,5",
        "1e999",
        "1e999999999",
    ],
)
@each("column", [*HEADER.split(",")[1:], "resident_bytes"])
def test_profile__bad_value(tmp_path, column, value):
    header = f"{HEADER},resident_bytes"
    row = ",".join(f'"{value}"' if x == column else "7" for x in header.split(","))
    # The comment and the name of two lines count as lines of the file.
    text = f'# one\n{header}\n"a\nb",1,2,3,4,5\n{row}\n'
    with pytest.raises(ProfileError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert f"mine.csv: line 5, column '{column}': '{value}' is not a number >= 0" in message


@each(
    ("text", "message"),
    [
        ("", "missing column 'name'"),
        ("# nothing\n", "missing column 'name'"),
        (HEADER, "no rows below the header"),
        (f"{HEADER}\na,1,2,3,4\n", "at least two pivots"),
        (f"{HEADER}\na,0,0,3,4\nb,0,0,3,4\n", "all times are zero"),
        (f'{HEADER}\na,1,2,3,4\n"b,1,2,3,4\n', "line 3 is no CSV"),
        (f'{HEADER}\na,1,2,3,4\n"b"c,1,2,3,4\n', "line 3 is no CSV"),
        (b"\xff\xfe\x00", "cannot be read as text"),
        (b"\x89PNG\r\n\x1a\n\x00", "cannot be read as text"),
    ],
)
def test_profile__bad_file(tmp_path, text, message):
    with pytest.raises(ProfileError, match=rf"mine\.csv: .*{message}") as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_profile__bad_arrays():
    fields = {"names": ["a", "b"], "forward": [1, 2], "backward": [1, 2], "cut_bytes": [1, 2]}
    with pytest.raises(ProfileError, match="parameter_bytes has 3 values for 2 pivots"):
        StageProfile("x", **fields, parameter_bytes=[1, 2, 3])
    with pytest.raises(ProfileError, match=r"parameter_bytes of pivot 1 \(b\) is -2.0; must be"):
        StageProfile("x", **fields, parameter_bytes=[1, -2])
    with pytest.raises(ProfileError, match=r"resident_bytes of pivot 0 \(a\) is nan"):
        StageProfile("x", **fields, parameter_bytes=[1, 2], resident_bytes=[np.nan, 2])
    with pytest.raises(ProfileError, match="micro_batch must be a whole number from 1, not 0"):
        StageProfile("x", **fields, parameter_bytes=[1, 2], micro_batch=0)


def test_profile__fingerprint_is_of_the_numbers():
    arrays = [np.arange(1.0, 4) for _ in range(4)]
    fingerprint = StageProfile("x", ["a", "b", "c"], *arrays).fingerprint
    assert StageProfile("y", ["d", "e", "f"], *arrays).fingerprint == fingerprint
    on_a_device = StageProfile("x", ["a", "b", "c"], *arrays, device=DEVICES["v100"])
    assert on_a_device.fingerprint == fingerprint
    fingerprints = {fingerprint}
    for change in range(4):
        changed = [a + (i == change) * np.array([0, 0, 1e-9]) for i, a in enumerate(arrays)]
        fingerprints.add(StageProfile("x", ["a", "b", "c"], *changed).fingerprint)
    for option in ({"micro_batch": 4}, {"resident_bytes": arrays[0]}):
        fingerprints.add(StageProfile("x", ["a", "b", "c"], *arrays, **option).fingerprint)
    assert len(fingerprints) == 7
    assert StageProfile("x", ["a", "b", "c"], *arrays, source="sha256:1").fingerprint == "sha256:1"


# Lone surrogates are left out: they cannot be encoded.
name_texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=12
) | st.sampled_from(
    ["", " ", "#x", "# x", '"', '""', "a,b", "a\nb", "a\r\nb", "\r", "\n#c", "\n\n", "\ufeff"]
)
numbers = st.floats(0, 1e27) | st.sampled_from([0.1, 1 / 3, 5e-324, 1e-7, 123456789.123456789])


@st.composite
def profiles(draw):
    count = draw(st.integers(2, 5))
    columns = [
        draw(st.lists(numbers, min_size=count, max_size=count))
        for _ in range(draw(st.integers(4, 5)))
    ]
    columns[0][0] = max(columns[0][0], 1e-6)
    return StageProfile("mine", [draw(name_texts) for _ in range(count)], *columns)


@pytest.mark.thorough
@given(profiles())
def test_profile__csv_round_trip(tmp_path_factory, profile):
    path = tmp_path_factory.mktemp("csv") / "mine.csv"
    profile.to_csv(path)
    again = StageProfile.from_csv(path)
    assert again.names.tolist() == profile.names.tolist()
    assert again.fingerprint == profile.fingerprint  # every number to the last bit
    data = path.read_bytes()
    again.to_csv(path)
    assert path.read_bytes() == data


@pytest.mark.thorough
def test_profile__from_graph():
    jnp = pytest.importorskip("jax.numpy")
    from jax_primitives import shape

    from parenvs import from_jax

    def forward(params, batch):
        hidden = jnp.dot(batch["x"], params["a"])
        return jnp.dot(hidden, params["b"]).sum()

    params = {"a": shape(10, 20), "b": shape(20, 5)}
    graph = from_jax(forward, params, {"x": shape(32, 10)})
    device = DEVICES["v100"]
    profile = StageProfile.from_graph(graph, device, micro_batch=8)
    assert [x.rsplit("/")[-1] for x in profile.names] == [
        "dot_general",
        "dot_general",
        "reduce_sum",
    ]
    flops = np.array([2 * 32 * 10 * 20, 2 * 32 * 20 * 5, 32 * 5 - 1])
    np.testing.assert_allclose(profile.forward, flops * 8 / 32 / (0.5 * 15.7e12), rtol=1e-14)
    np.testing.assert_allclose(profile.backward, 2 * profile.forward, rtol=1e-14)
    assert profile.cut_bytes.tolist() == [4 * 8 * 20, 4 * 8 * 5, 0]
    assert profile.parameter_bytes.tolist() == [800, 400, 0]
    assert profile.resident_bytes.tolist() == [4 * 8 * 20, 4 * 8 * 5, 4 * 8 / 32]
    assert (profile.micro_batch, profile.source) == (8, graph.fingerprint)
    assert profile.device == device
    faster = StageProfile.from_graph(graph, device, micro_batch=8, efficiency=1.0)
    np.testing.assert_allclose(faster.forward, profile.forward / 2, rtol=1e-14)


@each("seed", range(20))
def test_tied__tables_by_definition(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    reads = brute_force.random_reads(rng, n)["tied"]
    tied = TiedWeights(reads, n)
    for first in range(n):
        for end in range(first + 1, n + 1):
            inside = [(r, [p for p in r.positions if first <= p < end]) for r in reads]
            again = [r for r, places in inside if places and r.positions[0] < first]
            shared = [r for r, p in inside if 0 < len(p) < len(r.positions) and r.trainable]
            assert tied.between(tied.again, first, end) == sum(r.size for r in again if r.trainable)
            assert tied.between(tied.frozen, first, end) == sum(
                r.size for r in again if not r.trainable
            )
            assert tied.between(tied.shared, first, end) == sum(r.size for r in shared)


def embedding():
    """Four pivots; the first reads a table of 100 bytes, and the last reads it again."""
    profile = toys.chain([1.0] * 4, [2.0] * 4, [8.0] * 4, [100.0, 10.0, 10.0, 5.0])
    return replace(profile, tied=(Reads((0, 3), 100.0, True),))


def test_tied__both_stages_hold_the_table_and_sum_its_gradient():
    cluster = Cluster.parse(toys.shape(2, 2, 50.0, 10.0))
    once = Pipeline(embedding(), cluster, 2)
    held = replace(once, tied="held")
    plan = np.array([2]), np.array([2])
    assert (held.stage_memory(*plan) - once.stage_memory(*plan)).tolist() == [0, 2 * 100]
    before, after = once.stage_times(*plan).all_reduce, held.stage_times(*plan).all_reduce
    ring, exchange = (
        2 * 100 / (2 * 50.0),
        100 / 10.0,
    )  # the stage's own two devices; the other stage
    assert np.allclose(after - before, [exchange, 0, ring + exchange])
    one = np.zeros(0, dtype=int), np.zeros(0, dtype=int)
    assert held.with_stages(1).length(*one) == once.with_stages(1).length(*one)
    report = held.report(held.plan(*plan))
    assert [s.parameter_bytes for s in report.stages] == [110, 115]
    assert report.plan.to_json()["tied"] == "held" and "tied" not in once.plan(*plan).to_json()


def test_frozen__one_copy_and_no_gradient():
    cluster = Cluster.parse(toys.shape(2, 2, 50.0, 10.0))
    trained = Pipeline(toys.chain([1.0] * 3, [2.0] * 3, [8.0] * 3, [10.0, 7.0, 9.0]), cluster, 2)
    profile = replace(
        trained.profile, parameter_bytes=[10.0, 7.0, 0.0], frozen_bytes=[0.0, 0.0, 9.0]
    )
    frozen = Pipeline(profile, cluster, 2)
    plan = np.array([2]), np.array([2])
    assert frozen.report(frozen.plan(*plan)).legal  # a stage of frozen weights alone
    assert (trained.stage_memory(*plan) - frozen.stage_memory(*plan)).tolist() == [0, 9]
    assert frozen.stage_times(*plan).all_reduce[2] == 0


@pytest.mark.thorough
def test_tied__casts_at_the_top_do_not_read():
    """They all counted for the first stage, and their results crossed every cut."""
    jax = pytest.importorskip("jax")
    jnp, struct = jax.numpy, jax.ShapeDtypeStruct

    def network(cast, params, tokens):
        x = cast(params["table"])[tokens]
        for weight in params["layers"]:
            x = jnp.tanh(x @ cast(weight))
        return jnp.square(x.astype(jnp.float32)).mean()

    def low(weight):
        return weight.astype(jnp.bfloat16)

    def at_the_top(params, tokens):
        return network(lambda weight: weight, jax.tree.map(low, params), tokens)

    params = {
        "table": struct((500, 64), jnp.float32),
        "layers": [struct((64, 64), jnp.float32) for _ in range(6)],
    }
    args = params, struct((32, 8), jnp.int32)
    graphs = from_jax(partial(network, low), *args), from_jax(at_the_top, *args)
    inside, top = (problem(graph, "1x2:v100", stages=2) for graph in graphs)
    counts = [p.profile.parameter_bytes[p.profile.parameter_bytes > 0] for p in (inside, top)]
    assert counts[0].tolist() == counts[1].tolist()
    assert top.profile.cut_bytes[:6].tolist() == [0] * 6  # behind the casts of the layers
    assert top.profile.parameter_bytes[:6].tolist() == [0] * 6

    lengths = [parenvs.plan(p).cost for p in (inside, top)]
    assert lengths[0] == pytest.approx(lengths[1], rel=5e-3)  # the casts themselves take time


@pytest.mark.thorough
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0, np.inf]), min_size=1, max_size=40))
@settings(max_examples=150)
def test_range_table__every_range(values):
    n = len(values)
    ranges = [(a, b) for a in range(n) for b in range(a + 1, n + 1)]
    first, end = np.array(ranges).T
    for greatest, best in ((False, min), (True, max)):
        table = RangeTable(np.array(values), greatest)
        assert table.value(first, end).tolist() == [best(values[a:b]) for a, b in ranges]
        place = table.index(first, end)
        assert ((first <= place) & (place < end)).all()
        assert table.values[place].tolist() == [best(values[a:b]) for a, b in ranges]
        assert table.index(np.array(0), np.array(n)) == values.index(best(values))  # the first
