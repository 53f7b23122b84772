"""MinAtar: five Atari games in small, on a board of 10 x 10 cells. A file is a game, and `minatar_` and the file's name
the environment's.

Rules: Young & Tian 2019, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement Learning
Experiments" (arXiv:1903.03176), and version 1 of the authors' package where the paper leaves a detail open; written
anew, and compared with the package step by step in tests. Common to the games:

- `sticky` is the probability that the last action is taken again in place of the one that is given, draw 0 of the step.
  The last action of a new game is to
  stay; in the package it is the last of the game before.
- `ramping`, where a game has it, is whether it gets harder as it goes on.
- The actions are those that do something in the game, the package's minimal set, in its order.
- An observation is (10, 10, C) bytes: 255 where a cell has what the channel is about, 0 elsewhere.
- A game is truncated after 10,000 steps; the paper's have no limit. (Freeway ends by its own clock.)
"""
