"""MinAtar: five miniature Atari games on a board of 10 x 10 cells. Each file is a game, named `minatar_` plus the
file's name.

Rules: Young & Tian 2019, "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement Learning
Experiments" (arXiv:1903.03176), and version 1 of the authors' package for details that the paper leaves open.
Reimplemented, and compared with the package step by step in tests. Common to all games:

- `sticky` is the probability that the previous action is repeated instead of the given one (draw 0 of the step). The
  previous action of a new game is to stay; in the package it is the last action of the game before.
- `ramping`, where a game has it, increases the difficulty over time.
- The actions are those that have an effect in the game: the package's minimal action set, in its order.
- An observation is (10, 10, C) bytes: 255 where a cell contains the channel's object, 0 elsewhere.
- Games are truncated after 10,000 steps; the paper has no limit. (Freeway ends by its own clock.)
"""
