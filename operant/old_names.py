"""Renamed identifiers: configuration keys, and names that a user's Python file imports or calls. Standard library only.

Used to read configurations of earlier runs, to suggest the new name of an unknown key, and to translate a user's file
while it is loaded.
"""

from __future__ import annotations

import ast

KEYS = {"algo.kernels_shape": "algo.kernel_config"}
"""Renamed configuration keys. They are accepted in recorded runs; elsewhere they are errors that name the new key."""

ALIASES = {"env.num_envs": "env.lanes"}
"""Aliases of keys that are accepted everywhere."""

SYNONYMS = {
    "lr": "algo.learning_rate",
    "n_steps": "algo.horizon",
    "num_steps": "algo.horizon",
    "rollout_length": "algo.horizon",
    "num_steps_per_env": "algo.horizon",
    "bptt_horizon": "algo.horizon",
    "n_epochs": "algo.epochs",
    "num_epochs": "algo.epochs",
    "update_epochs": "algo.epochs",
    "num_learning_epochs": "algo.epochs",
    "batch_size": "algo.minibatches",
    "minibatch_size": "algo.minibatches",
    "mini_batch_size": "algo.minibatches",
    "n_minibatches": "algo.minibatches",
    "num_minibatches": "algo.minibatches",
    "num_mini_batches": "algo.minibatches",
    "discount": "algo.gamma",
    "discount_factor": "algo.gamma",
    "lam": "algo.gae_lambda",
    "lambda": "algo.gae_lambda",
    "clip_range": "algo.clip",
    "clip_coef": "algo.clip",
    "clip_epsilon": "algo.clip",
    "clip_param": "algo.clip",
    "clip_range_vf": "algo.value_clip",
    "clip_vloss": "algo.value_clip",
    "vf_clip_coef": "algo.value_clip",
    "use_clipped_value_loss": "algo.value_clip",
    "ent_coef": "algo.entropy_coefficient",
    "entropy_coef": "algo.entropy_coefficient",
    "vf_coef": "algo.value_coefficient",
    "value_coef": "algo.value_coefficient",
    "value_loss_coef": "algo.value_coefficient",
    "use_sde": "algo.noise_hold",
    "sde_sample_freq": "algo.noise_hold",
    "desired_kl": "algo.target_kl",
    "max_grad_norm": "algo.max_gradient_norm",
    "anneal_lr": "algo.anneal",
    "norm_adv": "algo.normalize_advantages",
    "normalize_advantage": "algo.normalize_advantages",
    "norm_obs": "algo.normalize_observations",
    "norm_reward": "algo.normalize_rewards",
    "adam_eps": "algo.adam_epsilon",
    "num_envs": "env.lanes",
    "n_envs": "env.lanes",
    "env_id": "env.name",
    "total_timesteps": "run.steps",
    "total_steps": "run.steps",
    "max_steps": "run.steps",
    "hidden_sizes": "net.hidden",
    "hidden_size": "net.hidden",
    "hidden_dim": "net.hidden",
    "hidden_dims": "net.hidden",
    "activation_fn": "net.activation",
    "net_arch": "net.hidden",
    "log_std_init": "net.initial_log_std",
    "eval_freq": "eval.every",
    "n_eval_episodes": "eval.episodes",
    "save_freq": "checkpoint.every",
    "train_batch_size": "algo.minibatches",
    "sgd_minibatch_size": "algo.minibatches",
    "gae": "algo.gae_lambda",
    "grad_clip": "algo.max_gradient_norm",
    "gradient_clip": "algo.max_gradient_norm",
    "max_norm": "algo.max_gradient_norm",
    "envs": "env.lanes",
    "n_lanes": "env.lanes",
    "nsteps": "algo.horizon",
    "layers": "net.hidden",
    "width": "net.hidden",
    "lr_schedule": "algo.anneal",
}
"""Names of keys in other libraries, for suggestions about unknown keys."""

REPLAY_SYNONYMS = {
    "buffer_size": "algo.replay_capacity",
    "replay_buffer_size": "algo.replay_capacity",
    "replay_size": "algo.replay_capacity",
    "memory_size": "algo.replay_capacity",
    "buffer_capacity": "algo.replay_capacity",
    "gradient_steps": "algo.updates_per_step",
    "train_freq": "algo.updates_per_step",
    "train_frequency": "algo.updates_per_step",
    "utd": "algo.updates_per_step",
    "utd_ratio": "algo.updates_per_step",
    "start_steps": "algo.learning_starts",
    "start_timesteps": "algo.learning_starts",
    "warmup_steps": "algo.learning_starts",
    "ent_coef": "algo.temperature",
    "alpha": "algo.temperature",
    "autotune": "algo.temperature",
    "action_noise": "algo.exploration_noise",
    "q_lr": "algo.critic_learning_rate",
    "critic_lr": "algo.critic_learning_rate",
    "policy_lr": "algo.learning_rate",
    "actor_lr": "algo.learning_rate",
    "policy_delay": "algo.actor_delay",
    "policy_frequency": "algo.actor_delay",
    "policy_noise": "algo.target_noise",
    "target_policy_noise": "algo.target_noise",
    "noise_clip": "algo.target_noise_clip",
    "target_update_interval": "algo.target_every",
    "target_network_frequency": "algo.target_every",
    "exploration_initial_eps": "algo.epsilon_start",
    "start_e": "algo.epsilon_start",
    "exploration_final_eps": "algo.epsilon_end",
    "end_e": "algo.epsilon_end",
    "exploration_fraction": "algo.epsilon_steps",
    "dueling": "algo.duelling",
    "double_q": "algo.double",
    "per": "algo.replay_sampling",
    "prioritized_replay": "algo.replay_sampling",
    "n_atoms": "algo.atoms",
    "num_atoms": "algo.atoms",
}
"""Names of keys of off-policy algorithms in other libraries; SYNONYMS has precedence."""

_SAMPLES = "a minibatch holds env.lanes x algo.horizon / algo.minibatches samples"
NOTES = dict.fromkeys(
    ("batch_size", "minibatch_size", "mini_batch_size", "train_batch_size", "sgd_minibatch_size"), _SAMPLES
)
"""Notes for keys of other libraries that differ in meaning."""

MODULES = {
    "operant.device": "operant.compute.device",
    "operant.rng": "operant.compute.rng",
    "operant.shapes": "operant.envs.drawing",
    "operant.ranges": "operant.envs.ranges",
}
"""Moved modules that a user's file may import."""

NAMES = {"Cells": "IntState"}
"""Renamed names of `operant.envs`."""

KEYWORDS = {
    "kinds": "categories",
    "parts": "observation_shards",
    "scratch": "workspace",
    "cells": "int_state",
    "shade": "pixel_shader",
}
"""Renamed keyword arguments of `Env(...)`, `Box(...)`, and `dataclasses.replace` of them."""

ARGUMENTS = {"part": "shard"}
"""Renamed last argument of `observe` and `legal`."""


def translated(text: str | bytes, filename: str) -> ast.Module:
    """Parse a user's Python file and return its syntax tree with current names and unchanged line numbers. Raises
    SyntaxError.
    """
    tree = _Translation().visit(ast.parse(text, filename))
    return ast.fix_missing_locations(tree)


class _Translation(ast.NodeTransformer):
    """Transformer of a syntax tree that replaces renamed modules, names, keyword arguments and parameters."""

    def visit_Import(self, node: ast.Import) -> ast.Import:
        """Rename a moved module in `import MODULE as NAME`."""
        for alias in node.names:
            if alias.name in MODULES and alias.asname is not None:
                alias.name = MODULES[alias.name]
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.ImportFrom]:
        """Rename moved modules and names in `from MODULE import NAME`; returns one statement per module."""
        node.module = MODULES.get(node.module or "", node.module)
        parts = [node]
        for alias in list(node.names):
            if node.module == "operant.envs" and alias.name in NAMES:
                alias.asname, alias.name = alias.asname or alias.name, NAMES[alias.name]
            elif (
                node.module is not None and node.module.startswith("operant.envs.") and alias.name in KEYWORDS
            ):  # a shipped environment's own function
                alias.asname, alias.name = alias.asname or alias.name, KEYWORDS[alias.name]
            # a module: `from operant import rng`
            elif (moved := MODULES.get(f"{node.module}.{alias.name}")) is not None:
                package, _, name = moved.rpartition(".")
                node.names.remove(alias)
                parts.append(
                    ast.copy_location(ast.ImportFrom(package, [ast.alias(name, alias.asname or alias.name)], 0), node)
                )
        return [part for part in parts if part.names]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Rename the last parameter of `observe` and `legal`."""
        last = node.args.args[-1].arg if node.args.args else ""
        if node.name in ("observe", "legal") and last in ARGUMENTS:
            for part in ast.walk(node):
                if isinstance(part, ast.arg) and part.arg == last:
                    part.arg = ARGUMENTS[last]
                elif isinstance(part, ast.Name) and part.id == last:
                    part.id = ARGUMENTS[last]
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Rename keyword arguments of `Box`, `Env` and `replace`."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if name in ("Box", "Env", "replace"):
            for keyword in node.keywords:
                keyword.arg = KEYWORDS.get(keyword.arg or "", keyword.arg)
        self.generic_visit(node)
        return node
