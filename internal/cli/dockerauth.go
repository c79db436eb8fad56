package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/reference"

	"github.com/taibox/taibox/api/rest"
)

const (
	hubDomain = "docker.io"
	hubKey    = "https://index.docker.io/v1/" // as docker login has it
	// tokenUser is the name that helpers give to an identity token.
	tokenUser     = "<token>"
	helperTimeout = 30 * time.Second
)

var errHelperTimeout = errors.New("the credential helper did not answer in time")

// dockerConfig is what docker login keeps.
type dockerConfig struct {
	Auths map[string]struct {
		Auth          string `json:"auth"`
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
	} `json:"auths"`
	CredsStore  string            `json:"credsStore"`
	CredHelpers map[string]string `json:"credHelpers"`
}

// dockerAuth finds the credentials that docker login keeps for an image's
// registry; nil if there are none.
func (e *Env) dockerAuth(ctx context.Context, ref string) (*rest.RegistryAuth, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // the server says what is wrong with it
	}
	domain := reference.Domain(named)
	dir := e.Getenv("DOCKER_CONFIG")
	if dir == "" {
		if e.Home == "" {
			return nil, nil //nolint:nilnil // see above
		}
		dir = filepath.Join(e.Home, ".docker")
	}
	file := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil //nolint:nilnil // see above
	}
	if err != nil {
		return nil, err
	}
	var c dockerConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("read %s: it is no JSON that docker login writes", file)
	}
	return c.find(ctx, domain)
}

func (c *dockerConfig) find(ctx context.Context, domain string) (*rest.RegistryAuth, error) {
	keys := []string{domain, "https://" + domain, "http://" + domain}
	if domain == hubDomain {
		keys = append([]string{hubKey}, keys...)
	}
	for _, key := range keys {
		if helper := c.CredHelpers[key]; helper != "" {
			return askHelper(ctx, helper, key)
		}
	}
	if c.CredsStore != "" {
		if auth, err := askHelper(ctx, c.CredsStore, keys[0]); auth != nil || err != nil {
			return auth, err
		}
	}
	for key, a := range c.Auths {
		if !sameServer(key, domain) {
			continue
		}
		user, password := a.Username, a.Password
		if raw, err := base64.StdEncoding.DecodeString(strings.TrimRight(a.Auth, "\x00")); err == nil && a.Auth != "" {
			user, password, _ = strings.Cut(strings.TrimRight(string(raw), "\x00"), ":")
		}
		if a.IdentityToken != "" {
			user, password = "", a.IdentityToken
		}
		if password != "" {
			return &rest.RegistryAuth{Username: user, Password: password}, nil
		}
	}
	return nil, nil //nolint:nilnil // none is an answer
}

// sameServer reports whether a key of Docker's file is about a registry.
func sameServer(key, domain string) bool {
	_, host, ok := strings.Cut(key, "://")
	if !ok {
		host = key
	}
	host, _, _ = strings.Cut(host, "/")
	return host == domain || domain == hubDomain && host == "index.docker.io"
}

// askHelper runs a credential helper of Docker's.
func askHelper(ctx context.Context, helper, server string) (*rest.RegistryAuth, error) {
	if helper != filepath.Base(helper) {
		return nil, fmt.Errorf("credential helper %q: a name is expected", helper)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, helperTimeout, errHelperTimeout)
	defer cancel()
	program := "docker-credential-" + helper
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Stdin = strings.NewReader(server)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	if err := cmd.Run(); err != nil {
		if strings.Contains(stdout.String(), "credentials not found") {
			return nil, nil //nolint:nilnil // none is an answer
		}
		return nil, fmt.Errorf("ask %s for the credentials of %s: %w", program, server, err)
	}
	var got struct{ Username, Secret string }
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		return nil, fmt.Errorf("ask %s for the credentials of %s: its answer is no JSON", program, server)
	}
	if got.Username == tokenUser {
		got.Username = ""
	}
	return &rest.RegistryAuth{Username: got.Username, Password: got.Secret}, nil
}
