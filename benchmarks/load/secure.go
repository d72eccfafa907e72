package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
)

// What protects the calls to Tuff: TLS, as -ca says, and the header field with -token.
var (
	tlsConfig     *tls.Config // nil: no TLS
	authorization string
)

// protect takes over the flags. The name in the certificate must be the host of -addr.
func protect(o options) error {
	if o.token != "" {
		authorization = "Authorization: Bearer " + o.token + "\r\n"
	}
	if o.ca == "" {
		return nil
	}
	text, err := os.ReadFile(o.ca)
	if err != nil {
		return err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return fmt.Errorf("%s has no certificate in PEM", o.ca)
	}
	tlsConfig = &tls.Config{RootCAs: authorities}
	return nil
}

// dialTuff connects to host:port, or to a Unix socket by its path.
func dialTuff(addr string) (net.Conn, error) {
	if strings.HasPrefix(addr, "/") {
		return net.Dial("unix", addr)
	}
	if tlsConfig != nil {
		return tls.Dial("tcp", addr, tlsConfig)
	}
	return net.Dial("tcp", addr)
}
