"""Data layer: reads a run's files and builds snapshots."""
