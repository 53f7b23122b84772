"""Worlds: many lanes of one environment, wherever they run. Knows no policy and no algorithm."""
