package oci

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/vishvananda/netlink"

	"github.com/taibox/taibox/tai/sandbox"
)

// Stats implements [sandbox.Sandbox].
func (d *Driver) Stats(_ context.Context, id string) (sandbox.Stats, error) {
	b, live, err := d.running("measure", id)
	if err != nil {
		return sandbox.Stats{}, err
	}
	st := sandbox.Stats{Time: time.Now(), MemoryLimit: b.info().MemoryBytes}
	if d.cgroups.mode == cgroups.Unified {
		err = d.statsV2(id, &st)
	} else {
		err = d.statsV1(id, &st)
	}
	if err != nil {
		if end := b.endOf(live); end != nil { // its cgroup went under us
			err = end
		}
		return st, wrapBox("measure", id, err)
	}
	if link, err := netlink.LinkByName(d.network.interfaceName(live.run.Index)); err == nil && link.Attrs().Statistics != nil {
		// What the machine's end sends, the box receives.
		st.NetRxBytes, st.NetTxBytes = int64(link.Attrs().Statistics.TxBytes), int64(link.Attrs().Statistics.RxBytes)
	}
	if st.OverheadBytes, err = resident(live.run.PID); err != nil {
		if end := b.endOf(live); end != nil {
			err = end
		}
		return st, wrapBox("measure", id, err)
	}
	return st, nil
}

// resident is the resident memory of a process. The kernel is asked, which
// answers for a bridge that is frozen or starved too.
func resident(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, fmt.Errorf("memory of the bridge: %w", err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(data), &size, &pages); err != nil {
		return 0, fmt.Errorf("memory of the bridge %q: %w", data, err)
	}
	return pages * int64(os.Getpagesize()), nil
}

func (d *Driver) statsV1(id string, st *sandbox.Stats) error {
	cg, err := cgroup1.Load(cgroup1.StaticPath(d.cgroups.boxPath(id)))
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	m, err := cg.Stat(cgroup1.IgnoreNotExist)
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	st.CPU = time.Duration(m.GetCPU().GetUsage().GetTotal())
	mem := m.GetMemory()
	st.MemoryBytes = int64(mem.GetUsage().GetUsage() - min(mem.GetTotalInactiveFile(), mem.GetUsage().GetUsage()))
	st.MemoryPeakBytes = int64(mem.GetUsage().GetMax())
	st.Pids = int64(m.GetPids().GetCurrent())
	for _, e := range m.GetBlkio().GetIoServiceBytesRecursive() {
		switch e.GetOp() {
		case "Read":
			st.ReadBytes += int64(e.GetValue())
		case "Write":
			st.WriteBytes += int64(e.GetValue())
		}
	}
	return nil
}

func (d *Driver) statsV2(id string, st *sandbox.Stats) error {
	cg, err := cgroup2.Load(d.cgroups.boxPath(id))
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	m, err := cg.Stat()
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	st.CPU = time.Duration(m.GetCPU().GetUsageUsec()) * time.Microsecond
	mem := m.GetMemory()
	st.MemoryBytes = int64(mem.GetUsage() - min(mem.GetInactiveFile(), mem.GetUsage()))
	st.MemoryPeakBytes = int64(mem.GetMaxUsage())
	st.Pids = int64(m.GetPids().GetCurrent())
	for _, e := range m.GetIo().GetUsage() {
		st.ReadBytes += int64(e.GetRbytes())
		st.WriteBytes += int64(e.GetWbytes())
	}
	return nil
}

// Ports implements [sandbox.Sandbox].
func (d *Driver) Ports(ctx context.Context, id string) ([]sandbox.Port, error) {
	b, live, err := d.running("list ports of", id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := answering(ctx)
	defer cancel()
	ports, err := live.bridge.Ports(ctx)
	return ports, wrapBox("list ports of", id, b.fate(live, err))
}

// Dial implements [sandbox.Sandbox].
func (d *Driver) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("dial port %d of box %s: %w", port, id, sandbox.ErrInvalidSpec)
	}
	b, live, err := d.running("dial", id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := answering(ctx)
	defer cancel()
	conn, err := live.bridge.Dial(ctx, port)
	if err != nil {
		return nil, fmt.Errorf("dial port %d of box %s: %w", port, id, b.fate(live, err))
	}
	return conn, nil
}

// Load implements [sandbox.Image].
func (d *Driver) Load(ctx context.Context, archive io.Reader, name string) ([]sandbox.ImageInfo, error) {
	return d.images.Load(ctx, archive, name)
}

// InspectImage implements [sandbox.Image].
func (d *Driver) InspectImage(ctx context.Context, ref string) (sandbox.ImageInfo, error) {
	return d.images.InspectImage(ctx, ref)
}

// ListImages implements [sandbox.Image].
func (d *Driver) ListImages(ctx context.Context) ([]sandbox.ImageInfo, error) {
	return d.images.ListImages(ctx)
}

// RemoveImage implements [sandbox.Image].
func (d *Driver) RemoveImage(ctx context.Context, ref string) error {
	return d.images.RemoveImage(ctx, ref)
}

// Exists implements [sandbox.Image].
func (d *Driver) Exists(ctx context.Context, ref string) (bool, error) {
	return d.images.Exists(ctx, ref)
}

// Pull implements [sandbox.Image].
func (d *Driver) Pull(ctx context.Context, ref string, opts sandbox.PullOptions) (<-chan sandbox.PullProgress, error) {
	return d.images.Pull(ctx, ref, opts)
}

// Save implements [sandbox.Image].
func (d *Driver) Save(ctx context.Context, refs []string, w io.Writer) error {
	return d.images.Save(ctx, refs, w)
}

// Prune implements [sandbox.Image].
func (d *Driver) Prune(ctx context.Context, all bool) ([]sandbox.ImageInfo, error) {
	return d.images.Prune(ctx, all)
}
