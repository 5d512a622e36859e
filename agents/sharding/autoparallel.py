"""AutoParallel's placements by the solver of shardings, with a certified bound.

meta-pytorch/autoparallel chooses a placement for every operation of a PyTorch program by an integer
program of PuLP: a binary for each (operation, argument, output strategy, input strategy), sums of
them that say which strategies go together, and rows of memory. Such a program is a problem of
``parenvs.tasks.sharding``: a node for the output strategies of each operation and one for the input
strategies of each argument, costs on the edge between both, equalities as tables of what is
forbidden, and a time for each row of more than two nodes. The program is read as it is, row by row,
so that constraints of users, of any version, count; what is no such program is refused.

Neither PuLP nor PyTorch is imported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenvs.agents.sharding.solve import solve_iopddl
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.sharding.problem import FORBIDDEN, Sharding

Key = tuple[int, int, int, int]
"""(operation, argument, output strategy, input strategy), as AutoParallel numbers them."""
Group = tuple[int, int]
"""(operation, argument)."""
Cell = tuple[int, int]
"""(output strategy, input strategy) of a group, of which exactly one is taken."""
Vertex = tuple[int, ...]
"""A node of the problem: (operation,) or, for what goes into an argument, its group."""

_WHOLE = 2.0**51
"""What the largest costs of all tables may sum to as whole numbers, which floats hold exactly."""
_LIMIT = 2**40
"""Whole number that the limit of each row becomes."""
_ROUNDING = 1e-9
"""Share of a row's right-hand side by which sums in floats may exceed it."""
_BROKEN = 1e-6
"""The same of a found plan; integer programs tolerate as much."""
_OPTIMAL, _INFEASIBLE = 1, -1
"""PuLP's statuses."""


@dataclass(frozen=True, eq=False)
class Placement:
    """A strategy for every operation, and what is proven of it.

    Attributes:
        out_idx: operation -> its output strategy, clones of repeated subgraphs included.
        keys: the variables that are 1.
        cost: the objective of AutoParallel's program, exact but for its last digits.
        bound: proven lower bound of the objective of all plans.
        answer: the solver's answer on the whole numbers that it was given.
    """

    out_idx: dict[int, int]
    keys: frozenset[Key]
    cost: float
    bound: float
    answer: Answer

    @property
    def gap(self) -> float:
        """Share of the cost by which the bound is below it."""
        return (self.cost - self.bound) / max(abs(self.cost), 1e-300)


class Attached:
    """Takes the place of ``prob.solve`` of an optimiser; see ``attach``.

    Attributes:
        placement: what came of the last solve, or None.
    """

    def __init__(self, optimizer: Any, search: Mapping[str, Any]) -> None:
        self.optimizer, self.search = optimizer, dict(search)
        self.placement: Placement | None = None

    def __call__(self, *_: Any, **__: Any) -> int:
        """Solve the program as it stands, write its variables' values, and return PuLP's status.

        Raises:
            TimeLimitError: no plan was found in time.
            ParenvsError: it is no program of placements.
        """
        program, self.placement = self.optimizer.prob, None
        try:
            placed = place(self.optimizer, **self.search)
        except InfeasibleError:
            program.status = program.sol_status = _INFEASIBLE
            return _INFEASIBLE
        for key, variable in variables_of(self.optimizer).items():
            variable.varValue = 0.0 if key not in placed.keys else 1.0
        for key, variable in variables_of(self.optimizer).items():
            if key in placed.keys:  # clones share variables, under other keys
                variable.varValue = 1.0
        program.status = program.sol_status = _OPTIMAL
        self.placement = placed
        return _OPTIMAL


def attach(optimizer: Any, **search: Any) -> Attached:
    """Let AutoParallel solve by the solver of shardings: ``get_solution`` and ``resolve`` do then.

    Args:
        optimizer: ``autop.sharding_optimizer``.
        **search: see ``solve_iopddl``: ``seconds`` (default: 60), ``seed``, ``steps``, ...

    Returns:
        What holds the placement and its bound afterwards.

    >>> solver = attach(autop.sharding_optimizer, seconds=30)  # doctest: +SKIP
    >>> placement = autop.optimize_placement()  # doctest: +SKIP
    >>> solver.placement.gap  # doctest: +SKIP
    """
    attached = Attached(optimizer, search)
    optimizer.prob.solve = attached
    return attached


def place(optimizer: Any, **search: Any) -> Placement:
    """Solve the program of an optimiser, whose objective is set; nothing of it is changed.

    Args:
        optimizer: AutoParallel's, with ``prob`` and its variables by key.
        **search: see ``solve_iopddl``.

    Raises:
        InfeasibleError: no plan keeps all constraints.
        TimeLimitError: none was found in time.
        ParenvsError: it is no program of placements.
    """
    return _Program(optimizer).solve(search)


def variables_of(optimizer: Any) -> dict[Key, Any]:
    """Return an optimiser's PuLP variables by key, whatever its version calls them.

    Raises:
        ParenvsError: it has none.
    """
    shared = getattr(optimizer, "pulp_variables", None)
    if shared:
        return dict(shared)
    if getattr(optimizer, "decision_vars", None):
        return {key: decision.var for key, decision in optimizer.decision_vars.items()}
    if getattr(optimizer, "ds", None):
        return {key: decision["va"] for key, decision in optimizer.ds.items()}
    raise ParenvsError(
        f"{type(optimizer).__name__} has no decision variables; give autop.sharding_optimizer, the "
        "integer program's"
    )


class _Program:
    """The integer program as tables.

    Attributes:
        cells: (operation, argument) -> cell -> the variable.
        states: vertex -> its strategies, ascending.
        allowed: vertex -> (k,) bool.
        costs: group -> (outputs, inputs) float, inf where there is no variable.
        pairs: two vertices -> (k, l) bool, what goes together.
        rows: linear rows of three and more vertices: values by vertex, and what they may sum to.
    """

    def __init__(self, optimizer: Any) -> None:
        self.program = optimizer.prob
        self.links = getattr(optimizer, "cluster_links", None) or {}
        self.keys: dict[int, list[Key]] = {}
        self.cells: dict[Group, dict[Cell, Any]] = {}
        self.home: dict[int, tuple[Group, Cell]] = {}
        for key, variable in sorted(variables_of(optimizer).items(), key=lambda item: item[0]):
            known = self.keys.setdefault(id(variable), [])
            if not known:  # clones are other keys of the same variable
                group, cell = (key[0], key[1]), (key[2], key[3])
                self.cells.setdefault(group, {})[cell] = variable
                self.home[id(variable)] = group, cell
            known.append(key)
        self.count = {
            group: tuple(Counter(cell[axis] for cell in cells) for axis in (0, 1))
            for group, cells in self.cells.items()
        }
        outputs: dict[int, set[int]] = {}
        for group, (out, _) in self.count.items():
            outputs.setdefault(group[0], set()).update(out)
        self.states: dict[Vertex, list[int]] = {(x,): sorted(o) for x, o in sorted(outputs.items())}
        self.states |= {group: sorted(inputs) for group, (_, inputs) in self.count.items()}
        self.index = {
            vertex: {state: i for i, state in enumerate(states)}
            for vertex, states in self.states.items()
        }
        self.allowed = {vertex: np.ones(len(x), dtype=bool) for vertex, x in self.states.items()}
        self.pairs: dict[tuple[Vertex, Vertex], np.ndarray] = {}
        self.rows: list[tuple[dict[Vertex, np.ndarray], float]] = []
        self.single: set[Group] = set()
        self.same: dict[int, set[tuple[int, int, int]]] = {}
        self.read_objective()
        self.read_bounds()
        for name, row in self.program.constraints.items():
            self.read_row(name, row)
        self.check()

    # Reading

    def refuse(self, words: str) -> ParenvsError:
        """Return the error of a program that is none of placements."""
        return ParenvsError(f"{getattr(self.program, 'name', 'the program')}: {words}")

    def terms(self, expression: Any, what: str) -> dict[Group, dict[Cell, float]]:
        """Return the coefficients of an expression, those of 0 left out, by group and cell."""
        found: dict[Group, dict[Cell, float]] = {}
        for variable, value in expression.items():
            if id(variable) not in self.home:
                raise self.refuse(f"{what} has variable {variable}, which is no decision variable")
            if not math.isfinite(value):
                raise self.refuse(f"{what} has the coefficient {value} of {variable}")
            if value:
                group, cell = self.home[id(variable)]
                found.setdefault(group, {})[cell] = float(value)
        return found

    def read_objective(self) -> None:
        """Take the costs."""
        objective = self.program.objective
        if objective is None or self.program.sense != 1:
            raise self.refuse("it has no objective that is minimised; get_solution() sets it")
        self.constant = float(objective.constant)
        self.costs: dict[Group, np.ndarray] = {}
        given = self.terms(objective, "the objective")
        for group, cells in self.cells.items():
            rows, columns = self.index[group[:1]], self.index[group]
            table = np.full((len(rows), len(columns)), np.inf)
            own = given.get(group, {})
            for out, into in cells:
                table[rows[out], columns[into]] = own.get((out, into), 0.0)
            self.costs[group] = table

    def read_bounds(self) -> None:
        """Forbid what bounds of variables fix."""
        for group, cells in self.cells.items():
            for cell, variable in cells.items():
                low, high = variable.lowBound, variable.upBound
                if high is not None and high < 1:
                    self.forbid(group, [cell])
                if low is not None and low > 0:
                    self.forbid(group, [x for x in cells if x != cell])

    def forbid(self, group: Group, cells: Iterable[Cell]) -> None:
        """Forbid some cells of a group."""
        rows, columns, table = self.index[group[:1]], self.index[group], self.costs[group]
        for out, into in cells:
            table[rows[out], columns[into]] = np.inf

    def read_row(self, name: str, row: Any) -> None:
        """Take a linear constraint."""
        terms, right, sense = self.terms(row, f"constraint {name}"), -float(row.constant), row.sense
        slack = _ROUNDING * max(1.0, abs(right))

        def keeps(total: Any) -> Any:
            under, over = total <= right + slack, total >= right - slack
            return under & over if sense == 0 else under if sense < 0 else over

        values: dict[Vertex, np.ndarray] = {}
        for group, given in terms.items():
            by_vertex = self.by_vertex(group, given)
            if by_vertex is None:
                if len(terms) > 1:
                    raise self.refuse(
                        f"constraint {name} joins single variables of operation {group[0]} with "
                        "others; only sums over all inputs, or all outputs, of a strategy can be"
                    )
                # Most such rows forbid one cell of many.
                cells = given if keeps(0.0) else self.cells[group]
                self.forbid(group, [x for x in cells if not keeps(given.get(x, 0.0))])
                return
            vertex, numbers = by_vertex
            values[vertex] = values.get(vertex, 0.0) + numbers
        self.note(terms, right, sense)
        for vertex in [x for x, numbers in values.items() if numbers.min() == numbers.max()]:
            right -= float(values.pop(vertex)[0])
        vertices = sorted(values)
        if not vertices:
            if not keeps(0.0):
                raise InfeasibleError(f"constraint {name} cannot be kept")
        elif len(vertices) == 1:
            self.allowed[vertices[0]] &= keeps(values[vertices[0]])
        elif len(vertices) == 2:
            a, b = vertices
            mask = keeps(values[a][:, None] + values[b])
            before = self.pairs.get((a, b))
            self.pairs[a, b] = mask if before is None else before & mask
        else:
            if sense <= 0:
                self.rows.append((values, right + slack))
            if sense >= 0:
                self.rows.append(({x: -numbers for x, numbers in values.items()}, slack - right))

    def by_vertex(self, group: Group, given: dict[Cell, float]) -> tuple[Vertex, np.ndarray] | None:
        """Return coefficients of a group as those of a vertex's states; None if they are not."""
        vertices: tuple[Vertex, Vertex] = (group[:1], group)
        for axis, vertex in enumerate(vertices):
            listed: dict[int, list[float]] = {}
            for cell, value in given.items():
                listed.setdefault(cell[axis], []).append(value)
            whole = self.count[group][axis]
            if all(len(x) == whole[state] and min(x) == max(x) for state, x in listed.items()):
                numbers = np.zeros(len(self.states[vertex]))
                for state, x in listed.items():
                    numbers[self.index[vertex][state]] = x[0]
                return vertex, numbers
        return None

    def note(self, terms: dict[Group, dict[Cell, float]], right: float, sense: int) -> None:
        """Note rows that take one cell of a group, and those that make arguments agree."""
        if sense != 0:
            return
        if len(terms) == 1 and right == 1.0:
            ((group, given),) = terms.items()
            if len(given) == len(self.cells[group]) and set(given.values()) == {1.0}:
                self.single.add(group)
        elif len(terms) == 2 and right == 0.0:
            (one, first), (other, second) = terms.items()
            outs = {cell[0] for given in (first, second) for cell in given}
            signs = [set(given.values()) for given in (first, second)]
            if (
                one[0] == other[0]
                and len(outs) == 1
                and signs in ([{1.0}, {-1.0}], [{-1.0}, {1.0}])
            ):
                (out,) = outs
                whole = [self.count[group][0][out] for group in (one, other)]
                if [len(first), len(second)] == whole:
                    self.same.setdefault(one[0], set()).add((one[1], other[1], out))

    def check(self) -> None:
        """Refuse a program that does not take one cell of each group, arguments in agreement."""
        arguments: dict[int, list[int]] = {}
        for group in self.cells:
            if group not in self.single:
                raise self.refuse(f"nothing says that argument {group[1]} of operation {group[0]} "
                                  "has one pair of strategies")  # fmt: skip
            arguments.setdefault(group[0], []).append(group[1])
        for operation, listed in arguments.items():
            if len(listed) == 1:
                continue
            ties = self.same.get(operation, set())
            open_: dict[int, set[int]] = {x: set(self.count[operation, x][0]) for x in listed}
            first = listed[0]
            for other in listed[1:]:
                tied = _connected(ties, first, other)
                left, right = open_[first] - tied, open_[other] - tied
                if left and right and not (left == right and len(left) == 1):
                    raise self.refuse(
                        f"nothing says that arguments {first} and {other} of operation {operation} "
                        "have the same output strategy"
                    )

    # Solving

    def sharding(self) -> tuple[Sharding, list[Vertex], float, float]:
        """Return the problem of whole numbers, the vertices of its first nodes, and its scale.

        The last number is by how much rounding may change the cost of a plan, in units.
        """
        vertices = list(self.states)
        node = {vertex: i for i, vertex in enumerate(vertices)}
        shift = {g: float(t[np.isfinite(t)].min(initial=np.inf)) for g, t in self.costs.items()}
        for group, least in shift.items():
            if least == np.inf:
                raise InfeasibleError(f"operation {group[0]} has no strategy left")
        tables = {group: table - shift[group] for group, table in self.costs.items()}
        total = sum(float(t[np.isfinite(t)].max()) for t in tables.values())
        scale = 2.0 ** math.floor(math.log2(_WHOLE / total)) if total > 0 else 1.0
        self.offset, off = self.constant + math.fsum(shift.values()), []
        ends, edges = [], []
        for group, table in tables.items():
            finite = np.isfinite(table)
            exact = np.where(finite, table, 0.0) * scale
            whole = np.rint(exact)
            off.append(float(np.abs(whole - exact).max()))
            ends.append((node[group[:1]], node[group]))
            edges.append(np.where(finite, whole, FORBIDDEN))
        for (a, b), mask in self.pairs.items():
            ends.append((node[a], node[b]))
            edges.append(np.where(mask, 0, FORBIDDEN))
        costs = [np.where(self.allowed[vertex], 0, FORBIDDEN) for vertex in vertices]
        usages = [np.zeros(len(x)) for x in costs]
        times = [(0, 0)] * len(vertices)
        for time, (values, most) in enumerate(self.rows):
            used = {vertex: numbers - numbers.min() for vertex, numbers in values.items()}
            room = most - math.fsum(float(numbers.min()) for numbers in values.values())
            if room < 0:
                raise InfeasibleError("a row of memory cannot be kept by any plan")
            if math.fsum(float(numbers.max()) for numbers in used.values()) <= room:
                continue
            for vertex, numbers in used.items():
                i = node[vertex]
                if times[i] != (0, 0):  # another row has it: a copy, tied to it
                    ends.append((i, len(costs)))
                    edges.append(np.where(np.eye(len(numbers), dtype=bool), 0, FORBIDDEN))
                    costs.append(np.zeros(len(numbers)))
                    usages.append(np.zeros(0))
                    times.append((0, 0))
                    i = len(costs) - 1
                usages[i] = np.minimum(np.floor(numbers * (_LIMIT / room)), _LIMIT + 1)
                times[i] = time, time + 1

        def flat(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            offset = np.cumsum([0, *(part.size for part in parts)]).astype(np.int64)
            return np.concatenate([np.zeros(0), *(x.ravel() for x in parts)]).astype(
                np.int64
            ), offset

        (every, offset), (tables_, edge_offset) = flat(costs), flat(edges)
        problem = Sharding(
            name="autoparallel",
            limit=_LIMIT,
            intervals=np.array(times, dtype=np.int64).reshape(-1, 2),
            offset=offset,
            costs=every,
            usages=flat(usages)[0],
            ends=np.array(ends, dtype=np.int64).reshape(-1, 2),
            edge_offset=edge_offset,
            edge_costs=tables_,
        )
        return problem, vertices, scale, math.fsum(off)

    def solve(self, search: Mapping[str, Any]) -> Placement:
        """Solve the problem, and hold the plan against every row as it was given."""
        problem, vertices, scale, off = self.sharding()
        answer = solve_iopddl(problem, **search)
        chosen = dict(zip(vertices, answer.plan.strategies, strict=False))
        state = {vertex: self.states[vertex][i] for vertex, i in chosen.items()}
        taken = {group: (state[group[:1]], state[group]) for group in self.cells}
        variables = {id(self.cells[group][cell]) for group, cell in taken.items()}
        for name, row in self.program.constraints.items():
            total = math.fsum(value for x, value in row.items() if id(x) in variables)
            over = total + float(row.constant)
            wrong = abs(over) if row.sense == 0 else over if row.sense < 0 else -over
            if wrong > _BROKEN * max(1.0, abs(row.constant)):
                raise AssertionError(f"constraint {name} is broken by {wrong:g}")
        given = self.terms(self.program.objective, "the objective")
        parts = [given.get(group, {}).get(cell, 0.0) for group, cell in taken.items()]
        cost = math.fsum([*parts, self.constant])
        assert answer.bound is not None
        bound = self.offset + (answer.bound - off) / scale
        keys = frozenset(key for x in variables for key in self.keys[x])
        out_idx = {key[0]: key[2] for key in keys}
        for clone, root in self.links.items():  # later versions link operations, earlier ones keys
            if isinstance(clone, int):
                out_idx[clone] = out_idx[root]
        return Placement(dict(sorted(out_idx.items())), keys, cost, min(bound, cost), answer)


def _connected(ties: set[tuple[int, int, int]], first: int, other: int) -> set[int]:
    """Output strategies for which a chain of rows makes two arguments agree."""
    found = set()
    for out in {tie[2] for tie in ties}:
        reached, grown = {first}, True
        while grown:
            fresh = {
                x for a, b, o in ties if o == out and (a in reached or b in reached) for x in (a, b)
            }
            grown, reached = not fresh <= reached, reached | fresh
        if other in reached:
            found.add(out)
    return found
