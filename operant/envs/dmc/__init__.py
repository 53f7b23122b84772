"""DeepMind Control Suite: its tasks as it defines them, read from the installed package `dm_control`. Each file is a
domain; a task is named `dmc_`, the domain and the task: `dmc_walker_run`.

Source: Tassa et al. 2018, "DeepMind Control Suite" (arXiv:1801.00690), and `dm_control/suite`, version 1.0. Common to
all tasks:

- The observation holds dm_control's arrays in its order, flattened. Positions and velocities are those after the step;
  touch sensors, whose forces are those of the last step of the model, lag by it.
- The reward is in [0, 1]. An episode is truncated after 1,000 steps and never terminates.
- `frame_skip` is the number of steps of the model in a step.
- The place of a target is part of the state of a lane.
"""
