package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"reflect"

	"google.golang.org/protobuf/proto"

	"otelctx.example/interop/wire"
)

// Report counts what agrees, by file, and says what does not.
type Report struct {
	Agreed   map[string]int `json:"agreed"`
	Differs  []string       `json:"differs"`
	SameBody int            `json:"same_bytes"` // of frames and acks, written here, with those that were recorded
	Bodies   int            `json:"bodies"`
}

func (r *Report) expect(good bool, file, name string, facts ...any) {
	if good {
		r.Agreed[file]++
	} else {
		r.Differs = append(r.Differs, fmt.Sprint(file, ": ", name, ": ", facts))
	}
}

func (r *Report) body(mine []byte, recorded string) {
	r.Bodies++
	if hex.EncodeToString(mine) == recorded {
		r.SameBody++
	}
}

func check(folder string) int {
	report := &Report{Agreed: map[string]int{}, Differs: []string{}}
	report.states(folder)
	report.frames(folder)
	report.acks(folder)
	report.macs(folder)
	report.headers(folder)
	report.outcomes(folder)
	report.conversations(folder)
	fmt.Fprintln(os.Stdout, string(must(json.Marshal(report))))
	return min(len(report.Differs), 1)
}

func (r *Report) states(folder string) {
	recording := load[struct {
		States []struct {
			Name     string
			Entries  []entryForm
			Root     string
			FullSize int `json:"full_size"`
		}
	}](folder, "states")
	for _, recorded := range recording.States {
		state, good := stateOf(recorded.Entries), true
		for _, form := range recorded.Entries {
			entry := form.entry()
			good = good && hex.EncodeToString(entry.Raw) == form.Canonical && hex.EncodeToString(entry.leaf()) == form.Leaf
		}
		good = good && hex.EncodeToString(state.root()) == recorded.Root && state.size() == recorded.FullSize
		r.expect(good, "states", recorded.Name, hex.EncodeToString(state.root()), state.size())
	}
}

func (r *Report) frames(folder string) {
	recording := load[struct {
		Keys   []keyForm
		Time   int64
		Frames []struct {
			Name, Body, Trailer, Header string
			Frame                       frameForm
			BaseState                   []entryForm `json:"base_state"`
			State                       []entryForm
			SignedBy                    *byte `json:"signed_by"`
		}
	}](folder, "frames")
	keys := ringOf(recording.Keys)
	for _, recorded := range recording.Frames {
		base, state := stateOf(recorded.BaseState), stateOf(recorded.State)
		made := map[string]func() Frame{
			"FULL": func() Frame { return full(state) }, "REF": func() Frame { return ref(state) },
			"DELTA": func() Frame { return delta(base, state) },
		}[recorded.Frame.Kind]()
		mine := made.encode()
		r.body(mine, recorded.Body)
		again, err := readFrame(mine)
		good := err == nil && same(again, made) && same(made, recorded.Frame.frame())
		body, mac := splitMAC(must(fromHeader(recorded.Header)))
		read, err := readFrame(body)
		good = good && err == nil && same(read, made) && hex.EncodeToString(body) == recorded.Body
		good = good && bytes.Equal(base.apply(read.Put, read.Gone).root(), read.Root)
		if recorded.SignedBy != nil {
			for _, key := range keys {
				if key.ID == *recorded.SignedBy {
					_, ok := keys.verify(toServer, body, mac, recording.Time)
					good = good && ok && hex.EncodeToString(key.trailer(toServer, body, recording.Time)) == recorded.Trailer
				}
			}
		}
		r.expect(good && (mac != nil) == (recorded.SignedBy != nil), "frames", recorded.Name, err)
	}
}

func same(a, b Frame) bool {
	if len(a.Put) != len(b.Put) || len(a.Gone) != len(b.Gone) {
		return false
	}
	for at, entry := range a.Put {
		if !reflect.DeepEqual(entry, b.Put[at]) && !bytes.Equal(entry.leaf(), b.Put[at].leaf()) {
			return false
		}
	}
	for at, name := range a.Gone {
		if name != b.Gone[at] {
			return false
		}
	}
	return a.Kind == b.Kind && bytes.Equal(a.Root, b.Root) && bytes.Equal(a.Base, b.Base) && a.Table == b.Table
}

func (r *Report) acks(folder string) {
	recording := load[struct {
		Keys []keyForm
		Time int64
		Acks []struct {
			Name, Body, Trailer, Header string
			Ack                         ackForm
			Signed                      bool
		}
		Shortened []struct {
			Name, Body string
			Given      ackForm
			Signed     bool
			Kept       int
		}
		Ignored []struct {
			Name, Root string
			Lines      []string
		}
	}](folder, "acks")
	keys := ringOf(recording.Keys)
	for _, recorded := range recording.Acks {
		made := recorded.Ack.ack()
		r.body(encodeAck(made, recorded.Signed), recorded.Body)
		believed := keys
		if !recorded.Signed {
			believed = nil
		}
		read, _ := readAck([]string{recorded.Header}, append(made.Root, make([]byte, 8)...), believed, recording.Time)
		good := read != nil && proto.Equal(read, made)
		if recorded.Signed {
			trailer := keys[0].trailer(toClient, unhex(recorded.Body), recording.Time)
			good = good && hex.EncodeToString(trailer) == recorded.Trailer
		}
		r.expect(good, "acks", recorded.Name, read)
	}
	for _, recorded := range recording.Shortened {
		mine := encodeAck(recorded.Given.ack(), recorded.Signed)
		r.body(mine, recorded.Body)
		read := &wire.Ack{}
		good := proto.Unmarshal(mine, read) == nil && read.Truncated && len(read.Up) == recorded.Kept
		r.expect(good, "acks", recorded.Name, len(read.Up))
	}
	for _, recorded := range recording.Ignored {
		ack, _ := readAck(recorded.Lines, append(unhex(recorded.Root), make([]byte, 8)...), keys, recording.Time)
		r.expect(ack == nil, "acks", recorded.Name, ack)
	}
}

func (r *Report) macs(folder string) {
	recording := load[struct {
		Keys []keyForm
		Macs []struct {
			Key                             byte
			Time                            int64
			Hour                            uint64
			HourKey                         string `json:"hour_key"`
			Direction, Body, Input, Trailer string
		}
		Accepted []struct {
			Name, Mac, Direction, Body string
			Time                       int64
			Domain                     *string
		}
	}](folder, "macs")
	keys := ringOf(recording.Keys)
	for _, recorded := range recording.Macs {
		for _, key := range keys {
			if key.ID == recorded.Key {
				body := unhex(recorded.Body)
				good := hex.EncodeToString(key.hourKey(recorded.Hour)) == recorded.HourKey &&
					hex.EncodeToString(key.input(recorded.Direction, body)) == recorded.Input &&
					hex.EncodeToString(key.trailer(recorded.Direction, body, recorded.Time)) == recorded.Trailer
				r.expect(good, "macs", recorded.Trailer)
			}
		}
	}
	for _, recorded := range recording.Accepted {
		domain, ok := keys.verify(recorded.Direction, unhex(recorded.Body), unhex(recorded.Mac), recorded.Time)
		good := ok == (recorded.Domain != nil) && (!ok || domain == *recorded.Domain)
		r.expect(good, "macs", recorded.Name, domain, ok)
	}
}
