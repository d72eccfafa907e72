package main

import (
	"os"
	"path/filepath"
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
	Histogram      [][2]float64 `json:"histogram_us"`
}

// tally is what one connection saw.
type tally struct {
	latencies       histogram
	calls, messages int64
	endedWithin     int64 // calls whose processor time fell into the period
	errors          int64
	first           error
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
	t.endedWithin += other.endedWithin
	t.errors += other.errors
	if t.first == nil {
		t.first = other.first
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
	if p.begin <= sinceStart() {
		w.server[0], w.load[0] = cpuOf(pid), ownCPU()
	}
	go func() {
		defer close(w.done)
		for i, at := range []int64{p.begin, p.end} {
			if at <= sinceStart() {
				continue
			}
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

// cpuOf is the time that the living threads of a process have spent on processors, to the nanosecond.
// /proc/PID/stat counts in ticks of 10 ms, which is too coarse for a short run.
func cpuOf(pid int) time.Duration {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat")
	total := int64(0)
	for _, file := range files {
		text, _ := os.ReadFile(file) // a thread may have ended since
		if fields := strings.Fields(string(text)); len(fields) > 0 {
			total += integer(fields[0])
		}
	}
	return time.Duration(total)
}

func closedLoop(o options) (report, error) {
	sessions, err := openSessions(o)
	if err != nil {
		return report{}, err
	}
	p, left := newPeriod(o), &tickets{limit: int64(o.fill)}
	if o.fill > 0 {
		p = period{sinceStart(), 1 << 62} // it ends by itself
	}
	w := watch(p, o.pid)
	total := together(sessions, func(s session, t *tally) {
		for now := sinceStart(); now < p.end; {
			if _, more := left.take(); !more {
				return
			}
			messages, err := s.once()
			then := sinceStart()
			t.record(p, then, now, then, messages, err)
			if t.errors >= errorsMax {
				return
			}
			now = then
		}
	})
	if o.fill > 0 {
		p.end = sinceStart()
		w.server[1], w.load[1] = cpuOf(o.pid), ownCPU()
		return total.report(p, w), nil
	}
	<-w.done
	return total.report(p, w), nil
}

func openSessions(o options) ([]session, error) {
	switch strings.TrimPrefix(o.scenario, "session-") {
	case "publish", "transaction", "run", "tephra-cdap":
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

// record counts a call if the given one of its times lies in the period; its latency runs from sent.
func (t *tally) record(p period, counted, sent, ended int64, messages int, err error) {
	if err != nil {
		t.note(err)
		return
	}
	if ended >= p.begin && ended < p.end {
		t.endedWithin++
	}
	if counted < p.begin || counted >= p.end {
		return
	}
	t.calls++
	t.messages += int64(messages)
	t.latencies.add(ended - sent)
}

func (t *tally) report(p period, w *window) report {
	seconds := float64(p.end-p.begin) / 1e9
	r := report{
		Calls: t.calls, Messages: t.messages, Seconds: seconds,
		PerS: float64(t.calls) / seconds, MessagesPerS: float64(t.messages) / seconds,
		P50Us: us(t.latencies.quantile(0.5)), P90Us: us(t.latencies.quantile(0.9)),
		P99Us: us(t.latencies.quantile(0.99)), P999Us: us(t.latencies.quantile(0.999)),
		MaxUs: us(t.latencies.max), Errors: t.errors,
		Histogram: t.latencies.points(),
	}
	if t.first != nil {
		r.FirstError = t.first.Error()
	}
	if t.endedWithin > 0 {
		server, load := w.server[1]-w.server[0], w.load[1]-w.load[0]
		r.ServerCPUUs = us(int64(server)) / float64(t.endedWithin)
		r.LoadCPUUs = us(int64(load)) / float64(t.endedWithin)
		if t.messages > 0 {
			r.ServerCPUPerMs = r.ServerCPUUs * float64(t.calls) / float64(t.messages)
		}
	}
	return r
}

func us(ns int64) float64 { return float64(ns) / 1e3 }

func integer(field string) int64 {
	n, _ := strconv.ParseInt(field, 10, 64)
	return n
}

// statusField is a number of a file like /proc/PID/status; 0 if it is not there.
func statusField(path, name string) int {
	text, _ := os.ReadFile(path)
	for _, line := range strings.Split(string(text), "\n") {
		if words := strings.Fields(line); len(words) > 1 && words[0] == name {
			return int(integer(words[1]))
		}
	}
	return 0
}
