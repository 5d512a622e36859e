"""Stand-ins of AutoParallel's optimiser and of PuLP: programs of placements, drawn or of a file.

The rows are those of AutoParallel's optimiser: one pair of strategies for each argument, the same
output in all arguments, output and input along each edge, outputs of pairs of operations that are
equal, forbidden variables, strategies of users, and two rows of memory.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

_SHARES = (1.0, 1 / 3, 1 / 7, 1 / 4, 1 / 8, 1 / 16)
"""What each strategy leaves of a parameter on a device."""


class Variable:
    """A binary variable, as ``pulp.LpVariable`` is; comparing it makes a row, as there."""

    def __init__(self, name):
        self.name, self.lowBound, self.upBound, self.varValue = name, 0, 1, None

    def __repr__(self):
        return self.name

    def __hash__(self):
        return id(self)


class Expression:
    """A sum of variables, as ``pulp.LpAffineExpression`` is."""

    def __init__(self, terms=(), constant=0.0):
        self.terms, self.constant = dict(terms), constant

    def items(self):
        return self.terms.items()

    def value(self):
        return self.constant + sum(c * x.varValue for x, c in self.items())


class Row(Expression):
    """A row, as ``pulp.LpConstraint`` is: ``terms + constant`` is 0, at most or at least 0."""

    def __init__(self, expression, sense, right):
        super().__init__(expression.terms, expression.constant - right)
        self.sense = {"==": 0, "<=": -1, ">=": 1}[sense]

    def holds(self, total):
        over = total + self.constant
        return (abs(over) if self.sense == 0 else -self.sense * over) <= 1e-9


class Program:
    """A program, as ``pulp.LpProblem`` is."""

    def __init__(self):
        self.name, self.sense, self.status, self.objective = "AutoParallel", 1, 0, None
        self.constraints, self.count = {}, Counter()

    def add(self, name, expression, sense, right):
        count = self.count[name]
        self.count[name] += 1
        self.constraints[f"{name}_{count:03}" if count else name] = Row(expression, sense, right)


class Optimizer:
    """What the adapter takes of ``ShardingOptimizer``.

    Attributes:
        producers: (operation, argument) -> the operation whose output goes in.
    """

    def __init__(self, arguments, outputs, clones=()):
        """Make the variables, and the rows that every program has.

        Args:
            arguments: operation -> the operations whose outputs it takes; none: one of its own.
            outputs: operation -> number of its output strategies.
            clones: pairs of operations, the second of which shares the variables of the first.
        """
        self.prob, self.producers, self.pulp_variables = Program(), {}, {}
        self.outputs, root = outputs, {copy: original for original, copy in clones}
        self.cluster_links = {}
        for node, inputs in arguments.items():
            for argument, producer in enumerate(inputs or [None]):
                if producer is not None:
                    self.producers[node, argument] = producer
                for out, into in product(range(outputs[node]), range(self.inputs(node, argument))):
                    key = (node, argument, out, into)
                    if node in root:
                        self.cluster_links[key] = (root[node], *key[1:])
                        self.pulp_variables[key] = self.pulp_variables[self.cluster_links[key]]
                    else:
                        self.pulp_variables[key] = Variable("n={},arg={},out={},in={}".format(*key))
        for node, inputs in arguments.items():
            if node not in root:
                groups = [self.group(node, x) for x in range(max(len(inputs), 1))]
                for group in groups:
                    self.prob.add("unique", Expression(dict.fromkeys(group.values(), 1.0)), "==", 1)
                for argument, out in product(range(1, len(groups)), range(outputs[node])):
                    self.equal(
                        "same", self.by_output(node, out), self.by_output(node, out, argument)
                    )
        for (node, argument), producer in self.producers.items():
            if node in root and producer in root:
                continue
            for out in range(outputs[producer]):
                keys = ((node, argument, o, out) for o in range(outputs[node]))
                into = {self.pulp_variables[key]: 1.0 for key in keys}
                self.equal("flow", self.by_output(producer, out), into)

    def inputs(self, node, argument):
        return self.outputs.get(self.producers.get((node, argument)), 1)

    def group(self, node, argument):
        return {
            (node, argument, out, into): self.pulp_variables[node, argument, out, into]
            for out, into in product(range(self.outputs[node]), range(self.inputs(node, argument)))
        }

    def by_output(self, node, out, argument=0):
        keys = ((node, argument, out, into) for into in range(self.inputs(node, argument)))
        return {self.pulp_variables[key]: 1.0 for key in keys}

    def equal(self, name, some, others):
        terms = dict(some)
        for x, c in others.items():
            terms[x] = terms.get(x, 0.0) - c
        self.prob.add(name, Expression({x: c for x, c in terms.items() if c}), "==", 0.0)

    def minimise(self, costs):
        """Set the objective, from costs by key; a variable of clones has the sum."""
        terms = {}
        for key, x in self.pulp_variables.items():
            terms[x] = terms.get(x, 0.0) + costs[key]
        self.prob.objective = Expression(terms)


def optimizer_of(rng, operations=7, strategies=3):
    """Return a drawn program with all kinds of rows that AutoParallel's optimiser has.

    Args:
        rng: ``numpy.random.Generator``.
        operations: number of operations.
        strategies: most output strategies of one.
    """
    arguments, outputs = {}, {}
    for node in range(operations):
        count = int(rng.integers(0, min(node, 2) + 1)) if node > 2 else 0
        arguments[node] = rng.permutation(node)[:count].tolist()
        outputs[node] = int(rng.integers(2, strategies + 1))
    clones = []
    if rng.random() < 0.5:  # two operations of the same form
        arguments[operations - 1] = list(arguments[operations - 2])
        outputs[operations - 1] = outputs[operations - 2]
        clones = [(operations - 2, operations - 1)]
    made = Optimizer(arguments, outputs, clones)
    costs = {key: float(rng.exponential(100.0)) for key in made.pulp_variables}
    wrong = 0.3 if rng.random() < 0.3 else 0.05
    for key, x in made.pulp_variables.items():
        if rng.random() < wrong:
            made.prob.add("inf_cases", Expression({x: 1.0}), "==", 0.0)
            costs[key] = 10_000.0
    made.minimise(costs)
    a, b = rng.permutation(operations - 2)[:2].tolist()  # an operation and its gradient
    for out in range(outputs[a]):
        if out < outputs[b]:
            made.equal("grad_param_constraint", made.by_output(b, out), made.by_output(a, out))
        else:
            gone = Expression(made.by_output(a, out))
            made.prob.add("grad_param_constraint_disable", gone, "==", 0.0)
    node = int(rng.integers(operations))
    some = {**made.by_output(node, 0), **made.by_output(node, 1)}
    made.prob.add("user_constraint", Expression(some), "==", 1.0)
    parameters = [x for x, inputs in arguments.items() if not inputs]
    if len(parameters) > 2:
        shares = {
            x: (c, share)
            for p in parameters
            for out, share in enumerate(_SHARES[: outputs[p]])
            for x, c in made.by_output(p, out).items()
        }
        sums = Expression({x: c * share for x, (c, share) in shares.items()})
        least = sum(min(_SHARES[: outputs[p]]) for p in parameters)
        most = least + float(rng.random()) * 0.6 * (len(parameters) - least)
        made.prob.add("memory_high", sums, "<=", most)
        made.prob.add("memory_low", sums, ">=", least + 0.3 * (most - least))
    return made


def program_of(problem, unit):
    """Return a problem of the contest's form as AutoParallel's program.

    Args:
        problem: ``parenvs.tasks.sharding.problem.Sharding``, with one time at most.
        unit: what a unit of its costs is in the objective.
    """
    arguments, tables = {node: [] for node in range(len(problem))}, {}
    sizes = problem.sizes.tolist()
    for (a, b), at in zip(problem.ends.tolist(), problem.edge_offset.tolist(), strict=False):
        table = problem.edge_costs[at : at + sizes[a] * sizes[b]].reshape(sizes[a], sizes[b])
        node, producer, table = (a, b, table) if a > b else (b, a, table.T)
        tables[node, len(arguments[node])] = table.tolist()
        arguments[node].append(producer)
    made = Optimizer(arguments, dict(enumerate(sizes)))
    costs = {}
    own = [
        problem.costs[at : at + n].tolist() for at, n in zip(problem.offset, sizes, strict=False)
    ]
    for (node, argument, out, into), x in made.pulp_variables.items():
        cost = own[node][out] if argument == 0 else 0
        table = tables.get((node, argument))
        cost += 0 if table is None else table[out][into]
        costs[node, argument, out, into] = cost * unit
        if cost >= 10**18:
            made.prob.add("inf_cases", Expression({x: 1.0}), "==", 0.0)
            costs[node, argument, out, into] = 10_000.0
    made.minimise(costs)
    used = {}
    for node, (low, high) in enumerate(problem.intervals.tolist()):
        for out in range(sizes[node] if low < high else 0):
            usage = float(problem.usages[problem.offset[node] + out]) / problem.limit
            used |= dict.fromkeys(made.by_output(node, out), usage)
    made.prob.add("memory_high", Expression({x: c for x, c in used.items() if c}), "<=", 1.0)
    return made
