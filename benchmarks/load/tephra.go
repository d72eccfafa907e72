package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// thriftConnection speaks as much framed, binary Thrift as Tephra's transaction service needs.
type thriftConnection struct {
	socket net.Conn
	in     *bufio.Reader
	frame  []byte
}

const (
	thriftI64    = 10
	thriftStruct = 12
	thriftSet    = 14
	thriftString = 11
	thriftCall   = 0x80010001
	thriftReply  = 0x80010002
)

func dialThrift(addr string) (*thriftConnection, error) {
	socket, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &thriftConnection{socket: socket, in: bufio.NewReaderSize(socket, 1<<16)}, nil
}

// thriftMessage is one call: arguments are the fields of its argument struct.
func thriftMessage(method string, arguments []byte) []byte {
	b := make([]byte, 4, 64+len(arguments))
	b = binary.BigEndian.AppendUint32(b, thriftCall)
	b = binary.BigEndian.AppendUint32(b, uint32(len(method)))
	b = append(b, method...)
	b = binary.BigEndian.AppendUint32(b, 0) // sequence number: one call at a time
	b = append(append(b, arguments...), 0)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func thriftField(b []byte, kind byte, id uint16) []byte {
	return binary.BigEndian.AppendUint16(append(b, kind), id)
}

func thriftLong(b []byte, id uint16, value int64) []byte {
	return binary.BigEndian.AppendUint64(thriftField(b, thriftI64, id), uint64(value))
}

// call returns the result struct of the reply.
func (c *thriftConnection) call(method string, arguments []byte) ([]byte, error) {
	if _, err := c.socket.Write(thriftMessage(method, arguments)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c.in, size[:]); err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(size[:]))
	if cap(c.frame) < length {
		c.frame = make([]byte, length)
	}
	c.frame = c.frame[:length]
	if _, err := io.ReadFull(c.in, c.frame); err != nil {
		return nil, err
	}
	head := 4 + 4 + len(method) + 4
	if length <= head || binary.BigEndian.Uint32(c.frame) != thriftReply {
		return nil, fmt.Errorf("thrift: %s: %q", method, c.frame)
	}
	return c.frame[head:], nil
}

// callVoid fails when the reply carries an exception.
func (c *thriftConnection) callVoid(method string, arguments []byte) error {
	result, err := c.call(method, arguments)
	if err == nil && result[0] != 0 {
		return fmt.Errorf("thrift: %s: %q", method, result)
	}
	return err
}

// start returns the write pointer, which in a new transaction is its id: the first field.
func (c *thriftConnection) start() (int64, error) {
	result, err := c.call("startShort", nil)
	if err != nil {
		return 0, err
	}
	if len(result) < 14 || result[0] != thriftStruct || result[3] != thriftI64 {
		return 0, fmt.Errorf("thrift: startShort: %q", result)
	}
	return int64(binary.BigEndian.Uint64(result[6:])), nil
}

func (c *thriftConnection) canCommit(pointer int64, keys [][]byte) error {
	b := thriftLong(nil, 1, pointer)
	b = append(thriftField(b, thriftSet, 2), thriftString)
	b = binary.BigEndian.AppendUint32(b, uint32(len(keys)))
	for _, key := range keys {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(key))), key...)
	}
	return c.callVoid("canCommitOrThrow", b)
}

func (c *thriftConnection) commit(pointer int64) error {
	return c.callVoid("commitOrThrow", thriftLong(thriftLong(nil, 1, pointer), 2, pointer))
}

// tephra does a transaction of Tephra; where it has an HTTP connection, with a message of CDAP's.
type tephra struct {
	thrift    *thriftConnection
	http      *connection
	path      string
	payloads  [][]byte
	keys, key int
	number    int
}

func newTephra(o options, number int) (session, error) {
	thrift, err := dialThrift(o.addr)
	return &tephra{thrift: thrift, keys: o.keys, number: number}, err
}

func newTephraAndCdap(o options, number int) (session, error) {
	thrift, err := dialThrift(o.thrift)
	if err != nil {
		return nil, err
	}
	http, err := dial(o.addr)
	return &tephra{
		thrift: thrift, http: http, path: topicPath(o.topic) + "/publish",
		payloads: payloads(o), keys: o.keys, number: number,
	}, err
}

func (s *tephra) once() (int, error) {
	pointer, err := s.thrift.start()
	if err != nil {
		return 0, err
	}
	keys := make([][]byte, s.keys)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%06d%010d", s.number, s.key)
		s.key++
	}
	if err := s.thrift.canCommit(pointer, keys); err != nil {
		return 0, err
	}
	if s.http != nil {
		body := publishRequest(s.payloads)
		body = append(zigzag([]byte{0}, pointer), body[1:]...) // in the place of "no pointer"
		if err := s.http.call(request("POST", s.path, "avro/binary", body)); err != nil {
			return 0, err
		}
	}
	return len(s.payloads), s.thrift.commit(pointer)
}
