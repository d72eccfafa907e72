package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// Kinds of frames, and operations, of docs/session.md.
const (
	frameCall  = 1
	frameReply = 2
	frameEnd   = 6

	opPublish = 1
	opStart   = 16
	opCommit  = 18
	opRun     = 19
)

// pipe is one session, on which several goroutines make calls at the same time.
type pipe struct {
	socket  net.Conn
	calls   int // under way, at most
	mutex   sync.Mutex
	nextID  uint64
	waiting map[uint64]chan answer
	queued  []byte // frames that the writer has not taken
	wake    chan struct{}
	err     error
}

// answer is the status and the body of a reply.
type answer struct {
	status int64
	body   any
	err    error
}

func openPipe(addr string) (*pipe, error) {
	socket, err := dialTuff(addr)
	if err != nil {
		return nil, err
	}
	fmt.Fprint(socket, "GET /v1/session HTTP/1.1\r\nHost: localhost\r\n"+authorization+
		"Connection: Upgrade\r\nUpgrade: tuff-session/1\r\n\r\n")
	in := bufio.NewReaderSize(socket, 1<<16)
	for first := true; ; first = false {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if first && !strings.HasPrefix(line, "HTTP/1.1 101 ") {
			return nil, fmt.Errorf("no session: %s", strings.TrimSpace(line))
		}
		if line == "\r\n" {
			break
		}
	}
	greeting, err := readFrame(in)
	if err != nil {
		return nil, err
	}
	limits, _ := greeting[1].(map[string]any)
	calls, _ := limits["calls"].(int64)
	p := &pipe{
		socket: socket, calls: int(calls), waiting: map[uint64]chan answer{},
		wake: make(chan struct{}, 1),
	}
	go p.read(in)
	go p.write()
	return p, nil
}

func readFrame(in io.Reader) ([]any, error) {
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return nil, err
	}
	data := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(in, data); err != nil {
		return nil, err
	}
	return parseFrame(data)
}

func parseFrame(data []byte) ([]any, error) {
	u := unpacker{data: data}
	elements, ok := u.value().([]any)
	if u.err == nil && (!ok || len(elements) == 0 || len(u.data) > 0) {
		return nil, fmt.Errorf("a frame is one array, not %x", data)
	}
	return elements, u.err
}

func (p *pipe) read(in io.Reader) {
	for {
		elements, err := readFrame(in)
		if err == nil && elements[0] == int64(frameEnd) {
			err = fmt.Errorf("the server ended the session: %v", elements[1:])
		}
		if err != nil {
			p.fail(err)
			return
		}
		if elements[0] != int64(frameReply) || len(elements) != 5 {
			continue
		}
		id, _ := elements[1].(int64)
		status, _ := elements[2].(int64)
		p.mutex.Lock()
		waiter := p.waiting[uint64(id)]
		delete(p.waiting, uint64(id))
		p.mutex.Unlock()
		if waiter != nil {
			waiter <- answer{status: status, body: elements[4]}
		}
	}
}

func (p *pipe) fail(err error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.err = err
	for _, waiter := range p.waiting {
		waiter <- answer{err: err}
	}
	p.waiting = nil
}

// write sends what is queued; frames that are queued meanwhile are one write.
func (p *pipe) write() {
	spare := []byte{}
	for range p.wake {
		p.mutex.Lock()
		data := p.queued
		p.queued = spare[:0]
		p.mutex.Unlock()
		if _, err := p.socket.Write(data); err != nil {
			return // the reader gets it too
		}
		spare = data
	}
}

// call sends one call, whose elements behind the id are packed already, and waits for its reply. A
// status of 400 or more is an error.
func (p *pipe) call(waiter chan answer, rest []byte) (any, error) {
	p.mutex.Lock()
	if p.err != nil {
		p.mutex.Unlock()
		return nil, p.err
	}
	p.nextID++
	p.waiting[p.nextID] = waiter
	p.queued = appendCall(p.queued, p.nextID, rest)
	p.mutex.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
	found := <-waiter
	if found.err == nil && found.status >= 400 {
		found.err = fmt.Errorf("status %d: %v", found.status, found.body)
	}
	return found.body, found.err
}

// appendCall appends the frame of a call: operation, parameters, query and body are in rest.
func appendCall(b []byte, id uint64, rest []byte) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = packNumber(packNumber(packArray(b, 6), frameCall), id)
	b = append(b, rest...)
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// callee begins the rest of a call: the operation, its parameters, and no query.
func callee(operation uint64, parameters ...string) []byte {
	b := packArray(packNumber(nil, operation), len(parameters))
	for _, each := range parameters {
		b = packString(b, each)
	}
	return packNil(b)
}
