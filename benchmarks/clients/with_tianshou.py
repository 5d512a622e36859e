"""DQN of tianshou, which takes masks from the part ``mask`` of observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from flat import Flat
from measure import WIDTHS, Tick, main, masked
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net


# glue
class Quiet(gym.Wrapper):
    """Leaves infos out: a buffer takes no text (``instance``) that only some steps have."""

    def reset(self, **options: Any) -> Any:
        """Return the observation alone."""
        return self.env.reset(**options)[0], {}

    def step(self, action: Any) -> Any:
        """Return all but the info."""
        return (*self.env.step(action)[:4], {})


# end


def train(env_id: str, kwargs: dict[str, Any], tick: Tick) -> None:
    """Train."""

    def make() -> gym.Env:
        # glue
        if masked(env_id):
            return Quiet(Flat(gym.make(env_id, **kwargs), "obs", "mask"))
        # end
        return gym.make(env_id, **kwargs)

    envs, space = DummyVectorEnv([make for _ in range(8)]), make().observation_space
    actions = make().action_space
    seen = space["obs"] if masked(env_id) else space
    net = Net(state_shape=seen.shape, action_shape=actions.n, hidden_sizes=WIDTHS)
    policy = DiscreteQLearningPolicy(model=net, action_space=actions, eps_training=0.1)
    agent = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), target_update_freq=100)
    collector = Collector(agent, envs, VectorReplayBuffer(20_000, 8), exploration_noise=True)
    collector.reset()
    collector.collect(n_step=256)
    agent.run_training(
        OffPolicyTrainerParams(
            training_collector=collector, max_epochs=1, epoch_num_steps=10**9, batch_size=64,
            training_fn=lambda epoch, done: tick(done),
            collection_step_num_env_steps=64, update_step_num_gradient_steps_per_sample=1 / 16,
            test_step_num_episodes=0, verbose=False, show_progress=False,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main("tianshou", train, __file__, flat=True)
