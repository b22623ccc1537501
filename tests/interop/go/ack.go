package main

import (
	"bytes"

	"google.golang.org/protobuf/proto"

	"otelctx.example/interop/wire"
)

const ackCharacters = 512

// encodeAck shortens to what fits into 512 characters of header: first moved, then up values from their end.
func encodeAck(ack *wire.Ack, signed bool) []byte {
	room := (ackCharacters - 2) / 4 * 3
	if signed {
		room -= 19
	}
	ack = proto.CloneOf(ack)
	data := must(proto.MarshalOptions{Deterministic: true}.Marshal(ack))
	for len(data) > room && (ack.Moved != "" || len(ack.Up) > 0) {
		if ack.Moved != "" {
			ack.Moved = ""
		} else {
			ack.Up = ack.Up[:len(ack.Up)-1]
		}
		ack.Truncated = true
		data = must(proto.MarshalOptions{Deterministic: true}.Marshal(ack))
	}
	return data
}

// readAck gives the ack in lines and its up values, or nothing if it is to be ignored: it must be signed by one of the
// keys, if there are any, and answer the frame with that root.
func readAck(lines []string, root []byte, keys Ring, now int64) (*wire.Ack, []Entry) {
	if len(lines) != 1 || len([]rune(lines[0])) > ackCharacters {
		return nil, nil
	}
	data, err := fromHeader(lines[0])
	if err != nil {
		return nil, nil
	}
	body, mac := splitMAC(data)
	if (mac != nil) != (len(keys) > 0) {
		return nil, nil
	}
	if mac != nil {
		if _, ok := keys.verify(toClient, body, mac, now); !ok {
			return nil, nil
		}
	}
	ack := &wire.Ack{}
	if proto.Unmarshal(body, ack) != nil || len(ack.Root) != 8 || !bytes.Equal(ack.Root, root[:8]) || ack.Table < 1 {
		return nil, nil
	}
	if ack.Kind > 1 || ack.Held < 0 || ack.Held > 2 || ack.Reason < 0 || ack.Reason > 4 || len(ack.Up) > 64 {
		return nil, nil
	}
	up, err := readEntries(ack.Up, 256)
	if err != nil {
		return nil, nil
	}
	return ack, up
}
