"""Groups of buffers that the kernels take: named tuples of tensors on the host, of pointers inside a kernel. Know no
Triton.

A head is a network's output layer. A batch is `operant.kernels.ops.replay.BatchBuffers`. Shape letters: B samples of a
batch, C input columns of first layers (observation, action, zeros), G critics, H units of a layer, A values of an
action, T ticks, N lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class PackedWeights(NamedTuple):
    """Copies of a network's weights in the layout and type of the matrix products; the towers (critics) follow one
    another.
    """

    single: Any  # float32: first weights, biases, a critic's head
    packed: Any  # bfloat16 or float32, by precision: later weights, an actor's head


class Parameters(NamedTuple):
    """Flat vector of parameters and Adam's running averages of its gradient, (P) each."""

    vector: Any
    exp_avg: Any
    exp_avg_sq: Any


def parameters_of(adam: dict[str, Any], vector: Any) -> Parameters:
    """Return a flat vector with the running averages of its optimizer's state."""
    return Parameters(vector, adam["exp_avg"], adam["exp_avg_sq"])


class SavedLayers(NamedTuple):
    """Operands of the weights' gradients dW = grad_z^T h, which the backward pass saves: for each hidden layer (G, B,
    H), one layer after the other.
    """

    hidden: Any  # activations
    grad_z: Any  # gradient of pre-activations: of Q (critics), of the loss (actor)


class Scratch(NamedTuple):
    """Intermediate results of an update that one kernel passes to the next."""

    next_q: Any  # (G, B), target critics at the next observation and action
    next_log_prob: Any  # (B)
    q: Any  # (G, B), critics at the sampled observation and action
    actor_q: Any  # (G, B), critics at the actor's action
    q_gradient: Any  # (G, B, C), gradient of `actor_q` by the action
    action: Any  # (B, C), the actor's action, in the action's columns
    std_noise: Any  # (B, C), std x noise of that action
    log_std_grad: Any  # (B, C), d log std / d raw output
    log_prob: Any  # (B)


class OptimizerState(NamedTuple):
    """Scalars of one network's optimizer step, on the device."""

    steps: Any  # (1)
    corrections: Any  # (2), written: bias corrections of Adam
    skip: Any  # (), 1: no step
    learning_rate: Any  # ()
    scalars: Any  # `Scalars`


class Scalars(NamedTuple):
    """Constants of the optimizer steps, in this order in one tensor."""

    epsilon: Any  # of Adam
    tau: Any  # of the targets' Polyak averaging
    target_entropy: Any
    noise_std: Any  # of target smoothing
    noise_clip: Any


class Temperature(NamedTuple):
    """Temperature of a stochastic actor with its optimizer state, and the totals of an iteration's statistics."""

    log_alpha: Any  # (1)
    exp_avg: Any  # (1)
    exp_avg_sq: Any  # (1)
    steps: Any  # (1)
    corrections: Any  # (2), written
    skip: Any  # ()
    squares: Any  # (G, programs), written: sums of squares of the critics' gradient
    totals: Any  # sums of the statistics over updates, indexed by SPEC.stat


class ActBuffers(NamedTuple):
    """Inputs and outputs of acting over the T ticks of an iteration."""

    observation: Any  # (T + 1, O, N)
    normalizer: Any  # (2, O): mean, inv_std
    noise: Any  # (T, 2 A, N), uniform in [0, 1)
    exploration: Any  # (N), standard deviation of each lane's noise (deterministic actors)
    warming: Any  # (), 1: uniform random actions
    centre: Any  # (A), middle of the action's range
    half_range: Any  # (A)
    squashed_action: Any  # (T, A, N), written: in [-1, 1]
    action: Any  # (T, A, N), written: in the environment's range


# WIDE NETWORKS


class LayerBuffers(NamedTuple):
    """Results of a wide network's forward and backward pass: lists over hidden layers of (towers, rows, width)."""

    pre_activations: Any  # without the bias; with layer normalization x_hat = (z - mean) / std
    hidden: Any  # activations
    moments: Any  # (towers, rows, 2): mean and 1 / std of each row; unused without layer normalization
    grad_z: Any  # gradient of the pre-activations
    outputs: Any  # an actor's outputs (rows, outputs), or the last layer's activations


class TrainedNetwork(NamedTuple):
    """A wide network with its parameters, its gradient and its optimizer's state."""

    net: Any  # `wide.spec.WideNet`
    parameters: Parameters
    gradient: Any  # (P)
    packed: Any  # (P), the parameters in the type of the products
    weights: Any  # views of `packed`, (towers, width, inputs) a layer; the first is a copy with padded columns
    grad_weights: Any  # views of `gradient`, likewise
    first_partials: Any  # (towers, parts, width, columns): the first weight's gradient of each part of a batch
    partials: Any  # (programs, towers, vectors, pad): partial sums of vectors' gradients
    terms: Any  # (programs, ...): partial sums of the statistics
    squares: Any  # (blocks): partial sums of the gradient's squares
    optimizer: OptimizerState
