from __future__ import annotations

import pytest

from otelctx.context.state import EMPTY, State

THIRTEEN = {
    "session.id": "chat-42abc", "tenant.id": "acme", "user.id": "u-1234567", "gen_ai.conversation.id": "c-998877",
    "gen_ai.request.model": "SmolLM2-135M", "gen_ai.agent.name": "planner", "cloud.region": "eu-west-1",
    "client.locale": "en-GB", "user.tier": "gold", "request.priority": 1, "limit.tokens.total": 1000,
    "prompt.version": "v3.1.0", "canary.arm": "ring",
}  # fmt: skip


@pytest.fixture
def thirteen() -> State:
    """A state of thirteen keys of the table."""
    state = EMPTY
    for name, value in THIRTEEN.items():
        state = state.put(name, value)
    return state
