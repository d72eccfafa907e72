package main

import (
	"os"
	"syscall"
	"unsafe"
)

// pacer wakes its owner at a time to some tens of microseconds. Go's own sleep rounds up to a
// millisecond when it waits in epoll, which would count as latency of the server.
type pacer struct {
	file *os.File // its read waits with the other sockets
	fd   uintptr  // kept, since file.Fd would make the read block a thread
}

const (
	clockMonotonic = 1
	timerNonblock  = 0x800
	timerCloexec   = 0x80000
)

func newPacer() (*pacer, error) {
	fd, _, errno := syscall.Syscall(
		syscall.SYS_TIMERFD_CREATE, clockMonotonic, timerNonblock|timerCloexec, 0)
	if errno != 0 {
		return nil, errno
	}
	return &pacer{os.NewFile(fd, "timer"), fd}, nil
}

// until returns at a time in nanoseconds since the start of the program, at once if it is over.
func (p *pacer) until(at int64) error {
	wait := at - sinceStart()
	if wait <= 0 {
		return nil
	}
	setting := [2]syscall.Timespec{{}, syscall.NsecToTimespec(wait)}
	_, _, errno := syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME,
		p.fd, 0, uintptr(unsafe.Pointer(&setting)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	var expirations [8]byte
	_, err := p.file.Read(expirations[:])
	return err
}

// openLoop sends call n at begin + n/rate on whichever connection is free. A connection that is
// late sends at once, and its call counts from the time at which it should have been sent.
func openLoop(o options) (report, error) {
	sessions, err := openSessions(o)
	if err != nil {
		return report{}, err
	}
	pacers := make(map[session]*pacer, len(sessions))
	for _, s := range sessions {
		if pacers[s], err = newPacer(); err != nil {
			return report{}, err
		}
	}
	p, left := newPeriod(o), &tickets{}
	began, w := sinceStart(), watch(p, o.pid)
	total := together(sessions, func(s session, t *tally) {
		for {
			n, _ := left.take()
			intended := began + int64(float64(n)/o.rate*1e9)
			if intended >= p.end || t.errors >= errorsMax {
				return
			}
			if err := pacers[s].until(intended); err != nil {
				t.note(err)
				return
			}
			messages, err := s.once()
			t.record(p, intended, intended, sinceStart(), messages, err)
		}
	})
	<-w.done
	return total.report(p, w), nil
}
