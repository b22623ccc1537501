package main

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"

	"otelctx.example/interop/wire"
)

// entryForm is an entry in JSON; Canonical and Leaf in states only.
type entryForm struct {
	Key       string
	Type      string
	Value     json.RawMessage
	Canonical string
	Leaf      string
}

func unhex(digits string) []byte { return must(hex.DecodeString(digits)) }

func decoded[T any](raw json.RawMessage) T {
	var value T
	if err := json.Unmarshal(raw, &value); err != nil {
		panic(err)
	}
	return value
}

func (f entryForm) entry() Entry {
	switch f.Type {
	case "str":
		return text(f.Key, decoded[string](f.Value))
	case "int":
		return number(f.Key, must(strconv.ParseInt(decoded[string](f.Value), 10, 64)))
	case "bool":
		raw := []byte{0}
		if decoded[bool](f.Value) {
			raw[0] = 1
		}
		return Entry{f.Key, kindBool, raw}
	case "float":
		return Entry{f.Key, kindFloat, unhex(decoded[string](f.Value))}
	case "bytes":
		return Entry{f.Key, kindBytes, unhex(decoded[string](f.Value))}
	}
	panic("a type that is none: " + f.Type)
}

func stateOf(forms []entryForm) State {
	state := State{}
	for _, form := range forms {
		state[form.Key] = form.entry()
	}
	return state
}

type keyForm struct {
	ID     byte
	Domain string
	Master string
}

func ringOf(forms []keyForm) Ring {
	var ring Ring
	for _, form := range forms {
		ring = append(ring, Key{form.ID, form.Domain, unhex(form.Master)})
	}
	return ring
}

type frameForm struct {
	Kind   string
	Root   string
	Base   string
	Put    []entryForm
	Delete []string
	Table  uint32
}

func (f frameForm) frame() Frame {
	frame := Frame{Kind: wire.Frame_Kind(wire.Frame_Kind_value[f.Kind]), Root: unhex(f.Root), Base: unhex(f.Base)}
	for _, form := range f.Put {
		frame.Put = append(frame.Put, form.entry())
	}
	frame.Gone, frame.Table = f.Delete, f.Table
	return frame
}

type windowForm struct {
	Used, Limit, Level, Generation uint32
	Evicted, Version               string
}

type ackForm struct {
	Kind, Root, Held, Reason, Event, Moved string
	BootID                                 uint32 `json:"boot_id"`
	Table                                  uint32
	Final, Truncated                       bool
	Up                                     []entryForm
	Window                                 *windowForm
}

func unsigned(digits string) uint64 { return must(strconv.ParseUint(digits, 10, 64)) }

func (f ackForm) ack() *wire.Ack {
	ack := &wire.Ack{
		Kind: wire.Ack_Kind(wire.Ack_Kind_value[f.Kind]), Root: unhex(f.Root),
		Held: wire.Ack_Held(wire.Ack_Held_value[f.Held]), BootId: f.BootID,
		Reason: wire.Ack_Reason(wire.Ack_Reason_value[f.Reason]), // NONE is none of them: 0
		Table:  f.Table, Final: f.Final, Event: unsigned(f.Event), Moved: f.Moved, Truncated: f.Truncated,
	}
	for _, form := range f.Up {
		ack.Up = append(ack.Up, form.entry().message())
	}
	if w := f.Window; w != nil {
		ack.Window = &wire.Window{
			Used: w.Used, Limit: w.Limit, Evicted: unsigned(w.Evicted), Level: w.Level, Generation: w.Generation,
			Version: unsigned(w.Version),
		}
	}
	return ack
}

func load[T any](folder, name string) T {
	return decoded[T](must(os.ReadFile(filepath.Join(folder, name+".json"))))
}
