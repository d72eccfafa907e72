package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
)

var sinkReply = []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

// sink answers every HTTP request with an empty 200, doing as little as it can.
func sink(addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("ready on http://%s\n", listener.Addr())
	for {
		socket, err := listener.Accept()
		if err != nil {
			return err
		}
		go swallow(socket)
	}
}

func swallow(socket net.Conn) {
	defer socket.Close()
	in := bufio.NewReaderSize(socket, 1<<16)
	length := 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if name, value, found := bytes.Cut(line, []byte(":")); found {
			if bytes.EqualFold(name, []byte("content-length")) {
				length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
			}
			continue
		}
		if len(bytes.TrimSpace(line)) > 0 {
			continue
		}
		if _, err := io.CopyN(io.Discard, in, int64(length)); err != nil {
			return
		}
		length = 0
		if _, err := socket.Write(sinkReply); err != nil {
			return
		}
	}
}
