"""Frames, acks and the two sans-I/O machines that exchange them. States are addressed by content, as in git."""
