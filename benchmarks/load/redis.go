package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
)

// redisConnection speaks as much of RESP 2 as streams need.
type redisConnection struct {
	socket net.Conn
	in     *bufio.Reader
}

func dialRedis(addr string) (*redisConnection, error) {
	socket, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &redisConnection{socket, bufio.NewReaderSize(socket, 1<<16)}, nil
}

func redisCommand(words ...[]byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	return b.Bytes()
}

func (c *redisConnection) call(command []byte) (any, error) {
	if _, err := c.socket.Write(command); err != nil {
		return nil, err
	}
	return c.reply()
}

// reply is a []byte, an int64, a []any, or nil.
func (c *redisConnection) reply() (any, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	kind, text := line[0], string(bytes.TrimSpace(line[1:]))
	switch kind {
	case '+':
		return []byte(text), nil
	case '-':
		return nil, fmt.Errorf("redis: %s", text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || kind == ':' || n < 0 {
		if kind == ':' {
			return n, err
		}
		return nil, err
	}
	if kind == '$' {
		value := make([]byte, n+2)
		_, err := io.ReadFull(c.in, value)
		return value[:n], err
	}
	all := make([]any, n)
	for i := range all {
		if all[i], err = c.reply(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

type redisAdd struct {
	connection *redisConnection
	command    []byte
	messages   int
}

// newRedisAdd sends the XADDs of one call in one write, and awaits all their answers.
func newRedisAdd(o options, _ int) (session, error) {
	connection, err := dialRedis(o.addr)
	var commands []byte
	for _, payload := range payloads(o) {
		commands = append(commands, xadd(o.topic, payload)...)
	}
	return &redisAdd{connection, commands, o.messages}, err
}

func xadd(stream string, payload []byte) []byte {
	return redisCommand([]byte("XADD"), []byte(stream), []byte("*"), []byte("p"), payload)
}

func (s *redisAdd) once() (int, error) {
	if _, err := s.connection.socket.Write(s.command); err != nil {
		return 0, err
	}
	for i := 0; i < s.messages; i++ {
		if _, err := s.connection.reply(); err != nil {
			return i, err
		}
	}
	return s.messages, nil
}
