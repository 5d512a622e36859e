"""Traces: both forms of file, courses by age, what is refused."""

import numpy as np
import pytest
from cases import each

from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.problems import load_trace, read_trace


def written(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_trace__oldest_first(tmp_path):
    rows = "0,add,a\n0,add,b\n0,add,c\n60,remove,b\n61,add,d\n61,remove,c\n119,add,b\n240,remove,a"
    course = read_trace(written(tmp_path, f"seconds,event,node\n{rows}\n")).course(60.0)
    assert course.nodes.tolist() == [3, 2, 3, 3, 2]
    assert course.joined.tolist() == [3, 0, 2, 0, 0]
    assert course.left.tolist() == [0, 1, 1, 0, 1]
    assert course.lost[1].tolist() == [0, 0, 1, 1]  # b was the second oldest
    assert course.lost[2].tolist() == [0, 0, 1, 1]  # of a and c, c
    assert course.lost[4].tolist() == [0, 1, 1, 1]


def test_trace__a_node_that_comes_and_goes_in_an_interval(tmp_path):
    rows = "0,add,a\n70,add,b\n80,remove,b\n90,remove,a\n100,add,a\n200,add,c"
    course = read_trace(written(tmp_path, f"seconds,event,node\n{rows}\n")).course(60.0)
    assert course.nodes.tolist() == [1, 1, 1, 1]
    assert (course.joined[2], course.left[2]) == (1, 1)  # the second a holds nothing
    assert course.lost[2].tolist() == [0, 1, 1]


def test_trace__counts_need_draws(tmp_path):
    trace = read_trace(written(tmp_path, "seconds,nodes\n0,4\n60,4\n60,2\n130,3\n"))
    assert not trace.is_named
    uniform = np.zeros((3, 4))
    course = trace.course(60.0, uniform)
    assert course.nodes.tolist() == [4, 2, 2]
    assert course.lost[1].tolist() == [0, 1, 2, 2, 2]  # the oldest two, by zeros
    assert trace.course(60.0, uniform + 0.99).lost[1].tolist() == [0, 0, 0, 1, 2]


@each(
    ("text", "words"),
    [
        ("time,nodes\n0,1\n", "first line must be 'seconds,event,node'"),
        ("seconds,nodes\n0,-1\n", "line 2: 'nodes' must be a whole number"),
        ("seconds,nodes\n5,1\n4,1\n", "line 3: 'seconds' must be a number from 5 on"),
        ("seconds,nodes\nnan,1\n", "line 2: 'seconds' must be a number"),
        ("seconds,nodes\n0,65\n", "65 nodes at a time, more than 64"),
        ("seconds,nodes\n0,0\n", "no node ever joins"),
        ("seconds,nodes\n0\n", "expected 2 fields, not 1"),
        ("seconds,event,node\n0,add,a\n0,add,a\n", "line 3: 'node' 'a' is there already"),
        ("seconds,event,node\n0,remove,a\n", "'node' 'a' is not there"),
        ("seconds,event,node\n0,come,a\n", "'event' must be add or remove"),
        ("", "first line must be"),
    ],
)
def test_trace__bad_files(tmp_path, text, words):
    with pytest.raises(ParenvsError, match=words) as error:
        read_trace(written(tmp_path, text))
    assert "\n" not in str(error.value)
    assert "trace.csv" in str(error.value)


def test_trace__bad_intervals(tmp_path):
    trace = read_trace(written(tmp_path, "seconds,nodes\n0,4\n1000000,2\n"))
    with pytest.raises(ParenvsError, match="more than 20,000; give a longer interval"):
        trace.course(1.0)
    with pytest.raises(ParenvsError, match="not a trace"):
        read_trace(tmp_path / "missing.csv")
    with pytest.raises(ParenvsError, match=r"unknown trace 'p4' \(did you mean 'p3'"):
        load_trace("p4")
