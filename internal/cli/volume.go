package cli

import (
	"path"
	"strings"

	"github.com/taibox/taibox/api/rest"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// mountVolumes puts what -v says into a request: the first workspace is the
// one that the box works in.
func mountVolumes(req *rest.CreateBox, volumes []string) error {
	taken := map[string]string{}
	for _, v := range volumes {
		m, err := parseVolume(v)
		if err != nil {
			return err
		}
		if before := taken[m.Target]; before != "" {
			return usage("-v %s and -v %s are both at %s", before, v, m.Target)
		}
		taken[m.Target] = v
		if m.WorkspaceID == "" || req.WorkspaceID != "" {
			req.Mounts = append(req.Mounts, m)
			continue
		}
		req.WorkspaceID, req.MountPath = m.WorkspaceID, m.Target
		if m.ReadOnly {
			req.MountMode = modeReadOnly
		}
	}
	return nil
}

// defaultMount is where a box has its workspace.
const defaultMount = "/workspace"

// The modes of a mount.
const (
	modeReadOnly  = "ro"
	modeReadWrite = "rw"
)

// parseVolume reads "ws:ID[:PATH][:ro]" or "/DIR:PATH[:ro]".
func parseVolume(s string) (rest.Mount, error) {
	bad := func() (rest.Mount, error) {
		return rest.Mount{}, usage("volume %q: ws:ID[:PATH][:ro] or /DIR:PATH[:ro] is expected", s)
	}
	parts := strings.Split(s, ":")
	var m rest.Mount
	if last := parts[len(parts)-1]; last == modeReadOnly || last == modeReadWrite {
		m.ReadOnly = last == modeReadOnly
		parts = parts[:len(parts)-1]
	}
	check := taisandbox.Mount{Source: "/"}
	switch {
	case len(parts) >= 2 && parts[0] == "ws" && len(parts) <= 3:
		m.WorkspaceID, m.Target = parts[1], defaultMount
		if len(parts) == 3 {
			m.Target = parts[2]
		}
		if err := taisandbox.ValidateID(m.WorkspaceID); err != nil {
			return m, err
		}
	case len(parts) == 2 && path.IsAbs(parts[0]):
		m.Source, m.Target = path.Clean(parts[0]), parts[1]
		check.Source = m.Source
	default:
		return bad()
	}
	if !path.IsAbs(m.Target) {
		return bad()
	}
	m.Target = path.Clean(m.Target)
	check.Target = m.Target
	return m, check.Validate()
}

// formatMounts writes mounts as -v takes them.
func formatMounts(mounts []rest.Mount) string {
	all := make([]string, len(mounts))
	for i, m := range mounts {
		if all[i] = m.Source; m.WorkspaceID != "" {
			all[i] = "ws:" + m.WorkspaceID
		}
		all[i] += ":" + m.Target
		if m.ReadOnly {
			all[i] += ":" + modeReadOnly
		}
	}
	return strings.Join(all, ", ")
}
