"""Searches hyper-parameters: a sweep's trials are ordinary runs, what is searched stands in `[sweep]` of the
configuration. Imports nothing by itself.
"""
