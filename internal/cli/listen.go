package cli

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/internal/client"
)

// listenSettings say how a server is reached over the network, and how we
// reach one.
type listenSettings struct {
	Listen   string // host:port; "" for the socket only
	TLS      string // auto, on or off
	TLSCert  string // files
	TLSKey   string
	TLSNames []string // of a certificate of our own
	Rate     float64  // requests of a key a second; 0 = no limit
	Burst    int

	TLSCA string // file with what a server's certificate is checked against
}

// listenKeys are the settings of how a server is reached.
var listenKeys = []key{
	{name: "listen", env: "TAIBOX_LISTEN", flag: "listen", set: func(s *settings, v string) error { s.Listen = v; return nil }},
	{name: "tls", env: "TAIBOX_TLS", flag: "tls", def: "auto", set: setTLS},
	{name: "tls_cert", env: "TAIBOX_TLS_CERT", flag: "tls-cert", set: func(s *settings, v string) error { return setFile(&s.TLSCert, v) }},
	{name: "tls_key", env: "TAIBOX_TLS_KEY", flag: "tls-key", set: func(s *settings, v string) error { return setFile(&s.TLSKey, v) }},
	{name: "tls_names", env: "TAIBOX_TLS_NAMES", flag: "tls-names", set: setTLSNames},
	{name: "tls_ca", env: "TAIBOX_TLS_CA", set: func(s *settings, v string) error { return setFile(&s.TLSCA, v) }},
	{name: "api_rate", env: "TAIBOX_API_RATE", def: "100", set: setRate},
	{name: "api_burst", env: "TAIBOX_API_BURST", def: "200", set: setBurst},
}

// defaultPort is the API's.
const defaultPort = "7600"

// listenAddress is where the API is served, as host:port. Port and host may be
// left out; servers with other data than the machine's own get any free port,
// so that they are not in each other's way.
func (s *settings) listenAddress() string {
	if s.Listen == "" {
		return ""
	}
	host, port, err := net.SplitHostPort(s.Listen)
	if err != nil {
		host, port = strings.Trim(s.Listen, "[]"), ""
	}
	switch {
	case port != "":
	case s.DataDir == defaultDataDir:
		port = defaultPort
	default:
		port = "0"
	}
	return net.JoinHostPort(host, port)
}

// addListenFlags adds those that serve has.
func addListenFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("listen", "", "serve the API on this `address` too; a key is needed there")
	f.String("tls", "", "speak TLS there, by `mode`: on, off, or auto: not on loopback (default auto)")
	f.String("tls-cert", "", "`file` with the certificate (default one of our own)")
	f.String("tls-key", "", "`file` with its key")
	f.String("tls-names", "", "more `names` for a certificate of our own, with commas")
}

func setTLS(s *settings, v string) error {
	if v != "auto" && v != "on" && v != "off" {
		return usage("TLS %q: auto, on and off are possible", v)
	}
	s.TLS = v
	return nil
}

// setFile notes a file's place for a server whose directory is another one.
func setFile(to *string, v string) error {
	abs, err := filepath.Abs(v)
	*to = abs
	return err
}

func setTLSNames(s *settings, v string) error {
	s.TLSNames = nil
	for n := range strings.SplitSeq(v, ",") {
		if n = strings.TrimSpace(n); n != "" {
			s.TLSNames = append(s.TLSNames, n)
		}
	}
	return nil
}

func setRate(s *settings, v string) error {
	r, err := strconv.ParseFloat(v, 64)
	if err != nil || !(r >= 0 && r <= 1e9) {
		return usage("requests a second %q: 0 (no limit) or more is expected", v)
	}
	s.Rate = r
	return nil
}

func setBurst(s *settings, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return usage("requests at once %q: 1 or more is expected", v)
	}
	s.Burst = n
	return nil
}

// clientOptions say how the server at s.Host is reached.
func (s *settings) clientOptions() ([]client.Option, error) {
	opts := []client.Option{client.WithAPIKey(s.APIKey)}
	u, err := url.Parse(s.Host)
	if err == nil && u.Scheme == "http" && s.APIKey != "" && !isLoopback(u.Hostname()) {
		return nil, withHint(usage("%s: a key is not sent to another machine without TLS", s.Host), "use https://")
	}
	if s.TLSCA == "" {
		return opts, nil
	}
	pem, err := os.ReadFile(s.TLSCA)
	if err != nil {
		return nil, usage("certificate: %v", err)
	}
	return append(opts, client.WithRootCAs(pem)), nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
