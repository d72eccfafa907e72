package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
)

// connection is one keep-alive HTTP/1.1 connection. Its reply is valid until the next call.
type connection struct {
	socket net.Conn
	in     *bufio.Reader
	body   []byte
	next   []byte // Tuff-Next of the last reply, in hex
	first  []byte // Tuff-First-Id of the last reply, in hex
	status int
}

func dial(addr string) (*connection, error) {
	socket, err := dialTuff(addr)
	if err != nil {
		return nil, err
	}
	return &connection{socket: socket, in: bufio.NewReaderSize(socket, 1<<16)}, nil
}

// request is the bytes of one request; contentType may be empty.
func request(method, path, contentType string, body []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path, authorization)
	if contentType != "" {
		fmt.Fprintf(&b, "Content-Type: %s\r\n", contentType)
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n", len(body))
	b.Write(body)
	return b.Bytes()
}

// call sends a request and reads its whole reply; a status other than 200 and 201 is an error.
func (c *connection) call(request []byte) error {
	if _, err := c.socket.Write(request); err != nil {
		return err
	}
	if err := c.readReply(); err != nil {
		return err
	}
	if c.status != 200 && c.status != 201 {
		return fmt.Errorf("status %d: %.200s", c.status, c.body)
	}
	return nil
}

func (c *connection) readReply() error {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if len(line) < 12 {
		return fmt.Errorf("no status line: %q", line)
	}
	if c.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return err
	}
	length, chunked, err := c.readHead()
	if err != nil {
		return err
	}
	if chunked {
		return c.readChunks()
	}
	return c.readBody(length)
}

func (c *connection) readHead() (length int, chunked bool, err error) {
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return length, chunked, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, false, err
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			chunked = bytes.EqualFold(value, []byte("chunked"))
		case bytes.EqualFold(name, []byte("tuff-next")):
			c.next = append(c.next[:0], value...)
		case bytes.EqualFold(name, []byte("tuff-first-id")):
			c.first = append(c.first[:0], value...)
		}
	}
}

func (c *connection) readBody(length int) error {
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	_, err := io.ReadFull(c.in, c.body)
	return err
}

func (c *connection) readChunks() error {
	c.body = c.body[:0]
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		from := len(c.body)
		c.body = append(c.body, make([]byte, size+2)...)
		if _, err := io.ReadFull(c.in, c.body[from:]); err != nil {
			return err
		}
		c.body = c.body[:from+int(size)]
		if size == 0 {
			return nil
		}
	}
}
