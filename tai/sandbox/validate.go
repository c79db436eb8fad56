package sandbox

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxIDLen bounds an ID. It leaves room for prefixes and suffixes in the 63
// bytes of a DNS label, which a box's ID becomes.
const MaxIDLen = 50

// Bounds of limits: what is outside is a mistake, not a wish.
const (
	MinMemoryBytes = 6 << 20
	MaxMemoryBytes = 1 << 50
	MinCPUs        = 0.01
	MaxCPUs        = 4096
	MaxPids        = 1 << 22
	MinOpenFiles   = 64
	MaxOpenFiles   = 1 << 30
	MaxTimeout     = 10 * 365 * 24 * time.Hour
	MaxMaxLog      = 1 << 30 // what all execs of a box may keep
)

// ValidateID checks the ID of a box, exec or workspace: a DNS label of at most
// [MaxIDLen] bytes, in lower case. The error wraps [ErrInvalidSpec].
func ValidateID(id string) error {
	switch {
	case id == "":
		return invalid("an id must not be empty")
	case len(id) > MaxIDLen:
		return invalid("id %.16q… is %d bytes long; at most %d are possible", id, len(id), MaxIDLen)
	}
	for i := range len(id) {
		c := id[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' && i > 0 && i < len(id)-1) {
			return invalid("id %q: only a-z, 0-9 and, inside, - are possible", id)
		}
	}
	return nil
}

// NewID returns a fresh ID with a prefix of at most 30 bytes.
func NewID(prefix string) string {
	var b [8]byte
	rand.Read(b[:])
	return prefix + hex.EncodeToString(b[:])
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidSpec, fmt.Sprintf(format, args...))
}

// Validate checks everything that can be checked without a node. All problems
// are joined; each wraps [ErrInvalidSpec].
func (s *Spec) Validate() error {
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	add(ValidateID(s.ID))
	if s.Image == "" {
		add(invalid("an image is required"))
	}
	switch s.Isolation {
	case "", IsolationContainer:
	default:
		add(invalid("isolation %q: possible is %q", s.Isolation, IsolationContainer))
	}
	switch s.Network {
	case "", NetworkNone, NetworkInternet:
	default:
		add(invalid("network %q: possible are %q and %q", s.Network, NetworkNone, NetworkInternet))
	}
	if s.MemoryBytes != 0 && (s.MemoryBytes < MinMemoryBytes || s.MemoryBytes > MaxMemoryBytes) {
		add(invalid("memory of %d bytes: from %d to %d are possible", s.MemoryBytes, int64(MinMemoryBytes), int64(MaxMemoryBytes)))
	}
	if s.CPUs != 0 && (math.IsNaN(s.CPUs) || s.CPUs < MinCPUs || s.CPUs > MaxCPUs) {
		add(invalid("%v cpus: from %v to %v are possible", s.CPUs, MinCPUs, MaxCPUs))
	}
	if s.Pids < 0 || s.Pids > MaxPids {
		add(invalid("%d pids: from 1 to %d are possible", s.Pids, MaxPids))
	}
	if s.OpenFiles != 0 && (s.OpenFiles < MinOpenFiles || s.OpenFiles > MaxOpenFiles) {
		add(invalid("%d open files: from %d to %d are possible", s.OpenFiles, MinOpenFiles, MaxOpenFiles))
	}
	if s.MaxLifetime < 0 || s.MaxLifetime > MaxTimeout {
		add(invalid("max lifetime of %v: it cannot be negative or longer than %v", s.MaxLifetime, MaxTimeout))
	}
	if s.Hostname != "" && !validHostname(s.Hostname) {
		add(invalid("hostname %q is not a host name", s.Hostname))
	}
	for _, h := range s.ExtraHosts {
		name, addr, ok := strings.Cut(h, ":")
		if _, err := netip.ParseAddr(addr); !ok || err != nil || !validHostname(name) {
			add(invalid("extra host %q: name:address is expected", h))
		}
	}
	for _, t := range s.Tmpfs {
		if _, _, err := ParseTmpfs(t); err != nil {
			add(err)
		}
	}
	if s.Entrypoint != nil {
		add(validArgs(*s.Entrypoint))
	}
	add(s.validMounts())
	add(validUser(s.User))
	add(validDir(s.WorkDir))
	add(validEnv(s.Env))
	add(validLabels(s.Labels))
	return errors.Join(errs...)
}

// ParseTmpfs splits "path[:size=bytes]". Size 0 means the node's default.
func ParseTmpfs(s string) (dir string, size int64, err error) {
	dir, opt, has := strings.Cut(s, ":")
	if err := validDir(dir); err != nil || dir == "" || dir == "/" || path.Clean(dir) != dir {
		return "", 0, invalid("tmpfs %q: path[:size=bytes] with an absolute path below / is expected", s)
	}
	for _, ours := range []string{"/proc", "/sys", "/dev"} {
		if dir == ours || strings.HasPrefix(dir, ours+"/") && dir != "/dev/shm" {
			return "", 0, invalid("tmpfs %q: %s is the kernel's", s, ours)
		}
	}
	if has {
		if n, err := fmt.Sscanf(opt, "size=%d", &size); n != 1 || err != nil || size <= 0 || opt != fmt.Sprintf("size=%d", size) {
			return "", 0, invalid("tmpfs %q: after the path only size=bytes is possible", s)
		}
	}
	return dir, size, nil
}

// Validate checks everything that can be checked without the box. All problems
// are joined; each wraps [ErrInvalidSpec].
func (s *ExecSpec) Validate() error {
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	if s.ID != "" {
		add(ValidateID(s.ID))
	}
	if len(s.Args) == 0 && !s.Entrypoint {
		add(invalid("a command is required"))
	}
	add(validArgs(s.Args))
	add(validUser(s.User))
	add(validDir(s.WorkDir))
	add(validEnv(s.Env))
	switch s.OnDisconnect {
	case "", OnDisconnectKeep, OnDisconnectKill:
	default:
		add(invalid("on_disconnect %q: possible are %q and %q", s.OnDisconnect, OnDisconnectKeep, OnDisconnectKill))
	}
	for name, d := range map[string]time.Duration{"timeout": s.Timeout, "kill grace": s.KillGrace, "lease": s.Lease} {
		if d < 0 || d > MaxTimeout {
			add(invalid("%s of %v: it cannot be negative or longer than %v", name, d, MaxTimeout))
		}
	}
	if s.MaxLog < 0 || s.MaxLog > MaxMaxLog {
		add(invalid("max log of %d bytes: from 1 to %d are possible", s.MaxLog, int64(MaxMaxLog)))
	}
	if s.MaxOutput < 0 {
		add(invalid("max output of %d bytes: it cannot be negative", s.MaxOutput))
	}
	if s.Size != (Size{}) {
		add(s.Size.Validate())
	}
	return errors.Join(errs...)
}

// Validate refuses sizes no terminal has.
func (s Size) Validate() error {
	if s.Cols == 0 || s.Rows == 0 || s.Cols > 10000 || s.Rows > 10000 {
		return invalid("a terminal of %d columns and %d rows: from 1 to 10000 are possible", s.Cols, s.Rows)
	}
	return nil
}

func validArgs(args []string) error {
	for _, a := range args {
		if strings.ContainsRune(a, 0) {
			return invalid("argument %q has a NUL byte", a)
		}
	}
	if len(args) > 0 && args[0] == "" {
		return invalid("the command's name is empty")
	}
	return nil
}

func validEnv(env map[string]string) error {
	for k, v := range env {
		if k == "" || !utf8.ValidString(k) || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return invalid("environment variable %q: the name must be UTF-8, not empty and without =, and nothing may contain a NUL byte", k)
		}
	}
	return nil
}

func validUser(u string) error {
	if len(u) > 256 || strings.Count(u, ":") > 1 || strings.ContainsFunc(u, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' }) {
		return invalid("user %q: user[:group] is expected", u)
	}
	return nil
}

func validDir(d string) error {
	if d == "" {
		return nil
	}
	if !path.IsAbs(d) || len(d) > 4095 || strings.ContainsRune(d, 0) {
		return invalid("directory %q: an absolute path is expected", d)
	}
	return nil
}

func validLabels(labels map[string]string) error {
	for k, v := range labels {
		if k == "" || len(k) > 256 || len(v) > 4096 || !utf8.ValidString(k+v) || strings.ContainsFunc(k, func(r rune) bool { return r <= ' ' || r == '=' || r == 0x7f }) {
			return invalid("label %q: a name of up to 256 and a value of up to 4096 bytes, without spaces or = in the name, are possible", k)
		}
	}
	return nil
}

func validHostname(h string) bool {
	if h == "" || len(h) > 63 {
		return false
	}
	return !slices.ContainsFunc(strings.Split(h, "."), func(l string) bool {
		return l == "" || l[0] == '-' || l[len(l)-1] == '-' || strings.ContainsFunc(l, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-')
		})
	})
}
