"""JAX functions by file and name, as a user has them."""

import os
import sys
import time

import pytest
from cases import each

from parenvs.errors import ParenvsError
from parenvs.files import is_function
from parenvs.graph import cache, python_source
from parenvs.graph.python_source import graph_of, lower

KEPT = """
import jax.numpy as jnp
from kept_sizes import WIDTH

def loss(w, x):
    return jnp.tanh(x @ w).sum()

def arguments():
    return jnp.zeros((8, WIDTH)), jnp.zeros((4, 8))
"""
SCRIPT = """
from dataclasses import dataclass
import jax
import jax.numpy as jnp

CALLS = []

@dataclass
class Sizes:
    width: "int" = 8

print("to standard error")

def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x.sum()

step = jax.jit(lambda weights, x: jax.grad(loss)(weights, x))

class Model:
    def __call__(self, x):
        return x.sum()

    def apply(self, x, y):
        return x @ y

model = Model()

def example_args():
    CALLS.append(1)
    return [jnp.zeros((8, 8))] * 3, jnp.zeros((4, 8))

def huge_args():
    return [jnp.zeros((10**6, 10**6))] * 3, jnp.zeros((4, 10**6))

def untraceable():
    import numpy as np
    return [jnp.asarray(np.asarray(jnp.zeros((8, 8)) + 1.0))] * 3, jnp.zeros((4, 8))

named = {"x": jax.ShapeDtypeStruct((2, 3), "float32"), "y": jax.ShapeDtypeStruct((3, 5), "float32")}
one = jax.ShapeDtypeStruct((7,), "float32")
ready = ([jax.ShapeDtypeStruct((8, 8), "float32")] * 2, jax.ShapeDtypeStruct((4, 8), "float32"))

def scaled(x, times):
    return x * 2 if times > 1 else x

scaled = jax.jit(scaled, static_argnums=1)

def with_static():
    return jnp.zeros(3), 2

def none_needed(n=3):
    return jnp.zeros(n) + 1

def wrong(weights, x):
    return x @ weights["missing"]

def fails():
    return 1 / 0

def leaves():
    raise SystemExit("no data here")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script, in the current folder."""
    pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text("SIZE = 5\n")
    path = tmp_path / "my_model.py"
    path.write_text(SCRIPT)
    before = set(sys.modules)
    yield path
    for name in set(sys.modules) - before:
        if "my_model" in name or name == "helper":
            del sys.modules[name]


def shapes(graph):
    return [graph.shape(t) for t in graph.parameter_tensor]


@each(
    ("instance", "is_one"),
    [
        ("my_model.py:step", True),
        ("a folder/my-model.py:step", True),
        ("package.module:Model.apply", True),
        ("t5-3b", False),
        ("model.npz", False),
        ("my_model.py", False),
        ("my_model.py:", False),
        ("1x8:v100", False),
        ("C:\\model.pb", False),
    ],
)
def test_python_source__forms(instance, is_one):
    assert is_function(instance) == is_one


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("loss", "example_args", [(8, 8)] * 3 + [(4, 8)]),
        ("step", "my_model.py:example_args", [(8, 8)] * 3 + [(4, 8)]),
        ("loss", "ready", [(8, 8)] * 2 + [(4, 8)]),
        ("loss", "untraceable", [(8, 8)] * 3 + [(4, 8)]),
        ("loss", "huge_args", [(10**6, 10**6)] * 3 + [(4, 10**6)]),
        ("model", "one", [(7,)]),
        ("model.apply", "named", [(2, 3), (3, 5)]),
        ("scaled", "with_static", [(3,)]),
        ("none_needed", None, []),
    ],
)
def test_python_source__arguments(script, name, arguments, expected):
    graph = graph_of(f"my_model.py:{name}", arguments)
    assert graph.name == name.split(".")[-1]
    assert shapes(graph) == expected


def test_python_source__the_code_runs_once(script, capfd):
    first = lower("my_model.py:loss", "example_args")
    assert lower("my_model.py:loss", "example_args") == first
    lower("my_model.py:loss", "ready")
    assert sys.modules["my_model"].CALLS == [1]  # and for its shapes only
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "to standard error\n")
    script.write_text(SCRIPT.replace("(8, 8)", "(16, 16)").replace("(4, 8)", "(4, 16)"))
    assert shapes(graph_of("my_model.py:loss", "ready")) == [(16, 16)] * 2 + [(4, 16)]


def test_python_source__arguments_of_another_file(script):
    (script.parent / "data.py").write_text("import helper, my_model\nready = my_model.ready\n")
    assert len(shapes(graph_of("my_model.py:loss", "data.py:ready"))) == 3


@pytest.mark.parametrize(
    ("instance", "arguments", "words"),
    [
        ("my_model.py:los", "ready", "my_model.py: no name 'los' (did you mean 'loss'?)"),
        ("my_model.py:loss", "redy", "my_model.py: no name 'redy' (did you mean 'ready'?)"),
        ("my_model.py:loss", None, "takes arguments: give --args NAME"),
        ("my_model.py:one", None, "is no function"),
        ("none.py:loss", "ready", "no file 'none.py'"),
        ("no_such_module:loss", "ready", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("my_model.py:wrong", "ready", "my_model.py:{x @ weights} : TypeError"),
        ("my_model.py:loss", "fails", "my_model.py:{1 / 0}: ZeroDivisionError: division by zero"),
        ("my_model.py:loss", "leaves", "my_model.py:{raise Sys}: SystemExit: no data here"),
        ("my_model.py:model.apply", "one", "TypeError"),
    ],
)
def test_python_source__one_line_for_what_fails(script, instance, arguments, words):
    with pytest.raises(ParenvsError) as error:
        lower(instance, arguments)
    text = str(error.value)
    assert "\n" not in text
    for number, line in enumerate(SCRIPT.splitlines(), 1):  # {code} stands for its line's number
        for code in ("x @ weights", "1 / 0", "raise Sys"):
            if code in line:
                words = words.replace(f"{{{code}}} ", str(number)).replace(
                    f"{{{code}}}", str(number)
                )
    assert words in text


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import jax\n\nx = (1,\n", "broken.py:3: SyntaxError"),
        ("\nimport no_such_package\n", "broken.py:2: ModuleNotFoundError"),
        (
            "def f():\n    raise ValueError('two\\nlines')\nf()\n",
            "broken.py:2: ValueError: two lines",
        ),
    ],
)
def test_python_source__files_that_do_not_import(script, code, words):
    (script.parent / "broken.py").write_text(code)
    with pytest.raises(ParenvsError) as error:
        lower("broken.py:f", "ready")
    assert words in str(error.value)
    assert "broken" not in sys.modules


def test_python_source__a_file_named_like_a_library(script):
    (script.parent / "json.py").write_text(SCRIPT)
    assert len(shapes(graph_of("json.py:loss", "ready"))) == 3
    assert "site-packages" not in sys.modules["json"].__file__
    assert hasattr(sys.modules["json"], "dumps")


def test_lower__a_kept_model_is_read_as_the_one_that_was_lowered(tmp_path, monkeypatch):
    """The commands' cache: a line that changes in a file that the model imports is seen."""
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    past = time.time() - 10
    for name, text in (("kept_model.py", KEPT), ("kept_sizes.py", "WIDTH = 8")):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (past, past))

    def lowered():
        python_source._lowered.cache_clear()
        for name in ("kept_model", "kept_sizes"):
            sys.modules.pop(name, None)
        with cache.enabled():
            return lower("kept_model.py:loss", "arguments")

    first, second = lowered(), lowered()
    assert (first.kept, second.kept) == (False, True)
    assert second.proto == first.proto
    assert second.graph(name="loss").fingerprint == first.graph(name="loss").fingerprint
    (tmp_path / "kept_sizes.py").write_text("WIDTH = 9")
    third = lowered()
    assert not third.kept
    assert third.proto != first.proto
