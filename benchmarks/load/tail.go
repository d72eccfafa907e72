package main

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// Modes tail and idle: readers that wait at the end of a topic.

// follower is a reader that waits for new messages; it hands over the payloads of each delivery.
type follower interface {
	follow(each func(payload []byte)) error
	close()
}

// newFollowers are readers at the end of the topic; only the first one goes and looks for that.
func newFollowers(o options, count int) ([]follower, error) {
	all := make([]follower, 0, count)
	var end []byte
	for range count {
		if o.target == "redis" {
			connection, err := dialRedis(o.addr)
			if err != nil {
				return nil, err
			}
			all = append(all, &redisFollower{connection, []byte(o.topic), []byte("$")})
			continue
		}
		connection, err := dial(o.addr)
		if err != nil {
			return nil, fmt.Errorf("connection %d: %w", len(all), err)
		}
		f := &longPoll{connection: connection, path: topicPath(o.topic) + "/poll", after: end}
		if err := f.seekEnd(); err != nil {
			return nil, err
		}
		end = f.after
		all = append(all, f)
	}
	return all, nil
}

// longPoll is a committed reader: the server takes a fresh snapshot for each answer.
type longPoll struct {
	connection *connection
	path       string
	after      []byte
}

func (f *longPoll) seekEnd() error {
	for {
		count, err := f.poll("?isolation=committed", func([]byte) {})
		if err != nil || count == 0 {
			return err
		}
	}
}

func (f *longPoll) poll(query string, each func([]byte)) (int, error) {
	body := consumeRequest(f.after, 1000)
	err := f.connection.call(request("POST", f.path+query, "avro/binary", body))
	if err != nil {
		return 0, err
	}
	f.after = unhex(f.connection.next)
	return messagesOf(f.connection.body, func(_, payload []byte) { each(payload) })
}

func (f *longPoll) follow(each func([]byte)) error {
	_, err := f.poll("?isolation=committed&wait=60", each)
	return err
}

func (f *longPoll) close() { f.connection.socket.Close() }

type redisFollower struct {
	connection *redisConnection
	stream     []byte
	after      []byte
}

// follow of the first call starts at the end that the stream has then.
func (f *redisFollower) follow(each func([]byte)) error {
	answer, err := f.connection.call(redisCommand([]byte("XREAD"), []byte("COUNT"), []byte("1000"),
		[]byte("BLOCK"), []byte("20000"), []byte("STREAMS"), f.stream, f.after))
	if err != nil {
		return err
	}
	streams, _ := answer.([]any)
	for _, one := range streams {
		for _, entry := range one.([]any)[1].([]any) {
			pair := entry.([]any)
			f.after = pair[0].([]byte)
			each(pair[1].([]any)[1].([]byte))
		}
	}
	return nil
}

func (f *redisFollower) close() { f.connection.socket.Close() }

// stamped is a session whose payload carries the time at which it should have been sent.
type stamped struct {
	http     *connection
	redis    *redisConnection
	path     string
	stream   string
	messages int
	payload  []byte
}

func newStamped(o options) (*stamped, error) {
	s := &stamped{messages: o.messages, payload: make([]byte, max(o.bytes, 8))}
	var err error
	if o.target == "redis" {
		s.stream = o.topic
		s.redis, err = dialRedis(o.addr)
		return s, err
	}
	s.path = topicPath(o.topic) + "/publish"
	s.http, err = dial(o.addr)
	return s, err
}

func (s *stamped) publish(intended int64) error {
	binary.BigEndian.PutUint64(s.payload, uint64(intended))
	if s.redis != nil {
		_, err := s.redis.call(xadd(s.stream, s.payload))
		return err
	}
	all := make([][]byte, s.messages)
	for i := range all {
		all[i] = s.payload
	}
	return s.http.call(request("POST", s.path, "avro/binary", publishRequest(all)))
}

// tailReport tells of deliveries: a call is one message that one reader was handed.
type tailReport struct {
	report
	Published int64 `json:"published"`
	Readers   int   `json:"readers"`
}

func tail(o options) (any, error) {
	if o.target != "redis" {
		if err := createTopic(o, o.topic); err != nil {
			return nil, err
		}
	}
	followers, err := newFollowers(o, o.readers)
	if err != nil {
		return nil, err
	}
	p := newPeriod(o)
	w := watch(p, o.pid)
	tallies := make([]tally, o.readers)
	var reading sync.WaitGroup
	for i, f := range followers {
		reading.Add(1)
		go func(f follower, t *tally) {
			defer reading.Done()
			readUntil(f, t, p)
		}(f, &tallies[i])
	}
	time.Sleep(100 * time.Millisecond) // so that readers wait before the first message is there
	published, err := publishAll(o, p)
	reading.Wait()
	<-w.done
	total := &tally{}
	for i := range tallies {
		total.merge(&tallies[i])
	}
	return tailReport{total.report(p, w), published, o.readers}, err
}

// readUntil reads until a message says that it should have been sent after the period.
func readUntil(f follower, t *tally, p period) {
	defer f.close()
	for over := false; !over; {
		err := f.follow(func(payload []byte) {
			intended := int64(binary.BigEndian.Uint64(payload))
			now := sinceStart()
			if intended >= p.end {
				over = true
			} else {
				t.record(p, intended, intended, now, 1, nil)
			}
		})
		if err != nil {
			t.note(err)
			return
		}
	}
}

// publishAll publishes at the rate until the period is over, and then one message that ends it.
func publishAll(o options, p period) (int64, error) {
	left, began := &tickets{}, sinceStart()
	var group sync.WaitGroup
	var lock sync.Mutex
	var first error
	var published int64
	for i := 0; i < o.conns; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			count, err := publishOne(o, p, left, began)
			lock.Lock()
			defer lock.Unlock()
			published += count
			if first == nil {
				first = err
			}
		}()
	}
	group.Wait()
	last, err := newStamped(o)
	if err == nil {
		err = last.publish(p.end)
	}
	if first == nil {
		first = err
	}
	return published, first
}

func publishOne(o options, p period, left *tickets, began int64) (int64, error) {
	s, err := newStamped(o)
	if err != nil {
		return 0, err
	}
	pace, err := newPacer()
	if err != nil {
		return 0, err
	}
	count := int64(0)
	for {
		n, _ := left.take()
		intended := began + int64(float64(n)/o.rate*1e9)
		if intended >= p.end {
			return count, nil
		}
		if err := pace.until(intended); err != nil {
			return count, err
		}
		if err := s.publish(intended); err != nil {
			return count, err
		}
		if intended >= p.begin {
			count += int64(o.messages)
		}
	}
}

// idleReport tells what waiting polls cost.
type idleReport struct {
	Waiting       int     `json:"waiting"`
	Seconds       float64 `json:"seconds"`
	ServerCPUMsPS float64 `json:"server_cpu_ms_per_s"`
	ServerRSSKiB  int     `json:"server_rss_kib"`
	BeforeRSSKiB  int     `json:"server_rss_before_kib"`
}

// idle opens connections that all wait at the end of a topic, and watches the server meanwhile.
func idle(o options) (any, error) {
	if err := createTopic(o, o.topic); err != nil {
		return nil, err
	}
	before := residentKiB(o.pid)
	followers, err := newFollowers(o, o.conns)
	if err != nil {
		return nil, err
	}
	for _, f := range followers {
		go func() { _ = f.follow(func([]byte) {}) }()
	}
	settle(o.pid)
	began, cpu := sinceStart(), cpuOf(o.pid)
	time.Sleep(time.Duration(o.seconds * 1e9))
	seconds := float64(sinceStart()-began) / 1e9
	used := float64(cpuOf(o.pid)-cpu) / 1e6
	return idleReport{o.conns, seconds, used / seconds, residentKiB(o.pid), before}, nil
}

// settle returns once the server is nearly idle, since it has read all that was sent to it, or after
// half of the time that the polls wait.
func settle(pid int) {
	for range 60 {
		before := cpuOf(pid)
		time.Sleep(500 * time.Millisecond)
		if cpuOf(pid)-before < 5*time.Millisecond {
			return
		}
	}
}

func residentKiB(pid int) int {
	return statusField("/proc/"+strconv.Itoa(pid)+"/status", "VmRSS:")
}
