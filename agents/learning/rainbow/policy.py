"""Networks of Rainbow: dueling streams, distributions of returns, noisy layers; the policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import CombinedExtractor, create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn
from torch.nn import functional
from torch.optim import Adam

LOWEST = torch.finfo(torch.float32).min
"""Q-value of an illegal action; finite, as an infinity times the discount 0 would give NaN."""

FUSED = tuple(int(x) for x in torch.__version__.split(".")[:2]) >= (2, 4)
"""Whether torch has a fused Adam for CPUs: in networks this small the calls take the time."""


def masked(q: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """The (b, c) Q-values with ``LOWEST`` where the (b, c) bool ``masks`` are false."""
    return q.masked_fill(~masks, LOWEST)


def project(
    probabilities: torch.Tensor,
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    support: torch.Tensor,
) -> torch.Tensor:
    """Project the distribution of ``rewards + discounts * return`` onto the support.

    The probability of a return between two atoms is shared among both by nearness (arXiv
    1707.06887, equation 7); that of a return beyond the support goes to its last atom.

    Args:
        probabilities: (b, atoms) probabilities of the returns in the support.
        rewards: (b, 1) returns that are added.
        discounts: (b, 1) factors of the returns.
        support: (atoms,) the returns, evenly spaced.

    Returns:
        (b, atoms) probabilities.
    """
    intervals = len(support) - 1
    share = (rewards + discounts * support - support[0]) / (support[-1] - support[0])
    position = share.clamp(0, 1) * intervals
    below = position.long().clamp(max=intervals - 1)
    upper = probabilities * (position - below)
    result = torch.zeros_like(probabilities).scatter_add_(1, below, probabilities - upper)
    return result.scatter_add_(1, below + 1, upper)


def beyond(
    probabilities: torch.Tensor,
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    support: torch.Tensor,
) -> float:
    """Return the share of the distributions that ``project`` cuts off at the ends of the support.

    Half a distance of atoms beyond the ends is still near. Arguments are those of ``project``.
    """
    half = (support[1] - support[0]) / 2
    returns = rewards + discounts * support
    outside = (returns < support[0] - half) | (returns > support[-1] + half)
    return float((probabilities * outside).sum(dim=1).mean())


class NoisyLinear(nn.Linear):
    """A linear layer whose parameters are drawn around their means.

    The noise is factorised Gaussian (arXiv 1706.10295, section 3): ``draw`` draws new noise, and
    ``silence`` sets it to zero, which leaves the means ``weight`` and ``bias``. The means are drawn
    at first as in the paper.

    Args:
        inputs: p, the number of inputs.
        outputs: number of outputs.
        sigma: all standard deviations are ``sigma / sqrt(p)`` at first.
    """

    noise_in: torch.Tensor
    noise_out: torch.Tensor

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__(inputs, outputs)
        start = sigma / np.sqrt(inputs)
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), start))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), start))
        self.register_buffer("noise_in", torch.zeros(inputs), persistent=False)
        self.register_buffer("noise_out", torch.zeros(outputs), persistent=False)

    def draw(self, rng: np.random.Generator) -> None:
        """Draw new noise from ``rng``."""
        for noise in (self.noise_in, self.noise_out):
            normal = rng.standard_normal(len(noise), dtype=np.float32)
            noise.copy_(torch.from_numpy(np.sign(normal) * np.sqrt(np.abs(normal))))

    def silence(self) -> None:
        """Use the means until noise is drawn again."""
        self.noise_in.zero_()
        self.noise_out.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The (b, outputs) of (b, inputs), with the present noise."""
        weight = self.weight + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return functional.linear(x, weight, self.bias + self.bias_sigma * self.noise_out)


class RainbowNetwork(QNetwork):
    """Q-values of c actions; with several ``atoms``, the means of distributions of returns.

    With all switches off it is SB3's ``QNetwork``. Dueling (arXiv 1511.06581) has two streams, one
    for the value and one for the advantages. Each has a last hidden layer of its own: the halves of
    one layer of twice the width.

    Args:
        dueling: whether there are two streams.
        atoms: number of returns that get a probability (arXiv 1707.06887); 1 for plain Q-values.
        v_min: smallest of these returns.
        v_max: greatest of these returns.
        noisy: whether all layers behind the features extractor are noisy.
        **options: arguments of ``QNetwork``.
    """

    support: torch.Tensor

    def __init__(
        self, *, dueling: bool, atoms: int, v_min: float, v_max: float, noisy: bool, **options: Any
    ) -> None:
        super().__init__(**options)
        self.dueling, self.atoms, self.noisy = dueling, atoms, noisy
        self.actions = int(self.action_space.n)
        self.register_buffer("support", torch.linspace(v_min, v_max, atoms), persistent=False)
        outputs = self.actions * atoms
        if not dueling:
            self.q_net = self._layers(self.features_dim, outputs, self.net_arch)
            return
        width = self.net_arch[-1] if self.net_arch else self.features_dim
        doubled = [*self.net_arch[:-1], *(2 * hidden for hidden in self.net_arch[-1:])]
        self.q_net = self._layers(self.features_dim, -1, doubled)
        self.value = self._layers(width, atoms, [])
        self.advantage = self._layers(width, outputs, [])

    def _layers(self, inputs: int, outputs: int, hidden: list[int]) -> nn.Sequential:
        """An MLP with ``hidden`` layers; with ``outputs`` -1 it has no last linear layer."""
        layers = create_mlp(inputs, outputs, hidden, self.activation_fn)
        if self.noisy:
            layers = [
                NoisyLinear(layer.in_features, layer.out_features)
                if isinstance(layer, nn.Linear)
                else layer
                for layer in layers
            ]
        return nn.Sequential(*layers)

    def outputs(self, obs: PyTorchObs) -> torch.Tensor:
        """(b, c, atoms) logits of the returns, both streams added; Q-values if ``atoms`` is 1."""
        features = self.q_net(self.extract_features(obs, self.features_extractor))
        if not self.dueling:
            return features.view(-1, self.actions, self.atoms)
        left, right = features.chunk(2, dim=1) if self.net_arch else (features, features)
        advantage = self.advantage(right).view(-1, self.actions, self.atoms)
        value = self.value(left).view(-1, 1, self.atoms)
        return value + (advantage - advantage.mean(dim=1, keepdim=True))

    def means(self, outputs: torch.Tensor) -> torch.Tensor:
        """(b, c) Q-values of the (b, c, atoms) ``outputs``."""
        if self.atoms == 1:
            return outputs.squeeze(2)
        return outputs.softmax(dim=2) @ self.support

    def forward(self, obs: PyTorchObs) -> torch.Tensor:
        """(b, c) Q-values."""
        return self.means(self.outputs(obs))

    def _predict(
        self,
        observation: PyTorchObs,
        deterministic: bool = True,
        masks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(b,) best actions; ``deterministic`` silences the noise until ``draw`` is called."""
        if deterministic:
            self.silence()
        q = self(observation)
        return (q if masks is None else masked(q, masks)).argmax(dim=1)

    def draw(self, rng: np.random.Generator) -> None:
        """Draw new noise from ``rng`` in all noisy layers."""
        for layer in self.modules():
            if isinstance(layer, NoisyLinear):
                layer.draw(rng)

    def silence(self) -> None:
        """Set the noise to zero in all noisy layers."""
        if self.noisy:
            for layer in self.modules():
                if isinstance(layer, NoisyLinear):
                    layer.silence()


class RainbowPolicy(DQNPolicy):
    """SB3's policy of DQN with the networks of Rainbow, and with masks.

    Args:
        observation_space: as in SB3.
        action_space: ``Discrete``.
        lr_schedule: as in SB3.
        dueling: as in ``RainbowNetwork``.
        atoms: as in ``RainbowNetwork``.
        v_min: as in ``RainbowNetwork``.
        v_max: as in ``RainbowNetwork``.
        noisy: as in ``RainbowNetwork``.
        **options: further arguments of SB3's ``DQNPolicy`` (``net_arch``, ...).
    """

    q_net: RainbowNetwork
    q_net_target: RainbowNetwork

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        dueling: bool = True,
        atoms: int = 1,
        v_min: float = -10.0,
        v_max: float = 10.0,
        noisy: bool = False,
        **options: Any,
    ) -> None:
        # Set before anything else, because the base class builds the networks.
        self.switches: dict[str, Any] = {
            "dueling": dueling, "atoms": atoms, "v_min": v_min, "v_max": v_max, "noisy": noisy,
        }  # fmt: skip
        if FUSED and options.get("optimizer_class", Adam) is Adam:
            options["optimizer_kwargs"] = {"fused": True, **(options.get("optimizer_kwargs") or {})}
        super().__init__(observation_space, action_space, lr_schedule, **options)

    def spread(self, v_min: float, v_max: float) -> None:
        """Give both networks another support of returns."""
        self.switches.update(v_min=v_min, v_max=v_max)
        for network in (self.q_net, self.q_net_target):
            torch.linspace(v_min, v_max, network.atoms, out=network.support)

    def make_q_net(self) -> RainbowNetwork:
        """Make a network with a features extractor of its own."""
        arguments = self._update_features_extractor(self.net_args, features_extractor=None)
        return RainbowNetwork(**self.switches, **arguments).to(self.device)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """The best legal actions, with the present noise unless ``deterministic``.

        Args:
            observation: the observation of one environment, or of b environments stacked.
            state: is returned as it is.
            episode_start: unused.
            deterministic: whether noisy layers are silenced.
            action_masks: (b, c) or (c,) bool; without them all actions are legal.

        Returns:
            (b,) actions, or () for one environment, and ``state``.
        """
        if action_masks is None:
            return super().predict(observation, state, episode_start, deterministic)
        self.set_training_mode(False)
        tensor, vectorized = self.obs_to_tensor(observation)
        masks = torch.as_tensor(action_masks, dtype=torch.bool, device=self.device)
        with torch.no_grad():
            actions = self.q_net._predict(tensor, deterministic, masks.view(-1, masks.shape[-1]))
        array = actions.cpu().numpy()
        return array if vectorized else array.squeeze(axis=0), state

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.switches}


MlpPolicy = RainbowPolicy


class MultiInputPolicy(RainbowPolicy):
    """``RainbowPolicy`` for ``Dict`` observations; the arguments are the same."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"features_extractor_class": CombinedExtractor, **options})
