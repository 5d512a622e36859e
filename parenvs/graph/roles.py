"""What the parts of a module are for: roles of its parameters, free tensors, phases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from parenvs.errors import HloError
from parenvs.graph.graph import Phase, Role, match_paths
from parenvs.graph.proto import FLOATING

Kind = tuple[int, tuple[int, ...]]
"""Element type and dimensions."""
_SOURCES = ("constant", "iota", "partition-id", "replica-id")
# Not free whatever their operands: side effects, randomness, or code that is not looked into.
_IMPURE = ("rng", "rng-get-and-update-state", "custom-call", "while", "conditional")


def parse_names(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Argument index and slash path of parameters named like ``params['encoder']['q']``."""
    arguments: dict[str, int] = {}
    numbers, paths = [], []
    for name in names:
        head = re.split(r"[\[./]", name, maxsplit=1)[0]
        numbers.append(arguments.setdefault(head, len(arguments)))
        keys = re.findall(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\w+)\]|\.(\w+)", name[len(head) :])
        parts = [next(filter(None, key), "") for key in keys]
        paths.append("/".join(parts) if parts else name)
    return numbers, paths


def roles(
    arguments: Sequence[int],
    paths: Sequence[str],
    kinds: Sequence[Kind],
    outputs: Sequence[Kind],
    variables: int | str | Sequence[str],
) -> list[Role]:
    """Role of each entry parameter.

    Variables: the floating leaves of one argument, or what the glob patterns match. Optimiser
    state: an argument whose leaves' shapes reappear, in order and in one block, among the outputs
    of a step that returns the variables as well (a forward pass has no state).

    Raises:
        HloError: ``variables`` names an argument that is not there, or matches no path.
    """
    if isinstance(variables, int):
        chosen = [
            argument == variables and kind in FLOATING
            for argument, (kind, _) in zip(arguments, kinds, strict=True)
        ]
        if variables not in arguments and variables:
            known = max(arguments, default=-1) + 1
            raise HloError(f"variables={variables}: the function has {known} arguments")
    else:
        patterns = [variables] if isinstance(variables, str) else list(variables)
        chosen = match_paths(paths, patterns)
        if not any(chosen):
            some = ", ".join(paths[:3])
            raise HloError(f"variables={variables!r} matches no parameter path (like {some})")
    state = set()
    trained = Counter(kind for kind, picked in zip(kinds, chosen, strict=True) if picked)
    for argument in set(arguments) if trained <= Counter(outputs) else ():
        block = [k for k, a in zip(kinds, arguments, strict=True) if a == argument]
        places = range(len(outputs) - len(block) + 1)
        if any(list(outputs[i : i + len(block)]) == block for i in places):
            state.add(argument)
    found = []
    for (kind, shape), argument, picked in zip(kinds, arguments, chosen, strict=True):
        if picked:
            found.append(Role.VARIABLE)
        elif not shape:
            found.append(Role.SCALAR)
        elif argument in state and kind in FLOATING:
            found.append(Role.OPTIMISER)
        else:
            found.append(Role.BATCH)
    return found


def free_instructions(
    opcodes: Sequence[str],
    operands: Sequence[Sequence[int]],
    results: Sequence[Sequence[int]],
    scalars: set[int],
) -> np.ndarray:
    """(I,) bool: made from constants, iota and scalar inputs only, without side effects.

    Args:
        opcodes: (I,) opcode of each instruction.
        operands: tensors that it reads.
        results: tensors that it makes.
        scalars: tensors of the scalar inputs.
    """
    known: set[int] = set()
    free = np.zeros(len(opcodes), dtype=bool)
    for index, (opcode, ins, outs) in enumerate(zip(opcodes, operands, results, strict=True)):
        if opcode == "parameter":
            ok = scalars.issuperset(outs)
        else:
            ok = opcode in _SOURCES or (
                opcode not in _IMPURE and len(ins) > 0 and known.issuperset(ins)
            )
        if ok:
            free[index] = True
            known.update(outs)
    return free


def phases(
    names: Sequence[str],
    operands: Sequence[Sequence[int]],
    results: Sequence[Sequence[int]],
    parent: Sequence[int],
    tensors: int,
) -> np.ndarray:
    """(I,) uint8 phases, from the scopes that automatic differentiation leaves in ``op_name``.

    ``transpose(jvp(...))`` is backward, and with it the forward code that it repeats
    (rematerialisation); ``jvp(...)`` is forward. What has neither is update if it depends on the
    backward pass, else as early as what uses it. What is inside a loop or branch has its phase.
    A module without a backward pass is all forward.
    """
    forward, backward, update = map(int, Phase)
    kind: dict[str, int] = {}
    for name in names:
        if name not in kind:
            scope = forward if "jvp(" in name else -1
            kind[name] = backward if "transpose(" in name else scope
    phase = [kind[name] for name in names]  # lists: NumPy is slow one element at a time
    if backward not in phase:
        return np.zeros(len(phase), dtype=np.uint8)
    late: set[int] = set()
    for index, (ins, outs) in enumerate(zip(operands, results, strict=True)):
        if phase[index] == backward or not late.isdisjoint(ins):
            late.update(outs)
            if phase[index] < 0:
                phase[index] = update
    earliest = [update] * tensors
    for index in range(len(phase) - 1, -1, -1):
        if phase[index] < 0:
            phase[index] = min((earliest[t] for t in results[index]), default=update)
        for t in operands[index]:
            earliest[t] = min(earliest[t], phase[index])
    for index, outer in enumerate(parent):  # parents stand before what they hold
        if outer >= 0:
            phase[index] = phase[outer]
    return np.array(phase, dtype=np.uint8)
