"""Networks, action distributions, normalizers and optimizers."""

from operant.nn.actor_critic import (
    ActorCriticConfig,
    CategoricalActor,
    CriticHead,
    CriticLoss,
    SquashedActor,
    critic_loss,
    critic_outputs,
    project_onto_support,
)
from operant.nn.distributions import ILLEGAL, Gaussian, masked, normal
from operant.nn.ensemble import Features, MLPEnsemble, network, products
from operant.nn.flops import Work, network_flops, observation_bytes, on_policy_work, step_bytes
from operant.nn.normalization import SOLO, Exchange, RewardScale, RunningNormalizer, statistics
from operant.nn.optimizer import Adam, FlatVector, Muon, clip_gradient, scalar
from operant.nn.policy import Actor, NetConfig, Policy
from operant.nn.q_policy import QHead, QPolicy, decayed, epsilon_greedy

__all__ = [
    "ILLEGAL",
    "SOLO",
    "Actor",
    "ActorCriticConfig",
    "Adam",
    "CategoricalActor",
    "CriticHead",
    "CriticLoss",
    "Exchange",
    "Features",
    "FlatVector",
    "Gaussian",
    "MLPEnsemble",
    "Muon",
    "NetConfig",
    "Policy",
    "QHead",
    "QPolicy",
    "RewardScale",
    "RunningNormalizer",
    "SquashedActor",
    "Work",
    "clip_gradient",
    "critic_loss",
    "critic_outputs",
    "decayed",
    "epsilon_greedy",
    "masked",
    "network",
    "network_flops",
    "normal",
    "observation_bytes",
    "on_policy_work",
    "products",
    "project_onto_support",
    "scalar",
    "statistics",
    "step_bytes",
]
