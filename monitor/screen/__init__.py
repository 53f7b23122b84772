"""The Textual application: panels, keys, layout. Displays snapshots; reads none of a run's files."""
