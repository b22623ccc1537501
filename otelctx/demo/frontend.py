"""Somebody's chat application: FastAPI, wrapped by otelctx, calling a model worker.

    WORKER_URL=http://127.0.0.1:8000/v1 uvicorn otelctx.demo.frontend:app

What is otelctx here: ``configure``, ``instrument``, ``add_middleware``, and the two keys. The caller's session and tier
arrive with each request and go on to the worker; tokens that the worker counts come back through here by themselves.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

import otelctx

SESSION = otelctx.ContextKey("session.id", str)
PROMPT = otelctx.ContextKey("prompt.version", str)

telemetry = otelctx.configure("frontend")
worker = otelctx.instrument(httpx.AsyncClient(base_url=os.environ["WORKER_URL"], timeout=120))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with worker:
        yield
    telemetry.shutdown()


app = FastAPI(lifespan=lifespan)
app.add_middleware(otelctx.ContextMiddleware)


@app.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    body: dict[str, Any] = await request.json()
    PROMPT.set("v3.1.0")  # a key of our own: the worker sees it beside the caller's
    if session := SESSION.get():
        body["otelctx"] = {"session": session, "mode": "append"}
    call = worker.build_request("POST", "chat/completions", json=body)
    answer = await worker.send(call, stream=True)
    if "text/event-stream" in answer.headers.get("content-type", ""):
        return StreamingResponse(relay(answer), media_type="text/event-stream")
    await answer.aread()
    return JSONResponse(answer.json(), answer.status_code)


async def relay(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()  # also when the client has gone: the worker stops at once
