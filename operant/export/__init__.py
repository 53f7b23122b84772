"""Export of policies and metrics to other programs' formats: `operant export`. Reads run folders only."""
