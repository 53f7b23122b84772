"""Q networks as policies, for one choice among A actions (`Discrete`).

A Q network has one trunk and one linear head, whose rows are, with K atoms for each action (1: Q itself),

    K rows of action 0, ..., K rows of action A - 1 [, K rows of the state value when duelling].

Shape letters: A actions, K atoms, H = A K (or (A + 1) K) rows of the head, B samples, N lanes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from operant.envs import Box, Discrete, Env
from operant.errors import ConfigError
from operant.nn.distributions import masked
from operant.nn.policy import NetConfig, Policy, State


class QHead(nn.Module):
    """Conversion of a Q network's outputs (H, B) to Q values; it has the place of an action distribution. Actions are
    greedy, or epsilon-greedy with 2 rows of uniform noise.
    """

    action_rows = 1
    noise_rows = 2
    epsilon: Tensor
    support: Tensor

    def __init__(self, actions: int, *, atoms: int, duelling: bool, low: float, high: float, epsilon: float) -> None:
        super().__init__()
        self.actions, self.atoms, self.duelling = actions, atoms, duelling
        self.sizes = (actions,)
        self.parameter_rows = (actions + duelling) * atoms
        self.register_buffer("epsilon", torch.tensor(epsilon), persistent=False)  # exploration rate
        # Values of the atoms, (1, K, 1).
        self.register_buffer("support", torch.linspace(low, high, atoms)[None, :, None], persistent=False)

    def logits(self, parameters: Tensor) -> Tensor:
        """Return the outputs of each action (A, K, B), K atoms or 1 for Q itself, for the network's outputs (H, B);
        with `duelling` V + A - mean A (Wang et al. 2016, equation 9).
        """
        blocks = parameters.unflatten(0, (-1, self.atoms))
        if not self.duelling:
            return blocks
        advantage, value = blocks[:-1], blocks[-1:]
        return value + advantage - advantage.mean(dim=0, keepdim=True)

    def values(self, parameters: Tensor) -> Tensor:
        """Return Q values (A, B) for the network's outputs (H, B): the output itself, or the mean of the categorical
        distribution (Bellemare, Dabney & Munos 2017).
        """
        logits = self.logits(parameters)
        return logits[:, 0] if self.atoms == 1 else (logits.softmax(dim=1) * self.support).sum(dim=1)


class QPolicy(Policy):
    """`Actor` that takes the action with the largest Q value; with noise, a random one with probability epsilon. Raises
    ConfigError for actions that are not Discrete.
    """

    distribution: QHead

    def __init__(
        self,
        env: Env,
        config: NetConfig,
        *,
        seed: int,
        device: torch.device,
        normalize: bool,
        precision: str = "fp32",
        atoms: int = 1,
        duelling: bool = False,
        support: tuple[float, float] = (0.0, 0.0),
        epsilon: float = 0.05,
    ) -> None:
        if not isinstance(env.action, Discrete):
            kind = type(env.action).__name__
            instead = '"ppo", "sac" or "td3"' if isinstance(env.action, Box) else '"ppo"'
            raise ConfigError(
                "the algorithm",
                [
                    f"algo.name: DQN and PQN need Discrete actions; those of {env.name or 'this environment'} are "
                    f"{kind} (use {instead})"
                ],
            )
        head = QHead(env.action.n, atoms=atoms, duelling=duelling, low=support[0], high=support[1], epsilon=epsilon)
        one_trunk = config.model_copy(update={"shared": True})
        super().__init__(
            env, one_trunk, seed=seed, device=device, normalize=normalize, precision=precision, distribution=head
        )
        if self.recurrent:
            raise ConfigError(
                "the network",
                [
                    'DQN and PQN support feed-forward networks only, and this one is recurrent: use "ppo", or a '
                    "feed-forward network"
                ],
            )

    @property
    def epsilon(self) -> Tensor:
        """Probability of a random action when actions are sampled, a scalar on the device."""
        return self.distribution.epsilon

    def parameters(self, observation: Tensor) -> Tensor:
        """Return the network's outputs (H, B) for raw observations (O, B), before `QHead` makes Q values of them."""
        return super().forward(observation)[0]

    def values(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """Return Q values (A, B) of raw observations (O, B), -1e9 where `legal` (A, B) is 0."""
        values = self.distribution.values(self.parameters(observation))
        return values if legal is None else masked(values, legal)

    @torch.no_grad()
    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Choose actions (1, N) among `legal` (A, N; None: all) for raw observations (O, N): epsilon-greedy with
        uniform `noise` (2, N), greedy if it is None. Returns them and the unchanged state.
        """
        values = self.values(observation, legal)
        action = (
            values.argmax(dim=0, keepdim=True).int()
            if noise is None
            else epsilon_greedy(values, noise, self.epsilon, legal)
        )
        return action, state

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save in a checkpoint, by name; a load copies into them."""
        return {**super().tensors(), "epsilon": self.epsilon}


# EXPLORATION


def epsilon_greedy(values: Tensor, noise: Tensor, epsilon: Tensor, legal: Tensor | None = None) -> Tensor:
    """Return epsilon-greedy actions (1, N) int32 for Q values (A, N).

    Where noise[0] < epsilon (a scalar, or (N)) the action is random among those that `legal` (A, N) allows, chosen by
    noise[1]; `noise` is (2, N), uniform in [0, 1).
    """
    greedy = values.argmax(dim=0)
    if legal is None:
        random = (noise[1] * len(values)).long()
    else:
        # The k-th legal action, k drawn uniformly.
        legal_count = (legal != 0).cumsum(dim=0)
        random = (legal_count <= (noise[1] * legal_count[-1]).long()).sum(dim=0)
    return torch.where(noise[0] < epsilon, random, greedy).int()[None]


def decayed(first: float, last: float, share: Tensor) -> Tensor:
    """Return the value of a linear schedule from `first` to `last`, `share` (0 to 1) of the way; constant beyond."""
    return first + (last - first) * share.clamp(0.0, 1.0)
