"""Tools around training: check, profile, bench, doctor. Knows no command line."""
