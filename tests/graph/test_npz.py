"""Graph files of strangers: what is too large, contradictory or out of order is one line."""

from __future__ import annotations

import io
import json
import struct
import warnings
import zipfile
from dataclasses import fields

import numpy as np
import pytest
from cases import each

from parenvs import ParenvsError
from parenvs.agents.learning.network import Network
from parenvs.cli import doctor
from parenvs.datasets import banks
from parenvs.datasets.pipeline import problems
from parenvs.errors import HloError
from parenvs.graph import checks
from parenvs.graph.graph import Graph, pack_texts
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

LOOP = """\
HloModule looping

body {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[4] tanh(x)
  ROOT t = (s32[], f32[4]) tuple(next, y)
}

test {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}

ENTRY main {
  w = f32[4] parameter(0)
  v = f32[4] parameter(1)
  zero = s32[] constant(0)
  s = f32[4] add(w, v)
  start = (s32[], f32[4]) tuple(zero, s)
  loop = (s32[], f32[4]) while(start), condition=test, body=body
  out = f32[4] get-tuple-element(loop), index=1
  ROOT r = f32[2,2] reshape(out)
}
"""


@pytest.fixture(scope="module")
def graph():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_module(parse(LOOP), name="looping", variables=["w"], batch=["v"])


def write(graph, path, head=None, **changes):
    """Writes a graph file with some of its content changed."""
    first = {"schema": 1, "name": "x", "batch_size": 4, **(head or {})}
    names = [field.name for field in fields(graph)]
    arrays = {k: v for k in names if isinstance(v := getattr(graph, k), np.ndarray)}
    np.savez(
        path, head=np.frombuffer(json.dumps(first).encode(), np.uint8), **{**arrays, **changes}
    )
    return path


def refused(path):
    """The one line that refuses a file."""
    with pytest.raises(HloError) as caught:
        Graph.load(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    return text.removeprefix(f"{path}: ")


@each(
    ("head", "words"),
    [
        ({"batch_size": 0}, "$.batch_size"),
        ({"batch_size": "8"}, "$.batch_size"),
        ({"batch_size": True}, "$.batch_size"),
        ({"batch_size": 2**64}, "$.batch_size"),
        ({"batch_size": 2.5}, "$.batch_size"),
        ({"name": 7}, "$.name"),
        ({"notes": "text"}, "$.notes"),
        ({"twins": [[0, 1, 2]]}, "$.twins"),
        ({"twins": [[0, 99]]}, "twins must be pairs of tensors"),
        ({"schema": "x" * 5000}, "graph schema"),
    ],
)
def test_npz__head(graph, tmp_path, head, words):
    line = refused(write(graph, tmp_path / "mine.npz", head))
    assert words in line
    assert "build the file anew" in line
    assert len(line) < 200


def changed(array, place, value):
    """A copy with one value changed."""
    out = array.copy()
    out[place] = value
    return out


def row(graph, opcode):
    """The first instruction of an opcode."""
    return graph.opcode.tolist().index(graph.opcodes.index(opcode))


def test_npz__values_that_cannot_be(graph, tmp_path):
    loop, inner = row(graph, "while"), row(graph, "tanh")
    add = row(graph, "add")
    reads = graph.operand_offset
    attribute = graph.attribute[row(graph, "while")]
    texts = graph.strings
    broken = [*texts[:attribute], "[1]", *texts[attribute + 1 :]]
    deep = [*texts[:attribute], "[" * 100_000, *texts[attribute + 1 :]]

    def table(names):
        return np.frombuffer("\n".join(names).encode(), np.uint8)

    cases = [
        ("element_type", changed(graph.element_type, 0, 200), "a type that does not exist"),
        ("element_type", changed(graph.element_type, 0, 13), "a type that does not exist"),
        ("dims", changed(graph.dims, 0, -1), "at least 0"),
        ("dims", changed(graph.dims, 0, 2**62), "more bytes than can be counted"),
        ("parent", changed(graph.parent, inner, inner), "or is its own"),
        ("parent", changed(graph.parent, loop, inner), "or is its own"),
        ("operands", changed(graph.operands, 0, graph.results[-1]), "before it is made"),
        (
            "operands",
            changed(graph.operands, reads[inner], graph.results[0]),
            "another computation",
        ),
        (
            "operands",
            changed(graph.operands, reads[-2], graph.results[graph.result_offset[inner]]),
            "another computation",
        ),
        ("outputs", changed(graph.outputs, 0, graph.results[graph.result_offset[inner]]), "entry"),
        ("results", changed(graph.results, 0, graph.results[1]), "made twice"),
        ("parameter_tensor", changed(graph.parameter_tensor, 0, graph.parameter_tensor[1]), "two"),
        ("flops", changed(graph.flops, add, np.nan), "finite"),
        ("flops", changed(graph.flops, add, 2e60), "finite"),
        ("bytes_accessed", changed(graph.bytes_accessed, add, np.inf), "finite"),
        ("string_table", table(broken), "Expected `object`"),
        ("string_table", table(deep), "Expected `object`"),
        ("opcode_names", table(["add", *graph.opcodes[:-1]]), "stands twice"),
    ]
    for key, value, words in cases:
        line = refused(write(graph, tmp_path / "mine.npz", **{key: value}))
        assert words in line, (key, line)
        assert "is broken; build the file anew" in line


def packed(path, **members):
    """Writes a zip of ``.npy`` members given as bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def header(text):
    """A ``.npy`` of no data whose header is ``text``."""
    padded = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded


def test_npz__more_than_the_limit_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "MOST_BYTES", 10_000)
    path = packed(tmp_path / "mine.npz", head=bytes(6000), dims=bytes(6000))
    assert "it unpacks to 12,000 bytes, and may to at most 10,000" in refused(path)


def test_npz__size_that_lies_is_not_unpacked(tmp_path):
    """The directory says 100 bytes where a million are packed."""
    path = packed(tmp_path / "mine.npz", head=bytes(1_000_000))
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<I", 1_000_000), struct.pack("<I", 100)))
    assert refused(path).startswith("not a graph file, or damaged")


@each(
    "text",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (0,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1" * 5000 + ",), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': " + "(" * 3000,
        "{'descr",
        "'''",
    ],
)
def test_npz__headers(tmp_path, text):
    line = refused(packed(tmp_path / "mine.npz", head=header(text)))
    assert line.startswith("not a graph file, or damaged (array 'head'")


def bank(path):
    return banks.Bank(path.stem, 1).arrays


def whole(path):
    """What ``doctor`` says of a data file."""
    found = next((x for x in doctor.diagnosis().faults if path.name in x), None)
    if found is not None:
        raise ParenvsError(found)


METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


@pytest.mark.thorough
def test_npz__damage_in_every_method_and_reader(tmp_path, monkeypatch):
    """A flipped byte, a cut, and a member of a long name of several lines: one short line."""
    for module in (banks, doctor):
        monkeypatch.setattr(module, "data_folder", lambda: tmp_path)
    monkeypatch.setattr(banks, "FOLDER", "")
    numbers = io.BytesIO()
    np.save(numbers, np.arange(60))
    readers = (Graph.load, problems.load_set, Network.load, bank)
    for method in METHODS:
        with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
            for name in ("head", "a\n" * 30_000):
                archive.writestr(f"{name}.npy", numbers.getvalue())
        sound = (tmp_path / "x.npz").read_bytes()
        at = sound.index(b"head.npy") + 8  # where its data begin
        for place in (None, -1, *range(at, at + 120, 17)):
            data = bytearray(sound)
            if place == -1:
                del data[at + 40 :]
            elif place is not None:
                data[place] ^= 0x5A
            (tmp_path / "x.npz").write_bytes(data)
            for reader in readers if place is None or place % 5 else (*readers, whole):
                with pytest.raises(ParenvsError) as caught:
                    reader(tmp_path / "x.npz")
                line = str(caught.value)
                assert "\n" not in line and "x.npz" in line and len(line) < 800


def test_npz__memory_that_lzma_asks_for(tmp_path):
    """A decoder allocates the window that the header tells before it reads a byte."""
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("head.npy", bytes(60))
    data = bytearray(path.read_bytes())
    place = data.index(b"head.npy") + 8 + 5
    data[place : place + 4] = struct.pack("<I", 2**31)
    path.write_bytes(data)
    assert "its compression asks for 2,147,483,648 bytes" in refused(path)


def rows_of(graph, opcode):
    """Rows of an opcode."""
    return np.flatnonzero(graph.opcode == graph.opcodes.index(opcode)).tolist()


@each(
    ("opcode", "place", "other", "words"),
    [
        ("return", 1, "tanh", "a computation does not end"),
        ("return", 0, "tanh", "a while has 1 computations"),
        ("while", 0, "add", "inside another that has no computations"),
        ("parameter", 0, "tanh", "not what the parameters of the entry make"),
        ("tanh", 0, "return", "an operand is of another computation"),
    ],
)
def test_npz__loops_that_do_not_fit(graph, tmp_path, opcode, place, other, words):
    codes = graph.opcode.copy()
    codes[rows_of(graph, opcode)[place]] = graph.opcodes.index(other)
    assert words in refused(write(graph, tmp_path / "x.npz", opcode=codes))


THREE = '{"value":[3],"dot":{}}'


@each(
    ("old", "new", "words"),
    [
        ('{"trip_count":3}', "", "a while has no trip_count"),
        ('{"trip_count":3}', '{"trip_count":"3"}', "got `str` - at `$.trip_count`"),
        ('{"trip_count":3}', '{"trip_count":-1}', "`int` >= 0"),
        (THREE, '{"value":["3"]}', "got `str`"),
        (THREE, '{"values":[3]}', "unknown field `values`"),
        (THREE, '{"dot":{"lhs":[[]]}}', "$.dot"),
        (THREE, '{"slices":[[0,1]]}', "$.slices"),
        (THREE, '{"applies":["add"]}', "$.applies"),
    ],
)
def test_npz__fields_of_attributes(graph, tmp_path, old, new, words):
    assert old in graph.strings
    texts = [new if text == old else text for text in graph.strings]
    text = refused(write(graph, tmp_path / "x.npz", string_table=pack_texts(texts)))
    assert text.startswith("attribute is broken")
    assert words in text


def test_npz__offsets_whose_difference_wraps(graph, tmp_path):
    """The difference of two int32 can be positive although the second is smaller."""
    offset = graph.result_offset.copy()
    offset[1:3] = -(2**31) + 5, 2**31 - 1
    assert np.diff(offset[:3])[1] < 0 < int(offset[2]) - int(offset[1])
    offset[1:3] = 2**31 - 1, -(2**31) + 5
    assert np.diff(offset[:3])[1] > 0
    assert "does not divide results" in refused(
        write(graph, tmp_path / "x.npz", result_offset=offset)
    )
