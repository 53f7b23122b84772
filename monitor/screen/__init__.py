"""The Textual application: panels, keys, layout. Reads snapshots, never a run's files."""
