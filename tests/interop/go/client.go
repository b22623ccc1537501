package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"otelctx.example/interop/wire"
)

// Link is the least that may send REF and DELTA: it keeps what it was acked, and repeats with FULL after a refusal.
type Link struct {
	url  string
	keys Ring
	acks int
	boot uint32
	held []State // acknowledged last, last
}

// Exchange is what the driver of the test reads, one JSON object a line.
type Exchange struct {
	Kinds   []string         `json:"kinds"`
	Status  int              `json:"status"`
	Body    string           `json:"body"`
	Ack     string           `json:"ack"`
	Held    string           `json:"held"`
	Up      map[string]int64 `json:"up"`
	Window  []uint64         `json:"window"`
	Carried int              `json:"characters"`
}

func (l *Link) frame(state State, mustBeFull bool) Frame {
	if mustBeFull || l.acks < 3 || len(l.held) == 0 {
		return full(state)
	}
	for _, base := range l.held {
		if string(base.root()) == string(state.root()) {
			return ref(state)
		}
	}
	if made := delta(l.held[len(l.held)-1], state); len(made.encode()) < len(full(state).encode()) {
		return made
	}
	return full(state)
}

func (l *Link) post(path string, state State) Exchange {
	exchange := Exchange{Up: map[string]int64{}}
	for attempt := range 2 {
		frame := l.frame(state, attempt > 0)
		exchange.Kinds = append(exchange.Kinds, frame.Kind.String())
		line := l.keys[0].seal(toServer, frame.encode(), time.Now().Unix())
		request := must(http.NewRequest("POST", l.url+path, strings.NewReader("hello")))
		request.Header.Set("otelctx", line)
		response := must(http.DefaultClient.Do(request))
		body := must(io.ReadAll(response.Body))
		response.Body.Close()
		exchange.Status, exchange.Body, exchange.Carried = response.StatusCode, string(body), len(line)
		ack, up := readAck(response.Header.Values("otelctx-ack"), frame.Root, l.keys, time.Now().Unix())
		if ack == nil {
			l.acks, exchange.Ack = 0, ""
			return exchange
		}
		exchange.Ack, exchange.Held = ack.Kind.String(), ack.Held.String()
		if ack.BootId != l.boot {
			l.boot, l.held = ack.BootId, nil
		}
		if ack.Kind == wire.Ack_NACK {
			l.held = nil
			if response.StatusCode == http.StatusPreconditionFailed && frame.Kind != wire.Frame_FULL {
				continue
			}
			return exchange
		}
		l.learn(state, ack)
		exchange.read(ack, up)
		return exchange
	}
	return exchange
}

func (l *Link) learn(state State, ack *wire.Ack) {
	l.acks++
	if ack.Held != wire.Ack_NONE {
		l.held = append(l.held, state)
		l.held = l.held[max(0, len(l.held)-4):]
	}
}

func (e *Exchange) read(ack *wire.Ack, up []Entry) {
	for _, entry := range up {
		if value, ok := entry.message().Value.(*wire.Entry_Int); ok {
			e.Up[entry.Name] = value.Int
		}
	}
	if w := ack.Window; w != nil {
		e.Window = []uint64{uint64(w.Used), uint64(w.Limit), w.Evicted, uint64(w.Level), uint64(w.Generation), w.Version}
	}
}

// converse holds the conversation that the test expects: argv has the URL and the key.
func converse(url, key string) {
	link := &Link{url: url, keys: Ring{parseKey(key)}}
	gold := State{}.apply([]Entry{text(sessionKey, "go-1"), text("tenant.id", "acme"), text("app.tier", "gold")}, nil)
	silver := gold.apply([]Entry{text("app.tier", "silver"), number("app.number", -7)}, nil)
	bare := silver.apply(nil, []string{"app.tier", "tenant.id"})
	steps := []struct {
		path  string
		state State
	}{
		{"/chat", gold}, {"/chat", gold}, {"/chat", gold}, {"/chat", gold}, {"/chat", silver}, {"/chat", silver},
		{"/chat", bare}, {"/restart", bare}, {"/chat", silver}, {"/chat", silver},
	}
	for _, step := range steps {
		fmt.Fprintln(os.Stdout, string(must(json.Marshal(link.post(step.path, step.state)))))
	}
}
