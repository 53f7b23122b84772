"""Configuration: TOML and overrides to one frozen, checked object. Imports nothing, so that completion and the CLI
start without pydantic.
"""
