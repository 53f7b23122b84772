"""Tools beside training: check, profile, bench, doctor. Knows no command line."""
