package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestListenTCP(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		cfg    TCP
		scheme string // "" = refused
	}{
		{TCP{Listen: "127.0.0.1:0"}, "http"},
		{TCP{Listen: "localhost:0"}, "http"},
		{TCP{Listen: "127.0.0.1:0", TLS: TLSOn}, "https"},
		{TCP{Listen: "0.0.0.0:0"}, "https"},
		{TCP{Listen: ":0"}, "https"},
		{TCP{Listen: "0.0.0.0:0", TLS: TLSOff}, ""},
		{TCP{Listen: ":0", TLS: TLSOff}, ""},
		{TCP{Listen: "127.0.0.1:0", TLS: "perhaps"}, ""},
		{TCP{Listen: "127.0.0.1:0", Cert: "c"}, ""},
		{TCP{Listen: "127.0.0.1:0", Cert: "c", Key: "k"}, ""},
		{TCP{Listen: "127.0.0.1:0", Cert: "c", Key: "k", TLS: TLSOff}, ""},
		{TCP{Listen: "127.0.0.1:nonsense"}, ""},
		{TCP{Cert: "c", Key: "k"}, ""},
	} {
		e, err := listenTCP(&c.cfg, dir)
		if c.scheme == "" {
			if !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Errorf("%+v: %v", c.cfg, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c.cfg, err)
			continue
		}
		if u, err := url.Parse(e.url); err != nil || u.Scheme != c.scheme || (u.Scheme == "https") != (e.ownName != nil) {
			t.Errorf("%+v: %s", c.cfg, e.url)
		}
		e.Close()
	}
	if e, err := listenTCP(&TCP{}, dir); e != nil || err != nil {
		t.Error(e, err)
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	_, err = listenTCP(&TCP{Listen: ln.Addr().String()}, t.TempDir())
	if !errors.Is(err, errdefs.ErrConflict) || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", os.Getpid())) {
		t.Errorf("%v", err)
	}
}

// The certificate stays the same, since clients pin it, until it lacks a name.
func TestOwnCertificate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	first, err := ownCertificate(dir, []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := ownCertificate(dir, []string{"127.0.0.1"})
	if err != nil || !again.Leaf.Equal(first.Leaf) {
		t.Errorf("made anew: %v", err)
	}
	other, err := ownCertificate(dir, []string{"box.example"})
	if err != nil || other.Leaf.Equal(first.Leaf) || other.Leaf.VerifyHostname("box.example") != nil {
		t.Errorf("the name is not in it: %v", err)
	}
	for name, mode := range map[string]os.FileMode{"": 0o700 | os.ModeDir, "key.pem": 0o600, "cert.pem": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".tmp*")); len(left) > 0 {
		t.Error(left)
	}

	pool := x509.NewCertPool()
	pool.AddCert(other.Leaf)
	srv, cl := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- tls.Server(srv, &tls.Config{Certificates: []tls.Certificate{other}}).HandshakeContext(t.Context())
	}()
	err = tls.Client(cl, &tls.Config{RootCAs: pool, ServerName: "box.example"}).HandshakeContext(t.Context())
	if err := errors.Join(err, <-done); err != nil {
		t.Error(err)
	}
}
