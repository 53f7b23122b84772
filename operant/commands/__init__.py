"""The commands of `operant`, by what they are for. Each module holds a typer application of its own; operant/cli.py puts them together."""
