"""Recorded conversations of otelctx/1, with bytes and roots, from which another language can be checked.

``python -m scripts.vectors`` writes ``proto/vectors/*.json`` and the worked example of ``docs/wire-format.md``. Keys,
clock, boot and event ids are fixed, so running it again gives the same bytes.
"""
