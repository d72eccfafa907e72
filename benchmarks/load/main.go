// Command load drives one server over loopback and prints one JSON object of what it saw.
//
//	load closed  -scenario publish -addr 127.0.0.1:7411 -conns 64 -seconds 3
//	load open    -scenario publish -addr 127.0.0.1:7411 -conns 64 -rate 2000 -seconds 3
//	load tail    -target tuff -addr 127.0.0.1:7411 -readers 100 -rate 1000 -seconds 3
//	load idle    -addr 127.0.0.1:7411 -conns 10000 -seconds 5
//	load sink    -addr 127.0.0.1:0
//
// closed: each connection sends its next request when the last one is answered. open: requests are
// sent at fixed times, whatever the server does, and each latency counts from the intended time.
// tail: readers wait at the end of a topic while messages are published at fixed times. idle: polls
// that only wait. sink: answers every request at once, to show what load itself can do.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

// options are the flags; each mode reads those it needs.
type options struct {
	mode, scenario, target, addr, topic, path, thrift, start string
	token, ca                                                string
	conns, readers, messages, bytes, limit                   int
	keys, window, fill, pipes                                int
	rate, seconds, warm                                      float64
	pid, procs                                               int
	keepSeconds                                              bool
}

func parse(arguments []string) options {
	var o options
	o.mode = arguments[0]
	flags := flag.NewFlagSet("load "+o.mode, flag.ExitOnError)
	flags.StringVar(&o.scenario, "scenario", "publish", "what one call is: "+scenarioNames())
	flags.StringVar(&o.target, "target", "tuff", "who answers: tuff, cdap, redis or nats")
	flags.StringVar(&o.addr, "addr", "127.0.0.1:7411", "host:port of the server")
	flags.StringVar(&o.topic, "topic", "bench", "topic, or stream")
	flags.StringVar(&o.path, "path", "/", "path of scenarios get and post")
	flags.StringVar(&o.start, "start", `{"lists":false}`, "body of the start of a transaction")
	flags.StringVar(&o.token, "token", "", "bearer token to send")
	flags.StringVar(&o.ca, "ca", "", "authority of the server's certificate, in PEM: connect with TLS")
	flags.StringVar(&o.thrift, "thrift", "", "host:port of Tephra, in scenario tephra-cdap")
	flags.IntVar(&o.conns, "conns", 64, "connections")
	flags.IntVar(&o.pipes, "pipes", 4, "sessions that the connections share, in scenarios of sessions")
	flags.IntVar(&o.readers, "readers", 1, "connections that read, in mode tail")
	flags.IntVar(&o.messages, "messages", 1, "messages in one request")
	flags.IntVar(&o.bytes, "bytes", 256, "bytes of one payload")
	flags.IntVar(&o.limit, "limit", 1000, "messages in one reply to a poll")
	flags.IntVar(&o.keys, "keys", 10, "change keys of one transaction")
	flags.IntVar(&o.window, "window", 0, "poll only so many of the newest messages, or 0; spread over so many topics")
	flags.IntVar(&o.fill, "calls", 0, "stop after this many calls, whatever the time")
	flags.Float64Var(&o.rate, "rate", 1000, "calls per second, in modes open and tail")
	flags.Float64Var(&o.seconds, "seconds", 3, "seconds that are measured")
	flags.Float64Var(&o.warm, "warm", 0.7, "seconds before, that are not")
	flags.IntVar(&o.pid, "pid", 0, "process whose CPU time is reported")
	flags.IntVar(&o.procs, "procs", 1, "threads that run at once")
	_ = flags.Parse(arguments[1:])
	return o
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "load closed|open|tail|idle|sink [flags]")
		os.Exit(2)
	}
	o := parse(os.Args[1:])
	runtime.GOMAXPROCS(o.procs)
	debug.SetGCPercent(400)
	err := protect(o)
	var report any
	if err == nil {
		report, err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
	line, _ := json.Marshal(report)
	fmt.Println(string(line))
}

func run(o options) (any, error) {
	switch o.mode {
	case "closed":
		return closedLoop(o)
	case "open":
		return openLoop(o)
	case "tail":
		return tail(o)
	case "idle":
		return idle(o)
	case "sink":
		return nil, sink(o.addr)
	}
	return nil, fmt.Errorf("unknown mode %q", o.mode)
}

// startOfRun is what every time in a run is counted from.
var startOfRun = time.Now()

func sinceStart() int64 { return int64(time.Since(startOfRun)) }
