"""Small graphs to be partitioned, and slow ways to tell what follows from a choice of classes."""

import json
import math
import warnings
from collections import Counter
from dataclasses import replace
from functools import lru_cache

import numpy as np
from cases import slow

from parenvs.cluster import Cluster, choose_cluster
from parenvs.errors import InfeasibleError
from parenvs.graph import reader as hlo
from parenvs.graph import text as hlo_text
from parenvs.graph.checks import FLOATING
from parenvs.graph.flow import Flow, free_instructions
from parenvs.graph.graph import Phase, Role
from parenvs.graph.opcodes import Instruction, Kind, factors_of
from parenvs.graph.roles import with_roles
from parenvs.tasks.partition.game import PartitionSpace
from parenvs.tasks.partition.problem import Partitioning, load_partitioning

INSTANCES = ("vgg-19", "t5-base", "t5-3b", "t5-11b", "bert-48")
SHIPPED = [*INSTANCES[:2], *slow(*INSTANCES[2:])]
"""For parametrisations: plans of the larger ones take seconds."""
DEVICE = {"name": "toy", "peak_flops": 2e9, "memory_bw": 1e9, "memory_bytes": 1e6}

MLP = """\
HloModule mlp
ENTRY main {
  params__w1__.1 = f32[4,6]{1,0} parameter(0)
  params__w2__.1 = f32[6,2]{1,0} parameter(1)
  opt_state__m1__.1 = f32[4,6]{1,0} parameter(2)
  opt_state__m2__.1 = f32[6,2]{1,0} parameter(3)
  batch__x__.1 = f32[8,4]{1,0} parameter(4)
  batch__y__.1 = f32[8,2]{1,0} parameter(5)
  rate.1 = f32[] parameter(6)
  op.1 = f32[8,6]{1,0} dot(batch__x__.1, params__w1__.1), \
lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jvp()/up"}
  op.2 = f32[8,6]{1,0} tanh(op.1), metadata={op_name="jit(step)/jvp()/tanh"}
  op.3 = f32[8,2]{1,0} dot(op.2, params__w2__.1), \
lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(step)/jvp()/down"}
  op.4 = f32[8,2]{1,0} subtract(op.3, batch__y__.1), metadata={op_name="jit(step)/jvp()/sub"}
  op.5 = f32[6,2]{1,0} dot(op.2, op.4), \
lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="transpose(jvp())/w2"}
  op.6 = f32[8,6]{1,0} dot(op.4, params__w2__.1), \
lhs_contracting_dims={1}, rhs_contracting_dims={1}, metadata={op_name="transpose(jvp())/h"}
  op.7 = f32[8,6]{1,0} multiply(op.2, op.2), metadata={op_name="transpose(jvp())/sq"}
  op.8 = f32[] constant(1)
  op.9 = f32[8,6]{1,0} broadcast(op.8), dimensions={}
  op.10 = f32[8,6]{1,0} subtract(op.9, op.7), metadata={op_name="jit(step)/transpose(jvp())/sub"}
  op.11 = f32[8,6]{1,0} multiply(op.6, op.10), metadata={op_name="jit(step)/transpose(jvp())/mul"}
  op.12 = f32[4,6]{1,0} dot(batch__x__.1, op.11), \
lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="transpose(jvp())/w1"}
  op.13 = f32[4,6]{1,0} add(opt_state__m1__.1, op.12), metadata={op_name="jit(step)/add"}
  op.14 = f32[6,2]{1,0} add(opt_state__m2__.1, op.5), metadata={op_name="jit(step)/add"}
  op.15 = f32[4,6]{1,0} subtract(params__w1__.1, op.13), metadata={op_name="jit(step)/sub"}
  op.16 = f32[6,2]{1,0} subtract(params__w2__.1, op.14), metadata={op_name="jit(step)/sub"}
  ROOT out.1 = (f32[4,6]{1,0}, f32[6,2]{1,0}, f32[4,6]{1,0}, f32[6,2]{1,0}) \
tuple(op.15, op.16, op.13, op.14)
}
"""
"""A training step with momentum. Four classes: the batch, the hidden width (w1 1, w2 0), the input
width (w1 0) and the output width (w2 1). Only the last two can be partitioned together."""

LOOP = """\
HloModule loop
body {
  t.1 = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) parameter(0)
  i.1 = s32[] get-tuple-element(t.1), index=0
  one.1 = s32[] constant(1)
  next.1 = s32[] add(i.1, one.1)
  x.1 = f32[4,4]{1,0} get-tuple-element(t.1), index=1
  z.1 = f32[4,4]{1,0} get-tuple-element(t.1), index=2
  dot.1 = f32[4,4]{1,0} dot(x.1, z.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r.1 = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(next.1, dot.1, z.1)
}
condition {
  t.2 = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) parameter(0)
  i.2 = s32[] get-tuple-element(t.2), index=0
  n.2 = s32[] constant(9)
  ROOT lt.2 = pred[] compare(i.2, n.2), direction=LT
}
ENTRY main {
  w.3 = f32[4,4]{1,0} parameter(0)
  y.3 = f32[4,4]{1,0} tanh(w.3)
  z.3 = f32[4,4]{1,0} sine(w.3)
  start.3 = s32[] constant(2)
  t.3 = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) tuple(start.3, y.3, z.3)
  loop.3 = (s32[], f32[4,4]{1,0}, f32[4,4]{1,0}) while(t.3), condition=condition, body=body
  last.3 = f32[4,4]{1,0} get-tuple-element(loop.3), index=1
  ROOT out.3 = f32[4,4]{1,0} add(last.3, w.3)
}
"""
"""Seven times y = y @ z."""

BRANCHES = """\
HloModule branches
short {
  a.1 = f32[4,4]{1,0} parameter(0)
  ROOT s.1 = f32[4,4]{1,0} tanh(a.1)
}
long {
  b.2 = f32[4,4]{1,0} parameter(0)
  c.2 = f32[4,4]{1,0} dot(b.2, b.2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  d.2 = f32[4,4]{1,0} add(b.2, b.2)
  ROOT e.2 = f32[4,4]{1,0} add(c.2, d.2)
}
ENTRY main {
  w.3 = f32[4,4]{1,0} parameter(0)
  p.3 = pred[] parameter(1)
  y.3 = f32[4,4]{1,0} tanh(w.3)
  ROOT c.3 = f32[4,4]{1,0} conditional(p.3, y.3, y.3), true_computation=short, \
false_computation=long
}
"""


def read(text, **options):
    """A graph from HLO text, with the roles that its author had in mind, if no others are given.

    Toys are too small to tell: argument 0 holds the variables, an argument whose arrays come back
    with them is optimizer state, the rest is the batch.
    """
    options.setdefault("name", "toy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = hlo.read_module(hlo_text.parse(text, "toy"), where="toy", **options)
    return graph if "variables" in options else _with_intended_roles(graph, options)


def _with_intended_roles(graph, options):
    def kind(tensor):
        return int(graph.element_type[tensor]), graph.shape(tensor)

    inputs = graph.parameter_tensor.tolist()
    arguments = graph.parameter_argument.tolist()
    outputs = [kind(t) for t in graph.outputs.tolist()]
    variables = [t for t, a in zip(inputs, arguments, strict=True) if a == 0 and floating(graph, t)]
    state = set()
    for argument in set(arguments) if Counter(map(kind, variables)) <= Counter(outputs) else ():
        block = [kind(t) for t, a in zip(inputs, arguments, strict=True) if a == argument]
        if any(outputs[i : i + len(block)] == block for i in range(len(outputs))):
            state.add(argument)
    roles = [
        Role.VARIABLE
        if t in variables
        else Role.SCALAR
        if not graph.shape(t)
        else Role.OPTIMIZER
        if a in state and floating(graph, t)
        else Role.BATCH
        for t, a in zip(inputs, arguments, strict=True)
    ]
    paths = [p for p, role in zip(graph.paths, roles, strict=True) if role == Role.BATCH]
    batch_size = options.get("batch_size")
    told = with_roles(graph, graph.paths, paths or None, batch_size=batch_size)
    scalars = {t for t, role in zip(inputs, roles, strict=True) if role == Role.SCALAR}
    flow = Flow(graph)
    opcodes = [graph.opcodes[c] for c in graph.opcode]
    rows = zip(opcodes, flow.operands, flow.results, strict=True)
    free = free_instructions(rows, scalars)
    # What was told drops gradients of weights that the reader found and these roles leave out.
    size, roles = told.batch_size, np.array(roles, dtype=np.uint8)
    return replace(graph, batch_size=size, parameter_role=roles, free=free)


def floating(graph, tensor):
    """Whether a tensor's element type is a floating one."""
    return int(graph.element_type[tensor]) in FLOATING


def module(parameters, lines, root):
    """HLO text of one computation: ``{"params__w__": "f32[2,3]"}``, its lines, its result."""
    heads = [
        f"  {name}.1 = {shape} parameter({k})" for k, (name, shape) in enumerate(parameters.items())
    ]
    body = [f"  {line}" for line in lines]
    return "\n".join(["HloModule m", "ENTRY main {", *heads, *body, f"  ROOT {root}", "}", ""])


def problem_of(text, devices=2, rules="shardy", uneven="pad", **options):
    """The partitioning of HLO text over a few devices of one server."""
    cluster = Cluster.parse(toy_cluster(devices))
    return Partitioning.build(read(text, **options), cluster, rules, uneven)


def toy_cluster(devices=2, memory_bytes=1e6):
    """One server of slow devices, as an object."""
    return {
        "servers": 1,
        "devices_per_server": devices,
        "intra_bw": 5e8,
        "inter_bw": 5e8,
        "device": {**DEVICE, "memory_bytes": memory_bytes},
    }


def shipped(name, rules="shardy", uneven="pad", scope="variables", reward="paper"):
    """A shipped instance over 8 devices; the same object each time."""
    return load_partitioning(name, choose_cluster(), rules, uneven, scope, reward)


@lru_cache(maxsize=256)
def asked(problem, scope="variables", reward="paper"):
    """The problem under another scope or reward; the same object each time."""
    return replace(problem, scope=scope, reward=reward)


def timed(problem):
    """The problem under the step time."""
    return asked(problem, problem.scope, "step_time")


def space_of(problem, scope="variables", reward="paper", linkage=True):
    """The decisions of a scope, None if there are none."""
    try:
        return PartitionSpace.of(asked(problem, scope, reward), linkage)
    except InfeasibleError:
        return None


def instructions(graph):
    """(opcode, operand tensors, result tensors) of each instruction."""
    return [
        (
            graph.opcodes[code],
            graph.operands[graph.operand_offset[i] : graph.operand_offset[i + 1]].tolist(),
            graph.results[graph.result_offset[i] : graph.result_offset[i + 1]].tolist(),
        )
        for i, code in enumerate(graph.opcode)
    ]


def random_text(rng, steps=8):
    """HLO text of a random program: products, sums, reductions, reshapes, and perhaps updates."""
    shapes, parameters, lines, values, plain = {}, {}, [], [], []
    state = bool(rng.random() < 0.5)

    def size():
        return int(rng.choice([1, 2, 3, 4, 6, 8]))

    def text(shape):
        return f"f32[{','.join(map(str, shape))}]{{{','.join(map(str, range(len(shape))[::-1]))}}}"

    def parameter(shape, kind):
        name = f"{kind}__{kind[0]}{len(parameters)}__"
        parameters[name] = text(shape)
        shapes[f"{name}.1"] = shape
        return f"{name}.1"

    def emit(shape, opcode, operands, rest="", phase=None):
        phase = ["jvp()/", "transpose(jvp())/", ""][phase if phase is not None else stage]
        name = f"op.{len(lines) + 1}"
        shapes[name] = tuple(shape)
        meta = f'metadata={{op_name="jit(step)/{phase}{opcode}"}}'
        lines.append(f"{name} = {text(shape)} {opcode}({', '.join(operands)}){rest}, {meta}")
        return name

    stage = 0
    first = parameter((size(), size()), "batch")
    values.append(first)
    for step in range(steps):
        stage = 0 if step < steps // 2 else 1
        x = values[int(rng.choice([len(values) - 1, rng.integers(len(values))]))]
        s = shapes[x]
        kind = rng.choice(["dot", "dot", "dot", "add", "tanh", "sum", "turn", "spread", "merge"])
        if kind == "dot" and s:
            width = size()
            w = parameter((s[-1], width), "params")
            dims = f", lhs_contracting_dims={{{len(s) - 1}}}, rhs_contracting_dims={{0}}"
            values.append(emit((*s[:-1], width), "dot", [x, w], dims))
        elif kind == "add":
            same = [v for v in values if shapes[v] == s]
            other = same[int(rng.integers(len(same)))]
            if rng.random() < 0.3:
                other = parameter(s, "params")
            values.append(emit(s, "add", [x, other]))
        elif kind == "sum" and s:
            d = int(rng.integers(len(s)))
            plain.append("zero")
            kept = s[:d] + s[d + 1 :]
            rest = f", dimensions={{{d}}}, to_apply=plus"
            values.append(emit(kept, "reduce", [x, "zero.1"], rest))
        elif kind == "turn" and len(s) > 1:
            order = ",".join(map(str, reversed(range(len(s)))))
            values.append(emit(s[::-1], "transpose", [x], f", dimensions={{{order}}}"))
        elif kind == "spread" and len(s) < 3:
            places = ",".join(map(str, range(1, len(s) + 1)))
            rest = f", dimensions={{{places}}}"
            values.append(emit((size(), *s), "broadcast", [x], rest))
        elif kind == "merge" and len(s) > 1:
            values.append(emit((s[0] * s[1], *s[2:]), "reshape", [x]))
        else:
            values.append(emit(s, "tanh", [x]))
    if not any(name.startswith("params") for name in parameters):
        w = parameter(shapes[first], "params")
        values.append(emit(shapes[first], "multiply", [first, w]))
    stage = 2
    trained = [f"{name}.1" for name in parameters if name.startswith("params")]
    outputs, moments = [], []
    if state or rng.random() < 0.5:
        for w in trained:
            twice = emit(shapes[w], "multiply", [w, w], phase=1)
            if state:
                moment = parameter(shapes[w], "state")
                twice = emit(shapes[w], "add", [moment, twice])
                moments.append(twice)
            outputs.append(emit(shapes[w], "subtract", [w, twice]))
    outputs += moments
    outputs += list(dict.fromkeys([values[-1], values[int(rng.integers(len(values)))]]))
    head = "HloModule random\nplus {\n  a.1 = f32[] parameter(0)\n  b.1 = f32[] parameter(1)\n"
    head += "  ROOT c.1 = f32[] add(a.1, b.1)\n}\n"
    # Arguments in the order of a training step: variables, state, batch.
    order = sorted(parameters, key=lambda n: ["params", "state", "batch"].index(n.split("__")[0]))
    kinds = ", ".join(text(shapes[o]) for o in outputs)
    root = f"out.1 = ({kinds}) tuple({', '.join(outputs)})"
    body = module({k: parameters[k] for k in order}, ["zero.1 = f32[] constant(0)", *lines], root)
    return head + body.replace("HloModule m\n", "")


def random_problem(seed, steps=8, least=1, most=16):
    """A random program over a few devices, with at least one class that can be decided."""
    rng = np.random.default_rng(seed)
    while True:
        rules = str(rng.choice(["shardy", "automap"]))
        text, devices = random_text(rng, steps), int(rng.choice([2, 3, 4]))
        problem = problem_of(text, devices, rules)
        if least <= len(problem.decidable("all")) <= most and len(problem.decidable("variables")):
            return problem


def rivals_of(problem):
    """Class -> the set of classes that it excludes."""
    found = {c: set() for c in range(len(problem.classes))}
    for a, b in problem.classes.conflicts.tolist():
        found[a].add(b)
        found[b].add(a)
    return found


def independent_sets(problem, scope):
    """(n, C) bool: every choice of classes of a scope that is legal, by recursion."""
    rivals, classes = rivals_of(problem), problem.decidable(scope).tolist()
    found = []

    def extend(place, chosen, banned):
        if place == len(classes):
            found.append(chosen)
            return
        extend(place + 1, chosen, banned)
        if classes[place] not in banned:
            extend(place + 1, [*chosen, classes[place]], banned | rivals[classes[place]])

    extend(0, [], frozenset())
    table = np.zeros((len(found), len(problem.classes)), dtype=bool)
    for row, chosen in zip(table, found, strict=True):
        row[chosen] = True
    return table


def random_choice(problem, rng, scope="all"):
    """(C,) bool: classes of a scope taken in random order while they are legal together."""
    rivals, chosen = rivals_of(problem), np.zeros(len(problem.classes), dtype=bool)
    for c in rng.permutation(problem.decidable(scope)).tolist():
        if rng.random() < 0.7 and not any(chosen[r] for r in rivals[c]):
            chosen[c] = True
    return chosen


class Closure:
    """What is known of each dimension of a scope after some decisions, by the rules as words."""

    def __init__(self, problem, scope):
        graph = problem.graph
        paths = {
            "variables": [Role.VARIABLE],
            "inputs": [Role.BATCH],
            "all": [Role.VARIABLE, Role.BATCH],
        }
        entries = [
            (path, tensor)
            for path, tensor, role in zip(
                graph.paths, graph.parameter_tensor.tolist(), graph.parameter_role, strict=True
            )
            if role in paths[scope]
        ]
        self.names = [(path, d) for path, t in sorted(entries) for d in range(len(graph.shape(t)))]
        tensor = dict(entries)
        self.positions = [int(graph.dim_offset[tensor[path]]) + d for path, d in self.names]
        self.label = [int(problem.classes.label[p]) for p in self.positions]
        self.stuck = [
            bool(graph.dims[p] == 1 or problem.classes.blocked[c])
            for p, c in zip(self.positions, self.label, strict=True)
        ]
        self.rivals = rivals_of(problem)
        self.known = {}

    def may(self, dimension):
        """The answers that contradict nothing."""
        if self.stuck[dimension]:
            return {0}
        return (
            {self.known[self.label[dimension]]} if self.label[dimension] in self.known else {0, 1}
        )

    def decide(self, dimension, choice):
        """Take an answer, and what follows from it."""
        assert choice in self.may(dimension)
        if not self.stuck[dimension]:
            self.known[self.label[dimension]] = choice
            if choice:
                for rival in self.rivals[self.label[dimension]]:
                    self.known[rival] = 0

    def decisions(self):
        """What is known of each dimension; -1 if nothing."""
        return [
            0 if stuck else self.known.get(label, -1)
            for stuck, label in zip(self.stuck, self.label, strict=True)
        ]


def slow_runs(graph, seconds):
    """How often each instruction runs, by walking through the computations from outside."""
    table = instructions(graph)

    def weigh(index):
        """Seconds of one run of an instruction, with what is inside it."""
        if table[index][0] == "while":
            return trips(index) * sum(map(weigh, inside(index)))
        if table[index][0] == "conditional":
            return max(sum(map(weigh, branch)) for branch in branches(index))
        return seconds[index]

    def trips(index):
        return json.loads(graph.strings[graph.attribute[index]])["trip_count"]

    def inside(index):
        return np.flatnonzero(graph.parent == index).tolist()

    def branches(index):
        found = [[]]
        for i in inside(index):
            found[-1].append(i)
            if table[i][0] == "return":
                found.append([])
        return found[:-1]

    times = np.zeros(len(table))

    def walk(index, count):
        times[index] = count
        if table[index][0] == "while":
            for i in inside(index):
                walk(i, count * trips(index))
        elif table[index][0] == "conditional":
            found = branches(index)
            weights = [sum(map(weigh, branch)) for branch in found]
            for k, branch in enumerate(found):
                for i in branch:
                    walk(i, count if k == weights.index(max(weights)) else 0)

    for index in np.flatnonzero(graph.parent < 0).tolist():
        walk(index, 1)
    return times


def slow_seconds(graph, device, efficiency=0.5):
    """Seconds of each instruction in a step."""
    once = []
    for i, (opcode, _, _) in enumerate(instructions(graph)):
        work = graph.flops[i] / (efficiency * device.peak_flops)
        none = graph.free[i] or opcode in ("parameter", "return", "while", "conditional")
        once.append(0.0 if none else max(work, graph.bytes_accessed[i] / device.memory_bw))
    return np.array(once) * slow_runs(graph, once)


def slow_share(problem):
    """Class -> largest share of a dimension that a device holds."""
    kept, devices = {}, problem.cluster.devices
    for label, size in zip(
        problem.classes.label.tolist(), problem.graph.dims.tolist(), strict=True
    ):
        share = math.ceil(size / devices) / size if size > 1 else 1 / devices
        kept[label] = max(kept.get(label, 1 / devices), share)
    return kept


def factor_labels(problem):
    """Instruction -> (kind, class) of each of its factors."""
    graph, label = problem.graph, problem.classes.label
    free = {t for i, row in enumerate(instructions(graph)) if graph.free[i] for t in row[2]}
    skipped = ("parameter", "return", "while", "conditional", "opt-barrier", "optimization-barrier")
    found = {}
    for i, (opcode, operands, results) in enumerate(instructions(graph)):
        if graph.free[i] or opcode in skipped:
            continue
        slots = {**dict(enumerate(operands)), **{-1 - k: t for k, t in enumerate(results)}}
        attribute = json.loads(graph.strings[graph.attribute[i]] or "{}")
        shapes = [[graph.shape(t) for t in row] for row in (operands, results)]
        # Automap leaves what a reduce takes away whole, unless it makes a number of gradients.
        one = graph.phase[i] != Phase.FORWARD and all(d == 1 for s in shapes[1] for d in s)
        automap = problem.rules == "automap" and opcode == "reduce" and not one
        for factor in factors_of(Instruction(opcode, attribute, *shapes)):
            if automap and factor.kind == Kind.REDUCED:
                continue
            members = {
                int(label[graph.dim_offset[slots[slot]] + d])
                for slot, d in factor.pairs
                if slots[slot] not in free
            }
            assert len(members) <= 1  # a factor's dimensions are split together
            found.setdefault(i, []).extend((factor.kind, c) for c in members)
    return found


def slow_step(problem, chosen):
    """(compute seconds, communication seconds, all-reduces) of a step, one by one."""
    graph, cluster = problem.graph, problem.cluster
    seconds, kept = slow_seconds(graph, cluster.device), slow_share(problem)
    times = slow_runs(graph, seconds)
    bandwidth = cluster.intra_bw if cluster.servers == 1 else cluster.inter_bw
    labels = factor_labels(problem)
    compute, communication, count = 0.0, 0.0, 0
    for i, (_, _, results) in enumerate(instructions(graph)):
        split = [(kind, c) for kind, c in labels.get(i, ()) if chosen[c]]
        assert len(split) <= 1  # at most one factor of an instruction is partitioned
        compute += seconds[i] * (kept[split[0][1]] if split else 1)
        if split and split[0][0] != Kind.KEPT:
            size = sum(slow_bytes(graph, t) for t in results)
            n = cluster.devices
            communication += times[i] * 2 * size * (n - 1) / (n * bandwidth)
            count += len(results)
    return compute, communication, count


def slow_bytes(graph, tensor):
    """Bytes of a tensor; the toys have f32, s32 and pred."""
    width = {1: 1, 4: 4, 11: 4}[int(graph.element_type[tensor])]
    return width * math.prod(graph.shape(tensor))


VIEWS = ("add-dependency", "bitcast", "broadcast", "opt-barrier", "optimization-barrier", "reshape")


class Simulation:
    """The memory of a step, by sets of tensors; graphs without loops and branches."""

    def __init__(self, problem):
        self.problem, self.graph = problem, problem.graph
        graph = self.graph
        table = instructions(graph)
        free = {t for i, row in enumerate(table) if graph.free[i] for t in row[2]}
        parameters = graph.parameter_tensor.tolist()
        whole, born, dies = {}, {}, {}
        for i, (opcode, operands, results) in enumerate(table):
            assert opcode not in ("while", "conditional")
            for t in operands:
                dies[whole.get(t, t)] = i
            for k, t in enumerate(results):
                born[t] = i
                if opcode in VIEWS and not graph.free[i]:
                    whole[t] = whole.get(operands[k], operands[k])
        places = Counter(
            (int(graph.element_type[t]), graph.shape(t))
            for t, role in zip(parameters, graph.parameter_role, strict=True)
            if role in (Role.VARIABLE, Role.OPTIMIZER)
        )
        written = set()
        for t in graph.outputs.tolist():
            kind = int(graph.element_type[t]), graph.shape(t)
            dies[whole.get(t, t)] = len(table) - 1
            if places[kind]:
                places[kind] -= 1
                written.add(whole.get(t, t))
        self.held = {"parameters": [], "optimizer": [], "inputs": []}
        names = {Role.VARIABLE: "parameters", Role.OPTIMIZER: "optimizer"}
        for t, role in zip(parameters, graph.parameter_role, strict=True):
            if t not in free:
                self.held[names.get(Role(role), "inputs")].append(t)
        self.alive = [set() for _ in table]
        for t, i in born.items():
            if t not in free and t not in parameters and t not in written and t not in whole:
                for at in range(i, dies.get(t, -1) + 1):
                    self.alive[at].add(t)
        self.gradients = {
            t
            for t, i in dies.items()
            if t in born
            and graph.phase[born[t]] == Phase.BACKWARD
            and graph.phase[i] == Phase.UPDATE
        }
        self.kept = slow_share(problem)
        self.sizes = {}

    def bytes(self, tensor, chosen):
        """What a device holds of a tensor."""
        key = tensor, chosen.tobytes()
        if key not in self.sizes:
            self.sizes[key] = self.share(tensor, chosen)
        return self.sizes[key]

    def share(self, tensor, chosen):
        """The same, looked up dimension by dimension."""
        graph = self.graph
        start, end = graph.dim_offset[tensor : tensor + 2].tolist()
        size = slow_bytes(graph, tensor)
        for place in range(start, end):
            label = int(self.problem.classes.label[place])
            if chosen[label] and graph.dims[place] > 1:
                size *= self.kept[label]
        return size

    def at(self, index, chosen):
        """Bytes by kind while an instruction runs."""
        found = {key: sum(self.bytes(t, chosen) for t in held) for key, held in self.held.items()}
        alive = self.alive[index]
        found["gradients"] = sum(self.bytes(t, chosen) for t in alive & self.gradients)
        found["activations"] = sum(self.bytes(t, chosen) for t in alive - self.gradients)
        return found

    def peaks(self, table):
        """(n,) bytes at most, of (n, C) choices that split at most one dimension of a tensor."""
        nothing, count = np.zeros(table.shape[1], dtype=bool), table.shape[1]
        owner = {}
        for t in {t for row in (*self.alive, *self.held.values()) for t in row}:
            start, end = self.graph.dim_offset[t : t + 2].tolist()
            owner[t] = [p for p in range(start, end) if self.graph.dims[p] > 1]
        rows = []
        for at in {frozenset(alive): None for alive in self.alive}:
            whole, saved = 0.0, np.zeros(count)
            for t in (*at, *(t for held in self.held.values() for t in held)):
                size = self.bytes(t, nothing)
                whole += size
                for p in owner[t]:
                    label = int(self.problem.classes.label[p])
                    saved[label] += size * (1 - self.kept[label])
            rows.append((whole, saved))
        whole, saved = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
        used = table.any(axis=0)
        best = np.full(len(table), -np.inf)
        for start in range(0, len(table), 1000):
            part = slice(start, start + 1000)
            left = whole[:, None] - saved[:, used] @ table[part][:, used].T.astype(float)
            best[part] = left.max(axis=0)
        return best
