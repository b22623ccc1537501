package main

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"otelctx.example/interop/wire"
)

// Server is a minimal receiver with an application that says which tier it sees, and spends three tokens.
type Server struct {
	mutex    sync.Mutex
	keys     Ring
	receiver *Receiver
	boot     uint32
	turn     int64
}

func random() uint64 {
	var data [8]byte
	rand.Read(data[:])
	return binary.BigEndian.Uint64(data[:]) | 1
}

func (s *Server) restart() {
	s.receiver, s.boot = newReceiver(s.keys), uint32(random())|1
}

func (s *Server) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if request.URL.Path == "/restart" {
		s.restart()
		return
	}
	lines := request.Header.Values("otelctx")
	now := time.Now().Unix()
	outcome := Outcome{Word: "none"}
	if len(lines) > 0 {
		outcome = s.receiver.open(lines, now)
	}
	response.Header().Set("x-outcome", outcome.Word)
	response.Header().Set("x-kind", outcome.Kind.String())
	var ack *wire.Ack
	if outcome.Word != "none" {
		ack = answer(outcome, s.boot)
	}
	if outcome.Word == "accepted" {
		s.turn++
		ack.Event = random()
		ack.Up = []*wire.Entry{number("session.turn", s.turn).message(), number("usage.tokens.output", 3).message()}
		ack.Window = &wire.Window{Used: uint32(100 * s.turn), Limit: 2048, Version: uint64(s.turn)}
	}
	if ack != nil {
		body := encodeAck(ack, outcome.Signed)
		line := toHeader(body)
		if outcome.Signed {
			line = s.keys[0].seal(toClient, body, now)
		}
		response.Header().Set("otelctx-ack", line)
	}
	if outcome.Word == "refuse" {
		response.Header().Set("connection", "close")
		response.WriteHeader(http.StatusPreconditionFailed)
		return
	}
	fmt.Fprint(response, string(outcome.State["user.tier"].Raw))
}

// serve prints its port and answers until it is ended.
func serve(key string) {
	server := &Server{keys: Ring{parseKey(key)}}
	server.restart()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, server))
}
