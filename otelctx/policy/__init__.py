"""Whom to believe and whom to tell: pure decisions."""
