package main

import (
	"bytes"

	"otelctx.example/interop/wire"
)

// Outcome is a row of the receiver's table.
type Outcome struct {
	Word   string // accepted, ignored, run, refuse
	Reason string
	Kind   wire.Frame_Kind
	Domain string
	Root   []byte
	State  State
	Held   wire.Ack_Held
	Signed bool
}

// Receiver holds bases by domain and the first 8 bytes of their root, for ever: a real one gives some up.
type Receiver struct {
	Keys    Ring
	Trusted bool
	Proceed bool
	bases   map[string]State
}

func newReceiver(keys Ring) *Receiver { return &Receiver{Keys: keys, bases: map[string]State{}} }

func (r *Receiver) keep(domain string, state State) wire.Ack_Held {
	if !state.hasSession() {
		return wire.Ack_NONE
	}
	r.bases[domain+"\x00"+string(state.root()[:8])] = state
	return wire.Ack_PROCESS
}

func (r *Receiver) open(lines []string, now int64) Outcome {
	ignored := func(why fault) Outcome { return Outcome{Word: "ignored", Reason: string(why)} }
	if len(lines) != 1 {
		return ignored("repeated")
	}
	data, err := fromHeader(lines[0])
	if err != nil {
		return ignored(err.(fault))
	}
	body, mac := splitMAC(data)
	domain := ""
	if mac == nil && !r.Trusted {
		return ignored("untrusted")
	}
	if mac != nil {
		found, ok := r.Keys.verify(toServer, body, mac, now)
		if !ok {
			return ignored("mac")
		}
		domain = found
	}
	frame, err := readFrame(body)
	if err != nil {
		return ignored(err.(fault))
	}
	outcome := r.accept(frame, domain)
	outcome.Kind, outcome.Root, outcome.Domain, outcome.Signed = frame.Kind, frame.Root, domain, mac != nil
	return outcome
}

func (r *Receiver) accept(frame Frame, domain string) Outcome {
	if frame.Table > 1 {
		return Outcome{Word: "run", Reason: "TABLE"}
	}
	unreadable := func(reason string) Outcome {
		if frame.Kind == wire.Frame_FULL || r.Proceed {
			return Outcome{Word: "run", Reason: reason}
		}
		return Outcome{Word: "refuse", Reason: reason}
	}
	base := State{}
	if frame.Kind != wire.Frame_FULL {
		wanted := frame.Base
		if frame.Kind == wire.Frame_REF {
			wanted = frame.Root[:8]
		}
		found, ok := r.bases[domain+"\x00"+string(wanted)]
		if !ok {
			return unreadable("UNKNOWN_BASE")
		}
		base = found
	}
	state := base.apply(frame.Put, frame.Gone)
	if !state.within() {
		return Outcome{Word: "run", Reason: "LIMIT"}
	}
	if !bytes.Equal(state.root(), frame.Root) {
		return unreadable("ROOT")
	}
	return Outcome{Word: "accepted", State: state, Held: r.keep(domain, state)}
}

// answer is the ack of an outcome, without what the application adds; nothing for what is ignored.
func answer(outcome Outcome, bootID uint32) *wire.Ack {
	switch outcome.Word {
	case "ignored":
		return nil
	case "accepted":
		return &wire.Ack{Root: outcome.Root[:8], Held: outcome.Held, BootId: bootID, Table: 1}
	}
	reason := wire.Ack_Reason(wire.Ack_Reason_value[outcome.Reason])
	return &wire.Ack{Kind: wire.Ack_NACK, Root: outcome.Root[:8], BootId: bootID, Reason: reason, Table: 1, Final: true}
}
