"""Hyper-parameter search: trials are ordinary runs, the search space is `[sweep]` of the configuration. Imports
nothing.
"""
