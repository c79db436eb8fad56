package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/net/publicsuffix"

	"github.com/taibox/taibox/tai/sandbox"
)

const (
	dialTimeout    = 15 * time.Second
	tlsTimeout     = 15 * time.Second
	requestsAtOnce = 3 // layers of one pull
	userAgent      = "taibox"
)

// Registry says how to reach a registry.
type Registry struct {
	// Mirrors are asked first, in this order, as host[:port].
	Mirrors []string
	// PlainHTTP has the registry spoken to without TLS. A registry on a loopback
	// address (127.0.0.0/8, [::1], localhost) always is, unless it has a CAFile.
	PlainHTTP bool
	// CAFile is a PEM file with what the registry's certificate may be signed
	// by, beside what this machine trusts. It is read for each pull.
	CAFile string
	// AnonymousRetry has a pull that the registry refuses for its credentials
	// tried again without any: stored ones may be stale, and the image public.
	AnonymousRetry bool
}

// remote is an image's registry, for the time of one pull.
type remote struct {
	ref      string // as registries know it
	client   *http.Client
	resolver remotes.Resolver
}

func (s *Store) remote(named reference.Named, auth *sandbox.RegistryAuth) (*remote, error) {
	domain := reference.Domain(named)
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	t.TLSHandshakeTimeout, t.ResponseHeaderTimeout = tlsTimeout, s.cfg.Stall
	t.MaxIdleConnsPerHost = requestsAtOnce
	own, err := trusting(t, s.cfg.Registries)
	if err != nil {
		return nil, err
	}
	r := &remote{ref: named.String()}
	r.client = &http.Client{Transport: &guard{next: t, own: own, registries: s.cfg.Registries, domain: domain}}
	credentials := func(host string) (user, secret string, err error) {
		server := domain
		if auth != nil && auth.Server != "" {
			server = serverHost(auth.Server)
		}
		if auth == nil || server != domain || host != apiHost(domain) {
			return "", "", nil
		}
		return auth.Username, auth.Password, nil
	}
	authorizer := docker.NewDockerAuthorizer(docker.WithAuthClient(r.client), docker.WithAuthCreds(credentials))
	r.resolver = docker.NewResolver(docker.ResolverOptions{
		Headers: http.Header{"User-Agent": {userAgent}},
		Hosts: func(domain string) ([]docker.RegistryHost, error) {
			var hosts []docker.RegistryHost
			for _, h := range slices.Concat(s.cfg.Registries[domain].Mirrors, []string{domain}) {
				scheme := "https"
				if plainHTTP(s.cfg.Registries, h) {
					scheme = "http"
				}
				hosts = append(hosts, docker.RegistryHost{
					Client: r.client, Authorizer: authorizer, Host: apiHost(h), Scheme: scheme, Path: "/v2",
					Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
				})
			}
			return hosts, nil
		},
	})
	return r, nil
}

// trusting returns a transport for each registry that has certificates of its
// own, by the host that its API is at. No other host is believed for them.
func trusting(base *http.Transport, registries map[string]Registry) (map[string]*http.Transport, error) {
	own := map[string]*http.Transport{}
	for host, r := range registries {
		if r.CAFile == "" {
			continue
		}
		pem, err := os.ReadFile(r.CAFile)
		if err != nil {
			return nil, fmt.Errorf("certificates for registry %s: %w", host, err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool() // a machine that trusts nobody
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificates for registry %s: %s has none", host, r.CAFile)
		}
		t := base.Clone()
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		own[apiHost(host)] = t
	}
	return own, nil
}

func (r *remote) close() { r.client.CloseIdleConnections() }

// resolve looks up what the image's name means now.
func (r *remote) resolve(ctx context.Context) (desc ocispec.Descriptor, err error) {
	err = retry(ctx, resolveTries, func() (progressed bool, err error) {
		_, desc, err = r.resolver.Resolve(ctx, r.ref)
		return false, registryError(ctx, err)
	})
	return desc, err
}

// fetcher fetches blobs, by digest.
func (r *remote) fetcher(ctx context.Context) (remotes.Fetcher, error) {
	return r.resolver.Fetcher(ctx, r.ref)
}

// apiHost is where the API of a registry is.
func apiHost(domain string) string {
	if domain == "docker.io" {
		return "registry-1.docker.io"
	}
	return domain
}

// serverHost takes what people and Docker's configuration write for a server
// ("https://index.docker.io/v1/") to the domain of image names.
func serverHost(server string) string {
	if u, err := url.Parse(server); err == nil && u.Host != "" {
		server = u.Host
	}
	server, _, _ = strings.Cut(server, "/")
	if server == "index.docker.io" || server == "registry-1.docker.io" {
		return "docker.io"
	}
	return server
}

// plainHTTP is the one rule for when TLS is not used.
func plainHTTP(registries map[string]Registry, host string) bool {
	r := registries[host]
	return r.PlainHTTP || isLoopback(host) && r.CAFile == ""
}

func isLoopback(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if name == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil && addr.IsLoopback()
}

// guard is the transport of a pull. It keeps requests from going where they
// must not, and gives answers that are failures their names.
type guard struct {
	next       *http.Transport
	own        map[string]*http.Transport // for hosts with certificates of their own
	registries map[string]Registry
	domain     string // of the image
}

func (g *guard) CloseIdleConnections() {
	g.next.CloseIdleConnections()
	for _, t := range g.own {
		t.CloseIdleConnections()
	}
}

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := g.check(r); err != nil {
		return nil, err
	}
	next := g.next
	if t := g.own[r.URL.Host]; t != nil {
		next = t
	}
	resp, err := next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests, code >= http.StatusInternalServerError, code == http.StatusForbidden:
		resp.Body.Close()
		return nil, &statusError{host: r.URL.Host, status: code, until: retryAfter(resp.Header.Get("Retry-After"))}
	}
	return resp, nil
}

// check refuses plain HTTP where TLS is due, and credentials for somebody who
// is not the image's registry.
func (g *guard) check(r *http.Request) error {
	host := r.URL.Host
	if from := r.Response; from != nil && from.Request.URL.Scheme == "https" && r.URL.Scheme != "https" {
		return fmt.Errorf("%w: %s redirects to %s by plain HTTP", sandbox.ErrRegistryInsecure, from.Request.URL.Host, host)
	}
	if r.URL.Scheme != "https" && !plainHTTP(g.registries, host) && !plainHTTP(g.registries, g.domain) {
		return fmt.Errorf("%w: it names %s, by plain HTTP", sandbox.ErrRegistryInsecure, host)
	}
	secret := strings.HasPrefix(r.Header.Get("Authorization"), "Basic ") || r.Method == http.MethodPost
	if !secret {
		return nil
	}
	if !sameSite(host, apiHost(g.domain)) {
		return fmt.Errorf("%w: it asks for the credentials to be sent to %s", sandbox.ErrRegistryInsecure, host)
	}
	if r.URL.Scheme != "https" && !plainHTTP(g.registries, g.domain) {
		return fmt.Errorf("%w: it asks for the credentials to be sent to %s by plain HTTP", sandbox.ErrRegistryInsecure, host)
	}
	return nil
}

// sameSite reports whether two hosts are one's own: the same one on any port,
// or below the same registered domain, as auth.docker.io and
// registry-1.docker.io are.
func sameSite(a, b string) bool {
	name := func(host string) string { return (&url.URL{Host: host}).Hostname() }
	a, b = strings.ToLower(name(a)), strings.ToLower(name(b))
	if a == b {
		return true
	}
	if _, err := netip.ParseAddr(a); err == nil {
		return false
	}
	siteA, errA := publicsuffix.EffectiveTLDPlusOne(a)
	siteB, errB := publicsuffix.EffectiveTLDPlusOne(b)
	return errA == nil && errB == nil && siteA == siteB
}
