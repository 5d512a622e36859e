"""Words that hold the state of a generator, and names of drawn problems that hold such words."""

import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.core.game import Stream, generator_of, word_of
from parenvs.errors import UnknownInstanceError

WORD = word_of(np.random.default_rng(7))


@each("seed", [0, 7, 2**100])
def test_word_of__gives_the_same_draws_again(seed):
    rng = np.random.default_rng(seed)
    for _ in range(3):
        rng.integers(9)  # keeps the other half of 64 bits, every second time
        again = generator_of(word_of(rng))
        assert again.bit_generator.state == rng.bit_generator.state
        assert again.integers(9, size=5).tolist() == rng.integers(9, size=5).tolist()
        assert again.random() == rng.random()


def test_stream__begins_anew_with_a_seed():
    stream, drawn = Stream(), []
    for seed in (3, 3, 4, 3):
        stream.reseed(seed)
        drawn.append(stream.rng.integers(9, size=5).tolist())
        assert stream.seed == seed
    assert drawn[0] == drawn[1] == drawn[3] == np.random.default_rng(3).integers(9, size=5).tolist()
    assert drawn[2] != drawn[0]


@each("word", ["", "17", "?" * 43, WORD[1:], f"{WORD}AA", "\u00e9" * 43, WORD + "="])
def test_generator_of__other_words(word):
    assert generator_of(word) is None


@each(
    "name, words",
    [
        ("generated-2/inside/dog/17", "family .any, uniform"),
        ("generated-2/inside/any/word", "ranges .inside, outside"),
        ("generated-1/inside/any/17", "no such file"),
        ("intra-op/inside/mesh/0/0", "unknown problem"),
        ("intra-op/inside/mesh/x", "called like intra-op/inside/mesh/17"),
        ("intra-op/inside/classes/1234567890", "family .mesh, classes"),
    ],
)
def test_problem__names_that_nothing_was_drawn_by(name, words):
    with pytest.raises(UnknownInstanceError, match=words):
        parenvs.problem(name)


@each("name", ["generated-2/outside/cnn/17", "intra-op/inside/mesh/3"])
def test_problem__drawn_by_its_name(name):
    one, other = parenvs.problem(name), parenvs.problem(name)
    assert one is not other and one.instance == name
    plan = parenvs.plan(one, "even" if one.task == "pipeline" else "greedy").plan
    assert parenvs.judge(plan).to_json() == other.report(plan).to_json()
