"""Parses HLO text into HloModuleProto messages.

Text has lost the ids that give the order in which a program was traced. The parser gives new ids,
which have that order as far as it can be recovered. Text printed without metadata has also lost
the scopes; ``parenvs.graph.training`` makes up for them. ``lowered.as_text("hlo",
debug_info=True)`` keeps the scopes; the proto keeps both.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from parenvs.errors import HloError, one_line, shown
from parenvs.graph.checks import ELEMENT_TYPES, TUPLE, inverted
from parenvs.graph.proto import SPLIT, Module

Lists = list[list[int]]
"""A ragged list: of each instruction or run, the numbers of others."""


def trace_order(names: Sequence[str], operands: Lists) -> list[int]:
    """Return the positions of a computation's instructions in the order of the trace.

    ``operands`` are positions of earlier instructions. The order is topological; it is the text's
    own where the counters in the names contradict the operands.
    """
    # Counters that contradict the operands were given by a pass, not by the trace.
    before = _constraints(names, operands)
    if sum(1 for _ in topological_order(before, lambda position: position)) < len(names):
        return list(range(len(names)))  # the counters are no trace order
    users = Counter(operand for row in operands for operand in row)
    # A result with a single user is most likely traced right before it.
    previous = [max((x for x in row if users[x] == 1), default=-1) for row in operands]
    run = _runs(before, previous)
    members: Lists = [[] for _ in range(max(run, default=-1) + 1)]
    for position, number in enumerate(run):
        members[number].append(position)
    return [i for r in _merge(members, _contract(before, run), _contract(operands, run)) for i in r]


def _constraints(names: Sequence[str], operands: Lists) -> Lists:
    """Return what must come before each instruction: operands, and the counter before its own."""
    before = [list(row) for row in operands]
    stems: dict[str, list[tuple[int, int]]] = {}
    for position, name in enumerate(names):
        stem, _, counter = name.rpartition(".")
        if counter.isdecimal():
            stems.setdefault(stem, []).append((int(counter), position))
    for group in stems.values():
        group.sort()
        for (_, earlier), (_, later) in pairwise(group):
            before[later].append(earlier)
    return [sorted(set(row)) for row in before]


def topological_order(predecessors: Lists, key: Callable[[int], Any]) -> Iterator[int]:
    """Yield a topological order, the least ``key`` first among what is ready; a cycle is left out.

    A key is computed when its position is ready, so it may depend on what was yielded before.
    """
    missing = [len(row) for row in predecessors]
    successors = inverted(predecessors, len(predecessors))
    ready = [(key(position), position) for position, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    while ready:
        position = heapq.heappop(ready)[1]
        yield position
        for later in successors[position]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, (key(later), later))


def _runs(before: Lists, previous: list[int]) -> list[int]:
    """Return the number of the run that each instruction is in.

    Runs that wait for each other are cut, each at the instruction that waits for most others,
    until no runs wait for each other. ``previous`` is the operand that each instruction should
    follow in its run, or -1.
    """
    previous = list(previous)
    target = np.repeat(np.arange(len(before)), [len(row) for row in before])
    source = np.array([i for row in before for i in row], np.int64)
    while True:
        run: list[int] = []
        count = 0
        for operand in previous:
            run.append(run[operand] if operand >= 0 else count)
            count += operand < 0
        runs = np.array(run, np.int64)
        crosses = runs[source] != runs[target]
        edges = (np.ones(crosses.sum(), np.int8), (runs[source[crosses]], runs[target[crosses]]))
        # Runs in one strong component wait for each other; each such component needs a cut.
        components, component = connected_components(
            coo_array(edges, shape=(count, count)), directed=True, connection="strong"
        )
        if components == count:
            return run
        in_cycle = np.bincount(component)[component] > 1
        cut: dict[int, tuple[int, int]] = {}
        for position, operand in enumerate(previous):
            if operand >= 0 and in_cycle[run[position]]:
                outside = sum(run[i] != run[position] for i in before[position])
                cut[run[position]] = max(cut.get(run[position], (0, 0)), (outside, position))
        for _, position in cut.values():
            previous[position] = -1


def _contract(rows: Lists, run: list[int]) -> Lists:
    """Return the graph ``rows`` of instructions with each run contracted to a node; no loops."""
    out: list[set[int]] = [set() for _ in range(max(run, default=-1) + 1)]
    for position, row in enumerate(rows):
        out[run[position]].update(run[i] for i in row)
    return [sorted(numbers - {number}) for number, numbers in enumerate(out)]


def _merge(members: Lists, before: Lists, operands: Lists) -> Lists:
    """Return the runs in an order that ``before`` allows, built from the end.

    Of the runs that may come next, the one whose result was needed last is taken; the order of the
    text breaks ties.
    """
    users = inverted(operands, len(operands))
    from_end: dict[int, int] = {}

    def key(number: int) -> tuple[int, int]:
        # Positions count from the end, so a large one is an early use.
        needed = max((from_end[user] for user in users[number]), default=-1)
        return -needed, -max(members[number])

    for number in topological_order(inverted(before, len(before)), key):
        from_end[number] = len(from_end)
    return [members[number] for number in reversed(from_end)]


_TYPE_CODES = {name: code for code, (name, _) in ELEMENT_TYPES.items()}
_HEADER = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(\(.*\)\s*->.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)$")
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([\d,]*)(?![\d,])[^}]*\})?")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_INDEX = re.compile(r"_(\d+)_(?=_|$)")
_WRONG = (HloError, ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError)
"""What a broken line may raise."""
MOST_TUPLES = 50
"""Limit of the depth of tuples in a shape."""
_OPEN, _CLOSE = "({[", ")}]"
_LISTS = {
    **{name: name for name in ("dimensions", "dynamic_slice_sizes", "fft_length")},
    "iota_dimension": "dimensions",
    "slice_sizes": "gather_slice_sizes",
}
_CALLED = (
    "to_apply body condition calls select scatter branch_computations true_computation "
    "false_computation"
)
_WINDOW = {
    "size": "size",
    "stride": "stride",
    "lhs_dilate": "base_dilation",
    "rhs_dilate": "window_dilation",
    "rhs_reversal": "reversal",
}


def parse(text: str, where: str = "HLO text") -> Any:
    """Parse HLO text into an HloModuleProto message.

    Raises:
        HloError: there is no module or no ENTRY, or a line does not parse (its number is named).
    """
    module = Module()
    head = re.search(r"^HloModule\s+([\w.\-]+)", text, re.M)
    if head is None:
        raise HloError(f"{where}: no 'HloModule' line; is this HLO text?")
    module.name = head[1]
    ids: dict[str, int] = {}
    calls: list[tuple[Any, list[str]]] = []
    computation: Any = None
    names: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = (without_comments(raw) if "/*" in raw else raw).rstrip()
        header = _HEADER.match(line) if line.endswith("{") else None
        if header and "=" not in line.partition("(")[0]:
            is_entry, name, _ = header.groups()
            computation = module.computations.add(name=name, id=len(module.computations) + 1)
            ids[name], names = computation.id, {}
            if is_entry:
                module.entry_computation_id = computation.id
                module.entry_computation_name = name
        elif line.startswith("}"):
            if computation is None or not computation.instructions:
                raise HloError(f"{where}: line {number}: '}}' behind no instruction")
            _restore_ids(computation)
            if computation.id == module.entry_computation_id:
                # The ``op_name`` that JAX's names were made from: it calls the argument
                # ``params['layers'][0]['q']`` ``params__layers___0___q__``. Keys with underscores
                # at an end, and attributes (``state.mu``), cannot be recognized: such names stay.
                for node in computation.instructions:
                    if node.opcode == "parameter" and not node.metadata.op_name:
                        node.metadata.op_name = argument_path(re.sub(r"\.\d+$", "", node.name))
            computation = None
        elif computation is not None and line.strip():
            try:
                calls.append(_instruction(computation, names, line))
            except _WRONG as error:
                raise HloError(
                    f"{where}: line {number} does not parse: {one_line(error)}"
                ) from None
    if computation is not None or not module.entry_computation_id:
        raise HloError(f"{where}: truncated: no complete ENTRY computation")
    for instruction, called in calls:
        for name in called:
            if name not in ids:
                caller = shown(instruction.name)
                raise HloError(f"{where}: {caller} calls unknown computation {shown(name)}")
            instruction.called_ids.append(ids[name])
    return module


def _instruction(computation: Any, names: dict[str, int], line: str) -> tuple[Any, list[str]]:
    """Add the instruction of a line, and return it with the computations that it calls.

    ``names`` gives the ids of the instructions so far; the new one is added.
    """
    match = _INSTRUCTION.match(line)
    if match is None:
        raise HloError(f"expected 'name = shape opcode(...)', got {line.strip()[:60]!r}")
    is_root, name, definition = match.groups()
    if name in names:
        raise HloError(f"defines {name!r} a second time")
    instruction = computation.instructions.add(name=name, id=len(names) + 1)
    names[name] = instruction.id
    if is_root:
        computation.root_id = instruction.id
    call = _shape(definition, instruction.shape)
    opcode = _OPCODE.match(call)
    if opcode is None:
        raise HloError(f"no opcode after the shape of {name!r}")
    instruction.opcode = opcode[1]
    arguments, after = _balanced(call[opcode.end() - 1 :])
    if instruction.opcode == "parameter":
        instruction.parameter_number = int(arguments)
    elif instruction.opcode == "constant":
        if re.fullmatch(r"-?\d+|\{[-\d, ]+\}", arguments.strip()):
            numbers, literal = _integers(arguments), instruction.literal
            (literal.u64s if max(numbers) >= 2**63 else literal.s64s).extend(numbers)
        elif arguments.strip() in ("true", "false"):
            instruction.literal.preds.append(arguments.strip() == "true")
    else:
        for operand in _split(arguments):
            instruction.operand_ids.append(names[operand.split()[-1].lstrip("%")])
    attributes = dict(item.split("=", 1) for item in _split(after.lstrip(", ")) if "=" in item)
    _attributes(instruction, attributes)
    called = [
        name.strip().lstrip("%")
        for key in _CALLED.split()
        if key in attributes
        for name in attributes[key].strip("{}").split(",")
    ]
    return instruction, called


def _shape(text: str, shape: Any, depth: int = 0) -> str:
    """Fill ``shape`` from the start of ``text``, and return the text behind it."""
    text = text.lstrip()
    if text.startswith("("):
        if depth > MOST_TUPLES:
            raise HloError(f"a shape has tuples nested more than {MOST_TUPLES} deep")
        parts, after = _balanced(text)
        shape.element_type = TUPLE
        for part in _split(parts):
            _shape(part, shape.tuple_shapes.add(), depth + 1)
        return after
    match = _ARRAY.match(text)
    if match is None or match[1] not in _TYPE_CODES:
        raise HloError(f"unknown shape {text[:40]!r}")
    shape.element_type = _TYPE_CODES[match[1]]
    # A list, as protobuf 4 ends a generator that it refuses a number of with a SystemError.
    shape.dimensions.extend([int(d.strip().lstrip("<=")) for d in match[2].split(",") if d.strip()])
    shape.layout.minor_to_major.extend(_integers(match[3] or ""))
    return text[match.end() :]


def _attributes(instruction: Any, given: dict[str, str]) -> None:
    opcode = instruction.opcode
    for key, field in _LISTS.items():
        getattr(instruction, field).extend(_integers(given.get(key, "")))
    for field in instruction.dot.DESCRIPTOR.fields_by_name:
        getattr(instruction.dot, field).extend(_integers(given.get(f"{field}_dims", "")))
    if opcode in ("gather", "scatter"):
        message = getattr(instruction, opcode)
        for field in message.DESCRIPTOR.fields_by_name:
            if field != "index_vector_dim":
                getattr(message, field).extend(_integers(given.get(field, "")))
        message.index_vector_dim = int(given["index_vector_dim"])
    instruction.tuple_index = int(given.get("index", 0))
    instruction.feature_group_count = int(given.get("feature_group_count", 1))
    instruction.batch_group_count = int(given.get("batch_group_count", 1))
    instruction.comparison_direction = given.get("direction", "")
    instruction.custom_call_target = given.get("custom_call_target", "").strip('"')
    if "devices=" in given.get("sharding", ""):
        instruction.sharding.type = SPLIT
    name = re.search(r'op_name="((?:[^"\\]|\\.)*)"', given.get("metadata", ""))
    if name:
        instruction.metadata.op_name = re.sub(r"\\(.)", r"\1", name[1])
    for start, limit, stride in re.findall(r"\[(\d+):(\d+)(?::(\d+))?\]", given.get("slice", "")):
        instruction.slices.add(start=int(start), limit=int(limit), stride=int(stride or 1))
    if opcode == "pad":
        for part in given["padding"].split("x"):
            low, high, *interior = map(int, part.split("_"))
            instruction.padding.dimensions.add(low=low, high=high, interior=sum(interior))
    if "window" in given:
        _window(instruction.window, given["window"].strip("{}"))
    if "dim_labels" in given:
        _dimension_labels(instruction.convolution, given["dim_labels"])


def _window(window: Any, text: str) -> None:
    """Fill a Window message from text like ``size=3x3 pad=1_1x1_1``."""
    fields = dict(item.split("=") for item in text.split())
    for index in range(len(fields["size"].split("x"))):
        dimension = window.dimensions.add(stride=1, window_dilation=1, base_dilation=1)
        for key, field in _WINDOW.items():
            if key in fields:
                value = int(fields[key].split("x")[index])
                setattr(dimension, field, bool(value) if field == "reversal" else value)
        if "pad" in fields:
            low, high = fields["pad"].split("x")[index].split("_")
            dimension.padding_low, dimension.padding_high = int(low), int(high)


def _dimension_labels(numbers: Any, text: str) -> None:
    """Fill a Convolution message from text like ``b01f_01io->b01f``.

    The letters are batch, feature, input and output feature; the digits are spatial dimensions.
    """
    inputs, out = text.split("->")
    lhs, rhs = inputs.split("_")
    spatial = sorted(c for c in lhs if c.isdigit())
    numbers.input_batch, numbers.input_feature = lhs.index("b"), lhs.index("f")
    numbers.kernel_input_feature, numbers.kernel_output_feature = rhs.index("i"), rhs.index("o")
    numbers.output_batch, numbers.output_feature = out.index("b"), out.index("f")
    numbers.input_spatial.extend([lhs.index(c) for c in spatial])
    numbers.kernel_spatial.extend([rhs.index(c) for c in spatial])
    numbers.output_spatial.extend([out.index(c) for c in spatial])


def _integers(text: str) -> list[int]:
    return [int(x) for x in text.strip("{} ").split(",") if x.strip()]


def _unquoted(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield position and character outside of quotes, and the depth of brackets behind it."""
    depth, quoted = 0, False
    for index, char in enumerate(text):
        if char == '"' and text[index - 1 : index] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (char in _OPEN) - (char in _CLOSE)
            yield index, char, depth


def _balanced(text: str) -> tuple[str, str]:
    """Split ``text`` into what is in its first bracket and what is behind; quotes are skipped."""
    for index, _, depth in _unquoted(text):
        if depth == 0:
            return text[1:index], text[index + 1 :]
    raise HloError("brackets do not match")


def _split(text: str) -> list[str]:
    """Split ``text`` at the commas that no bracket or quote encloses."""
    commas = [index for index, char, depth in _unquoted(text) if char == "," and depth == 0]
    ends = zip([-1, *commas], [*commas, len(text)], strict=True)
    return [part for start, end in ends if (part := text[start + 1 : end].strip())]


def _restore_ids(computation: Any) -> None:
    """Number the instructions anew: parameters, constants, then the others in trace order."""
    instructions = list(computation.instructions)
    inputs = [x for x in instructions if x.opcode == "parameter"]
    inputs.sort(key=lambda x: x.parameter_number)
    inputs += [x for x in instructions if x.opcode == "constant"]
    computed = [x for x in instructions if x.opcode not in ("parameter", "constant")]
    position = {x.id: place for place, x in enumerate(computed)}
    operands = [sorted({position[i] for i in x.operand_ids if i in position}) for x in computed]
    order = inputs + [computed[i] for i in trace_order([x.name for x in computed], operands)]
    new_id = {x.id: number for number, x in enumerate(order, 1)}
    # Without a ROOT mark, the last instruction of the text is the root.
    computation.root_id = new_id[computation.root_id or instructions[-1].id]
    for node in instructions:
        node.id = new_id[node.id]
        node.operand_ids[:] = [new_id[i] for i in node.operand_ids]


def argument_path(name: str) -> str:
    """Return what JAX made a parameter's name from, "" if it was no argument with keys.

    Keys are ``__q__`` and indices ``_0_``; what follows begins with an underscore again. Of the
    divisions into an argument and keys the one with the shortest parts is taken. It is found in one
    walk from the end, as names can be long and have many divisions.
    """
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        return ""
    key_at: dict[int, tuple[str, int]] = {}  # start of a possible key -> its text and end
    nearest = 0  # end of the next possible key in underscores
    for start in reversed(range(1, len(name))):
        stop = start + 5  # of a key of one letter
        if name[start + 3 : stop] == "__" and name[start + 2] != "_":
            nearest = stop if stop == len(name) or stop in key_at else nearest
        index = _INDEX.match(name, start)
        if index and (index.end() == len(name) or index.end() in key_at):
            key_at[start] = f"[{index[1]}]", index.end()
        elif name.startswith("__", start) and nearest and name[start + 2] != "_":
            key_at[start] = f"['{name[start + 2 : nearest - 2]}']", nearest
    if not key_at:
        return ""
    end = min(key_at)
    path = name[:end]
    while end < len(name):
        text, end = key_at[end]
        path += text
    return path


def without_comments(line: str) -> str:
    """Return a line without its ``/*...*/``."""
    retained, position = [], 0
    while (start := line.find("/*", position)) >= 0 and (stop := line.find("*/", start + 2)) >= 0:
        retained.append(line[position:start])
        position = stop + 2
    return "".join((*retained, line[position:]))
