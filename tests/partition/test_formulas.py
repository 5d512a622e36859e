"""Seconds of instructions: the roofline by hand, loops, branches, and the shipped graphs."""

from dataclasses import replace

import numpy as np
import partition_toys as toys
import pytest

from parenvs.cluster import DEVICES, Device
from parenvs.tasks.partition.formulas import instruction_seconds, paper_return, paper_reward, runs

DEVICE = Device("toy", peak_flops=100.0, memory_bw=10.0, memory_bytes=1.0)


def by_opcode(graph, seconds):
    """Opcode -> seconds of its only instruction, or a list of those of several."""
    found = {}
    for (opcode, _, _), time in zip(toys.instructions(graph), seconds, strict=True):
        found.setdefault(opcode, []).append(float(time))
    return {opcode: times[0] if len(times) == 1 else times for opcode, times in found.items()}


def small(lines, root="add.1 = f32[8,8]{1,0} add(dot.1, x.1)"):
    square = "f32[8,8]{1,0}"
    return toys.read(toys.module({"w": square, "x": square}, lines, root))


DOT = "dot.1 = f32[8,8]{1,0} dot(w.1, x.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def test_formulas__roofline_by_hand():
    """A sum is bound by three times 256 bytes, the product by 2 8 8 8 FLOPs where they are slow."""
    graph = small([DOT])
    found = by_opcode(graph, instruction_seconds(graph, replace(DEVICE, peak_flops=10.0)))
    assert found == {
        "parameter": [0, 0],
        "dot": pytest.approx(1024 / (0.5 * 10)),  # the bytes would take 76.8
        "add": pytest.approx(768 / 10),  # the FLOPs would take 12.8
    }


def test_formulas__free_instructions_cost_nothing():
    lines = [
        "one.1 = f32[] constant(1)",
        "two.1 = f32[] add(one.1, one.1)",
        "all.1 = f32[8,8]{1,0} broadcast(two.1), dimensions={}",
        "ramp.1 = f32[8,8]{1,0} iota(), iota_dimension=0",
        "mask.1 = f32[8,8]{1,0} multiply(all.1, ramp.1)",
        DOT,
        "sub.1 = f32[8,8]{1,0} subtract(dot.1, mask.1)",
    ]
    graph = small(lines, "neg.1 = f32[8,8]{1,0} negate(sub.1)")
    found = by_opcode(graph, instruction_seconds(graph, DEVICE))
    for opcode in ("constant", "add", "broadcast", "iota", "multiply"):
        assert found[opcode] == 0, opcode
    assert found["subtract"] == pytest.approx(3 * 256 / 10)  # it reads the mask all the same
    assert found["negate"] == pytest.approx(2 * 256 / 10)


def test_formulas__loops_count_their_trips():
    """Seven times a product and a counter; the condition's comparison runs as often."""
    graph = toys.read(toys.LOOP)
    seconds = instruction_seconds(graph, DEVICE)
    found = by_opcode(graph, seconds)
    assert found["dot"] == pytest.approx(7 * 3 * 64 / 10)
    assert found["while"] == 0
    assert found["compare"] == pytest.approx(7 * (4 + 4 + 1) / 10)
    counter, last = found["add"]
    assert counter == pytest.approx(7 * 12 / 10)
    assert last == pytest.approx(3 * 64 / 10)
    assert seconds.sum() == pytest.approx(
        sum(7 * x for x in (19.2, 0.9, 1.2)) + 3 * 6.4 + 2 * (2 * 6.4)
    )
    assert runs(graph, seconds).tolist() == toys.slow_runs(graph, seconds).tolist()


def test_formulas__conditional_takes_its_longest_branch():
    graph = toys.read(toys.BRANCHES)
    seconds = instruction_seconds(graph, DEVICE)
    found = by_opcode(graph, seconds)
    assert found["dot"] == pytest.approx(19.2)
    assert found["add"] == pytest.approx([19.2, 19.2])
    assert found["tanh"] == pytest.approx([12.8, 0])  # before it, and in the other branch
    assert found["conditional"] == 0
    # The order of the branches does not matter.
    turned = toys.BRANCHES.replace("true_computation=short", "true_computation=?")
    turned = turned.replace("false_computation=long", "false_computation=short")
    turned = toys.read(turned.replace("true_computation=?", "true_computation=long"))
    assert instruction_seconds(turned, DEVICE).sum() == pytest.approx(seconds.sum())


def test_formulas__branches_in_a_loop():
    """Each of the seven trips takes the longest branch."""
    branches = toys.BRANCHES.replace("HloModule branches\n", "").split("ENTRY")[0]
    text = toys.LOOP.replace("HloModule loop\n", f"HloModule both\n{branches}").replace(
        "  dot.1 = f32[4,4]{1,0} dot(x.1, z.1), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}\n",
        "  yes.1 = pred[] compare(i.1, one.1), direction=EQ\n"
        "  dot.1 = f32[4,4]{1,0} conditional(yes.1, x.1, z.1), true_computation=short, "
        "false_computation=long\n",
    )
    graph = toys.read(text)
    seconds = instruction_seconds(graph, DEVICE)
    found = by_opcode(graph, seconds)
    assert found["dot"] == pytest.approx(7 * 19.2)
    assert found["tanh"] == pytest.approx([12.8, 0])
    np.testing.assert_allclose(seconds, toys.slow_seconds(graph, DEVICE), rtol=1e-14)


@pytest.mark.parametrize(
    ("device", "peaks"),
    [("a100", {"f32": 156e12, "bf16": 312e12}), ("v100", {"f32": 15.7e12, "bf16": 15.7e12})],
)
def test_formulas__the_type_of_elements_decides_the_peak(device, peaks):
    """A product runs at the peak of its operands' type, also where its result is wider."""
    text = """HloModule types
ENTRY main {
  a.1 = f32[512,512]{1,0} parameter(0)
  b.2 = bf16[512,512]{1,0} parameter(1)
  dot.3 = f32[512,512]{1,0} dot(a.1, a.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  dot.4 = f32[512,512]{1,0} dot(b.2, b.2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT add.5 = f32[512,512]{1,0} add(dot.3, dot.4)
}
"""
    graph = toys.read(text)
    chip = replace(DEVICES[device], memory_bw=float("inf"))
    full, half = by_opcode(graph, instruction_seconds(graph, chip))["dot"]
    assert full == 2 * 512**3 / (0.5 * peaks["f32"])
    assert half == 2 * 512**3 / (0.5 * peaks["bf16"])
    slow = by_opcode(graph, instruction_seconds(graph, chip.at("fp32")))["dot"]
    assert slow == pytest.approx([2 * 512**3 / (0.5 * chip.peak("fp32"))] * 2)


def test_formulas__returns_of_the_paper():
    """0.1 for each dimension, 0.4 for a partitioned one (arXiv 2007.04069, section 3.3)."""
    assert paper_reward(1) == 0.4
    assert paper_reward(0) == 0.1
    assert paper_reward(0, 3) == pytest.approx(0.3)
    linear = paper_return(5, np.array([2, 1]))
    chosen = np.array([[False, False], [True, False], [True, True]])
    assert linear.value(chosen) == pytest.approx([0.5, 2 * 0.4 + 3 * 0.1, 3 * 0.4 + 2 * 0.1])
