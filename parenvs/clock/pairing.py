"""Which outputs of a JAX training step are its new state, and which one is its loss.

Outputs and inputs are trees. A part of the outputs is the new state of the part of the inputs that
has the same tree, shapes and element types: whole parts first, those that the flow of data tells
of, then those at the same place. What is left, single arrays, is told by the flow of data: an
update is made of what it takes the place of.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.graph.checks import ELEMENT_TYPES, FLOATING
from parenvs.graph.flow import Flow
from parenvs.graph.graph import Graph, Role

_LOSS = "loss"


@dataclass(frozen=True)
class Subtree:
    """A part of a tree.

    Attributes:
        tree: its structure, without what its leaves are.
        types: (L,) shape and element type of each leaf.
        leaves: (L,) numbers of its leaves in the whole tree.
    """

    path: tuple[str, ...]
    tree: Any
    types: tuple[tuple[Any, ...], ...]
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class Pairing:
    """What a step's outputs are.

    Attributes:
        feeds: number of an output -> number of the input that is fed with it in the next step.
        names: (O,) path of each output, like ``1/loss``.
    """

    feeds: dict[int, int]
    names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        graph: Graph,
        updated: Mapping[int, int],
        function: Any,
        positional: Sequence[Any],
        named: Mapping[str, Any],
    ) -> Pairing:
        """Pair the outputs of a function with its arguments.

        Args:
            graph: the step that was read of it.
            updated: tensor of an output -> tensor of the input that it updates, by the data flow.
            function: the function.
            positional: its arguments, arrays or shapes.
            named: likewise, by name.
        """
        jitted = function if hasattr(function, "lower") else jax.jit(function, keep_unused=True)
        lowered = jitted.lower(*positional, **named)
        outputs = graph.outputs.tolist()
        number_of = {tensor: k for k, tensor in enumerate(graph.parameter_tensor.tolist())}
        by_flow = {k: number_of[updated[x]] for k, x in enumerate(outputs) if x in updated}
        in_parts, out_parts = list(parts(lowered.args_info)), list(parts(lowered.out_info))
        if len(out_parts[0].leaves) != len(outputs) or len(in_parts[0].leaves) != len(number_of):
            return cls(by_flow, tuple(map(str, range(len(outputs)))))
        feeds = _paired(out_parts, in_parts, by_flow)
        for output, number in by_flow.items():
            if output not in feeds and number not in feeds.values():
                feeds[output] = number
        # Counters and random keys: whole numbers made of the only input of their type.
        for output, tensor in enumerate(outputs):
            element = int(graph.element_type[tensor])
            is_whole = element not in FLOATING and ELEMENT_TYPES[element][0] != "pred"
            if output not in feeds and is_whole:
                _add_single(graph, feeds, output)
        names = [""] * len(outputs)
        for part in out_parts:
            if len(part.leaves) == 1:
                names[part.leaves[0]] = "/".join(part.path)
        input_paths = {part.leaves[0]: part.path[1:] for part in in_parts if len(part.leaves) == 1}
        _add_scalars(graph, feeds, names, input_paths)
        return cls(feeds, tuple(names))

    def stale(self, graph: Graph) -> list[str]:
        """Return the paths of weights and states that no output gives anew."""
        fed = set(self.feeds.values())
        return [
            graph.paths[number]
            for number, role in enumerate(graph.parameter_role.tolist())
            if number not in fed and role in (Role.OPTIMIZER, Role.STATISTICS)
        ]

    def loss(self, graph: Graph, asked: str | None = None) -> int:
        """Return the number of the output that is the loss: a floating number that is no state.

        Raises:
            ParenvsError: there is none, there are several, or none of the name that was asked for.
        """
        losses = {self.names[k]: k for k in _losses(graph, self.feeds)}
        if asked is not None:
            if asked not in losses:
                raise ParenvsError(
                    f"--loss {shown(asked)}: no output that may be the loss"
                    f"{did_you_mean(asked, losses)}; such are: {', '.join(losses) or 'none'}"
                )
            return losses[asked]
        likely = [name for name in losses if name.split("/")[-1].lower() == _LOSS]
        for names in (likely, [*losses]):
            if len(names) == 1:
                return losses[names[0]]
        if not losses:
            raise ParenvsError(
                f"{shown(graph.name)}: the step returns no loss (a single floating number that is "
                "no new state); return it, and plan anew"
            )
        raise ParenvsError(
            f"{shown(graph.name)}: {len(losses)} outputs may be the loss: {', '.join(losses)}; "
            f"name it: --loss {next(iter(losses))}"
        )

    def words(self, output: int) -> str:
        """Say which output it is."""
        return f"output {self.names[output]}" if self.names[output] else "the output"


def _losses(graph: Graph, feeds: Mapping[int, int]) -> list[int]:
    return [
        k
        for k, tensor in enumerate(graph.outputs.tolist())
        if k not in feeds
        and graph.shape(tensor) == ()
        and int(graph.element_type[tensor]) in FLOATING
    ]


def masters(graph: Graph, feeds: Mapping[int, int]) -> dict[int, int]:
    """Return the inputs that are wider copies of weights, and the weights that are cast of them.

    Args:
        graph: the step.
        feeds: number of an output -> number of the input that it feeds.

    Returns:
        Number of the copy -> number of the weight.
    """
    output_of = {tensor: k for k, tensor in enumerate(graph.outputs.tolist())}
    copies = {}
    for number, opcode in enumerate(graph.opcode.tolist()):
        # Mixed precision casts the updated copy to the weight that the next step uses.
        if graph.opcodes[opcode] != "convert":
            continue
        source = output_of.get(int(graph.operands[graph.operand_offset[number]]))
        result = output_of.get(int(graph.results[graph.result_offset[number]]))
        if source is not None and result is not None and {source, result} <= feeds.keys():
            copy, weight = feeds[source], feeds[result]
            roles = [graph.parameter_role[k] for k in (copy, weight)]
            if roles == [Role.OPTIMIZER, Role.VARIABLE]:
                copies[copy] = weight
    return copies


def parts(tree: Any, path: tuple[str, ...] = ()) -> Iterator[Subtree]:
    """Yield a tree and all its parts, the largest first; ``leaves`` count from its first leaf."""
    start = 0

    def walk(node: Any, path: tuple[str, ...]) -> Iterator[Subtree]:
        nonlocal start
        leaves, structure = jax.tree.flatten(node)
        types = tuple((tuple(x.shape), str(x.dtype)) for x in leaves)
        yield Subtree(path, structure, types, tuple(range(start, start + len(leaves))))
        inner, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
        if len(inner) == 1 and not inner[0][0]:
            start += len(leaves)
            return
        for keys, child in inner:
            yield from walk(child, (*path, *map(_key, keys)))

    yield from walk(tree, path)


def _key(key: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def _paired(
    out_parts: list[Subtree], in_parts: list[Subtree], by_flow: Mapping[int, int]
) -> dict[int, int]:
    by_tree: dict[Any, list[Subtree]] = {}
    for part in in_parts:
        if len(part.leaves) > 1 and part.path:
            by_tree.setdefault((str(part.tree), part.types), []).append(part)
    feeds: dict[int, int] = {}
    used: set[int] = set()
    output_of = {number: output for output, number in by_flow.items()}
    for part in out_parts:
        # Parts come largest first: a leaf that is paired already belongs to a larger part.
        if len(part.leaves) < 2 or any(leaf in feeds for leaf in part.leaves):
            continue
        best_rank: tuple[Any, ...] = ()
        best: list[tuple[int, int]] = []
        for position, other in enumerate(by_tree.get((str(part.tree), part.types), ())):
            pairs = list(zip(part.leaves, other.leaves, strict=True))
            if used & set(other.leaves) or any(
                output_of.get(number, output) != output or by_flow.get(output, number) != number
                for output, number in pairs
            ):
                continue
            agreed = sum(by_flow.get(output) == number for output, number in pairs)
            inner_path = other.path[1:]  # behind positional or keyword arguments
            # By agreement with the flow of data, by name, then outer parts and first ones.
            rank = (agreed, inner_path[-1:] == part.path[-1:], -len(inner_path), -position)
            if rank > best_rank:
                best_rank, best = rank, pairs
        feeds.update(best)
        used |= {number for _, number in best}
    return feeds


def _add_scalars(
    graph: Graph, feeds: dict[int, int], names: Sequence[str], inputs: Mapping[int, tuple[str, ...]]
) -> None:
    """Pair floating numbers like a loss scale by their paths, as long as two losses are left."""
    for output in _losses(graph, feeds):
        last = names[output].split("/")[-1]
        if len(_losses(graph, feeds)) < 2 or last.lower() == _LOSS:
            continue
        same_name = {
            number
            for number, path in enumerate(graph.paths)
            if "/".join(inputs.get(number, ())) == names[output] or path.split("/")[-1] == last
        }
        _add_single(graph, feeds, output, same_name)


def _add_single(
    graph: Graph, feeds: dict[int, int], output: int, allowed: Container[int] | None = None
) -> None:
    tensor = int(graph.outputs[output])
    made_of = Flow(graph).ancestors([tensor])
    candidates = [
        number
        for number, other in enumerate(graph.parameter_tensor.tolist())
        if number not in feeds.values()
        and graph.parameter_role[number] != Role.BATCH
        and (allowed is None or number in allowed)
        and _type(graph, other) == _type(graph, tensor)
        and made_of[other]
    ]
    if len(candidates) == 1:
        feeds[output] = candidates[0]


def _type(graph: Graph, tensor: int) -> tuple[Any, ...]:
    return (*graph.shape(tensor), int(graph.element_type[tensor]))
