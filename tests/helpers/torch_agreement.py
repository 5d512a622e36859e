"""Runs a PyTorch module and the JAX function that the importer makes of it, with equal weights."""

from contextlib import nullcontext
from dataclasses import dataclass

import jax
import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from parenvs.graph.pytorch.export import Loss, exported
from parenvs.graph.pytorch.randoms import KEY_WORDS
from parenvs.graph.pytorch.step import Program, ascent

TINY = 1e-12
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""What XLA need not do for one run."""
SMALL = 1e-6
"""Share of the largest gradient below which another is noise around zero."""


@dataclass(frozen=True)
class Agreement:
    """How far the two are apart.

    Attributes:
        loss: PyTorch's loss.
        loss_error: difference of the losses, as a share of PyTorch's.
        gradient_error: largest difference of a gradient, as a share of its largest element.
        worst: path of that parameter.
        statistics_error: largest difference of a buffer that is updated.
        gradients: how many were compared.
    """

    loss: float
    loss_error: float
    gradient_error: float
    worst: str
    statistics_error: float
    gradients: int


def array(tensor):
    """A tensor as NumPy's array."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().copy()


def agreement(module, inputs=(), keywords=None, loss=None, targets=(), double=True):
    """Compare loss, gradients and new statistics, in double precision unless told otherwise."""
    keywords = keywords or {}
    if double:
        module = module.double()
        inputs = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in inputs]
    program = Program(exported(module, inputs, keywords, loss, targets))
    named = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    before = {path.replace(".", "/"): array(tensor) for path, tensor in named.items()}
    batch = [one.path for one in program.exported.inputs if one.kind == "batch"]
    given = tree_leaves((list(inputs), list(targets), keywords))
    before |= {path: array(tensor) for path, tensor in zip(batch, given, strict=True)}
    with jax.enable_x64(True) if double else nullcontext():
        values = {
            one.path: jax.numpy.asarray(before[one.path].reshape(sum(program.groups(one), ())))
            for one in program.exported.inputs
            if one.kind != "constant"
        }
        weights = {path: values[path] for path in program.abstract("weight")}
        key = jax.numpy.zeros(KEY_WORDS, jax.numpy.uint32)

        def value(weights):
            return program({**values, **weights}, key)

        compute = jax.jit(jax.value_and_grad(value, has_aux=True), compiler_options=QUICK)
        (ours, updated), gradients = jax.tree.map(np.asarray, compute(weights))
        gradients = {path: np.asarray(ascent(x)) for path, x in gradients.items()}
    theirs = Loss(module, loss, len(targets))(*inputs, *targets, **keywords)
    theirs.backward()
    wanted_gradients = {
        path: array(named[path.replace("/", ".")].grad).reshape(gradient.shape)
        for path, gradient in gradients.items()
    }
    largest = max(float(np.abs(wanted).max()) for wanted in wanted_gradients.values())
    errors = {}
    for path, gradient in gradients.items():
        wanted = wanted_gradients[path]
        scale = max(float(np.abs(wanted).max()), SMALL * largest)
        errors[path] = float(np.abs(gradient - wanted).max()) / scale
    after = {path.replace(".", "/"): array(t) for path, t in module.named_buffers()}
    changed = [np.abs(new - after[path]).max() for path, new in updated.items()]
    worst = max(errors, key=errors.__getitem__)
    total = float(theirs.detach())
    return Agreement(
        total,
        abs(total - float(ours)) / max(abs(total), TINY),
        errors[worst],
        worst,
        float(max(changed, default=0.0)),
        len(errors),
    )
