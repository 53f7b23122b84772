"""The monitor: a process that displays a run from its files. Imports nothing at package level, so parts can be used
without Textual.
"""
