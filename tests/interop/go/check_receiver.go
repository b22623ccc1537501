package main

import (
	"encoding/hex"

	"otelctx.example/interop/wire"
)

func (r *Report) headers(folder string) {
	recording := load[struct {
		Headers []struct {
			Name   string
			Lines  []string
			Bytes  *string
			Reason *string
		}
	}](folder, "headers")
	for _, recorded := range recording.Headers {
		if len(recorded.Lines) != 1 {
			outcome := newReceiver(nil).open(recorded.Lines, 0)
			r.expect(outcome.Reason == *recorded.Reason, "headers", recorded.Name, outcome.Reason)
			continue
		}
		data, err := fromHeader(recorded.Lines[0])
		good := err == nil && recorded.Bytes != nil && hex.EncodeToString(data) == *recorded.Bytes
		if recorded.Bytes == nil {
			good = err != nil && err.Error() == *recorded.Reason
		}
		r.expect(good, "headers", recorded.Name, data, err)
	}
}

// expected is what an outcome must be.
type expected struct {
	Outcome, Reason, Kind, Domain, Root, Held string
}

func (e expected) of(outcome Outcome) bool {
	if outcome.Word != e.Outcome || outcome.Reason != e.Reason {
		return false
	}
	if e.Outcome == "ignored" {
		return true
	}
	if outcome.Kind.String() != e.Kind || hex.EncodeToString(outcome.Root) != e.Root {
		return false
	}
	return e.Outcome != "accepted" || outcome.Domain == e.Domain && outcome.Held.String() == e.Held
}

func (r *Report) outcomes(folder string) {
	recording := load[struct {
		Keys []keyForm
		Time int64
		Held []struct {
			Domain string
			State  []entryForm
		}
		Cases []struct {
			expected
			Name          string
			Lines         []string
			Trusted       bool
			OnUnknownBase string `json:"on_unknown_base"`
		}
	}](folder, "outcomes")
	for _, recorded := range recording.Cases {
		receiver := newReceiver(ringOf(recording.Keys))
		receiver.Trusted, receiver.Proceed = recorded.Trusted, recorded.OnUnknownBase == "proceed"
		for _, base := range recording.Held {
			receiver.keep(base.Domain, stateOf(base.State))
		}
		outcome := receiver.open(recorded.Lines, recording.Time)
		r.expect(recorded.of(outcome), "outcomes", recorded.Name, outcome.Word, outcome.Reason, outcome.Held)
	}
}

func (r *Report) conversations(folder string) {
	recording := load[struct {
		Keys          []keyForm
		Time          int64
		Conversations []struct {
			Name      string
			Exchanges []struct {
				At      int64
				State   []entryForm
				Worker  *string
				Frame   *string
				Ack     *string
				Outcome *expected
				Sends   string
			}
		}
	}](folder, "conversations")
	keys := ringOf(recording.Keys)
	for _, conversation := range recording.Conversations {
		receivers := map[string]*Receiver{}
		for _, step := range conversation.Exchanges {
			now := recording.Time + step.At
			state := stateOf(step.State)
			good := (step.Frame == nil) == (step.Sends == "none")
			if step.Outcome != nil {
				outcome := meet(receivers, *step.Worker, keys, *step.Outcome).open([]string{*step.Frame}, now)
				if outcome.Held == wire.Ack_PROCESS && step.Outcome.Held == "SHARED" {
					outcome.Held = wire.Ack_SHARED
				}
				good = good && step.Outcome.of(outcome) && outcome.Kind.String() == step.Sends
				if outcome.Word == "accepted" {
					good = good && hex.EncodeToString(outcome.State.root()) == hex.EncodeToString(state.root())
				}
			}
			if step.Ack != nil {
				ack, _ := readAck([]string{*step.Ack}, state.root(), keys, now)
				another := conversation.Name == "an ack of another exchange" && step.Sends == "DELTA"
				good = good && (ack == nil) == another
			}
			r.expect(good, "conversations", conversation.Name, step.At, step.Sends)
		}
	}
}

// meet gives the receiver that a worker is: a new one where the recorded one had lost its bases, the same for all where
// they share them.
func meet(receivers map[string]*Receiver, worker string, keys Ring, outcome expected) *Receiver {
	if outcome.Held == "SHARED" {
		worker = "shared"
	}
	if receivers[worker] == nil || outcome.Reason == "UNKNOWN_BASE" {
		receivers[worker] = newReceiver(keys)
	}
	receivers[worker].Proceed = outcome.Outcome == "run"
	return receivers[worker]
}
