"""Small mistakes: all changes of a module that ``mutants.py`` tries, which are none, the share."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import hypergeom

from benchmarks.framework import percent

OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
FUNCTIONS = {
    "max": "min", "maximum": "minimum", "argmax": "argmin", "any": "all", "ceil": "floor",
}  # fmt: skip
FUNCTIONS |= {other: name for name, other in FUNCTIONS.items()}

LOOP = "the first instruction is no loop: a loop has an operand, which stands before it"
MADE = "every tensor is the result of an instruction, which is written over it"
FIRST = "the first instruction reads nothing"
START = "stages that end at the first device have none, as those that cannot run"
FEWER = "one device fewer is tried afterwards, and so one"
PAIR = "one class makes no pair"
TOGETHER = "operand and result have as many elements, and so end together"
UPDATES = "the first instruction makes a parameter, and updates nothing"
BLOCKS = "the first instruction makes a parameter, and blocks nothing"
INNER = "np.isin(graph.opcode[made_by], [_code(graph, 'parameter')])"
SPEED = "what malloc keeps is for speed alone"
SIZE = "int(np.prod(part.shape or ()))"
BYTES = "np.dtype(part.dtype).itemsize for part in space.values()"
EQUIVALENT: dict[str, dict[tuple[str, str], str]] = {
    "parenvs/core/sets.py": {("64", "65"): "it is how many sets are kept"},
    "parenvs/fields.py": {
        ("value.items() if _has_objects(kind.value_type) else ()", "value.items()"):
            "where there are no objects, none has a wrong name",
    },
    "parenvs/envs/vector.py": {
        ("_keep_blocks(game.observation_space, num_envs)", "pass"): SPEED,
        ("max(4 * count * max(sizes), 1 << 21)", "min(4 * count * max(sizes), 1 << 21)"): SPEED,
        ("np.prod(part.shape or ())", "np.prod(part.shape and ())"): SPEED,
        (f"[{SIZE} * {BYTES}]", f"[{SIZE} / {BYTES}]"): SPEED,
        ("env_seed < 0", "env_seed < 1"): "a generator takes 0, and nothing else is done with it",
    },
    "parenvs/tasks/partition/formulas.py": {
        ("graph.parent[graph.parent >= 0]", "graph.parent[graph.parent > 0]"): LOOP,
        ("np.maximum(size, 1)", "np.maximum(size, 2)"):
            "the shares of dimensions of size 1 are not read, and 0 over anything is 0",
        ("replicate_seconds or 1.0", "replicate_seconds or 2.0"):
            "where the step takes no time, nothing is saved",
        ("graph.parent >= 0", "graph.parent >= 1"): LOOP,
        ("~graph.free & (graph.parent >= 0)", "~graph.free & (graph.parent > 0)"): LOOP,
        ("updated < 0", "updated < 1"): UPDATES,
        ("replayed & (needed < steps) & (updated < 0)",
         "replayed & (needed < steps) & (updated <= 0)"): UPDATES,
        (f"{INNER} & (graph.parent[made_by] >= 0)", f"{INNER} & (graph.parent[made_by] > 0)"): LOOP,
        ("(held > 0)[self._owner]", "(held >= 0)[self._owner]"): "what has no bytes saves none",
        ("~graph.free & (graph.parent >= 0)", "graph.free & (graph.parent >= 0)"):
            "a loop's body has instructions that are free, and others",
        ("twice >= 0", "twice >= 1"): "nothing is made again at the very first moment",
        ("True", "False"): "a graph has as many roles as parameters",
        ("np.zeros(0, dtype=np.int64)", "np.zeros(1, dtype=np.int64)"):
            "nothing is kept that a border could divide, or the first division takes its place",
        ("np.append(level[1:] > level[:-1], False)", "np.append(level[1:] >= level[:-1], False)"):
            "levels beside each other differ",
        ("graph.parent[made_by] >= 0", "graph.parent[made_by] >= 1"): LOOP,
        ("np.flatnonzero(graph.parent >= 0)", "np.flatnonzero(graph.parent > 0)"): LOOP,
        ("np.full(count, -1)", "np.full(count, 1)"): MADE,
        ("-1", "-2"): "any number below 0 means never",
        ("self.last >= 0", "self.last > 0"): FIRST,
        ("self.last >= 0", "self.last >= 1"): FIRST,
        ("self.bytes > 0", "self.bytes >= 0"): "a tensor of no bytes adds nothing",
        ("np.maximum(self.first, 0)", "np.maximum(self.first, 1)"):
            "the first instruction makes a parameter, which is never transient",
        ("np.maximum(self.last, 0)", "np.maximum(self.last, 1)"): FIRST,
        ("chosen & (self.share < 1)", "chosen & (self.share <= 1)"):
            "a share of 1 multiplies nothing",
        ("self.share < 1", "self.share < 2"):
            "a share of 1 multiplies nothing, and there is no greater one",
    },
    "parenvs/tasks/partition/classes.py": {
        ("end - start > 1", "end - start >= 1"): PAIR,
        ("end - start > 1", "end + start > 1"): PAIR,
        ("4", "5"): "it is how many graphs are kept",
        ("blocked_by[lower] < 0", "blocked_by[lower] <= 0"): BLOCKS,
        ("blocked_by >= 0", "blocked_by > 0"): BLOCKS,
        ("False", "True"):
            "the weak components of a directed graph are those of the undirected one",
        ("self.blocked_by >= 0", "self.blocked_by >= 1"): BLOCKS,
        ("-1", "-2"): "NumPy takes any number below 0 as the length that is left",
        ("isinstance(other, _Same) and other.graph is self.graph",
         "isinstance(other, _Same) or other.graph is self.graph"):
            "keys are compared where their numbers are equal, and so are of the same graph",
    },
    "parenvs/tasks/partition/problem.py": {
        ("len(reasons) >= MAX_REASONS", "len(reasons) > MAX_REASONS"):
            "the reason that it words in full is cut off afterwards",
    },
    "parenvs/tasks/pipeline/spaces.py": {
        ("1.0 if total == 0 else total", "2.0 if total == 0 else total"):
            "where the total is 0, so is what is divided",
        ("np.minimum((shares / 3 * max_points).astype(np.int64), max_points - 1)",
         "np.minimum((shares / 3 * max_points).astype(np.int64), max_points + 1)"):
            "the share of the pivots is below 1, and so the sum of the three below 3",
        ("range(1, server_size + 1)", "range(2, server_size + 1)"):
            "there are more devices than units here",
        ("server_size + 1", "server_size + 2"): "whole servers suffice",
        ("max_devices + 1.0", "max_devices + 2.0"):
            "any more devices than there are count as infinitely many",
        ("np.clip(np.ceil(group), 1.0, max_devices + 1.0)",
         "np.clip(np.ceil(group), 2.0, max_devices + 1.0)"):
            FEWER,
        ("np.where((spare == 0) & (activations == 0), 1.0, np.inf)",
         "np.where((spare == 0) & (activations == 0), 2.0, np.inf)"): FEWER,
        ("m + 1", "m + 2"): "no stage ends behind the last point, and a wider `latest` is killed",
        ("devices[-1] + 1", "devices[-1] + 2"): "no stage starts behind the last device",
        ("last_unit[every.end] >= 0", "last_unit[every.end] >= 1"): START,
        ("np.flatnonzero(last_unit[every.end] >= 0)", "np.flatnonzero(last_unit[every.end] > 0)"):
            START,
        ("-1", "-2"): "any number below 0 means never",
    },
    "parenvs/graph/opcodes.py": {
        ("0", "1"): "an instruction has a result, so that the default is never taken",
        ("batch > 0 and len({s[:batch] for s in arrays.values()}) == 1",
         "batch >= 0 and len({s[:batch] for s in arrays.values()}) == 1"):
            "a batch of no dimensions has none to split",
        ("True", "False"):
            "shapes that `zip` could tell apart are refused where the program is read",
        ("i < len(left) and j < len(right)", "i < len(left) or j < len(right)"): TOGETHER,
        ("i < len(left) and j < len(right)", "i <= len(left) and j < len(right)"): TOGETHER,
        ("i < len(left) and j < len(right)", "i < len(left) and j <= len(right)"): TOGETHER,
        ("mine < other", "mine <= other"): "the loop ends where they are equal",
        ("3", "4"): "kinds are compared for equality alone",
    },
}  # fmt: skip
"""Module -> what is changed to what, that no test can see -> the reason."""

Key = tuple[str, int, str]


@dataclass
class Mutant:
    """One change of one module.

    Attributes:
        module: the module's path.
        number: which of the module's mutants it is.
        digest: of the module's source.
        line: number of the line.
        end: number of the last line of what is changed.
        inside: whether it is in the body of a function that nothing runs at import.
        before: the expression or statement as it is, with the expression around it.
        after: what it is changed to.
        outcome: ``killed``, ``timeout`` or ``lives``; empty before it ran.
    """

    module: str
    number: int
    digest: str
    line: int
    end: int
    inside: bool
    before: str
    after: str
    outcome: str = ""

    @property
    def key(self) -> Key:
        """What no other mutant has."""
        return self.module, self.number, self.digest


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """The changes of one node; each is a new node."""
    if isinstance(node, ast.Compare):
        for k, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[k] = OPERATORS[type(operator)]()
            yield changed
    elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)):
        if type(node.op) in OPERATORS:
            changed = copy.deepcopy(node)
            changed.op = OPERATORS[type(node.op)]()
            yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
        yield ast.Attribute(node.value, FUNCTIONS[node.attr], node.ctx)
    elif isinstance(node, ast.Name) and node.id in FUNCTIONS:
        yield ast.Name(FUNCTIONS[node.id], node.ctx)
    elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        yield ast.Pass()


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Parent, field and index of every node that runs; annotations and f-strings are left out."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for k, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield tree, name, k
                yield from places(child)


def within(tree: ast.AST) -> Iterator[ast.AST]:
    """What is in the bodies of functions and methods, but not of functions inside these."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from within(node)
        elif isinstance(node, ast.FunctionDef):
            waiting: list[ast.AST] = list(node.body)
            while waiting:
                inner = waiting.pop()
                if not isinstance(inner, (ast.FunctionDef, ast.Lambda)):
                    yield inner
                    waiting += ast.iter_child_nodes(inner)


def mutants(module: str, source: str) -> Iterator[tuple[Mutant, ast.Module]]:
    """Every mutant of a module, and its tree, which holds until the next one is asked for."""
    tree, number = ast.parse(source), 0
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    bodies = {id(node) for node in within(tree)}
    for parent, field_name, k in list(places(tree)):
        held = getattr(parent, field_name)
        node = held if k is None else held[k]
        around = isinstance(parent, ast.expr)  # a number alone says little
        before = ast.unparse(parent if around else node)
        for changed in variants(node):
            ast.copy_location(changed, node)
            replace(parent, field_name, k, changed)
            after = ast.unparse(parent if around else changed)
            end = node.end_lineno or node.lineno
            inside = id(node) in bodies
            mutant = Mutant(module, number, digest, node.lineno, end, inside, before, after)
            yield mutant, ast.fix_missing_locations(tree)
            replace(parent, field_name, k, node)
            number += 1


def replace(parent: ast.AST, field: str, k: int | None, node: ast.AST) -> None:
    """Put a node in its parent's place."""
    if k is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[k] = node


def reason(mutant: Mutant) -> str:
    """Why a survivor is none, or an empty text."""
    return EQUIVALENT.get(mutant.module, {}).get((mutant.before, mutant.after), "")


def summary(found: list[Mutant]) -> list[Any]:
    """Counts of some mutants, and the share that is killed of those not known to be equivalent."""
    living = [mutant for mutant in found if mutant.outcome == "lives"]
    equivalent = sum(bool(reason(mutant)) for mutant in living)
    killed = len(found) - len(living)
    share = killed / (len(found) - equivalent) if len(found) > equivalent else None
    return [len(found), killed, equivalent, len(living) - equivalent, percent(share, 1)]


def estimate(group: str, drawn: list[Mutant], every: int, seed: int) -> str:
    """Say what a uniform sample leads to expect of all mutants that are not equivalent."""
    _, killed, equivalent, survivors, share = summary(drawn)
    able = killed + survivors
    low, high = interval(survivors, able, round(every * able / len(drawn)))
    return (
        f"Of all {every} of {group}, {len(drawn)} drawn at random (seed {seed}) were tried "
        f"whatever they are: {equivalent} are equivalent, and {killed} of the other {able} are "
        f"killed, {share}. The share of all is between {percent(1 - high, 1)} and "
        f"{percent(1 - low, 1)}, with 95 % confidence (exact, of draws without putting back). "
        "Tests that were written for survivors "
        "of the sample make it speak too well of the rest."
    )


def interval(survivors: int, drawn: int, every: int) -> tuple[float, float]:
    """The least and the greatest share of survivors that such a draw is not surprising for.

    Both tails of the hypergeometric distribution are above 2.5 % there (Clopper and Pearson,
    Biometrika 26(4), 1934, for draws from finitely many).

    Args:
        survivors: among those drawn.
        drawn: how many were drawn.
        every: how many there are.
    """
    counts = np.arange(survivors, every - drawn + survivors + 1)
    fewer = hypergeom.cdf(survivors, every, counts, drawn)
    more = hypergeom.sf(survivors - 1, every, counts, drawn)
    possible = counts[(fewer > 0.025) & (more > 0.025)] / every
    return float(possible[0]), float(possible[-1])
