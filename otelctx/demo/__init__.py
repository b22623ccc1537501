"""The story that the README's first command tells: one traced conversation through three processes."""
