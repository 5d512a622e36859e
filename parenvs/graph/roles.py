"""Roles of a module's parameters, free instructions, and phases of a training step."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from parenvs.errors import HloError
from parenvs.graph.graph import Phase, Role
from parenvs.graph.proto import FLOATING

Kind = tuple[int, tuple[int, ...]]
"""Element type and dimensions of a tensor."""
_SOURCES = ("constant", "iota", "partition-id", "replica-id")
"""Opcodes that are free and have no operands."""
_IMPURE = ("rng", "rng-get-and-update-state", "custom-call", "while", "conditional")
"""Opcodes that are never free: they have side effects, draw numbers or call unknown code."""


def parse_names(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Split parameter names like ``params['encoder']['q']``.

    Args:
        names: (P,) names as JAX makes them.

    Returns:
        (P,) index of the function argument, in order of appearance, and (P,) path like
        ``encoder/q`` (the name itself where it has no keys).
    """
    arguments: dict[str, int] = {}
    numbers, paths = [], []
    for name in names:
        head = re.split(r"[\[./]", name, maxsplit=1)[0]
        numbers.append(arguments.setdefault(head, len(arguments)))
        keys = re.findall(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\w+)\]|\.(\w+)", name[len(head) :])
        parts = [next(filter(None, key), "") for key in keys]
        paths.append("/".join(parts) if parts else name)
    return numbers, paths


def match_paths(paths: Sequence[str], patterns: Sequence[str]) -> list[bool]:
    """Return of each path whether it matches one of the glob patterns."""
    return [any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns) for path in paths]


def roles(
    arguments: Sequence[int],
    paths: Sequence[str],
    kinds: Sequence[Kind],
    outputs: Sequence[Kind],
    variables: int | str | Sequence[str],
) -> list[Role]:
    """Return the role of each entry parameter.

    Variables are the floating leaves of one argument, or what the glob patterns match. Optimiser
    state is an argument whose leaves' kinds reappear, in order and in one block, among the outputs
    of a step that returns the variables as well (a forward pass has no state).

    Args:
        arguments: (P,) index of the function argument that each parameter belongs to.
        paths: (P,) path of each parameter.
        kinds: (P,) kind of each parameter.
        outputs: (O,) kind of each output.
        variables: index of the argument that holds the variables, or glob patterns over paths.

    Raises:
        HloError: ``variables`` is no argument's index, or matches no path.
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
            examples = ", ".join(paths[:3])
            raise HloError(f"variables={variables!r} matches no parameter path (like {examples})")
    state = set()
    trained = Counter(kind for kind, picked in zip(kinds, chosen, strict=True) if picked)
    for argument in set(arguments) if trained <= Counter(outputs) else ():
        block = [k for k, a in zip(kinds, arguments, strict=True) if a == argument]
        places = range(len(outputs) - len(block) + 1)
        if any(list(outputs[i : i + len(block)]) == block for i in places):
            state.add(argument)
    role_of_each = []
    for (kind, shape), argument, picked in zip(kinds, arguments, chosen, strict=True):
        if picked:
            role_of_each.append(Role.VARIABLE)
        elif not shape:
            role_of_each.append(Role.SCALAR)
        elif argument in state and kind in FLOATING:
            role_of_each.append(Role.OPTIMISER)
        else:
            role_of_each.append(Role.BATCH)
    return role_of_each


def free_instructions(
    opcodes: Sequence[str],
    operands: Sequence[Sequence[int]],
    results: Sequence[Sequence[int]],
    scalars: set[int],
) -> np.ndarray:
    """Find the instructions that depend on constants, iota and scalar inputs only.

    Args:
        opcodes: (I,) opcode of each instruction.
        operands: (I,) tensors that each reads.
        results: (I,) tensors that each produces.
        scalars: tensors of the scalar inputs.

    Returns:
        (I,) bool; an instruction with side effects is not free.
    """
    free_tensors: set[int] = set()
    free = np.zeros(len(opcodes), dtype=bool)
    for index, (opcode, ins, outs) in enumerate(zip(opcodes, operands, results, strict=True)):
        if opcode == "parameter":
            is_free = scalars.issuperset(outs)
        else:
            is_free = opcode in _SOURCES or (
                opcode not in _IMPURE and len(ins) > 0 and free_tensors.issuperset(ins)
            )
        if is_free:
            free[index] = True
            free_tensors.update(outs)
    return free


def phases(
    names: Sequence[str],
    operands: Sequence[Sequence[int]],
    results: Sequence[Sequence[int]],
    parent: Sequence[int],
    tensors: int,
) -> np.ndarray:
    """Find the phases by the scopes that automatic differentiation leaves in ``op_name``.

    ``transpose(jvp(...))`` is backward, and so is the forward code that it repeats
    (rematerialisation); ``jvp(...)`` is forward. An instruction with neither scope is update if it
    depends on the backward pass; else it has the earliest phase among its users. Instructions
    inside a loop or branch have its phase, except in one that holds a backward pass of its own:
    that is forward, and none of its instructions is update. A module without a backward pass is
    all forward.

    Args:
        names: (I,) ``op_name`` of each instruction.
        operands: (I,) tensors that each reads.
        results: (I,) tensors that each produces.
        parent: (I,) instruction whose computation each is in, -1 at the top.
        tensors: T, the number of tensors.

    Returns:
        (I,) uint8, ``Phase``.
    """
    forward, backward, update = map(int, Phase)
    by_name: dict[str, int] = {}
    for name in names:
        if name not in by_name:
            scope = forward if "jvp(" in name else -1
            by_name[name] = backward if "transpose(" in name else scope
    phase = [by_name[name] for name in names]  # lists: NumPy is slow one element at a time
    if backward not in phase:
        return np.zeros(len(phase), dtype=np.uint8)
    training = {
        outer
        for index, outer in enumerate(parent)
        if phase[index] == backward and outer >= 0 and phase[outer] < 0
    }
    after_backward: set[int] = set()  # tensors that depend on the backward pass
    for outer in training:
        phase[outer] = forward
        after_backward.update(results[outer])
    for index, (ins, outs) in enumerate(zip(operands, results, strict=True)):
        if phase[index] == backward or not after_backward.isdisjoint(ins):
            after_backward.update(outs)
            if phase[index] < 0:
                phase[index] = update
    earliest = [update] * tensors
    for index in range(len(phase) - 1, -1, -1):
        if phase[index] < 0:
            phase[index] = min((earliest[t] for t in results[index]), default=update)
        for t in operands[index]:
            earliest[t] = min(earliest[t], phase[index])
    for index, outer in enumerate(parent):  # parents stand before their instructions
        if outer in training:
            phase[index] = min(phase[index], backward)
        elif outer >= 0:
            phase[index] = phase[outer]
    return np.array(phase, dtype=np.uint8)
