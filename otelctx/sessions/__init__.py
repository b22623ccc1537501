"""Conversations as windows of tokens: the arena, the windows, their records and the store."""
