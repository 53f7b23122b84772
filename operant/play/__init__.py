"""A policy or a person plays: films, the viewer in the terminal, games. Knows nothing of training."""
