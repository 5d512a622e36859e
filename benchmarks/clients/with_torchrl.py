"""PPO of TorchRL; ``ActionMask`` tells its collectors and losses of the mask."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from flat import Flat
from measure import BATCH, EPOCHS, MINIBATCH, WIDTHS, Tick, discount, main, masked
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import ActionMask, GymWrapper, TransformedEnv
from torchrl.modules import MLP, MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def train(env_id: str, kwargs: dict[str, Any], tick: Tick) -> None:
    """Train."""
    torch.manual_seed(0)
    env: Any = None
    masks: dict[str, Any] = {"in_keys": ["logits"]}
    # glue
    if masked(env_id):
        single = Flat(gym.make(env_id, **kwargs), "observation", "action_mask", np.bool_)
        env = TransformedEnv(GymWrapper(single, categorical_action_encoding=True), ActionMask())
        masks = {
            "in_keys": {"logits": "logits", "mask": "action_mask"},
            "distribution_class": MaskedCategorical,
        }
    # end
    env = env or GymWrapper(gym.make(env_id), categorical_action_encoding=True)
    size, actions = env.observation_spec["observation"].shape[-1], env.action_spec.n
    net = MLP(in_features=size, out_features=actions, num_cells=WIDTHS, activation_class=nn.Tanh)
    actor = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]), return_log_prob=True,
        **{"distribution_class": Categorical, **masks},
    )  # fmt: skip
    critic = ValueOperator(
        MLP(in_features=size, out_features=1, num_cells=WIDTHS, activation_class=nn.Tanh)
    )
    collector = Collector(env, actor, frames_per_batch=BATCH, total_frames=-1)
    advantage = GAE(gamma=discount(env_id), lmbda=0.95, value_network=critic)
    loss, done = ClipPPOLoss(actor, critic), 0
    optimiser = torch.optim.Adam(loss.parameters(), lr=2.5e-4)
    for batch in collector:
        advantage(batch)
        for _ in range(EPOCHS):
            for index in torch.randperm(BATCH).split(MINIBATCH):
                found = loss(batch[index])
                total = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
                optimiser.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimiser.step()
        done += batch.numel()
        tick(done)


if __name__ == "__main__":
    main("torchrl", train, __file__, flat=True)
