"""The groups of buffers that the kernels of actors and critics take: named tuples of tensors here, of pointers inside a
kernel. Know no Triton.

A batch is `operant.kernels.replay.Sampled`. Shape letters: B its samples, C columns that first layers read
(observation, action, zeros), G towers, H units of a layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Pack(NamedTuple):
    """Weights as products take them, a tower after another."""

    single: Any  # float32: first weights, biases, a critic's head
    packed: Any  # as the precision asks: later weights, an actor's head


class Flat(NamedTuple):
    """A flat vector of parameters, and what Adam keeps of each."""

    parameters: Any
    first: Any
    second: Any


def flat_of(adam: dict[str, Any], parameters: Any) -> Flat:
    """A flat vector with what Adam keeps of it."""
    return Flat(parameters, adam["exp_avg"], adam["exp_avg_sq"])


class Layers(NamedTuple):
    """What a network's weights learn from, each layer's (G, B, H) after another's."""

    hidden: Any  # activations
    gradient: Any  # of what a layer sums up: a critic's of its value, an actor's of the loss


class Work(NamedTuple):
    """What one kernel of an update leaves to the next."""

    next_value: Any  # (G, B) the targets' of the next observation
    next_log_p: Any  # (B)
    value: Any  # (G, B)
    policy_value: Any  # (G, B) of the actor's action
    value_slope: Any  # (G, B, C) its gradient in that action
    action: Any  # (B, C) in the action's columns
    spread: Any  # (B, C) deviation times noise
    slope: Any  # (B, C) d log deviation / d raw
    log_p: Any  # (B)


class Update(NamedTuple):
    """What Adam's step of a network asks for."""

    steps: Any  # (1)
    corrections: Any  # (2), written
    skip: Any  # one float: 1 leaves the step out
    learning_rate: Any  # one float
    scalars: Any  # epsilon, tau, target entropy, standard deviation of target smoothing and its limit


class Temperature(NamedTuple):
    """The temperature and its Adam, which a stochastic actor has; and what an iteration's updates say of themselves."""

    log: Any  # (1)
    first: Any  # (1)
    second: Any  # (1)
    steps: Any  # (1)
    corrections: Any  # (2), written
    skip: Any
    squares: Any  # (G, programs) sums of squares of the critics' gradient, written
    totals: Any  # sums over updates, in the order of the algorithm's terms


# OF WIDE NETWORKS


class Passes(NamedTuple):
    """What a network's passes leave of each hidden layer, a list of (towers, rows, width) each."""

    sums: Any  # before the activation, without the bias; with layer normalization made to mean 0 and variance 1
    hidden: Any
    # (towers, rows, 2) of the sums of each row: mean and 1 / standard deviation; without layer normalization nothing
    moments: Any
    gradient: Any  # in the sums
    end: Any  # what heads read: an actor's outputs (rows, outputs), or the last layer's activations


class Trained(NamedTuple):
    """A network, and what steps it."""

    net: Any
    flat: Flat
    gradient: Any  # of the flat vector
    packed: Any  # the flat vector as products take it
    weights: Any  # of `packed`, a list of (towers, width, inputs); the first is a copy, with columns to spare
    by_weights: Any  # of `gradient`, likewise
    by_first: Any  # (towers, parts, width, columns): of parts of a batch
    partial: Any
    terms: Any
    squares: Any
    update: Update
