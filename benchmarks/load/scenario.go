package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
)

// session is one connection that does one call after the other.
type session interface {
	once() (messages int, err error)
}

// scenarios make the sessions; number tells the connections of a run apart.
var scenarios = map[string]func(o options, number int) (session, error){
	"get":         newGet,
	"post":        newPost,
	"publish":     newPublish,
	"transaction": newTransaction,
	"commit":      newTransaction,
	"start":       newStart,
	"create":      newCreate,
	"spread":      newSpread,
	"run":         newRun,
	"poll":        newPoll,
	"xadd":        newRedisAdd,
	"jetstream":   newJetStreamPublish,
	"tephra":      newTephra,
	"tephra-cdap": newTephraAndCdap,

	"session-publish":     newPipedPublish,
	"session-run":         newPipedRun,
	"session-start":       newPipedStart,
	"session-commit":      newPipedTransaction,
	"session-transaction": newPipedTransaction,
}

func scenarioNames() string {
	names := make([]string, 0, len(scenarios))
	for name := range scenarios {
		names = append(names, name)
	}
	sort.Strings(names)
	return strings.Join(names, ", ")
}

func newSession(o options, number int) (session, error) {
	make, known := scenarios[o.scenario]
	if !known {
		return nil, fmt.Errorf("unknown scenario %q", o.scenario)
	}
	return make(o, number)
}

func topicPath(topic string) string { return "/v1/namespaces/default/topics/" + topic }

func payloads(o options) [][]byte {
	all := make([][]byte, o.messages)
	for i := range all {
		all[i] = bytes.Repeat([]byte{byte('a' + i%26)}, o.bytes)
	}
	return all
}

// fixed sends the same request again and again.
type fixed struct {
	connection *connection
	request    []byte
	messages   int
}

func (s *fixed) once() (int, error) { return s.messages, s.connection.call(s.request) }

func newFixed(o options, method, path, contentType string, body []byte) (session, error) {
	connection, err := dial(o.addr)
	return &fixed{connection, request(method, path, contentType, body), o.messages}, err
}

func newGet(o options, _ int) (session, error) { return newFixed(o, "GET", o.path, "", nil) }

// newPost sends the body of a publish to any path: what a bare handler is asked.
func newPost(o options, _ int) (session, error) {
	return newFixed(o, "POST", o.path, "avro/binary", publishRequest(payloads(o)))
}

func newPublish(o options, _ int) (session, error) {
	path := topicPath(o.topic) + "/publish"
	return newFixed(o, "POST", path, "avro/binary", publishRequest(payloads(o)))
}

func newRun(o options, _ int) (session, error) {
	body := fmt.Sprintf(`{"publish":[%s]}`, publishEntry(o))
	return newFixed(o, "POST", "/v1/transactions/run", "application/json", []byte(body))
}

func newStart(o options, _ int) (session, error) {
	o.messages = 0
	return newFixed(o, "POST", "/v1/transactions", "application/json", []byte(o.start))
}

func publishEntry(o options) string {
	quoted := make([]string, 0, o.messages)
	for _, payload := range payloads(o) {
		quoted = append(quoted, strconv.Quote(string(payload)))
	}
	return fmt.Sprintf(`{"namespace":"default","topic":%q,"messages":[%s]}`,
		o.topic, strings.Join(quoted, ","))
}

// transaction starts a transaction, and commits it with change keys that nobody else has; with
// scenario transaction, it publishes as well.
type transaction struct {
	connection   *connection
	start        []byte
	publish      string
	keys, number int
	messages     int
	key          int
}

func newTransaction(o options, number int) (session, error) {
	connection, err := dial(o.addr)
	s := &transaction{
		connection: connection,
		start:      request("POST", "/v1/transactions", "application/json", []byte(o.start)),
		keys:       o.keys,
		number:     number,
	}
	if o.scenario == "transaction" {
		s.publish, s.messages = `,"publish":[`+publishEntry(o)+`]`, o.messages
	}
	return s, err
}

func (s *transaction) once() (int, error) {
	if err := s.connection.call(s.start); err != nil {
		return 0, err
	}
	id, err := transactionID(s.connection.body)
	if err != nil {
		return 0, err
	}
	body := make([]byte, 0, 64+24*s.keys+len(s.publish))
	body = append(body, `{"changes":[`...)
	for i := 0; i < s.keys; i++ {
		if i > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `"%06d%010d"`, s.number, s.key) // 16 bytes
		s.key++
	}
	body = append(append(append(body, ']'), s.publish...), '}')
	path := "/v1/transactions/" + id + "/commit"
	return s.messages, s.connection.call(request("POST", path, "application/json", body))
}

func transactionID(body []byte) (string, error) {
	_, rest, found := bytes.Cut(body, []byte(`"transactionId"`))
	parts := bytes.SplitN(rest, []byte(`"`), 3)
	if !found || len(parts) < 3 {
		return "", fmt.Errorf("no transactionId in %.200s", body)
	}
	return string(parts[1]), nil
}

// numbered sends a request of its own for each number that the run hands out.
type numbered struct {
	connection *connection
	request    func(number int64) []byte
	messages   int
}

var numbers atomic.Int64

func (s *numbered) once() (int, error) {
	return s.messages, s.connection.call(s.request(numbers.Add(1) - 1))
}

func numberedTopic(o options, number int64) string {
	return fmt.Sprintf("%s%05d", o.topic, number)
}

// newCreate makes topics, the first of which has the number -window.
func newCreate(o options, _ int) (session, error) {
	connection, err := dial(o.addr)
	return &numbered{connection, func(number int64) []byte {
		return request("PUT", topicPath(numberedTopic(o, int64(o.window)+number)), "", nil)
	}, 0}, err
}

// newSpread publishes to the numbered topics in turn.
func newSpread(o options, _ int) (session, error) {
	connection, err := dial(o.addr)
	body := publishRequest(payloads(o))
	return &numbered{connection, func(number int64) []byte {
		topic := numberedTopic(o, number%int64(o.window))
		return request("POST", topicPath(topic)+"/publish", "avro/binary", body)
	}, o.messages}, err
}

// poll reads a topic from its beginning to its end, and then again; or its newest messages only.
type poll struct {
	connection *connection
	path       string
	limit      int
	from       []byte // id before the first message that is read; nil: the beginning
	after      []byte
}

var errEmpty = errors.New("there is nothing to read")

func newPoll(o options, _ int) (session, error) {
	connection, err := dial(o.addr)
	if err != nil {
		return nil, err
	}
	s := &poll{connection: connection, path: topicPath(o.topic) + "/poll", limit: o.limit}
	if o.window > 0 {
		s.from, err = s.fromEnd(o.window)
		s.after = s.from
	}
	return s, err
}

func (s *poll) once() (int, error) {
	count, err := s.read(func(id []byte) {})
	if err == nil && count == 0 {
		if bytes.Equal(s.after, s.from) {
			return 0, errEmpty
		}
		s.after = s.from
		return s.read(func(id []byte) {})
	}
	return count, err
}

func (s *poll) read(each func(id []byte)) (int, error) {
	body := consumeRequest(s.after, s.limit)
	if err := s.connection.call(request("POST", s.path, "avro/binary", body)); err != nil {
		return 0, err
	}
	var last []byte
	count, err := messagesOf(s.connection.body, func(id, _ []byte) {
		last = id
		each(id)
	})
	if last != nil {
		s.after = append([]byte(nil), last...)
	}
	return count, err
}

// fromEnd reads the whole topic once to find the id before its newest messages.
func (s *poll) fromEnd(window int) ([]byte, error) {
	ids := make([][]byte, 0, window+s.limit)
	for {
		count, err := s.read(func(id []byte) { ids = append(ids, append([]byte(nil), id...)) })
		if err != nil {
			return nil, err
		}
		if count == 0 {
			break
		}
		if spare := len(ids) - window - 1; spare > 0 {
			ids = append(ids[:0], ids[spare:]...)
		}
	}
	if len(ids) <= window {
		return nil, fmt.Errorf("the topic holds %d messages, and not more than %d", len(ids), window)
	}
	return ids[0], nil
}

// createTopic makes the topic; that it is there already is no error.
func createTopic(o options, topic string) error {
	if strings.HasPrefix(o.addr, "/") {
		return nil // a Unix socket: whoever runs this has made the topic
	}
	connection, err := dial(o.addr)
	if err != nil {
		return err
	}
	defer connection.socket.Close()
	err = connection.call(request("PUT", topicPath(topic), "", nil))
	if connection.status == 409 {
		return nil
	}
	return err
}

func unhex(text []byte) []byte {
	raw := make([]byte, hex.DecodedLen(len(text)))
	_, _ = hex.Decode(raw, text)
	return raw
}

// tickets hands out the calls of a run.
type tickets struct {
	taken atomic.Int64
	limit int64 // 0: as many as the time allows
}

func (t *tickets) take() (int64, bool) {
	n := t.taken.Add(1) - 1
	return n, t.limit == 0 || n < t.limit
}
