"""What a model and its tokenizer say of themselves."""

from __future__ import annotations

from typing import Any

from otelctx.errors import ConfigError

__all__ = ["check_window", "eos_ids", "positions"]


def positions(model: Any) -> int | None:
    """Positions that ``model`` was made for, in tokens; ``None`` if its configuration does not say."""
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return int(limit) if limit else None


def check_window(model: Any, window: int) -> None:
    """Raise :class:`~otelctx.errors.ConfigError` if ``window`` tokens are more than ``model`` has positions for."""
    limit = positions(model)
    if limit is not None and window > limit:
        raise ConfigError(f"window={window} is longer than the {limit} positions of {type(model).__name__}")


def eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """All ids that end an answer, sorted, wherever they are written down."""
    found: set[int] = set()
    for source in (model.generation_config, model.config.get_text_config(decoder=True), tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found.update(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
    return tuple(sorted(found))
