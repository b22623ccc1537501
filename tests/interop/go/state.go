// Command interop speaks otelctx/1 as docs/wire-format.md says, with nothing of the Python implementation.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"otelctx.example/interop/wire"
)

const (
	kindStr   = 1
	kindInt   = 2
	kindBool  = 3
	kindFloat = 4
	kindBytes = 5
)

const (
	incomplete = "otelctx.incomplete"
	sessionKey = "session.id"
)

// table is revision 1.
var table = map[uint32]string{
	1: "session.id", 2: "tenant.id", 3: "user.id", 4: "gen_ai.conversation.id", 5: "gen_ai.request.model",
	6: "gen_ai.agent.id", 7: "gen_ai.agent.name", 8: "deployment.environment.name", 9: "cloud.region",
	10: "service.origin", 11: "client.locale", 12: "user.tier", 13: "feature.flags", 14: "request.priority",
	15: "limit.tokens.total", 16: "limit.tokens.output", 17: "prompt.version", 18: "canary.arm", 19: "debug.sample",
	20: incomplete, 21: "policy.id", 32: "usage.tokens.input", 33: "usage.tokens.output", 34: "session.turn",
	35: "window.overflowed", 36: "window.truncated",
}

var ids = func() map[string]uint32 {
	found := make(map[string]uint32, len(table))
	for id, name := range table {
		found[name] = id
	}
	return found
}()

// Entry has its value in canonical bytes, which are all that two implementations compare.
type Entry struct {
	Name string
	Kind byte
	Raw  []byte
}

func (e Entry) leaf() []byte {
	var text bytes.Buffer
	write := func(part []byte) {
		binary.Write(&text, binary.BigEndian, uint16(len(part)))
		text.Write(part)
	}
	write([]byte(e.Name))
	text.WriteByte(e.Kind)
	write(e.Raw)
	sum := sha256.Sum256(text.Bytes())
	return sum[:16]
}

// State is a map by name.
type State map[string]Entry

func (s State) entries() []Entry {
	found := make([]Entry, 0, len(s))
	for _, entry := range s {
		found = append(found, entry)
	}
	slices.SortFunc(found, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return found
}

func (s State) root() []byte {
	if len(s) == 0 {
		return make([]byte, 16)
	}
	hash := sha256.New()
	for _, entry := range s.entries() {
		hash.Write(entry.leaf())
	}
	return hash.Sum(nil)[:16]
}

func (s State) hasSession() bool {
	entry, ok := s[sessionKey]
	return ok && entry.Kind == kindStr
}

// size counts a FULL frame with MAC and the mark of completeness.
func (s State) size() int {
	total := 22 + 19
	if _, ok := s[incomplete]; !ok {
		total += 6
	}
	for _, entry := range s {
		total += proto.Size(&wire.Frame{Put: []*wire.Entry{entry.message()}})
	}
	return total
}

func (s State) within() bool {
	count := len(s)
	if _, ok := s[incomplete]; ok {
		count--
	}
	return count < 64 && s.size() <= 2900
}

func (s State) apply(put []Entry, gone []string) State {
	next := make(State, len(s)+len(put))
	for name, entry := range s {
		next[name] = entry
	}
	for _, name := range gone {
		delete(next, name)
	}
	for _, entry := range put {
		next[entry.Name] = entry
	}
	return next
}

func (s State) diff(target State) (put []Entry, gone []string) {
	for _, entry := range target.entries() {
		if old, ok := s[entry.Name]; !ok || !bytes.Equal(old.leaf(), entry.leaf()) {
			put = append(put, entry)
		}
	}
	for _, entry := range s.entries() {
		if _, ok := target[entry.Name]; !ok {
			gone = append(gone, entry.Name)
		}
	}
	return put, gone
}

func (e Entry) message() *wire.Entry {
	made := &wire.Entry{}
	if id, ok := ids[e.Name]; ok {
		made.Key = &wire.Entry_Id{Id: id}
	} else {
		made.Key = &wire.Entry_Name{Name: e.Name}
	}
	switch e.Kind {
	case kindStr:
		made.Value = &wire.Entry_Text{Text: string(e.Raw)}
	case kindInt:
		made.Value = &wire.Entry_Int{Int: int64(binary.BigEndian.Uint64(e.Raw))}
	case kindBool:
		made.Value = &wire.Entry_Bool{Bool: e.Raw[0] == 1}
	case kindFloat:
		made.Value = &wire.Entry_Float{Float: math.Float64frombits(binary.BigEndian.Uint64(e.Raw))}
	case kindBytes:
		made.Value = &wire.Entry_Bytes{Bytes: e.Raw}
	}
	return made
}

func text(name, value string) Entry { return Entry{name, kindStr, []byte(value)} }

func number(name string, value int64) Entry {
	return Entry{name, kindInt, binary.BigEndian.AppendUint64(nil, uint64(value))}
}
