"""One update of PPO, its minibatches shared among learners, each of which has a part of the rows.

Learners hold equal weights. Of each minibatch a learner takes the rows that it played itself; the
sums of all learners' gradients, over the size of the whole minibatch, are those of the whole
minibatch. Advantages are normalised over the whole minibatch, for which learners tell each other
theirs once an update. So the weights after an update are those that ``MaskablePPO.train`` gives on
all the rows, but for rounding.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from torch.nn import functional

WAIT = 60.0
"""Seconds that a learner waits for the others' gradients."""
_FIGURES = ("policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction")


class Group(Protocol):
    """Learners that add up their tensors."""

    def add(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by the sum over all learners, in place."""


class Alone:
    """The group of a learner that has all rows."""

    def add(self, tensor: torch.Tensor) -> None:
        """Leave the tensor as it is."""


class Gloo:
    """Learners in several processes, which all-reduce by Gloo.

    Args:
        store: the ``TCPStore`` at which they meet.
        rank: number of this learner.
        count: number of learners.
        generation: number of the meeting, so that one after a failure is another one.
        host: address of this machine at which the others reach it.
    """

    def __init__(self, store: Any, rank: int, count: int, generation: int, host: str) -> None:
        from torch.distributed import PrefixStore
        from torch.distributed import ProcessGroupGloo as group

        # By default Gloo listens at the address of the machine's name, often the loopback.
        gloo: Any = group
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=WAIT)
        meeting = PrefixStore(str(generation), store)
        self._group = gloo(meeting, rank, count, options)

    def add(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by the sum over all learners, in place.

        Raises:
            RuntimeError: another learner is gone.
        """
        self._group.allreduce([tensor]).wait()


def permutations(epochs: int, rows: int) -> np.ndarray:
    """Draw the order of the rows in each epoch, by NumPy's global generator as SB3 does.

    Returns:
        (epochs, rows) int64.
    """
    return np.stack([np.random.permutation(rows) for _ in range(epochs)])


def update(
    model: MaskablePPO, orders: np.ndarray, first_row: int = 0, group: Group | None = None
) -> dict[str, float]:
    """Update a model by its rollout buffer and those of the other learners.

    Args:
        model: the agent, whose buffer holds the rows that this learner has played.
        orders: (epochs, rows) int64, the order of all learners' rows in each epoch.
        first_row: number of this learner's first row among those of all.
        group: the learners; None: this one alone.

    Returns:
        the figures that ``MaskablePPO`` logs, over the rows of all learners, and ``epochs``, the
        number of epochs that were begun; ``target_kl`` ends an update early.

    Raises:
        RuntimeError: another learner is gone; the weights are then of no use.
    """
    group = Alone() if group is None else group
    policy, buffer = model.policy, model.rollout_buffer
    policy.set_training_mode(True)
    model._update_learning_rate(policy.optimizer)
    progress = model._current_progress_remaining
    clip = model.clip_range(progress)  # type: ignore[operator]
    clip_value = model.clip_range_vf and model.clip_range_vf(progress)  # type: ignore[operator]
    own_rows = buffer.buffer_size * buffer.n_envs
    total, batch_size = orders.shape[1], model.batch_size or orders.shape[1]
    _flatten(buffer)
    advantages = torch.zeros(total)
    advantages[first_row : first_row + own_rows] = torch.as_tensor(buffer.advantages).flatten()
    group.add(advantages)
    parameters = [p for p in policy.parameters() if p.requires_grad]
    figures: list[list[float]] = []
    epochs = 0
    for order in orders:
        epochs += 1
        for begin in range(0, total, batch_size):
            rows = order[begin : begin + batch_size]
            scale = advantages[rows]
            if model.normalize_advantage:
                scale = (scale - scale.mean()) / (scale.std() + 1e-8)
            is_own = (rows >= first_row) & (rows < first_row + own_rows)
            own = rows[is_own] - first_row
            policy.optimizer.zero_grad()
            sums = torch.zeros(len(_FIGURES))
            if len(own):
                sample = buffer._get_samples(own)
                weight = scale[torch.as_tensor(is_own)].to(model.device)
                loss, sums = _loss(model, sample, weight, clip, clip_value, len(rows))
                loss.backward()
            flat = [
                torch.zeros(p.numel()) if p.grad is None else p.grad.flatten().cpu()
                for p in parameters
            ]
            vector = torch.cat([*flat, sums])
            group.add(vector)
            figures.append(vector[-len(_FIGURES) :].tolist())
            if model.target_kl is not None and figures[-1][3] > 1.5 * model.target_kl:
                break
            _set_gradients(parameters, vector)
            torch.nn.utils.clip_grad_norm_(policy.parameters(), model.max_grad_norm)
            policy.optimizer.step()
        else:
            model._n_updates += 1
            continue
        model._n_updates += 1
        break
    means = dict(zip(_FIGURES, np.mean(figures, axis=0).tolist(), strict=True))
    return {**means, "clip_range": float(clip), "epochs": epochs}


def _loss(
    model: MaskablePPO,
    sample: Any,
    advantages: torch.Tensor,
    clip: float,
    clip_value: float | None,
    rows: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The share of a learner's rows in the loss of a minibatch of ``rows``, and in the figures."""
    values, log_prob, entropy = model.policy.evaluate_actions(
        sample.observations, sample.actions.long().flatten(), action_masks=sample.action_masks
    )
    values = values.flatten()
    log_ratio = log_prob - sample.old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped).sum() / rows
    if clip_value is not None:
        values = sample.old_values + (values - sample.old_values).clamp(-clip_value, clip_value)
    value_loss = functional.mse_loss(values, sample.returns, reduction="sum") / rows
    entropy_loss = (log_prob if entropy is None else -entropy).sum() / rows
    loss = policy_loss + model.ent_coef * entropy_loss + model.vf_coef * value_loss
    with torch.no_grad():
        kl = (ratio - 1 - log_ratio).sum() / rows
        outside = ((ratio - 1).abs() > clip).float().sum() / rows
        figures = torch.stack([policy_loss, value_loss, entropy_loss, kl, outside]).cpu()
    return loss, figures


def _flatten(buffer: Any) -> None:
    """Put the rows of a buffer one after the other, environment by environment, as SB3 does."""
    if buffer.generator_ready:
        return
    if isinstance(buffer.observations, dict):
        for key, value in buffer.observations.items():
            buffer.observations[key] = buffer.swap_and_flatten(value)
    else:
        buffer.observations = buffer.swap_and_flatten(buffer.observations)
    for name in ("actions", "values", "log_probs", "advantages", "returns", "action_masks"):
        setattr(buffer, name, buffer.swap_and_flatten(getattr(buffer, name)))
    buffer.generator_ready = True


def _set_gradients(parameters: list[torch.nn.Parameter], vector: torch.Tensor) -> None:
    """Set the gradients of parameters to the numbers of a vector, one after the other."""
    begin = 0
    for parameter in parameters:
        end = begin + parameter.numel()
        parameter.grad = vector[begin:end].view_as(parameter).to(parameter.device)
        begin = end
