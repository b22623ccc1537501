package main

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	toServer = ">"
	toClient = "<"
)

func toHeader(data []byte) string { return ":" + base64.StdEncoding.EncodeToString(data) + ":" }

func fromHeader(line string) ([]byte, error) {
	if len([]rune(line)) > 4096 {
		return nil, oversized
	}
	line = strings.Trim(line, " \t")
	if len(line) < 2 || line[0] != ':' || line[len(line)-1] != ':' || strings.ContainsAny(line, "\r\n") {
		return nil, malformed
	}
	data, err := base64.StdEncoding.DecodeString(line[1 : len(line)-1])
	if err != nil {
		return nil, malformed
	}
	if len(data) > 3060 {
		return nil, oversized
	}
	return data, nil
}

// splitMAC returns the body, and key id and MAC if there is a trailer.
func splitMAC(data []byte) (body, mac []byte) {
	at := len(data) - 19
	if at <= 0 || data[at] != 0x7a || data[at+1] != 0x11 {
		return data, nil
	}
	for place := 0; place < at; {
		place = nextField(data, place)
		if place < 0 || place > at {
			return data, nil
		}
	}
	return data[:at], data[at+2:]
}

// nextField says where the field that begins at place ends, or -1.
func nextField(data []byte, place int) int {
	tag, n := protowire.ConsumeVarint(data[place:])
	if n < 0 {
		return -1
	}
	place += n
	switch tag & 7 {
	case 0:
		_, n = protowire.ConsumeVarint(data[place:])
	case 1:
		n = 8
	case 2:
		_, n = protowire.ConsumeBytes(data[place:])
	case 5:
		n = 4
	default:
		n = -1
	}
	if n < 0 {
		return -1
	}
	return place + n
}

// Key is one master.
type Key struct {
	ID     byte
	Domain string
	Master []byte
}

func (k Key) hourKey(hour uint64) []byte {
	info := "otelctx/1\x00" + k.Domain + "\x00" + string(binary.BigEndian.AppendUint64(nil, hour))
	return must(hkdf.Key(sha256.New, k.Master, nil, info, 32))
}

func (k Key) input(direction string, body []byte) []byte {
	length := binary.BigEndian.AppendUint16(nil, uint16(len(k.Domain)))
	return bytes.Join([][]byte{[]byte("otelctx/1\x00" + direction), length, []byte(k.Domain), body}, nil)
}

func (k Key) mac(direction string, body []byte, hour uint64) []byte {
	hash := hmac.New(sha256.New, k.hourKey(hour))
	hash.Write(k.input(direction, body))
	return hash.Sum(nil)[:16]
}

func (k Key) trailer(direction string, body []byte, now int64) []byte {
	return append([]byte{0x7a, 0x11, k.ID}, k.mac(direction, body, uint64(now)/3600)...)
}

func (k Key) seal(direction string, body []byte, now int64) string {
	return toHeader(append(bytes.Clone(body), k.trailer(direction, body, now)...))
}

// Ring lists keys; the first signs.
type Ring []Key

func (r Ring) verify(direction string, body, mac []byte, now int64) (string, bool) {
	for _, key := range r {
		if key.ID != mac[0] {
			continue
		}
		hour := now / 3600
		for _, candidate := range []int64{hour, max(hour-1, 0), hour + 1} {
			if hmac.Equal(key.mac(direction, body, uint64(candidate)), mac[1:]) {
				return key.Domain, true
			}
		}
	}
	return "", false
}

// parseKey reads id:base64, of the domain default.
func parseKey(written string) Key {
	var id byte
	number, secret, found := strings.Cut(written, ":")
	if _, err := fmt.Sscan(number, &id); err != nil || !found {
		panic("a key is id:base64")
	}
	return Key{id, "default", must(base64.StdEncoding.DecodeString(secret))}
}
