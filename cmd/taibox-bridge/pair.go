package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// pairSettings are the kernel settings of a box's namespaces, which the root
// of the user namespace may write. IPv6 may be missing from the kernel; what
// walls the box off may not.
var pairSettings = []struct {
	file, value string
	optional    bool
}{
	{"/proc/sys/user/max_user_namespaces", "0", false},
	{"/proc/sys/net/ipv6/conf/all/disable_ipv6", "1", true},
	{"/proc/sys/net/ipv6/conf/default/disable_ipv6", "1", true},
	{"/proc/sys/net/ipv4/ip_unprivileged_port_start", "0", false},
	{"/proc/sys/net/ipv4/ping_group_range", "0 65535", false},
}

// pair runs as the root of a new user and network namespace, writes their
// settings, says so, and keeps them alive until in ends: by then the node has
// pinned them.
func pair(in io.Reader, out io.Writer) error {
	for _, s := range pairSettings {
		err := writeSetting(s.file, s.value)
		if s.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("prepare namespaces: %w", err)
		}
	}
	if _, err := io.WriteString(out, "ready\n"); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

func writeSetting(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
