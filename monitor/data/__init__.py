"""From a run's files to a snapshot and a model. Knows no terminal and no widget."""
