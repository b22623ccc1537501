"""Attributes of generative AI, after semantic-conventions-genai v0.1.0.

Kept here, because opentelemetry-semantic-conventions 0.66b2 marks all of them as moved.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from otelctx.semconv.model import Attribute

GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
GEN_AI_REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
GEN_AI_REQUEST_STREAM: Final = "gen_ai.request.stream"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_COMPACTED: Final = "gen_ai.conversation.compacted"
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"

_row: Final = partial(Attribute, source="gen_ai")

GEN_AI_ATTRIBUTES: Final[dict[str, Attribute]] = {
    a.key: a
    for a in (
        _row(GEN_AI_OPERATION, "string", "what is done", ("chat",)),
        _row(GEN_AI_PROVIDER, "string", "who computes it; a custom value, since the list has none for one's own model"),
        _row(GEN_AI_REQUEST_MODEL, "string", "the model's name, as the deployment has it"),
        _row(GEN_AI_REQUEST_MAX_TOKENS, "int", "tokens asked for"),
        _row(GEN_AI_REQUEST_TEMPERATURE, "double", "temperature of sampling"),
        _row(GEN_AI_REQUEST_TOP_P, "double", "top-p of sampling"),
        _row(GEN_AI_REQUEST_TOP_K, "int", "top-k of sampling, if it is limited"),
        _row(GEN_AI_REQUEST_FREQUENCY_PENALTY, "double", "frequency penalty, if there is one"),
        _row(GEN_AI_REQUEST_PRESENCE_PENALTY, "double", "presence penalty, if there is one"),
        _row(GEN_AI_REQUEST_SEED, "int", "seed of sampling, where it has 64 bits", unbounded=True),
        _row(GEN_AI_STOP_SEQUENCES, "string[]", "where the answer is to end; as messages are", unbounded=True),
        _row(GEN_AI_REQUEST_STREAM, "boolean", "true if the answer is streamed; never false"),
        _row(GEN_AI_RESPONSE_ID, "string", "the answer, as its client knows it", unbounded=True),
        _row(GEN_AI_RESPONSE_MODEL, "string", "the model that answers"),
        _row(
            GEN_AI_FINISH_REASONS,
            "string[]",
            "why the answer ended, one for each choice",
            ("stop", "length", "tool_calls", "content_filter", "error"),
        ),
        _row(GEN_AI_TIME_TO_FIRST_CHUNK, "double", "seconds to the first chunk of a streamed answer"),
        _row(GEN_AI_INPUT_TOKENS, "int", "tokens in context when the answer began, reused ones included"),
        _row(GEN_AI_OUTPUT_TOKENS, "int", "tokens of the answer"),
        _row(GEN_AI_CACHE_READ_TOKENS, "int", "tokens whose KV was reused"),
        _row(GEN_AI_CONVERSATION_ID, "string", "the conversation, if the application names one", unbounded=True),
        _row(GEN_AI_COMPACTED, "boolean", "true if part of the conversation was left out; never false"),
        _row(GEN_AI_INPUT_MESSAGES, "string", "the messages, as JSON of the conventions' schema", unbounded=True),
        _row(GEN_AI_OUTPUT_MESSAGES, "string", "the answer, as JSON of the conventions' schema", unbounded=True),
    )
}
