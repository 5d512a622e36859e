"""Batch normalisation over the samples of all replicas, as one device has it (extra ``torch``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class _Sum(torch.autograd.Function):
    """The sum over a group, whose gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Synchronised(TorchFunctionMode):
    """Takes the statistics of batch normalisations over all processes of a group.

    PyTorch's own does so on GPUs alone, and in modules, which a traced stage has not. Every process
    has as many samples.

    Args:
        group: the processes.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a function; batch normalisation in training with the statistics of all."""
        kwargs = kwargs or {}
        if func is torch.nn.functional.batch_norm:
            return self._functional(*args, **kwargs)
        if func in (torch.batch_norm, torch.ops.aten.batch_norm.default):
            return self._normalised(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _functional(
        self,
        x: torch.Tensor,
        mean: torch.Tensor | None,
        variance: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        return self._normalised(
            torch.batch_norm, x, weight, bias, mean, variance, training, momentum, eps, False
        )

    def _normalised(
        self,
        func: Callable[..., torch.Tensor],
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_variance: torch.Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
        cudnn: bool,
    ) -> torch.Tensor:
        if not training:
            return func(
                x, weight, bias, running_mean, running_variance, training, momentum, eps, cudnn
            )
        over = [k for k in range(x.ndim) if k != 1]
        shape = [-1 if k == 1 else 1 for k in range(x.ndim)]
        count = x.numel() // x.shape[1] * self.group.size()
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = _Sum.apply(wide.sum(over), self.group) / count
        centred = wide - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(over), self.group) / count
        made = centred * (variance + eps).rsqrt().view(shape)
        if weight is not None:
            made = made * weight.view(shape)
        if bias is not None:
            made = made + bias.view(shape)
        if running_mean is not None and running_variance is not None:
            unbiased = variance.detach() * (count / max(count - 1, 1))
            running_mean.lerp_(mean.detach().to(running_mean), momentum)
            running_variance.lerp_(unbiased.to(running_variance), momentum)
        return made.to(x.dtype)
