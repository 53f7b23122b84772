"""Tools around training: check, profile, bench, doctor."""
