"""Revisions of the static table: what an older reader does not know goes by its name."""

from __future__ import annotations

import pytest

from otelctx.context.state import EMPTY, entry
from otelctx.delta.bases import BaseCache
from otelctx.delta.codec import decode_ack, decode_frame, encode_ack, encode_frame, to_header
from otelctx.delta.limits import Limits
from otelctx.delta.messages import Ack, AckKind, NackReason, delta, full
from otelctx.delta.receiver import Accepted, Receiver, Run
from otelctx.delta.sender import Reply, Sender
from otelctx.delta.table import TABLE, Table
from otelctx.delta.v1 import otelctx_pb2 as pb
from otelctx.errors import MalformedFrame
from otelctx.semconv import STATIC_TABLE, TABLE_REVISION, TABLE_SINCE

NEWER = Table({**STATIC_TABLE, 22: "region.hint"}, {22: 2})
STATE = EMPTY.put("session.id", "s").put("region.hint", "eu")


def test_the_table_of_the_code_is_of_the_revision_that_it_says() -> None:
    assert TABLE.revision == TABLE_REVISION
    assert set(TABLE_SINCE) <= set(STATIC_TABLE)
    assert all(1 <= key_id <= 63 for key_id in STATIC_TABLE)
    assert len(set(STATIC_TABLE.values())) == len(STATIC_TABLE)


def test_a_newer_key_goes_by_its_id_only_in_frames_of_its_revision() -> None:
    old, new = (encode_frame(full(STATE, revision), NEWER) for revision in (1, 2))
    assert (b"region.hint" in old, b"region.hint" in new) == (True, False)
    assert decode_frame(old, NEWER) == full(STATE, 1)
    assert decode_frame(new, NEWER) == full(STATE, 2)
    assert decode_frame(old) == full(STATE, 1)  # by the reader of the first revision
    gone = encode_frame(delta(STATE, STATE.drop(["region.hint"]), 2), NEWER)
    assert list(pb.Frame.FromString(gone).del_ids) == [22]
    assert decode_frame(gone, NEWER).delete == ("region.hint",)


@pytest.mark.parametrize(("table", "key"), [(1, {"id": 22}), (2, {"name": "region.hint"})])
def test_in_another_revision_than_its_own_a_spelling_is_malformed(table: int, key: dict[str, object]) -> None:
    message = pb.Frame(kind=pb.Frame.FULL, root=bytes(16), table=table)
    message.put.append(pb.Entry(text="eu", **key))
    with pytest.raises(MalformedFrame):
        decode_frame(message.SerializeToString(), NEWER)


def test_acks_are_written_for_readers_of_every_age() -> None:
    """The revision that an ack names is the callee's own; what it carries is spelled in the first."""
    ack = Ack(AckKind.ACK, bytes(8), table=2, event=1, ups=(entry("session.turn", 3), entry("region.hint", "eu")))
    body = encode_ack(ack, signed=True, table=NEWER)
    assert decode_ack(body) == decode_ack(body, NEWER) == ack
    assert b"region.hint" in body
    assert b"session.turn" not in body


def test_a_link_speaks_the_first_revision_until_acked_and_then_the_lowest_it_has_seen() -> None:
    link, now = Sender(Limits(), table=3), 0.0

    def spoken(told: int, kind: AckKind = AckKind.ACK, reason: NackReason = NackReason.NONE) -> int:
        nonlocal now
        now += 1
        offer = link.offer(STATE, path="/", safe=False, must_be_full=True, now=now)
        assert offer.frame is not None
        ack = Ack(kind, offer.frame.root[:8], boot_id=1, reason=reason, table=told)
        link.close(offer, Reply(200, ack, True, False, False), now)
        return offer.frame.table

    assert [spoken(told) for told in (3, 3, 2, 3, 3)] == [1, 3, 3, 2, 2]
    now += 700
    assert spoken(3) == 1  # nobody has told for ten minutes
    assert spoken(1, AckKind.NACK, NackReason.TABLE) == 3
    assert spoken(3) == 1
    assert spoken(3) == 1


def test_a_receiver_of_the_first_revision_tells_a_newer_sender_so_and_then_reads_it() -> None:
    to, link = Receiver(BaseCache(Limits())), Sender(Limits(), table=2)
    told = Ack(AckKind.ACK, STATE.root[:8], boot_id=9, table=2)
    for now, expected in ((0.0, Accepted), (1.0, Run), (2.0, Accepted)):
        offer = link.offer(STATE, path="/", safe=False, must_be_full=False, now=now)
        assert offer.frame is not None
        line = to_header(encode_frame(offer.frame, NEWER))
        outcome = to.open([line], client="c", trusted=True, verify=lambda b, m: None)
        assert isinstance(outcome, expected)
        if isinstance(outcome, Run):
            assert outcome.reason is NackReason.TABLE
            told = Ack(AckKind.NACK, STATE.root[:8], boot_id=1, reason=NackReason.TABLE, table=1)
        link.close(offer, Reply(200, told, True, False, False), now)
