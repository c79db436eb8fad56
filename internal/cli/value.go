package cli

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// sizeUnits are powers of 1024, as with Docker. "512m", "512mb" and "512MiB"
// are the same.
const sizeUnits = "kmgtpe"

// parseSize reads an amount of memory or disk. What is no whole number of
// bytes is refused rather than rounded.
func parseSize(s string) (int64, error) {
	bad := func() (int64, error) {
		return 0, usage("size %q: a number with k, m, g or t is expected, e.g. 512m or 1.5g", s)
	}
	num := strings.TrimRightFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	unit := strings.ToLower(s[len(num):])
	if num == "" || strings.Trim(num, "0123456789.") != "" || strings.Count(num, ".") > 1 || num[0] == '.' || len(num) > 32 {
		return bad()
	}
	shift := 0
	if unit != "" && unit != "b" {
		i := strings.IndexByte(sizeUnits, unit[0])
		if rest := unit[1:]; i < 0 || rest != "" && rest != "b" && rest != "ib" {
			return bad()
		}
		shift = 10 * (i + 1)
	}
	n, ok := new(big.Rat).SetString(num)
	if !ok {
		return bad()
	}
	n.Mul(n, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(shift))))
	if !n.IsInt() {
		return 0, usage("size %q is not a whole number of bytes", s)
	}
	if !n.Num().IsInt64() {
		return 0, usage("size %q is too large", s)
	}
	return n.Num().Int64(), nil
}

// parseCPUs reads a number of cores.
func parseCPUs(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) || n < 0 || strings.ContainsAny(s, "xXpP_") {
		return 0, usage("cpus %q: a number of cores is expected, e.g. 1.5", s)
	}
	return n, nil
}

// formatSize writes bytes for people.
func formatSize(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), -1
	for f >= 1024 && unit < len(sizeUnits)-1 {
		f /= 1024
		unit++
	}
	return fmt.Sprintf("%.*f %ciB", decimals(f), f, sizeUnits[unit]-'a'+'A')
}

// formatMs writes milliseconds for people.
func formatMs(ms float64) string { return fmt.Sprintf("%.*f ms", decimals(ms), ms) }

// decimals returns how many are worth printing: three digits in all.
func decimals(f float64) int {
	switch {
	case f >= 99.5:
		return 0
	case f >= 9.95:
		return 1
	}
	return 2
}

// formatAge writes how long ago t was, in its largest unit.
func formatAge(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := max(now.Sub(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// parseSignal reads a signal by name, with or without SIG, or by number.
func parseSignal(s string) (int, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > 64 {
			return 0, usage("signal %q: the numbers 1 to 64 are possible", s)
		}
		return n, nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return int(sig), nil
	}
	return 0, usage("signal %q is not known", s)
}

// parsePairs reads K=V; of several with one key the last wins. A key without a
// value gets what missing returns, or is left out where that says so.
func parsePairs(what string, pairs []string, missing func(key string) (string, bool)) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(pairs))
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if k == "" {
			return nil, usage("%s %q: KEY=VALUE is expected", what, p)
		}
		if !ok {
			if v, ok = missing(k); !ok {
				continue
			}
		}
		m[k] = v
	}
	return m, nil
}

// parseLabels reads K=V or K.
func parseLabels(pairs []string) (map[string]string, error) {
	return parsePairs("label", pairs, func(string) (string, bool) { return "", true })
}

// parseEnv reads the files first, then pairs. As with Docker, a name alone
// takes the value of our own environment, if there is one.
func (e *Env) parseEnv(files, pairs []string) (map[string]string, error) {
	var all []string
	for _, name := range files {
		lines, err := readEnvFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return parsePairs("environment variable", append(all, pairs...), e.LookupEnv)
}

// readEnvFile reads lines of K=V or K. Empty lines and those that begin with #
// do not count; nothing is unquoted.
func readEnvFile(name string) ([]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, usage("env file: %v", err)
	}
	defer f.Close() //nolint:errcheck // only read
	var lines []string
	r := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := r.ReadString('\n')
		if err != nil && err != io.EOF { // ReadString returns it bare
			return nil, fmt.Errorf("read env file %s: %w", name, err)
		}
		if text := strings.TrimLeft(strings.TrimRight(line, "\r\n"), " \t"); text != "" && text[0] != '#' {
			if k, _, _ := strings.Cut(text, "="); k == "" || strings.ContainsAny(k, " \t") {
				return nil, usage("env file %s, line %d: KEY=VALUE is expected", name, n)
			}
			lines = append(lines, text)
		}
		if err != nil {
			return lines, nil
		}
	}
}

// parseTmpfs checks "path[:size=SIZE]" and writes the size in bytes.
func parseTmpfs(s string) (string, error) {
	dir, opt, ok := strings.Cut(s, ":")
	if ok {
		size, isSize := strings.CutPrefix(opt, "size=")
		if !isSize {
			return "", usage("tmpfs %q: PATH[:size=SIZE] is expected", s)
		}
		n, err := parseSize(size)
		if err != nil {
			return "", err
		}
		s = fmt.Sprintf("%s:size=%d", dir, n)
	}
	if _, _, err := taisandbox.ParseTmpfs(s); err != nil {
		return "", err
	}
	return s, nil
}
