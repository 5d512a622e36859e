"""StableHLO: text and bytecode read like the HLO of the same function."""

import warnings

import pytest

from parenvs import from_hlo, load_graph
from parenvs.errors import HloError, ParenvsError
from parenvs.graph import reader

TEXT = "module @m {\n  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {\n  }\n}\n"


@pytest.fixture(scope="module")
def lowered():
    jax = pytest.importorskip("jax")

    def step(params, x):
        def loss(params):
            body = lambda h, w: (jax.numpy.tanh(h @ w), None)  # noqa: E731
            return jax.lax.scan(body, x, params["layers"])[0].sum()

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    shape = jax.ShapeDtypeStruct
    args = {"layers": shape((3, 4, 4), "float32")}, shape((2, 4), "float32")
    return jax.jit(step, keep_unused=True).lower(*args)


@pytest.fixture(scope="module")
def graph(lowered, tmp_path_factory):
    path = tmp_path_factory.mktemp("proto") / "step.pb"
    path.write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    return from_hlo(path)


@pytest.mark.parametrize("ending", [".mlir", ".txt"])
def test_stablehlo__text_with_locations_is_complete(lowered, graph, tmp_path, ending):
    path = tmp_path / f"step{ending}"
    path.write_text(lowered.as_text(debug_info=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_graph(path).fingerprint == graph.fingerprint


def test_stablehlo__text_without_locations_warns(lowered, graph, tmp_path):
    path = tmp_path / "step.mlir"
    path.write_text(lowered.as_text())
    with pytest.warns(UserWarning, match=r"Arg_0.*as_text\(debug_info=True\)"):
        bare = from_hlo(path)
    assert bare.total_flops == graph.total_flops
    assert [bare.opcodes[c] for c in bare.opcode] == [graph.opcodes[c] for c in graph.opcode]
    assert bare.paths == ["Arg_0", "Arg_1"]


def test_stablehlo__bytecode(tmp_path):
    jax = pytest.importorskip("jax")
    export = pytest.importorskip("jax.export")
    path = tmp_path / "step.mlirbc"

    def function(x):
        return jax.numpy.tanh(x) * 2

    x = jax.ShapeDtypeStruct((4,), "float32")
    path.write_bytes(export.export(jax.jit(function))(x).mlir_module_serialized)
    read = from_hlo(path)
    assert read.paths == ["x"]
    assert "tanh" in read.opcodes


@pytest.mark.filterwarnings("ignore:.*no names of arguments")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TEXT, "jaxlib cannot turn this StableHLO into HLO"),
        (TEXT[:40], "jaxlib cannot turn this StableHLO into HLO"),
        (b"ML\xefR and nothing else", "jaxlib cannot turn this StableHLO into HLO"),
        (b"module @m {\xff\n}", "not UTF-8"),
    ],
)
def test_stablehlo__bad(tmp_path, content, message):
    pytest.importorskip("jax")
    path = tmp_path / "bad.mlir"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(HloError, match=message) as caught:
        from_hlo(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_stablehlo__without_jax_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_CONVERTER", "no_such_module")
    path = tmp_path / "step.txt"
    path.write_text(TEXT.replace("tensor<4xf32>)", 'tensor<4xf32> loc("x"))'))
    with pytest.raises(
        HloError, match=r"this is StableHLO.*pip install 'parenvs\[jax\]'"
    ) as caught:
        from_hlo(path)
    assert "\n" not in str(caught.value)


def test_stablehlo__mlir_that_is_something_else(tmp_path):
    path = tmp_path / "step.mlir"
    path.write_text("HloModule m\n")
    with pytest.raises(ParenvsError, match=r"step\.mlir"):
        from_hlo(path)
