"""Carries policies and metrics of runs into other programs' formats: `operant export`. Reads runs; the trainer does not
know it.
"""
