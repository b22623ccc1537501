"""Requests and answers on a TCP connection, and what of their heads is context. HTTP/1.1, pipelined, without bodies."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from threading import Thread
from time import time
from typing import Final

from benchmarks._exchange import HOST, METHOD, PATH, Pair, baggage_value
from otelctx.context.state import State
from otelctx.exchange.client import ClientExchange, Verdict
from otelctx.semconv import ACK_HEADER, HEADER

__all__ = ["Wire", "baggage_bytes", "context_bytes", "header_line"]

# So many requests are under way at once.
BATCH: Final = 64
_END: Final = b"\r\n\r\n"
_COUNTED: Final = (HEADER.encode(), ACK_HEADER.encode(), b"baggage")

Lines = list[tuple[str, str]]
Head = dict[bytes, bytes]
Answer = Callable[[Head], tuple[int, Lines]]


def header_line(name: str, value: str) -> str:
    """As it stands in an HTTP/1.1 head."""
    return f"{name}: {value}\r\n"


class Wire:
    """A connection over loopback to a server thread that answers every head by ``answer``.

    ``bytes`` are those of context lines, in both directions, as they were read from the sockets.
    """

    def __init__(self, answer: Answer) -> None:
        self.bytes = 0
        self._answer = answer
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()
        self._socket = _undelayed(socket.create_connection((HOST, self.port)))
        self._answers = self._heads(self._socket)

    def close(self) -> None:
        self._socket.close()
        self._thread.join()
        self._listener.close()

    def requests(self, requests: Sequence[Lines]) -> list[tuple[int, Head]]:
        """Send all, then read an answer to each: its status and head."""
        start = f"{METHOD} {PATH} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 0\r\n"
        self._socket.sendall("".join(_head(start, lines) for lines in requests).encode())
        found = []
        for _ in requests:
            first, head = next(self._answers)
            found.append((int(first.split()[1]), head))
        return found

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with closing(_undelayed(connection)):
            for _, head in self._heads(connection):
                status, lines = self._answer(head)
                connection.sendall(_head(f"HTTP/1.1 {status} \r\ncontent-length: 0\r\n", lines).encode())

    def _heads(self, connection: socket.socket) -> Iterator[tuple[bytes, Head]]:
        buffer = b""
        while data := connection.recv(65536):
            *heads, buffer = (buffer + data).split(_END)
            for text in heads:
                first, *lines = text.split(b"\r\n")
                head = {}
                for text_line in lines:
                    name, _, value = text_line.partition(b": ")
                    head[name] = value
                    if name in _COUNTED:
                        self.bytes += len(text_line) + 2
                yield first, head


def _undelayed(connection: socket.socket) -> socket.socket:
    """Small answers one after another would otherwise wait for the delayed acknowledgement of TCP, 40 ms each time."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _head(start: str, lines: Lines) -> str:
    return start + "".join(header_line(name, value) for name, value in lines) + "\r\n"


def _batches(states: Sequence[State]) -> Iterable[Sequence[State]]:
    return (states[at : at + BATCH] for at in range(0, len(states), BATCH))


def baggage_bytes(rounds: Iterable[Sequence[State]]) -> int:
    """Bytes of ``baggage`` lines for one request from each state of each round."""
    with closing(Wire(lambda head: (200, []))) as wire:
        for states in rounds:
            for batch in _batches(states):
                wire.requests([[("baggage", baggage_value(state))] for state in batch])
        return wire.bytes


def context_bytes(rounds: Iterable[Sequence[State]]) -> tuple[int, dict[str, int]]:
    """Bytes of our lines in both directions for the same requests, and how many frames of each kind were sent."""
    pair = Pair()
    kinds: dict[str, int] = {}

    def answer(head: Head) -> tuple[int, Lines]:
        incoming = pair.open([head[HEADER.encode()].decode()])
        if incoming.outcome == "refuse":
            status, headers, _ = incoming.refusal(time())
            return status, [(name.decode(), value.decode()) for name, value in headers]
        ack = pair.ack(incoming)
        incoming.close()
        return 200, [(ACK_HEADER, ack.decode())] if ack else []

    with closing(Wire(answer)) as wire:
        for states in rounds:
            for batch in _batches(states):
                todo = [pair.begin(state, wire.port) for state in batch]
                while todo:
                    todo = _send(pair, wire, todo, kinds)
        return wire.bytes, kinds


def _send(pair: Pair, wire: Wire, exchanges: Sequence[ClientExchange], kinds: dict[str, int]) -> list[ClientExchange]:
    """Send all and close them; returns those that have to be sent again."""
    for exchange in exchanges:
        kind = exchange.kind or "none"
        kinds[kind] = kinds.get(kind, 0) + 1
    again = []
    for exchange, (status, head) in zip(exchanges, wire.requests([e.headers for e in exchanges]), strict=True):
        ack = head.get(ACK_HEADER.encode())
        if pair.close(exchange, status, [ack] if ack else []) is Verdict.RESEND:
            again.append(exchange)
    return again
