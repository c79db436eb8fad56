//go:build keep

// Package keep pins modules while the house is being built.
package keep

import (
	_ "github.com/coder/websocket"
	_ "github.com/containerd/containerd/v2/client"
	_ "github.com/containerd/containerd/v2/contrib/seccomp"
	_ "github.com/containerd/containerd/v2/core/metadata"
	_ "github.com/containerd/containerd/v2/plugins/content/local"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	_ "github.com/containerd/go-runc"
	_ "github.com/containerd/cgroups/v3/cgroup1"
	_ "github.com/creack/pty"
	_ "github.com/danielgtaylor/huma/v2"
	_ "github.com/danielgtaylor/huma/v2/adapters/humago"
	_ "github.com/distribution/reference"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/go-containerregistry/pkg/v1/tarball"
	_ "github.com/google/nftables"
	_ "github.com/moby/moby/client"
	_ "github.com/moby/sys/user"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"
	_ "go.etcd.io/bbolt"
	_ "go.uber.org/goleak"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/mod/modfile"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "tags.cncf.io/container-device-interface/pkg/cdi"
)
