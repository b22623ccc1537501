package main

import (
	"encoding/binary"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"otelctx.example/interop/wire"
)

// fault is a word of the receiver's table.
type fault string

func (f fault) Error() string { return string(f) }

const (
	malformed = fault("malformed")
	oversized = fault("oversized")
)

// Frame as values.
type Frame struct {
	Kind  wire.Frame_Kind
	Root  []byte
	Base  []byte
	Put   []Entry
	Gone  []string
	Table uint32
}

func full(state State) Frame {
	return Frame{Kind: wire.Frame_FULL, Root: state.root(), Put: state.entries(), Table: 1}
}

func ref(state State) Frame { return Frame{Kind: wire.Frame_REF, Root: state.root(), Table: 1} }

func delta(base, state State) Frame {
	put, gone := base.diff(state)
	return Frame{wire.Frame_DELTA, state.root(), base.root()[:8], put, gone, 1}
}

func (f Frame) encode() []byte {
	made := &wire.Frame{Kind: f.Kind, Root: f.Root, Base: f.Base, Table: f.Table}
	for _, entry := range f.Put {
		made.Put = append(made.Put, entry.message())
	}
	for _, name := range f.Gone {
		if id, ok := ids[name]; ok {
			made.DelIds = append(made.DelIds, id)
		} else {
			made.DelNames = append(made.DelNames, name)
		}
	}
	return must(proto.MarshalOptions{Deterministic: true}.Marshal(made))
}

func readFrame(body []byte) (Frame, error) {
	read := &wire.Frame{}
	if proto.Unmarshal(body, read) != nil {
		return Frame{}, malformed
	}
	if len(read.Put) > 64 || len(read.DelIds)+len(read.DelNames) > 64 {
		return Frame{}, oversized
	}
	frame := Frame{Kind: read.Kind, Root: read.Root, Base: read.Base, Table: read.Table}
	baseLength := 0
	if read.Kind == wire.Frame_DELTA {
		baseLength = 8
	}
	if read.Kind < 1 || read.Kind > 3 || len(read.Root) != 16 || len(read.Base) != baseLength || read.Table < 1 {
		return Frame{}, malformed
	}
	if read.Table > 1 {
		return frame, nil
	}
	put, err := readEntries(read.Put, 1024)
	if err != nil {
		return Frame{}, err
	}
	for _, id := range read.DelIds {
		frame.Gone = append(frame.Gone, table[id])
	}
	for _, name := range read.DelNames {
		if _, ok := ids[name]; ok || !isName(name) {
			return Frame{}, malformed
		}
		frame.Gone = append(frame.Gone, name)
	}
	slices.Sort(frame.Gone)
	frame.Put = put
	keys := append([]string(nil), frame.Gone...)
	for _, entry := range put {
		keys = append(keys, entry.Name)
	}
	gone := len(frame.Gone) > 0
	if slices.Contains(frame.Gone, "") || !unique(keys) ||
		(read.Kind == wire.Frame_REF && len(put) > 0) || (read.Kind != wire.Frame_DELTA && gone) {
		return Frame{}, malformed
	}
	return frame, nil
}

func readEntries(messages []*wire.Entry, limit int) ([]Entry, error) {
	found := make([]Entry, 0, len(messages))
	names := make([]string, 0, len(messages))
	for _, message := range messages {
		entry, err := readEntry(message, limit)
		if err != nil {
			return nil, err
		}
		found, names = append(found, entry), append(names, entry.Name)
	}
	if !unique(names) {
		return nil, malformed
	}
	return found, nil
}

func readEntry(message *wire.Entry, limit int) (Entry, error) {
	var name string
	switch key := message.Key.(type) {
	case *wire.Entry_Id:
		name = table[key.Id]
	case *wire.Entry_Name:
		name = key.Name
		if _, ok := ids[name]; ok {
			return Entry{}, malformed
		}
	}
	if !isName(name) {
		return Entry{}, malformed
	}
	entry := Entry{Name: name}
	switch value := message.Value.(type) {
	case *wire.Entry_Text:
		entry.Kind, entry.Raw = kindStr, []byte(value.Text)
	case *wire.Entry_Int:
		entry = number(name, value.Int)
	case *wire.Entry_Bool:
		entry.Kind, entry.Raw = kindBool, []byte{0}
		if value.Bool {
			entry.Raw[0] = 1
		}
	case *wire.Entry_Float:
		if math.IsNaN(value.Float) {
			return Entry{}, malformed
		}
		bits := math.Float64bits(value.Float)
		if value.Float == 0 { // minus zero, too
			bits = 0
		}
		entry.Kind, entry.Raw = kindFloat, binary.BigEndian.AppendUint64(nil, bits)
	case *wire.Entry_Bytes:
		entry.Kind, entry.Raw = kindBytes, value.Bytes
	default:
		return Entry{}, malformed
	}
	if len(entry.Raw) > limit {
		return Entry{}, oversized
	}
	return entry, nil
}

func isName(name string) bool {
	if len(name) < 1 || len(name) > 64 {
		return false
	}
	for at, char := range []byte(name) {
		plain := char >= 'a' && char <= 'z' || char >= '0' && char <= '9'
		mark := char == '_' || char == '.' || char == '/' || char == '-'
		if !plain && (at == 0 || !mark) {
			return false
		}
	}
	return true
}

func unique(names []string) bool {
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
