"""Q values as a policy: a network whose head says what each action is worth, and the greedy choice. Knows no algorithm.

For one choice among A actions (`Discrete`). A Q network has one trunk and one linear head, whose rows are, with K atoms
an action (1: Q itself),

    action 0's K numbers, ..., action A - 1's K numbers [, the state value's K numbers where it is duelling].

Shape letters: A actions, K atoms, H = A K (or (A + 1) K) rows of the head, B samples, N lanes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from operant.envs import Box, Discrete, Env
from operant.errors import ConfigError
from operant.nn.distributions import masked
from operant.nn.exploration import epsilon_greedy
from operant.nn.policy import NetConfig, Policy, State


class QHead(nn.Module):
    """How the rows of the head become values: the action distribution's place in a policy. Greedy, or epsilon-greedy
    with 2 uniform numbers.
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
        self.register_buffer("epsilon", torch.tensor(epsilon), persistent=False)  # what sampled actions explore with
        # (1, K, 1), the atoms' values
        self.register_buffer("support", torch.linspace(low, high, atoms)[None, :, None], persistent=False)

    def logits(self, parameters: Tensor) -> Tensor:
        """Of each action its K numbers, (H, B) -> (A, K, B): V + A - mean A (Wang et al. 2016, equation 9) where it is
        duelling.
        """
        blocks = parameters.unflatten(0, (-1, self.atoms))
        if not self.duelling:
            return blocks
        advantage, value = blocks[:-1], blocks[-1:]
        return value + advantage - advantage.mean(dim=0, keepdim=True)

    def values(self, parameters: Tensor) -> Tensor:
        """Q of each action, (H, B) -> (A, B): the number itself, or the mean of the atoms by their probabilities
        (Bellemare, Dabney & Munos 2017).
        """
        logits = self.logits(parameters)
        return logits[:, 0] if self.atoms == 1 else (logits.softmax(dim=1) * self.support).sum(dim=1)


class QPolicy(Policy):
    """An `Actor` that takes the action of the largest Q value; with noise, one at random with probability epsilon.

    Raises ConfigError where the environment asks for something other than one choice among n actions.
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
                    'DQN and PQN learn from single steps, and this network has a memory: use "ppo", or a network '
                    "without one"
                ],
            )

    @property
    def epsilon(self) -> Tensor:
        """A scalar on the device: how often a sampled action is any at all."""
        return self.distribution.epsilon

    def parameters(self, observation: Tensor) -> Tensor:
        """The head's rows (H, B) for raw observations (O, B)."""
        return super().forward(observation)[0]

    def values(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """Q (A, B) of raw observations (O, B); -1e9 for actions that `legal` (A, B) calls 0."""
        found = self.distribution.values(self.parameters(observation))
        return found if legal is None else masked(found, legal)

    @torch.no_grad()
    def act(
        self, observation: Tensor, state: State, noise: Tensor | None = None, legal: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Actions (1, N), epsilon-greedy by `noise` (2, N) or greedy where that is None, and the state as it is; only
        what `legal` (A, N) allows.
        """
        values = self.values(observation, legal)
        action = (
            values.argmax(dim=0, keepdim=True).int()
            if noise is None
            else epsilon_greedy(values, noise, self.epsilon, legal)
        )
        return action, state

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name."""
        return {**super().tensors(), "epsilon": self.epsilon}
