"""Triton operations shared by every engine: one function per operation, with a table of shapes.

Most are device functions (`@triton.jit` functions that kernels inline); `reduce` and `adam` also hold kernels.
Conventions: `*_ptr` is a pointer, `BLOCK_*` and other capitals are compile-time constants, `mask` is true in bounds.

`SPEC` is the specification of any engine (`operant.kernels.spec.Spec`, `actor_critic.spec.ActorCriticSpec`, ...), a
compile-time constant with plain fields. Functions here read:

| field                | read by            | meaning                                                      |
|----------------------|--------------------|--------------------------------------------------------------|
| precision            | linear             | "ieee", "tf32" or "bf16"                                     |
| approximate          | linear, activation | hardware tanh; compensation of tf32's truncation             |
| activation           | activation         | "tanh", "relu", "silu" or "gelu"                             |
| sizes, starts, legal | categorical        | actions of each choice, its first column; legal-action masks |
| head_rows, out_pad   | categorical        | parameters of the distribution; columns of a tile of outputs |
| squash               | gaussian           | the Gaussian is squashed by tanh                             |
"""
