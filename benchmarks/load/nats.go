package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// natsConnection speaks as much of the NATS protocol as a publish with an acknowledgement needs.
type natsConnection struct {
	socket net.Conn
	in     *bufio.Reader
}

func dialNats(addr, inbox string) (*natsConnection, error) {
	socket, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &natsConnection{socket, bufio.NewReaderSize(socket, 1<<16)}
	hello := "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":false}\r\nSUB " + inbox + " 1\r\n"
	_, err = socket.Write([]byte(hello))
	return c, err
}

// message is the payload of the next message; a PING on the way is answered.
func (c *natsConnection) message() ([]byte, error) {
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		words := bytes.Fields(line)
		switch {
		case len(words) == 0:
		case string(words[0]) == "PING":
			if _, err := c.socket.Write([]byte("PONG\r\n")); err != nil {
				return nil, err
			}
		case string(words[0]) == "-ERR":
			return nil, fmt.Errorf("nats: %s", line)
		case string(words[0]) == "MSG":
			size, err := strconv.Atoi(string(words[len(words)-1]))
			if err != nil {
				return nil, err
			}
			payload := make([]byte, size+2)
			_, err = io.ReadFull(c.in, payload)
			return payload[:size], err
		}
	}
}

type jetStreamPublish struct {
	connection *natsConnection
	command    []byte
	messages   int
}

func natsPublish(subject, inbox string, payload []byte) []byte {
	return fmt.Appendf(nil, "PUB %s %s %d\r\n%s\r\n", subject, inbox, len(payload), payload)
}

// newJetStreamPublish publishes to a stream, which the first connection makes, and awaits the acks.
func newJetStreamPublish(o options, number int) (session, error) {
	inbox := fmt.Sprintf("_INBOX.load%d", number)
	connection, err := dialNats(o.addr, inbox)
	if err != nil {
		return nil, err
	}
	if number == 0 {
		if err := createStream(connection, o.topic, inbox); err != nil {
			return nil, err
		}
	}
	var commands []byte
	for _, payload := range payloads(o) {
		commands = append(commands, natsPublish(o.topic, inbox, payload)...)
	}
	return &jetStreamPublish{connection, commands, o.messages}, nil
}

func createStream(c *natsConnection, name, inbox string) error {
	wanted := fmt.Sprintf(
		`{"name":%q,"subjects":[%q],"storage":"file","retention":"limits","num_replicas":1}`,
		name, name)
	_ = c.socket.SetReadDeadline(time.Now().Add(10 * time.Second))
	defer func() { _ = c.socket.SetReadDeadline(time.Time{}) }()
	_, err := c.socket.Write(natsPublish("$JS.API.STREAM.CREATE."+name, inbox, []byte(wanted)))
	if err != nil {
		return err
	}
	answer, err := c.message()
	if err == nil && bytes.Contains(answer, []byte(`"error"`)) &&
		!bytes.Contains(answer, []byte("already in use")) {
		return fmt.Errorf("nats: %s", answer)
	}
	return err
}

func (s *jetStreamPublish) once() (int, error) {
	if _, err := s.connection.socket.Write(s.command); err != nil {
		return 0, err
	}
	for i := 0; i < s.messages; i++ {
		ack, err := s.connection.message()
		if err != nil {
			return i, err
		}
		if bytes.Contains(ack, []byte(`"error"`)) {
			return i, fmt.Errorf("nats: %s", ack)
		}
	}
	return s.messages, nil
}
