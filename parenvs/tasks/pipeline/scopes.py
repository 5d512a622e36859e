"""The scopes of a pivot: what its author called the parts of the model that it stands in."""

from __future__ import annotations

import re

Path = tuple[str, ...]
"""Scopes or keys, from the outermost to the innermost."""
_FUNCTION = re.compile(r"\bp?jit\([^()]*\)")
_TRANSFORM = re.compile(
    r"\b(?:jvp|transpose|vmap|pmap|linearize|checkpoint|remat|shard_map)\(([^()]*)\)"
)
_NO_SCOPE = {
    "", "~", "while", "body", "cond", "scan", "pjit", "closed_call", "core_call", "named_call",
    "remat", "checkpoint", "rematted_computation", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr",
}  # fmt: skip
"""Parts of an ``op_name`` that JAX and Haiku put in, and the model's author did not."""
_ITERATION = re.compile(r"(.*)(\[\d+\])")
NUMBERED = re.compile(r"(?<![A-Z\d])\d")  # layer_3, h0_attn, 3; not GPT2LMHeadModule
"""What tells a scope or key that is one of several alike."""


def scopes_of(name: str, of_graph: bool) -> tuple[Path, str]:
    """Return the scopes that a pivot's author wrote, and the name of its instruction.

    Args:
        name: ``op_name`` of an instruction, or a name of a measured chain.
        of_graph: whether the last part is the instruction's own name, which is no scope.
    """
    before = ""
    while before != name:
        before = name
        name = _TRANSFORM.sub(r"\1", _FUNCTION.sub("", name))
    parts = name.split("/")
    operation = parts.pop().partition("_general")[0] if of_graph else ""  # dot, conv
    scopes = []
    for part in parts:
        iteration = _ITERATION.fullmatch(part)
        if iteration and iteration[1] in _NO_SCOPE:
            scopes.append(iteration[2])
        elif part not in _NO_SCOPE and "->" not in part:  # an arrow: the formula of an einsum
            scopes.append(part)
    return tuple(scopes), operation
