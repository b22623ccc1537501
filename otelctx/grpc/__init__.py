"""gRPC, on both sides and in both styles: a span for each call, and context of ours to those who may have it.

    channel = otelctx.instrument(grpc.insecure_channel("dns:///chat:50051"))
    channel = grpc.aio.insecure_channel("dns:///chat:50051", interceptors=otelctx.grpc.interceptors())
    server = grpc.server(pool, interceptors=otelctx.grpc.interceptors())
    server = grpc.aio.server(interceptors=otelctx.grpc.interceptors())

A frame is the metadatum ``otelctx-bin``, an ack ``otelctx-ack-bin``: bytes, once each, which gRPC itself encodes. The
ack is in the trailing metadata, for unary answers in the initial ones too. Streams always carry FULL frames. Trace
context and baggage are the W3C headers, and the deadline is gRPC's own.

Forking: gRPC core does not survive it with a channel or server in use (see its own documentation). Make them after the
fork, as preforking servers do with what their workers own; bases and links of ours are then the child's own too.
"""

from __future__ import annotations

from otelctx.grpc.interceptors import interceptors

__all__ = ["interceptors"]
