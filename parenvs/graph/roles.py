"""Roles of a module's entry parameters, told by the flow of data, and its free instructions.

A **variable** is read by the forward pass and receives a gradient, or an update by one. Optimizer
state is updated by gradients, too, but no forward instruction reads it. Statistics are updated
without a gradient. Weights that receive neither are frozen. What is left is the batch. A forward
pass has no gradient: its variables are told from its data by how they are read.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

from parenvs.errors import HloError, listed
from parenvs.graph.checks import ELEMENT_TYPES, FLOATING
from parenvs.graph.flow import Flow, free_instructions, reachable
from parenvs.graph.graph import Graph, Phase, Role, pack_texts
from parenvs.graph.opcodes import ELEMENTWISE
from parenvs.graph.training import (
    Update,
    find_updates,
    returned_gradients,
    viewed_readers,
    walk,
    without_updates,
)
from parenvs.graph.use import DATA, WEIGHT, Axes, Use, forward_of, leading_samples, samples

_KEY = re.compile(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\w+)\]|\.(\w+)")


def keys_of(name: str) -> tuple[str, list[str]]:
    """Split a name like ``params['encoder']['q']`` into the argument and its keys."""
    head = re.split(r"[\[./]", name, maxsplit=1)[0]
    return head, [next(filter(None, key), "") for key in _KEY.findall(name[len(head) :])]


def find_twins(
    inputs: Sequence[str], outputs: Sequence[str], kinds: tuple[Sequence[object], Sequence[object]]
) -> list[tuple[int, int]]:
    """Pair outputs and inputs of equal paths.

    Args:
        inputs: names of the entry parameters, like ``params['q']``.
        outputs: names of the results, like ``[0]['q']``.
        kinds: element type and shape of each input, and of each output; those of a pair are equal.

    Returns:
        Pairs of an output's and an input's position. Each has more of its path in common with the
        other than with any that is not in the pair.
    """
    input_keys = [keys_of(name) for name in inputs]
    output_keys = [keys_of(name)[1] for name in outputs]
    by_key: dict[tuple[str, object], list[int]] = {}
    for i, ((head, keys), kind) in enumerate(zip(input_keys, kinds[0], strict=True)):
        # Twins end in one key: comparing only these keeps large trees fast.
        by_key.setdefault((keys[-1] if keys else head, kind), []).append(i)
    nearest: dict[int, int] = {}
    claims: dict[int, list[tuple[int, int]]] = {}
    for o, (keys, kind) in enumerate(zip(output_keys, kinds[1], strict=True)):
        if not keys or (len(keys) == 1 and keys[0].isdecimal()):
            continue  # a position among the results is no path
        candidates = by_key.get((keys[-1], kind), ())
        distances = sorted((_distance(*input_keys[i], keys), i) for i in candidates)
        # A tie says nothing: an online and a target network have the same paths.
        if distances and (len(distances) == 1 or distances[0][0] < distances[1][0]):
            distance, nearest[o] = distances[0]
            claims.setdefault(nearest[o], []).append((distance, o))
    pairs = []
    for o, i in nearest.items():
        (distance, closest), *others = sorted(claims[i])
        if closest == o and (not others or distance < others[0][0]):
            pairs.append((o, i))
    return pairs


def _distance(head: str, keys: Sequence[str], output_keys: Sequence[str]) -> int:
    """How many keys an input's path and an output's do not have in common, from their ends."""
    pairs = zip([*keys[::-1], head], output_keys[::-1], strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return max(len(keys) - common, 0) + len(output_keys) - common


Choice = int | str | Sequence[str] | None
"""Parameters that a reader names: an argument's index, or glob patterns over paths."""
_GUESS = "nothing tells what it is"
_PART = re.compile(r"/\d+:\d+$")
"""End of the path of a part of a weight, see ``parenvs.in_parts``."""
_KEY_WORDS = 4
"""Most 32-bit words of a random key."""
_MIXERS = {"xor", "custom-call", "rng-bit-generator", "broadcast"}
"""Opcodes that mix the words of random keys, and what repeats them."""
_SMALL = frozenset(
    code for code, (name, bits) in ELEMENT_TYPES.items() if name[0] in "su" and bits <= 8
)
"""Codes of small whole numbers, which quantized weights have as well as images."""

_MASKS = {code for code, (name, _) in ELEMENT_TYPES.items() if name == "pred"}


def parse_names(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Split (P,) parameter names like ``params['encoder']['q']``, as JAX makes them.

    Returns:
        (P,) index of the function argument, in order of appearance, and (P,) path like
        ``encoder/q`` (the name itself where it has no keys).
    """
    arguments: dict[str, int] = {}
    numbers, paths = [], []
    for name in names:
        head, parts = keys_of(name)
        numbers.append(arguments.setdefault(head, len(arguments)))
        paths.append("/".join(parts) if parts else name)
    return numbers, paths


def with_arguments_named(
    graph: Graph, names: Sequence[str], flow: Flow, known: Any = None
) -> Graph:
    """Return the graph with paths of weights and batch inputs that no two arguments share.

    Where they do, all paths of these arguments begin with the argument, like ``params/encoder/q``.
    ``names`` are (P,) as JAX makes them; ``known`` is that of ``with_roles``.
    """
    paths, arguments = graph.paths, graph.parameter_argument.tolist()
    if len(set(paths)) == len(paths):
        return graph
    role = with_roles(graph, flow=flow, known=known).parameter_role.tolist()
    named = (Role.VARIABLE, Role.FROZEN, Role.BATCH)
    # Optimizer state has the paths of its weights, which makes nothing ambiguous.
    leaves = [pair for *pair, kind in zip(paths, arguments, role, strict=True) if kind in named]
    count_of = Counter(path for path, _ in leaves)
    ambiguous = {argument for path, argument in leaves if count_of[path] > 1}
    strings, path_index = list(graph.strings), graph.parameter_path.tolist()
    for index, (name, path, argument) in enumerate(zip(names, paths, arguments, strict=True)):
        if argument in ambiguous and path != name:
            path_index[index] = len(strings)
            strings.append(f"{keys_of(name)[0]}/{path}")
    return replace(
        graph, parameter_path=np.array(path_index, np.int32), string_table=pack_texts(strings)
    )


def match_paths(paths: Sequence[str], patterns: Sequence[str]) -> list[bool]:
    """Return of each path whether it matches one of the glob patterns.

    What matches the path of a weight that was taken apart matches its parts.
    """
    names = [{path, _PART.sub("", path)} for path in paths]
    return [any(fnmatch.fnmatchcase(n, p) for n in both for p in patterns) for both in names]


def with_roles(
    graph: Graph,
    variables: Choice = None,
    batch: Choice = None,
    frozen: Choice = None,
    batch_size: int | None = None,
    flow: Flow | None = None,
    known: Sequence[Role] | None = None,
) -> Graph:
    """Return the graph with the roles of its parameters, its free instructions and batch size.

    Args:
        graph: the graph, with phases.
        variables: the trainable parameters, by path or by argument; nothing else is trainable then
            (default: what the data flow says). Optimizer state and statistics of the same path or
            argument are left out; of an argument, all floating leaves are meant.
        batch: the batch inputs (default: likewise).
        frozen: weights to be taken as frozen (default: those without gradient and update). What
            only their gradients, updates and optimizer state need is left out of the graph.
        batch_size: samples per batch (default: what ``parenvs.graph.use.samples`` finds).
        flow: the graph's flow, if it is there already.
        known: role of each argument by who made the module, in place of what the data flow says;
            what is a number there stays one, unless it is trained.

    Raises:
        HloError: a choice is no argument's index, or matches no path.
    """
    flow = flow or Flow(graph)
    detected = _detected(graph, flow)
    for index, argument in enumerate(graph.parameter_argument.tolist()):
        if known and (detected[index][0] != Role.SCALAR or known[argument] == Role.VARIABLE):
            detected[index] = known[argument], "it is known"
    role = [assigned for assigned, _ in detected]
    guesses = [path for path, (_, why) in zip(graph.paths, detected, strict=True) if _GUESS in why]
    notes = graph.notes
    if guesses and variables is None and batch is None:
        notes += (
            f"nothing tells whether {listed(guesses)} are weights or data; name them "
            "with variables=, frozen= or batch=",
        )
    tensors, kinds = flow.inputs, [flow.types[t] for t in flow.inputs]
    if variables is not None:
        chosen = _chosen(graph, variables, "variables")
        if isinstance(variables, int):  # counters and keys in an argument are no weights
            chosen = {k for k in chosen if kinds[k] in FLOATING}
        role = [Role.FROZEN if assigned == Role.VARIABLE else assigned for assigned in role]
        for index in _without_state(chosen, [assigned for assigned, _ in detected]):
            role[index] = Role.VARIABLE
    for choice, name, forced in ((batch, "batch", Role.BATCH), (frozen, "frozen", Role.FROZEN)):
        for index in _without_state(_chosen(graph, choice, name), role):
            if name == "batch" or kinds[index] in FLOATING | _MASKS:
                role[index] = forced
    if batch_size is None:
        inputs = [t for t, assigned in zip(tensors, role, strict=True) if assigned == Role.BATCH]
        batch_size, note = samples(Axes(flow), inputs, graph.phase.tolist())
        notes += (note,) if note else ()
        if batch is None and known is None and not note:
            notes += _data_without_samples(graph, role, int(batch_size))
    scalars = {t for t, assigned in zip(tensors, role, strict=True) if assigned == Role.SCALAR}
    opcodes = map(graph.opcodes.__getitem__, graph.opcode.tolist())
    rows = zip(opcodes, flow.operands, flow.results, strict=True)
    free = free_instructions(rows, scalars)
    roles = np.array(role, np.uint8)
    graph = replace(graph, batch_size=int(batch_size), parameter_role=roles, free=free, notes=notes)
    if frozen is None:
        return graph
    changes = [(before, after) for (before, _), after in zip(detected, role, strict=True)]
    pairs = zip(tensors, changes, strict=True)
    weights = {tensor for tensor, change in pairs if change == (Role.VARIABLE, Role.FROZEN)}
    return without_updates(graph, weights, flow)


def reasons(graph: Graph) -> list[str]:
    """Why the reader takes each entry parameter for what it does, in words, (P,)."""
    detected = _detected(graph, Flow(graph))
    return [
        why if assigned == role else "as the reader was told"
        for (assigned, why), role in zip(detected, graph.parameter_role.tolist(), strict=True)
    ]


def _data_without_samples(graph: Graph, role: Sequence[Role], batch_size: int) -> tuple[str, ...]:
    odd = []
    for path, assigned, tensor in zip(graph.paths, role, graph.parameter_tensor, strict=True):
        shape, kind = graph.shape(tensor), int(graph.element_type[tensor])
        if assigned == Role.BATCH and kind in FLOATING | _MASKS and len(shape) > 1:
            odd += [path] if all(length % batch_size for length in shape) else []
    if not odd:
        return ()
    return (
        f"{listed(odd, 1)} is taken as data, though none of its dimensions has the {batch_size:,} "
        "samples of the batch; if every sample gets the same of it, say so with frozen=",
    )


def _chosen(graph: Graph, choice: Choice, name: str) -> set[int]:
    """Return the indices of the parameters that a choice names."""
    if choice is None:
        return set()
    if isinstance(choice, int):
        arguments = graph.parameter_argument.tolist()
        if choice not in arguments:
            known = max(arguments, default=-1) + 1
            raise HloError(f"{name}={choice}: the function has {known} arguments")
        return {k for k, argument in enumerate(arguments) if argument == choice}
    patterns = [choice] if isinstance(choice, str) else list(choice)
    chosen = {k for k, matches in enumerate(match_paths(graph.paths, patterns)) if matches}
    if not chosen:
        examples = ", ".join(graph.paths[:3])
        raise HloError(f"{name}={choice!r} matches no parameter path (like {examples})")
    return chosen


def _without_state(chosen: set[int], role: Sequence[Role]) -> set[int]:
    """Leave out optimizer state and statistics, whose paths may be those of weights.

    If there is nothing else among what is chosen, it stays.
    """
    return {k for k in chosen if role[k] not in (Role.OPTIMIZER, Role.STATISTICS)} or chosen


Detected = dict[int, tuple[Role, str]]
"""Tensor of an input -> its role, and the reason in words."""


def _has_gradient(graph: Graph) -> bool:
    return bool((graph.phase == Phase.BACKWARD).any())


def _detected(graph: Graph, flow: Flow) -> list[tuple[Role, str]]:
    """The role of each parameter by the data flow, and the reason in words, (P,)."""
    types, shapes = flow.types, flow.shapes
    detected: Detected = {}
    for tensor in flow.inputs:
        # A floating number may be trained, as a temperature is; a whole one may not.
        if not shapes[tensor] and not (types[tensor] in FLOATING and _has_gradient(graph)):
            detected[tensor] = Role.SCALAR, "it is a number"
    # Keys come first: one that a step carries on would be taken as a counter.
    keys = _by_keys(flow, detected)
    _by_update(graph, flow, detected)
    for tensor in flow.inputs:
        if not shapes[tensor]:
            detected.setdefault(tensor, (Role.SCALAR, "it is a number"))
        elif types[tensor] not in FLOATING and types[tensor] not in _SMALL:
            detected.setdefault(tensor, (Role.BATCH, f"{ELEMENT_TYPES[types[tensor]][0]} values"))
    for tensor in filter(set(flow.outputs).__contains__, flow.inputs):
        detected.setdefault(tensor, (Role.FROZEN, "it is returned as it is"))
    _by_use(graph, flow, detected)
    retained = [t for t in flow.inputs if detected[t][0] == Role.STATISTICS]
    batch = [t for t in flow.inputs if detected[t][0] == Role.BATCH]
    if batch and (keys or retained):
        axes, phase = Axes(flow), graph.phase.tolist()
        # Whether there is a key per sample, and a state per sample, is known once the batch is.
        size, _ = samples(axes, batch, phase)
        for tensor in keys:
            if flow.shapes[tensor][0] == size:
                detected[tensor] = Role.BATCH, "random numbers are drawn from it for each sample"
        for tensor in _with_the_batch(axes, retained, batch, size, forward_of(phase)):
            detected[tensor] = Role.BATCH, "each sample carries its own part of it on"
    return [detected[t] for t in flow.inputs]


def _with_the_batch(
    axes: Axes, tensors: list[int], batch: list[int], size: int, forward: set[int]
) -> list[int]:
    """Of some inputs, those of which a dimension meets the samples of batch inputs as theirs."""
    rows: set[tuple[int, int]] = set()
    for tensor in batch if tensors else ():
        dimension = leading_samples(axes, tensor, forward)
        if axes.flow.shapes[tensor][dimension : dimension + 1] == (size,):
            rows |= axes.journey(tensor, dimension, forward).reached
    return [
        tensor
        for tensor in tensors
        if any(
            length == size and not rows.isdisjoint(axes.journey(tensor, dimension, forward).reached)
            for dimension, length in enumerate(axes.flow.shapes[tensor])
        )
    ]


def _by_keys(flow: Flow, detected: Detected) -> list[int]:
    """Find random keys by their form, and arrays of keys, which are returned, by their use too."""
    arrays = []
    for tensor in flow.inputs:
        shape = flow.shapes[tensor]
        if ELEMENT_TYPES[flow.types[tensor]][0] != "u32" or not shape:
            continue
        if len(shape) == 1 and shape[0] <= _KEY_WORDS:
            detected[tensor] = Role.SCALAR, "it has the form of a random key"
        elif shape[-1] in (_KEY_WORDS // 2, _KEY_WORDS) and _is_drawn_from(flow, tensor):
            detected[tensor] = Role.SCALAR, "random numbers are drawn from it"
            arrays.append(tensor)
    return arrays


def _is_drawn_from(flow: Flow, tensor: int) -> bool:
    readers = {flow.opcode[index] for index in viewed_readers(flow, tensor)}
    readers.discard("dynamic-update-slice")  # a loop that hands its keys on
    return not readers.isdisjoint(_MIXERS) and readers <= ELEMENTWISE | _MIXERS


def _by_update(graph: Graph, flow: Flow, detected: Detected) -> None:
    """Find variables, optimizer state and statistics by the outputs that take their place."""
    shapes = flow.shapes
    names = {t: f"output {k}" for k, t in reversed(list(enumerate(flow.outputs)))}
    updates = find_updates(flow)
    if not _has_gradient(graph):
        for update in updates:
            if _is_statistic(flow, update):
                why = f"{names[update.output]} updates it without a gradient"
                detected.setdefault(update.source, (Role.STATISTICS, why))
        return
    producers = np.flatnonzero(graph.phase == Phase.BACKWARD).tolist()
    backward = [t for index in producers for t in flow.results[index]]
    by_gradient = flow.descendants(backward)
    forward = {
        t
        for t in flow.inputs
        if any(graph.phase[r] == Phase.FORWARD for r in viewed_readers(flow, t))
    }
    _by_counting(graph, flow, detected, by_gradient, names)
    by_value = flow.descendants(backward, FLOATING)
    trained = {u.output for u in updates if u.source in forward and by_gradient[u.output]}
    replaced = {u.source for u in updates} | {source for _, source in graph.twins}
    fixed = {t for t in flow.inputs if shapes[t] and t not in replaced}
    for update in updates:
        source, where, is_array = update.source, names[update.output], bool(shapes[update.source])
        if not (is_array or by_value[update.output]):
            continue  # gradients decide about a scale of the loss, but it is not made of them
        if not by_gradient[update.output]:
            if not update.roots:
                assigned = Role.FROZEN if source in forward else Role.OPTIMIZER
                why = f"{where} updates it, but no gradient reaches it"
            else:
                made_of = flow.ancestors([update.output])
                of_data = source in forward or any(made_of[t] for t in fixed)
                assigned = Role.STATISTICS if of_data else Role.OPTIMIZER
                why = f"{where} updates it without a gradient"
        elif source not in forward:
            assigned = Role.OPTIMIZER
            why = f"{where} updates it by a gradient, and no forward instruction reads it"
        elif update.passed.isdisjoint(trained - {update.output}) or _is_mixed(
            flow, source, {u.source for u in updates if u.output in trained}
        ):
            detected[source] = Role.VARIABLE, f"{where} updates it by its gradient"
            continue
        else:
            # An average of trained weights, as a target network is.
            is_array, assigned = True, Role.FROZEN
            why = f"{where} updates it by the new value of other weights, not by its gradient"
        if is_array:
            detected.setdefault(source, (assigned, why))
    paired = {*(u.output for u in updates), *flow.inputs}
    for output, source in graph.twins:
        if output not in paired and not by_gradient[output] and shapes[source]:
            why = f"{names[output]}, which has its path, takes its place without a gradient"
            detected.setdefault(source, (Role.STATISTICS, why))
    _by_readers(graph, flow, detected)
    pairs = returned_gradients(flow, updates, lambda t: bool(by_gradient[t]))
    for output, source in pairs.items():
        if source in forward:
            why = f"{names[output]} is its gradient, or made of it"
            detected[source] = Role.VARIABLE, why


def _is_mixed(flow: Flow, source: int, trained: set[int]) -> bool:
    """Whether the model reads the input only as part of a mean with a weight that is trained.

    A distance between both, which is squared and summed, is none.
    """

    def mix(tensor: int) -> Iterator[int]:
        for reader in viewed_readers(flow, tensor):
            if flow.graph.phase[reader] == Phase.FORWARD and flow.opcode[reader] in ELEMENTWISE:
                shape = flow.shapes[source]
                yield from (t for t in flow.results[reader] if flow.shapes[t] == shape)

    others = trained - {source}
    ends = [t for t in reachable([source], mix) - {source} if others & walk(flow, t).inputs.keys()]
    readers = {flow.opcode[r] for result in ends for r in viewed_readers(flow, result)}
    return bool(readers - ELEMENTWISE) and "reduce" not in readers


def _by_counting(
    graph: Graph, flow: Flow, detected: Detected, by_gradient: np.ndarray, names: dict[int, str]
) -> None:
    """Find whole numbers that a step carries on, as the counters of models side by side."""
    twins, inputs = set(graph.twins), flow.inputs
    for output in dict.fromkeys(flow.outputs):
        kind, shape = flow.types[output], flow.shapes[output]
        if kind in FLOATING or not shape or output in inputs:
            continue
        made_of = flow.ancestors([output])
        for source in walk(flow, output).inputs:
            if flow.types[source] != kind or flow.shapes[source] != shape:
                continue
            alone = all(t == source or not flow.shapes[t] for t in inputs if made_of[t])
            if alone or by_gradient[output] or (output, source) in twins:
                detected.setdefault(source, (Role.OPTIMIZER, f"{names[output]} counts it on"))


def _by_readers(graph: Graph, flow: Flow, detected: Detected) -> None:
    """Find optimizer state that has no update: what is read by the update and by nothing before."""
    for tensor in flow.inputs:
        is_floating = flow.types[tensor] in FLOATING
        if tensor in detected or not is_floating or not flow.shapes[tensor]:
            continue
        readers = viewed_readers(flow, tensor)
        if (readers or tensor in flow.outputs) and all(
            graph.phase[r] == Phase.UPDATE for r in readers
        ):
            detected[tensor] = Role.OPTIMIZER, "only the update reads it"


def _is_statistic(flow: Flow, update: Update) -> bool:
    """Whether a forward pass reads an input for nothing but its new value, by sums over a batch."""
    roots = {flow.opcode[flow.producer[root]] for root in update.roots}
    readers = {flow.opcode[r] for r in viewed_readers(flow, update.source)}
    # Running means are mixed with a mean over the batch, element by element, and go nowhere else.
    if not readers <= ELEMENTWISE or not roots <= {"reduce", "scatter"}:
        return False
    made_of_it = flow.descendants([update.source])
    made = {t for t in flow.outputs if made_of_it[t]}
    return len(set(flow.outputs)) > 1 and made == {update.output}


def _by_use(graph: Graph, flow: Flow, detected: Detected) -> None:
    """Tell the other inputs by how they are read, or by the other inputs of their argument."""
    tensors = flow.inputs
    weight = Role.FROZEN if _has_gradient(graph) else Role.VARIABLE
    unknown = [t for t in tensors if t not in detected]
    if not unknown:
        return
    arrays = {t: role for t, (role, _) in detected.items() if role != Role.SCALAR}
    known = {t: DATA if role == Role.BATCH else WEIGHT for t, role in arrays.items()}
    use = Use(flow, known, unknown, forward_of(graph.phase.tolist()))
    arguments = graph.parameter_argument.tolist()
    # What nothing identifies is taken as most of its argument is: trees hold things of one kind.
    roles_of: dict[int, Counter[Role]] = {}  # argument -> roles of its arrays
    for tensor, argument in zip(tensors, arguments, strict=True):
        if tensor not in detected and tensor in use.known:
            role = weight if use.known[tensor] == WEIGHT else Role.BATCH
            detected[tensor] = role, use.why[tensor]
        if tensor in detected and detected[tensor][0] != Role.SCALAR:
            roles_of.setdefault(argument, Counter())[detected[tensor][0]] += 1
    for tensor, argument in zip(tensors, arguments, strict=True):
        if tensor in detected:
            continue
        if argument in roles_of:
            role = roles_of[argument].most_common(1)[0][0]
            detected[tensor] = role, f"most of argument {argument} is"
        elif argument == 0 and weight == Role.VARIABLE:
            detected[tensor] = weight, f"{_GUESS}, and it is in the first argument"
        else:
            detected[tensor] = Role.BATCH, _GUESS
