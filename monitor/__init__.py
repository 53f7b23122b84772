"""The monitor: a separate process that shows a run from outside. Imports nothing, so that its parts can be used without
the screen.
"""
