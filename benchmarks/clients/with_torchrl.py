"""PPO of TorchRL; ``ActionMask`` tells its collectors and losses of the mask."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from flat import Flat
from measure import main
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import ActionMask, GymWrapper, TransformedEnv
from torchrl.modules import MLP, MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def train(env_id: str, kwargs: dict[str, Any], steps: int) -> int:
    """Train."""
    torch.manual_seed(0)
    # glue
    single = Flat(gym.make(env_id, **kwargs), "observation", "action_mask", np.bool_)
    env = TransformedEnv(GymWrapper(single, categorical_action_encoding=True), ActionMask())
    # end
    size, actions = env.observation_spec["observation"].shape[-1], env.action_spec.n
    net = MLP(in_features=size, out_features=actions, num_cells=[64, 64])
    actor = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        # glue
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=MaskedCategorical,
        # end
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(in_features=size, out_features=1, num_cells=[64, 64]))
    collector = Collector(env, actor, frames_per_batch=256, total_frames=steps)
    advantage = GAE(gamma=1.0, lmbda=0.95, value_network=critic)
    loss, done = ClipPPOLoss(actor, critic), 0
    optimiser = torch.optim.Adam(loss.parameters(), lr=2.5e-4)
    for batch in collector:
        for _ in range(4):
            advantage(batch)
            found = loss(batch)
            total = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
        done += batch.numel()
    collector.shutdown()
    return done


if __name__ == "__main__":
    main("torchrl", train, __file__, flat=True)
