"""Plans as JAX's shardings: ``PartitionSpec`` of every input by pytree path (extra ``jax``).

>>> from parenvs.exports.jax import shardings                       # doctest: +SKIP
>>> mesh = jax.make_mesh((2, 4), ("data", "model"))                 # doctest: +SKIP
>>> params, state, batch = shardings("plan.json", mesh, (params, state, batch))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenvs.core.plan import Plan, load_plan
from parenvs.errors import ParenvsError, need_extra
from parenvs.exports.stages import layout_of, unmatched
from parenvs.files import StrPath
from parenvs.graph.graph import Graph, Role
from parenvs.graph.layout import Layout, Spec, shape_text
from parenvs.graph.roles import parse_names

WRITTEN_FOR = {"jax": "0.10.2"}
"""Versions with which what is exported was run."""


def shardings(plan: Plan | StrPath, mesh: Any, tree: Any, graph: Graph | None = None) -> Any:
    """Return the ``NamedSharding`` of every leaf of a training step's arguments.

    Args:
        plan: a plan of a task with a layout, or the path of its file.
        mesh: a ``jax.sharding.Mesh`` with the plan's axes in their order, under any names: one over
            all devices; of a hybrid plan the replicas, then the tp ranks.
        tree: the arguments that the step was planned with, a tuple; or one of them.
        graph: the step's graph, as ``parenvs.from_jax`` reads it (default: the plan's instance).

    Returns:
        A pytree like ``tree``, for ``jax.device_put`` and for ``in_shardings`` of ``jax.jit``.

    Raises:
        ParenvsError: JAX is missing, the plan cannot be exported, the mesh has another size, or the
            leaves of ``tree`` are not those of the plan; the line names the first few.
    """
    with need_extra("jax", "shardings"):
        import jax
    if not isinstance(plan, Plan):
        plan = load_plan(plan)
    layout = layout_of(plan, graph)
    layout.check_even()
    mesh_shape = tuple(mesh.shape.values())
    if mesh_shape != tuple(axis.size for axis in layout.axes):
        planned = " x ".join(f"{axis.name} {axis.size}" for axis in layout.axes)
        raise ParenvsError(f"mesh: the plan is for {planned} devices, the mesh is {mesh_shape}")
    names = dict(zip((axis.name for axis in layout.axes), mesh.axis_names, strict=True))
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    is_whole = isinstance(tree, tuple) and not hasattr(tree, "_fields")
    texts = [jax.tree_util.keystr(path) for path, _ in leaves]
    shapes = [tuple(getattr(leaf, "shape", ())) for _, leaf in leaves]
    numbers = _inputs_of(layout, is_whole, texts, shapes)
    specs = [partition_spec(layout.inputs[number], names) for number in numbers]
    return jax.tree.unflatten(structure, [jax.NamedSharding(mesh, spec) for spec in specs])


def partition_spec(spec: Spec, names: dict[str, str] | None = None) -> Any:
    """Return a spec as ``jax.sharding.PartitionSpec``, under other names of the axes."""
    from jax.sharding import PartitionSpec

    known: Any = names or {}
    return PartitionSpec(*(known.get(axis, axis) for axis in spec))


def document(layout: Layout) -> dict[str, Any]:
    """Return a layout as an object of JSON types: the spec of each input by argument and path.

    Raises:
        InfeasibleError: JAX would refuse it, see ``Layout.check_even``.
    """
    layout.check_even()
    graph = layout.graph
    return {
        "schema": 1,
        "to": "jax",
        "written_for": WRITTEN_FOR,
        "instance": layout.plan.instance,
        "fingerprint": layout.plan.fingerprint,
        "mesh": layout.sizes,
        "inputs": [
            {
                "argument": int(graph.parameter_argument[k]),
                "path": path,
                "role": Role(graph.parameter_role[k]).name.lower(),
                "shape": list(graph.shape(graph.parameter_tensor[k])),
                "spec": list(spec),
            }
            for k, (path, spec) in enumerate(zip(graph.paths, layout.inputs, strict=True))
        ],
        "outputs": [list(spec) for spec in layout.outputs],
        "donated": list(layout.donated),
        "notes": list(layout.notes),
    }


def _inputs_of(
    layout: Layout, is_whole: bool, texts: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[int]:
    """Return the number of the input that each leaf is.

    ``is_whole``: whether the leaves are those of all arguments, or of one; ``texts`` are the keys
    of each leaf as JAX writes them, ``['encoder']['q']``.
    """
    graph = layout.graph
    if is_whole:  # the first key is the number of the argument
        texts = [text[text.index("]") + 1 :] for text in texts]
    _, parsed = parse_names([f"x{text}" for text in texts])
    paths = [path if text else "" for text, path in zip(texts, parsed, strict=True)]
    argument_of = graph.parameter_argument
    arguments = [np.flatnonzero(argument_of == number) for number in np.unique(argument_of)]
    candidates = [list(range(len(argument_of)))] if is_whole else [x.tolist() for x in arguments]
    names_of = [[graph.paths[n] for n in numbers] for numbers in candidates]
    # A leaf without keys is an argument of its own, which the graph calls by a name.
    same_names = [
        numbers
        for numbers, names in zip(candidates, names_of, strict=True)
        if len(names) == len(paths)
        and all(path in ("", name) for path, name in zip(paths, names, strict=True))
    ]
    if not same_names:
        nearest = max(names_of, key=lambda names: len({*names} & {*paths}), default=[])
        raise ParenvsError(
            f"tree: not what the step was planned with: "
            f"{unmatched(nearest, paths, 'tree') or 'another order'}; give the arguments that the "
            "step was planned with (of a jitted step, with keep_unused=True)"
        )
    planned = {n: graph.shape(graph.parameter_tensor[n]) for numbers in same_names for n in numbers}
    fitting = [x for x in same_names if [planned[n] for n in x] == list(shapes)]
    if not fitting:
        pairs = zip(same_names[0], shapes, strict=True)
        number, shape = next((n, x) for n, x in pairs if planned[n] != x)
        raise ParenvsError(
            f"tree: {graph.paths[number]} has the shape {shape}, but was planned as "
            f"{shape_text(graph, graph.parameter_tensor[number])}; plan the step anew"
        )
    # Parameters and their momentum look alike, and may be split differently (ZeRO).
    if len({tuple(layout.inputs[n] for n in numbers) for numbers in fitting}) > 1:
        raise ParenvsError(
            "tree: several arguments of the step have these leaves, and their shardings differ; "
            "give the tuple of all arguments"
        )
    return fitting[0]
