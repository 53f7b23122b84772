"""Playback of policies and interactive play: videos, terminal viewer, games."""
