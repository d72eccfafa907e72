package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The part of MessagePack that sessions use: nil, booleans, numbers, strings, bytes, arrays, maps.

func packArray(b []byte, count int) []byte { return packHead(b, count, 0x90, 15, 0xdc) }
func packMap(b []byte, count int) []byte   { return packHead(b, count, 0x80, 15, 0xde) }
func packNil(b []byte) []byte              { return append(b, 0xc0) }

// packHead is the head of a value with a fixed form for small counts, and forms of 16 and 32 bits.
func packHead(b []byte, count int, small byte, smallMax int, wide byte) []byte {
	switch {
	case count <= smallMax:
		return append(b, small|byte(count))
	case count < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, wide), uint16(count))
	}
	return binary.BigEndian.AppendUint32(append(b, wide+1), uint32(count))
}

func packString(b []byte, text string) []byte {
	if n := len(text); n > 31 && n < 256 {
		return append(append(b, 0xd9, byte(n)), text...)
	}
	return append(packHead(b, len(text), 0xa0, 31, 0xda), text...)
}

func packBytes(b, data []byte) []byte {
	switch n := len(data); {
	case n < 256:
		b = append(b, 0xc4, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0xc5), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xc6), uint32(n))
	}
	return append(b, data...)
}

func packNumber(b []byte, n uint64) []byte {
	switch {
	case n < 128:
		return append(b, byte(n))
	case n < 1<<8:
		return append(b, 0xcc, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), n)
}

var errShort = errors.New("MessagePack: the value is not whole")

// unpacker reads values. The first error stays, and every later value is nil.
type unpacker struct {
	data []byte
	err  error
}

func (u *unpacker) take(count int) []byte {
	if u.err != nil || count > len(u.data) {
		if u.err == nil {
			u.err = errShort
		}
		return make([]byte, min(count, 8)) // zeros: the caller goes on, and the error is reported
	}
	taken := u.data[:count]
	u.data = u.data[count:]
	return taken
}

func (u *unpacker) number(bytes int) uint64 {
	n := uint64(0)
	for _, digit := range u.take(bytes) {
		n = n<<8 | uint64(digit)
	}
	return n
}

// value is nil, bool, int64, uint64, float64, string, []byte, []any or map[string]any.
func (u *unpacker) value() any {
	if u.err != nil {
		return nil
	}
	switch kind := u.take(1)[0]; {
	case kind < 0x80:
		return int64(kind)
	case kind < 0x90:
		return u.mapOf(int(kind & 15))
	case kind < 0xa0:
		return u.arrayOf(int(kind & 15))
	case kind < 0xc0:
		return string(u.take(int(kind & 31)))
	case kind >= 0xe0:
		return int64(int8(kind))
	default:
		return u.other(kind)
	}
}

func (u *unpacker) other(kind byte) any {
	switch kind {
	case 0xc0:
		return nil
	case 0xc2, 0xc3:
		return kind == 0xc3
	case 0xc4, 0xc5, 0xc6:
		return u.take(int(u.number(1 << (kind - 0xc4))))
	case 0xca:
		return float64(math.Float32frombits(uint32(u.number(4))))
	case 0xcb:
		return math.Float64frombits(u.number(8))
	case 0xcc, 0xcd, 0xce:
		return int64(u.number(1 << (kind - 0xcc)))
	case 0xcf:
		return u.number(8)
	case 0xd0, 0xd1, 0xd2, 0xd3:
		bits := 8 << (kind - 0xd0)
		return int64(u.number(bits/8)) << (64 - bits) >> (64 - bits)
	case 0xd9, 0xda, 0xdb:
		return string(u.take(int(u.number(1 << (kind - 0xd9)))))
	case 0xdc, 0xdd:
		return u.arrayOf(int(u.number(2 << (kind - 0xdc))))
	case 0xde, 0xdf:
		return u.mapOf(int(u.number(2 << (kind - 0xde))))
	}
	u.err = fmt.Errorf("MessagePack: type %#x is not used by sessions", kind)
	return nil
}

func (u *unpacker) arrayOf(count int) []any {
	all := make([]any, 0, min(count, 1024))
	for i := 0; i < count && u.err == nil; i++ {
		all = append(all, u.value())
	}
	return all
}

func (u *unpacker) mapOf(count int) map[string]any {
	all := make(map[string]any, min(count, 1024))
	for i := 0; i < count && u.err == nil; i++ {
		name, ok := u.value().(string)
		if !ok && u.err == nil {
			u.err = errors.New("MessagePack: a name in a map is no string")
		}
		all[name] = u.value()
	}
	return all
}
