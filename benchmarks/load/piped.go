package main

import (
	"fmt"
	"sync"
)

// The scenarios of sessions: -conns goroutines share -pipes sessions.

var (
	pipesMutex sync.Mutex
	pipes      = map[int]*pipe{}
)

func sharedPipe(o options, number int) (*pipe, error) {
	pipesMutex.Lock()
	defer pipesMutex.Unlock()
	number %= o.pipes
	if pipes[number] == nil {
		opened, err := openPipe(o.addr)
		if err != nil {
			return nil, err
		}
		pipes[number] = opened
	}
	return pipes[number], nil
}

// pipedFixed sends the same call again and again.
type pipedFixed struct {
	pipe     *pipe
	waiter   chan answer
	rest     []byte
	messages int
}

func (s *pipedFixed) once() (int, error) {
	_, err := s.pipe.call(s.waiter, s.rest)
	return s.messages, err
}

func newPipedPublish(o options, number int) (session, error) {
	p, err := sharedPipe(o, number)
	rest := packString(packMap(callee(opPublish, "default", o.topic), 1), "messages")
	return &pipedFixed{p, make(chan answer, 1), packPayloads(rest, o), o.messages}, err
}

func newPipedRun(o options, number int) (session, error) {
	p, err := sharedPipe(o, number)
	rest := packMap(callee(opRun), 1)
	return &pipedFixed{p, make(chan answer, 1), packEntries(rest, o), o.messages}, err
}

func newPipedStart(o options, number int) (session, error) {
	p, err := sharedPipe(o, number)
	return &pipedFixed{p, make(chan answer, 1), pipedStart(), 0}, err
}

func pipedStart() []byte {
	return append(packString(packMap(callee(opStart), 1), "lists"), 0xc2)
}

func packPayloads(b []byte, o options) []byte {
	b = packArray(b, o.messages)
	for _, payload := range payloads(o) {
		b = packBytes(b, payload)
	}
	return b
}

// packEntries is the member publish with one entry.
func packEntries(b []byte, o options) []byte {
	b = packMap(packArray(packString(b, "publish"), 1), 3)
	b = packString(packString(b, "namespace"), "default")
	b = packString(packString(b, "topic"), o.topic)
	return packPayloads(packString(b, "messages"), o)
}

// pipedTransaction is transaction over a session.
type pipedTransaction struct {
	pipe         *pipe
	waiter       chan answer
	start        []byte
	publish      []byte
	keys, number int
	messages     int
	key          int
}

func newPipedTransaction(o options, number int) (session, error) {
	p, err := sharedPipe(o, number)
	s := &pipedTransaction{
		pipe: p, waiter: make(chan answer, 1), start: pipedStart(), keys: o.keys, number: number,
	}
	if o.scenario == "session-transaction" {
		s.publish, s.messages = packEntries(nil, o), o.messages
	}
	return s, err
}

func (s *pipedTransaction) once() (int, error) {
	begun, err := s.pipe.call(s.waiter, s.start)
	if err != nil {
		return 0, err
	}
	members, _ := begun.(map[string]any)
	id, ok := members["transactionId"].(string)
	if !ok {
		return 0, fmt.Errorf("no transactionId in %v", begun)
	}
	rest := callee(opCommit, id)
	count := 1
	if s.publish != nil {
		count = 2
	}
	rest = packArray(packString(packMap(rest, count), "changes"), s.keys)
	for i := 0; i < s.keys; i++ {
		rest = packBytes(rest, fmt.Appendf(nil, "%06d%010d", s.number, s.key))
		s.key++
	}
	_, err = s.pipe.call(s.waiter, append(rest, s.publish...))
	return s.messages, err
}
