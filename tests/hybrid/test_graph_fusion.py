"""What runs as one kernel, and what a fused graph keeps: small programs by hand, shipped graphs."""

from collections import Counter

import pytest
from partition_toys import read

from parenvs.graph.graph import Phase
from parenvs.tasks.hybrid.graph_program import Program, kernels_of
from parenvs.tasks.hybrid.graph_work import with_least_kept
from parenvs.tasks.hybrid.model import load_model


def kernels(text, keep=False):
    """The kernels of a module, members and tensors by the names of their instructions."""
    graph = read(text)
    program = Program.of(graph)
    found = kernels_of(program)
    if keep:
        found = with_least_kept(program, found)
    names = {t: name_of(graph, i) for i, made in enumerate(program.flow.results) for t in made}
    return [
        (
            Phase(kernel.phase).name[0],
            "+".join(program.flow.opcode[i] for i in kernel.members),
            sorted(names[t] for t in kernel.reads),
            sorted(names[t] for t in kernel.writes),
        )
        for kernel in found
    ]


def name_of(graph, index):
    return graph.strings[graph.op_name[index]].rpartition("/")[2] or f"#{index}"


GELU = """\
HloModule gelu
ENTRY main {
  params__w__.1 = f32[4,6]{1,0} parameter(0)
  params__v__.1 = f32[6,4]{1,0} parameter(1)
  batch__x__.1 = f32[8,4]{1,0} parameter(2)
  y.1 = f32[8,6]{1,0} dot(batch__x__.1, params__w__.1), \
lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jvp()/y"}
  square.1 = f32[8,6]{1,0} multiply(y.1, y.1), metadata={op_name="jit(step)/jvp()/square"}
  cube.1 = f32[8,6]{1,0} multiply(square.1, y.1), metadata={op_name="jit(step)/jvp()/cube"}
  gate.1 = f32[8,6]{1,0} tanh(cube.1), metadata={op_name="jit(step)/jvp()/gate"}
  out.1 = f32[8,6]{1,0} multiply(gate.1, y.1), metadata={op_name="jit(step)/jvp()/out"}
  z.1 = f32[8,4]{1,0} dot(out.1, params__v__.1), \
lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jvp()/z"}
  dv.1 = f32[6,4]{1,0} dot(out.1, z.1), \
lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="transpose(jvp())/dv"}
  do.1 = f32[8,6]{1,0} dot(z.1, params__v__.1), \
lhs_contracting_dims={1}, rhs_contracting_dims={1}, metadata={op_name="transpose(jvp())/do"}
  a.1 = f32[8,6]{1,0} multiply(do.1, gate.1), metadata={op_name="transpose(jvp())/a"}
  b.1 = f32[8,6]{1,0} multiply(a.1, square.1), metadata={op_name="transpose(jvp())/b"}
  dw.1 = f32[4,6]{1,0} dot(batch__x__.1, b.1), \
lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="transpose(jvp())/dw"}
  nw.1 = f32[4,6]{1,0} subtract(params__w__.1, dw.1), metadata={op_name="jit(step)/nw"}
  nv.1 = f32[6,4]{1,0} subtract(params__v__.1, dv.1), metadata={op_name="jit(step)/nv"}
  ROOT r.1 = (f32[4,6]{1,0}, f32[6,4]{1,0}) tuple(nw.1, nv.1)
}
"""


def test_fusion__what_derivatives_need_is_made_again_of_what_is_kept():
    """The backward kernel reads the product's result, and makes square and gate again."""
    literal = {row[1]: row for row in kernels(GELU)}
    activation = "multiply+multiply+tanh+multiply"
    assert literal[activation][2:] == (["y"], ["gate", "out", "square"])
    assert literal["multiply+multiply"][2] == ["do", "gate", "square"]
    least = {row[1]: row for row in kernels(GELU, keep=True)}
    assert least[activation][2:] == (["y"], ["out"])
    assert least["multiply+multiply"][2:] == (["do", "y"], ["b"])


@pytest.mark.thorough
def test_fusion__a_transformer_layer_keeps_what_megatron_keeps():
    """Norms keep their input and statistics, the activation its input, softmax its result."""
    work = load_model("bert-48").work
    shapes = Counter(
        tuple(sorted(work.program.flow.shapes[t])) for t in work.kept_tensors[20]
        if work.program.elements[t] > 64 * 512 * 16
    )  # fmt: skip
    stream, scores = (64, 512, 1024), (16, 64, 512, 512)
    heads = (16, 64, 64, 512)
    # Inputs of both norms and of both halves, queries, keys, values and context; up and its
    # activation; probabilities.
    assert shapes[scores] == 1 and shapes[64, 512, 4096] == 2
    assert shapes[stream] + shapes[heads] == 8
