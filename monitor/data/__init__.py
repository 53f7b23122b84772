"""Data layer: reads a run's files and builds snapshots. Knows no terminal and no widget."""
