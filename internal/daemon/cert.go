package daemon

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/taibox/taibox/internal/durable"
)

// A certificate of our own is pinned by clients, so it lives long. Close to
// its end, or when it lacks a name that it needs, it is made anew.
const (
	certLife  = 10 * 365 * 24 * time.Hour
	certSpare = 30 * 24 * time.Hour
)

// namesOf lists what a certificate for addr must name.
func namesOf(addr *net.TCPAddr) []string {
	if len(addr.IP) == 0 || addr.IP.IsUnspecified() {
		return nil // all of the machine's, see allNames
	}
	return []string{addr.IP.String()}
}

// allNames lists what this machine is called besides.
func allNames() []string {
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return append(names, "127.0.0.1", "::1")
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
			names = append(names, n.IP.String())
		}
	}
	return names
}

// ownCertificate returns the certificate in dir, which must be good for names,
// and makes it where there is none.
func ownCertificate(dir string, names []string) (tls.Certificate, error) {
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	switch {
	case err == nil && goodFor(cert.Leaf, names):
		return cert, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return cert, fmt.Errorf("load our certificate: %w", err)
	}
	names = slices.Compact(slices.Sorted(slices.Values(append(allNames(), names...))))
	if err := makeCertificate(dir, certFile, keyFile, names); err != nil {
		return cert, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.LoadX509KeyPair(certFile, keyFile)
}

func goodFor(leaf *x509.Certificate, names []string) bool {
	if leaf == nil || time.Now().Add(certSpare).After(leaf.NotAfter) {
		return false
	}
	return !slices.ContainsFunc(names, func(n string) bool { return leaf.VerifyHostname(n) != nil })
}

func makeCertificate(dir, certFile, keyFile string, names []string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "taibox"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The certificate comes last: without it both are made again.
	for _, f := range []struct {
		name string
		p    pem.Block
	}{{keyFile, pem.Block{Type: "PRIVATE KEY", Bytes: private}}, {certFile, pem.Block{Type: "CERTIFICATE", Bytes: der}}} {
		if err := durable.Write(f.name, pem.EncodeToMemory(&f.p)); err != nil {
			return err
		}
	}
	return nil
}
