"""Frames, acks and the two sans-I/O machines that exchange them."""
