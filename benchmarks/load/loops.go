package main

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// report is what every measured run prints.
type report struct {
	Calls          int64        `json:"calls"`
	Messages       int64        `json:"messages"`
	Seconds        float64      `json:"seconds"`
	PerS           float64      `json:"per_s"`
	MessagesPerS   float64      `json:"messages_per_s"`
	P50Us          float64      `json:"p50_us"`
	P90Us          float64      `json:"p90_us"`
	P99Us          float64      `json:"p99_us"`
	P999Us         float64      `json:"p999_us"`
	MaxUs          float64      `json:"max_us"`
	Errors         int64        `json:"errors"`
	FirstError     string       `json:"first_error,omitempty"`
	ServerCPUUs    float64      `json:"server_cpu_us_per_call"`
	ServerCPUPerMs float64      `json:"server_cpu_us_per_message"`
	LoadCPUUs      float64      `json:"load_cpu_us_per_call"`
	BySecond       []int64      `json:"by_second,omitempty"`
	Histogram      [][2]float64 `json:"histogram_us"`
}

// tally is what one connection saw.
type tally struct {
	latencies       histogram
	calls, messages int64
	errors          int64
	first           error
	bySecond        []int64
}

func (t *tally) note(err error) {
	if t.errors++; t.first == nil {
		t.first = err
	}
}

func (t *tally) merge(other *tally) {
	t.latencies.merge(&other.latencies)
	t.calls += other.calls
	t.messages += other.messages
	t.errors += other.errors
	if t.first == nil {
		t.first = other.first
	}
	for i, n := range other.bySecond {
		for len(t.bySecond) <= i {
			t.bySecond = append(t.bySecond, 0)
		}
		t.bySecond[i] += n
	}
}

// errorsMax is where a connection gives up, so that a server that is gone does not fill a log.
const errorsMax = 20

// period is the part of a run that is measured, in nanoseconds since the start of the program.
type period struct{ begin, end int64 }

func newPeriod(o options) period {
	begin := sinceStart() + int64(o.warm*1e9)
	return period{begin, begin + int64(o.seconds*1e9)}
}

// window has the CPU times at both ends of the measured period, read when they come.
type window struct {
	server, load [2]time.Duration
	done         chan struct{}
}

func watch(p period, pid int) *window {
	w := &window{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for i, at := range []int64{p.begin, p.end} {
			time.Sleep(time.Duration(at - sinceStart()))
			w.server[i], w.load[i] = cpuOf(pid), ownCPU()
		}
	}()
	return w
}

func ownCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// clockTick is one tick of /proc/PID/stat: 100 a second on every Linux of today.
const clockTick = 10 * time.Millisecond

// cpuOf is the time that a process and the children it waited for spent on processors.
func cpuOf(pid int) time.Duration {
	if pid == 0 {
		return 0
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	after := string(text[strings.LastIndexByte(string(text), ')')+2:])
	fields := strings.Fields(after)
	return time.Duration(ticks(fields[11])+ticks(fields[12])) * clockTick
}

func closedLoop(o options) (report, error) {
	sessions, err := openSessions(o)
	if err != nil {
		return report{}, err
	}
	p, left := newPeriod(o), &tickets{limit: int64(o.fill)}
	w := watch(p, o.pid)
	began := sinceStart()
	total := together(sessions, func(s session, t *tally) {
		for now := sinceStart(); now < p.end; {
			if _, more := left.take(); !more {
				return
			}
			messages, err := s.once()
			then := sinceStart()
			t.record(p, now, then, messages, err, o)
			if t.errors >= errorsMax {
				return
			}
			now = then
		}
	})
	if o.fill > 0 { // it ended by itself: the time is the time it took
		p = period{began, sinceStart()}
		return total.report(p, nil), nil
	}
	<-w.done
	return total.report(p, w), nil
}

func openSessions(o options) ([]session, error) {
	if o.scenario == "publish" || o.scenario == "transaction" || o.scenario == "run" {
		if err := createTopic(o, o.topic); err != nil {
			return nil, err
		}
	}
	sessions := make([]session, o.conns)
	for i := range sessions {
		var err error
		if sessions[i], err = newSession(o, i); err != nil {
			return nil, err
		}
	}
	return sessions, nil
}

func together(sessions []session, loop func(session, *tally)) *tally {
	tallies := make([]tally, len(sessions))
	var group sync.WaitGroup
	for i := range sessions {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			loop(sessions[i], &tallies[i])
		}(i)
	}
	group.Wait()
	total := &tally{}
	for i := range tallies {
		total.merge(&tallies[i])
	}
	return total
}

// record counts a call that ended within the period; its latency runs from sent.
func (t *tally) record(p period, sent, ended int64, messages int, err error, o options) {
	if err != nil {
		t.note(err)
		return
	}
	if o.fill == 0 && (ended < p.begin || ended >= p.end) {
		return
	}
	t.calls++
	t.messages += int64(messages)
	t.latencies.add(ended - sent)
	if o.keepSeconds {
		second := int((ended - p.begin) / 1e9)
		for len(t.bySecond) <= second {
			t.bySecond = append(t.bySecond, 0)
		}
		t.bySecond[second]++
	}
}

func (t *tally) report(p period, w *window) report {
	seconds := float64(p.end-p.begin) / 1e9
	r := report{
		Calls: t.calls, Messages: t.messages, Seconds: seconds,
		PerS: float64(t.calls) / seconds, MessagesPerS: float64(t.messages) / seconds,
		P50Us: us(t.latencies.quantile(0.5)), P90Us: us(t.latencies.quantile(0.9)),
		P99Us: us(t.latencies.quantile(0.99)), P999Us: us(t.latencies.quantile(0.999)),
		MaxUs: us(t.latencies.max), Errors: t.errors, BySecond: t.bySecond,
		Histogram: t.latencies.points(),
	}
	if t.first != nil {
		r.FirstError = t.first.Error()
	}
	if w != nil && t.calls > 0 {
		server, load := w.server[1]-w.server[0], w.load[1]-w.load[0]
		r.ServerCPUUs = us(int64(server)) / float64(t.calls)
		r.LoadCPUUs = us(int64(load)) / float64(t.calls)
		if t.messages > 0 {
			r.ServerCPUPerMs = us(int64(server)) / float64(t.messages)
		}
	}
	return r
}

func us(ns int64) float64 { return float64(ns) / 1e3 }

func ticks(field string) int64 {
	n, _ := strconv.ParseInt(field, 10, 64)
	return n
}

// statusField is a number of a file like /proc/PID/status; 0 if it is not there.
func statusField(path, name string) int {
	text, _ := os.ReadFile(path)
	for _, line := range strings.Split(string(text), "\n") {
		if words := strings.Fields(line); len(words) > 1 && words[0] == name {
			return int(ticks(words[1]))
		}
	}
	return 0
}
