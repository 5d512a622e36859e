"""Chains of pivots: CSV files, and chains made from a graph."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

import parenvs
from parenvs.cluster import DEVICES
from parenvs.errors import ProfileError
from parenvs.tasks.pipeline.profile import StageProfile

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


def test_profile__columns_in_any_order(tmp_path):
    text = (
        "parameter_bytes, resident_bytes,note,backward_ms,forward_ms,name,cut_bytes\n"
        "4,5,x,2,1,a,3\n9,6,,4,3,b,8\n"
    )
    profile = read(tmp_path, text)
    assert profile.forward.tolist() == [1e-3, 3e-3]
    assert profile.backward.tolist() == [2e-3, 4e-3]
    assert profile.cut_bytes.tolist() == [3, 8]
    assert profile.parameter_bytes.tolist() == [4, 9]
    assert profile.resident_bytes.tolist() == [5, 6]


@each(
    "text",
    [
        f"\ufeff{HEADER}\n{ROWS}",
        f"{HEADER}\n{ROWS}".replace("\n", "\r\n"),
        f"{HEADER}\na,1,2,3,4\n# a comment\n   \nb,0.5,0.25,1e3,0",
    ],
)
def test_profile__spreadsheets_and_comments(tmp_path, text):
    expected = read(tmp_path, f"{HEADER}\n{ROWS}")
    assert read(tmp_path, text).fingerprint == expected.fingerprint


@each("column", HEADER.split(","))
def test_profile__missing_column(tmp_path, column):
    header = ",".join("other" if x == column else x for x in HEADER.split(","))
    with pytest.raises(ProfileError, match=rf"mine\.csv: missing column '{column}'.*must hold"):
        read(tmp_path, f"{header}\n{ROWS}")


@each("column", [*HEADER.split(","), "resident_bytes"])
def test_profile__duplicate_column(tmp_path, column):
    text = f"{HEADER},resident_bytes,{column}\na,1,2,3,4,5,6\nb,1,2,3,4,5,6\n"
    with pytest.raises(ProfileError, match=rf"mine\.csv: the header holds column '{column}' twice"):
        read(tmp_path, text)


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


@each(("row", "count"), [("a,1,2,3", 4), ("a,1,2,3,4,5", 6), ("a", 1)])
def test_profile__wrong_number_of_fields(tmp_path, row, count):
    message = rf"mine\.csv: line 3 has {count} fields, the header 5"
    with pytest.raises(ProfileError, match=message):
        read(tmp_path, f"{HEADER}\nx,1,2,3,4\n{row}\n")


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


def test_profile__no_file(tmp_path):
    with pytest.raises(ProfileError, match="cannot be read"):
        StageProfile.from_csv(tmp_path / "none.csv")


def test_profile__bad_arrays():
    fields = {"names": ["a", "b"], "forward": [1, 2], "backward": [1, 2], "cut_bytes": [1, 2]}
    with pytest.raises(ProfileError, match="parameter_bytes has 3 values for 2 pivots"):
        StageProfile("x", **fields, parameter_bytes=[1, 2, 3])
    with pytest.raises(ProfileError, match=r"parameter_bytes of pivot 1 \(b\) is -2.0; must be"):
        StageProfile("x", **fields, parameter_bytes=[1, -2])
    with pytest.raises(ProfileError, match=r"resident_bytes of pivot 0 \(a\) is nan"):
        StageProfile("x", **fields, parameter_bytes=[1, 2], resident_bytes=[np.nan, 2])
    with pytest.raises(ProfileError, match="micro_batch must be a whole number >= 1, not 0"):
        StageProfile("x", **fields, parameter_bytes=[1, 2], micro_batch=0)


def test_profile__is_frozen():
    names, forward = np.array(["a", "b"], dtype=object), np.ones(2)
    profile = StageProfile("x", names, forward, np.ones(2), np.ones(2), np.ones(2))
    for array in (profile.names, profile.forward, profile.cut_bytes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
    forward[0] = 5
    names[0] = "z"
    assert profile.forward[0] == 1
    assert profile.names[0] == "a"


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


@pytest.mark.parametrize(("name", "what"), [("\ud800", "is no text"), ("x\0", "holds a NUL")])
def test_profile__name_that_no_csv_can_hold(tmp_path, name, what):
    profile = StageProfile("mine", ["a", name], *np.ones((4, 2)))
    with pytest.raises(ProfileError, match=f"a name {what}"):
        profile.to_csv(tmp_path / "mine.csv")
    assert not list(tmp_path.iterdir())


def test_profile__csv_is_readable(tmp_path):
    profile = StageProfile("x", ["a", "b,c"], [1e-3, 0.1], [2e-3, 0.3], [3, 4e9], [5, 0])
    profile.to_csv(tmp_path / "x.csv")
    text = f'{HEADER}\na,1,2,3.0,5.0\n"b,c",1E+2,3E+2,4000000000.0,0.0\n'
    assert (tmp_path / "x.csv").read_text() == text


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


def test_profile__numbers_whose_sums_would_overflow(tmp_path):
    with pytest.raises(ProfileError, match=r"cut_bytes of pivot 1 \(b\) is 1e\+308"):
        StageProfile("x", ["a", "b"], [1, 1], [1, 1], [1, 1e308], [1, 1])
    path = tmp_path / "mine.csv"
    path.write_text(f"{HEADER}\na,1e308,1,1,1\nb,1,1,1,1\n")
    with pytest.raises(ProfileError, match=r"column 'forward_ms': '1e308' .* at most 1e\+30"):
        StageProfile.from_csv(path)


@each("micro_batch", [float("inf"), float("nan"), 2.5, 0, "8", 10**400])
def test_profile__samples_that_cannot_be(micro_batch):
    """Before anything is computed with them."""
    with pytest.raises(ProfileError, match="micro_batch must be a whole number") as caught:
        parenvs.problem(parenvs.load_graph("vgg-19", "forward"), "A", micro_batch=micro_batch)
    assert "\n" not in str(caught.value)
