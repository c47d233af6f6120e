"""The device: drafts tokens with a small model and commits what the edge verifies."""
