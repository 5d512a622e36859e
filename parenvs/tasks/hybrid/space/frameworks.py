"""What the frameworks that plans are exported to run as it is, of uniform plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.uniform import Uniform


@dataclass(frozen=True)
class Framework:
    """What a framework runs. Figures are those of ``parenvs.exports``; others would be rounded.

    Attributes:
        schedules: those that split backward passes; 1F1B is run by all.
        recompute: modes of all layers.
        zero: levels of one stage.
        chunks: whether pipelines may be interleaved.
        context: whether ranks may share tokens.
        expert: whether experts may be dealt out.
        shard: ZeRO levels that may be shared among some replicas.
        sends: ``sends(plans)`` are the columns of plans that say how it sends and sums, where
            these are not the plans' own.
        also: ``also(plans, model)`` is (N,) bool, what else must hold.
    """

    schedules: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ("none", "selective", "full")
    zero: tuple[int, ...] = (0, 1, 2, 3)
    chunks: bool = True
    context: bool = True
    expert: bool = True
    shard: tuple[int, ...] = ()
    sends: Callable[[Uniform], dict[str, Any]] | None = None
    also: Callable[[Uniform, HybridModel], Any] | None = None

    def part(self, plans: Uniform, model: HybridModel) -> Uniform:
        """Return the plans that the framework runs, sent as it sends.

        Args:
            plans: uniform plans.
            model: that they are of.
        """
        fits = np.isin(plans.schedule, ("", *self.schedules))
        fits &= np.isin(plans.recompute, self.recompute)
        fits &= np.isin(plans.zero, self.zero) | (plans.pp > 1)
        fits &= (plans.chunks == 1) | self.chunks
        fits &= (plans.context == 1) | self.context
        fits &= (plans.expert == 1) | self.expert
        fits &= (plans.shard == 0) | np.isin(plans.zero, self.shard)
        fits &= ~plans.offload.astype(bool)
        if self.also is not None:
            fits &= self.also(plans, model)
        own = plans.take(np.flatnonzero(fits))
        return replace(own, **self.sends(own)) if own.size and self.sends is not None else own


def _megatron_sends(plans: Uniform) -> dict[str, Any]:
    """Devices wait for their sends in schedules of one chunk."""
    return {"blocking": plans.blocking | ((plans.pp > 1) & (plans.chunks == 1))}


def _titan_sends(plans: Uniform) -> dict[str, Any]:
    """Gradients are summed in fp32."""
    return {"gradient_bytes": 4.0}


def _deepspeed_sends(plans: Uniform) -> dict[str, Any]:
    """Gradients of pipelines, and without ZeRO, are summed at the end."""
    return {"gradient_overlap": plans.gradient_overlap & (plans.pp == 1) & (plans.zero > 0)}


def _megatron(plans: Uniform, model: HybridModel) -> Any:
    """It trains transformers."""
    return model.attends


def _titan(plans: Uniform, model: HybridModel) -> Any:
    """Transformers; tp shares the tokens, too; shared states, whole groups of context ranks."""
    fits = ((plans.tp == 1) | plans.sequence_parallel) & (plans.shard % plans.context == 0)
    return fits & model.attends


def _deepspeed(plans: Uniform, model: HybridModel) -> Any:
    """Matrices are split by the topology of pipelines, and layers are dealt out evenly."""
    return ((plans.tp == 1) | (plans.pp > 1)) & (len(model) % plans.pp == 0)


def _torch(plans: Uniform, model: HybridModel) -> Any:
    """Pipelines take as many micro-batches as stages at least, interleaved ones whole rounds.

    They sum no gradients of a weight that several stages hold; DTensors split no convolutions.
    """
    count = plans.batch // (plans.micro_batch * plans.dp)
    rounds = np.maximum(count // plans.pp, 1)
    fits = (plans.pp == 1) | ((count >= plans.pp) & (count % rounds == 0))
    if model.chain is None:
        return fits
    fits &= (plans.pp == 1) | (not model.chain.shared)
    return fits & ((plans.tp == 1) | (not model.chain.splitting.convolves))


def _jax(plans: Uniform, model: HybridModel) -> Any:
    """Shardings of one stage and one batch."""
    return (plans.pp == 1) & (plans.micro_batch * plans.dp == plans.batch)


FRAMEWORKS = {
    "megatron": Framework(shard=(1, 2, 3), sends=_megatron_sends, also=_megatron),
    "torchtitan": Framework(
        schedules=("zb-v",), zero=(0, 2, 3), shard=(1, 2, 3), sends=_titan_sends, also=_titan
    ),
    "deepspeed": Framework(
        recompute=("none", "full"), chunks=False, context=False, expert=False, shard=(3,),
        sends=_deepspeed_sends, also=_deepspeed,
    ),
    "torch": Framework(
        recompute=("none",), zero=(0, 2, 3), context=False, expert=False, also=_torch
    ),
    "jax": Framework(
        recompute=("none",), zero=(0, 1, 3), context=False, expert=False, also=_jax
    ),
}  # fmt: skip
"""Name, as ``parenvs export --to`` has it -> what it runs."""
