package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/reason"
)

// Modes of [TCP.TLS].
const (
	TLSAuto = "auto" // on loopback without, elsewhere with
	TLSOn   = "on"
	TLSOff  = "off" // on loopback only
)

// TCP says where the API is served beside the socket.
type TCP struct {
	Listen    string // host:port or :port; "" = nowhere
	TLS       string // one of the modes; "" = auto
	Cert, Key string // files; "" = a certificate of our own
	Names     []string
}

// endpoint is the API over TCP.
type endpoint struct {
	net.Listener
	url     string
	ownName func(string) bool // what the certificate says; nil: none
}

// listenTCP opens the TCP listener that cfg asks for, or returns nil.
func listenTCP(cfg *TCP, dataDir string) (*endpoint, error) {
	if cfg.Listen == "" {
		if cfg.Cert != "" || cfg.Key != "" {
			return nil, fmt.Errorf("a certificate is for --listen, which is not there: %w", errdefs.ErrInvalidArgument)
		}
		return nil, nil
	}
	addr, err := net.ResolveTCPAddr("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w: %w", cfg.Listen, err, errdefs.ErrInvalidArgument)
	}
	secure, err := cfg.secure(addr)
	if err != nil {
		return nil, err
	}
	var cert tls.Certificate
	if secure {
		if cert, err = cfg.certificate(addr, filepath.Join(dataDir, "tls")); err != nil {
			return nil, err
		}
	}
	ln, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return nil, listenError(addr, err)
	}
	e := &endpoint{Listener: ln, url: "http://" + ln.Addr().String()}
	if secure {
		leaf := cert.Leaf
		e.ownName = func(name string) bool { return leaf.VerifyHostname(name) == nil }
		e.url = "https://" + ln.Addr().String()
		e.Listener = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	}
	return e, nil
}

// secure reports whether TLS is spoken at addr. What others can reach is never
// without.
func (c *TCP) secure(addr *net.TCPAddr) (bool, error) {
	loopback := addr.IP.IsLoopback()
	if (c.Cert == "") != (c.Key == "") {
		return false, fmt.Errorf("a certificate and its key are given together: %w", errdefs.ErrInvalidArgument)
	}
	switch c.TLS {
	case TLSOn:
		return true, nil
	case TLSAuto, "":
		return !loopback || c.Cert != "", nil
	case TLSOff:
		if !loopback {
			return false, reason.WithHint(fmt.Errorf("listen on %s without TLS: others could read along: %w", addr, errdefs.ErrInvalidArgument),
				"leave --tls off away, or listen on 127.0.0.1")
		}
		if c.Cert != "" {
			return false, fmt.Errorf("a certificate with TLS off: %w", errdefs.ErrInvalidArgument)
		}
		return false, nil
	}
	return false, fmt.Errorf("TLS %q: auto, on and off are possible: %w", c.TLS, errdefs.ErrInvalidArgument)
}

// certificate loads the operator's certificate, or ours.
func (c *TCP) certificate(addr *net.TCPAddr, dir string) (tls.Certificate, error) {
	if c.Cert == "" {
		return ownCertificate(dir, append(namesOf(addr), c.Names...))
	}
	cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return cert, fmt.Errorf("load certificate %s: %w: %w", c.Cert, err, errdefs.ErrInvalidArgument)
	}
	if cert.Leaf == nil {
		if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return cert, fmt.Errorf("load certificate %s: %w: %w", c.Cert, err, errdefs.ErrInvalidArgument)
		}
	}
	return cert, nil
}

// listenError says who has the port, if that can be known.
func listenError(addr *net.TCPAddr, err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	who := portHolder("/proc", addr.Port)
	if who == "" {
		who = "another program"
	}
	return fmt.Errorf("listen on %s: the port is held by %s: %w", addr, who, errdefs.ErrConflict)
}
