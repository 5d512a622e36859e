"""PPO whose environments and updates do not wait for each other: APPO of RLlib's new API stack.

APPO (IMPALA's V-trace, arXiv 1802.01561, with PPO's clipped ratio) is another algorithm than the
PPO of the other distributions, on the same network and masks and with those of its settings that
APPO has: learning rate, discount, clip range, weights of entropy and value, norm of gradients, rows
of a minibatch and how often each is used. Advantages are V-trace's, and are not normalised.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.utils import safe_mean

from parenvs.agents.learning.distributed.distribution import Distribution
from parenvs.agents.learning.distributed.session import load_ray
from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.learners import learner_of
from parenvs.errors import ParenvsError

MODULE = "default_policy"
SECONDS = 0.5
"""Least wall seconds between two looks at what the actors have played."""


class AsyncPPO(MaskablePPO):
    """An agent that RLlib trains; callbacks see the episodes once they have ended.

    Its steps are those of ended episodes. A run that is resumed begins with the weights of the
    checkpoint, and with new episodes and a new optimiser.
    """

    def prepare(self, config: Config) -> None:
        """Set the configuration of the run, before ``learn``."""
        self.run_config = config
        self._elsewhere: dict[int, float] = {}

    def learn(  # type: ignore[override]
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int = 1,
        tb_log_name: str = "APPO",
        reset_num_timesteps: bool = True,
        use_masking: bool = True,
        progress_bar: bool = False,
    ) -> Any:
        """Train; see ``MaskablePPO``. There is no progress bar."""
        total, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, False
        )
        callback.on_training_start(locals(), globals())
        algorithm = self._settings(total).build_algo()
        iteration = 0
        try:
            self._give(algorithm)
            while self.num_timesteps < total:
                callback.on_rollout_start()
                algorithm.train()
                if not self._show(algorithm, callback):
                    break
                callback.on_rollout_end()
                self._take(algorithm)
                iteration += 1
                self._update_current_progress_remaining(self.num_timesteps, total)
                if log_interval and iteration % log_interval == 0:
                    self.dump_logs(iteration)
            self._take(algorithm)
        finally:
            algorithm.stop()
        callback.on_training_end()
        return self

    def processor_seconds(self) -> float:
        """Processor seconds of this process and of the actors."""
        return time.process_time() + sum(self._elsewhere.values())

    def worker_states(self) -> list[Any]:
        """What a checkpoint holds of the actors: nothing."""
        return []

    def restore_workers(self, states: list[Any]) -> None:
        """Go on from a checkpoint, whose weights and counters this agent has."""

    def _settings(self, total: int) -> Any:
        """RLlib's configuration of the run."""
        load_ray()
        from ray.rllib.algorithms.appo import APPOConfig
        from ray.rllib.core.rl_module.rl_module import RLModuleSpec
        from ray.tune.registry import register_env

        from parenvs.agents.learning.distributed.rllib_module import MaskedModule, make_batch

        run = self.run_config
        distribution = Distribution.from_json(run.distribution)
        shares = distribution.shares(learner_of(run.agent).side_by_side(run.env_id))
        if min(shares) != max(shares):
            raise ParenvsError(
                f"--actors {distribution.actors} does not divide the {sum(shares)} environments "
                "that the agent plays at once, as RLlib needs it"
            )
        register_env("parenvs-batch", make_batch)
        size = self.batch_size or self.n_steps * sum(shares)
        learners = distribution.learners if distribution.learners > 1 else 0
        rate: Any = [[0, self.lr_schedule(1.0)], [max(total, 1), self.lr_schedule(0.0)]]
        fragment = min(self.n_steps, max(1, size // max(shares)))
        return (
            APPOConfig()
            .environment("parenvs-batch", env_config={"config": run}, disable_env_checking=True)
            .env_runners(
                num_env_runners=distribution.actors,
                num_envs_per_env_runner=shares[0],
                rollout_fragment_length=fragment,
                gym_env_vectorize_mode="vector_entry_point",
                num_cpus_per_env_runner=1,
            )
            .learners(num_learners=learners, num_cpus_per_learner=1, num_gpus_per_learner=0)
            .rl_module(
                rl_module_spec=RLModuleSpec(module_class=MaskedModule, model_config={"config": run})
            )
            .training(
                lr=rate,
                gamma=self.gamma,
                train_batch_size_per_learner=size // max(1, learners),
                clip_param=float(self.clip_range(1.0)),  # type: ignore[operator]
                entropy_coeff=self.ent_coef,
                vf_loss_coeff=2 * self.vf_coef,  # RLlib halves the squared error
                grad_clip=self.max_grad_norm,
                circular_buffer_num_batches=4,
                circular_buffer_iterations_per_batch=self.n_epochs,
                num_aggregator_actors_per_learner=0,
            )
            .fault_tolerance(restart_failed_env_runners=True)
            .debugging(seed=run.seed, log_level="ERROR")
            .reporting(min_time_s_per_iteration=SECONDS, min_sample_timesteps_per_iteration=0)
        )

    def _give(self, algorithm: Any) -> None:
        """Let learners and actors begin with this agent's weights."""
        weights = {key: value.numpy() for key, value in self.policy.state_dict().items()}
        state = {f"{name}.{key}": w for key, w in weights.items() for name in ("policy", "_target")}
        algorithm.learner_group.set_weights({MODULE: state})
        algorithm.env_runner_group.sync_weights(
            from_worker_or_learner_group=algorithm.learner_group
        )

    def _take(self, algorithm: Any) -> None:
        """Take the learners' weights over."""
        import torch

        found = algorithm.learner_group.get_weights([MODULE])[MODULE]
        weights = {
            key.removeprefix("policy."): torch.as_tensor(value)
            for key, value in found.items()
            if key.startswith("policy.")
        }
        self.policy.load_state_dict(weights)

    def _show(self, algorithm: Any, callback: Any) -> bool:
        """Show the callbacks the episodes that have ended; returns whether to go on."""
        found = algorithm.env_runner_group.foreach_env_runner(
            lambda runner: (runner.worker_index, *runner.env.unwrapped.take()),
            local_env_runner=False,
        )
        scale = float(self.env.get_attr("largest_return")[0])  # type: ignore[union-attr]
        for index, ended, seconds in found:
            self._elsewhere[index] = max(seconds, self._elsewhere.get(index, 0.0))
            for value, actions in ended:
                for step, action in enumerate(actions, 1):
                    done = step == len(actions)
                    statistics = {"r": round(value, 6), "l": len(actions), "t": 0.0}
                    infos = [{"episode": statistics} if done else {}]
                    # The return is that of the last step, as ``BestPlan`` only adds them up.
                    self.num_timesteps += 1
                    callback.update_locals(
                        {
                            "actions": [action],
                            "rewards": [value / scale if done else 0.0],
                            "dones": [done],
                            "infos": infos,
                        }
                    )
                    if not callback.on_step():
                        return False
                    if done:
                        self._update_info_buffer(infos, np.array([done]))
        if self.ep_info_buffer:
            mean = safe_mean([episode["r"] for episode in self.ep_info_buffer])
            self.logger.record("plan/mean_return", mean)
        return True

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "run_config", "_elsewhere"]
