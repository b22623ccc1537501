"""Sessions, guard and engine around a transformers model."""
