package install

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/hub"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// Hosted are the flags about a hub that runs in a host cluster.
type Hosted struct {
	hub.Hosted
	// Context is that of the host cluster.
	Context string
}

// Local are the flags about a hub of processes on this machine.
type Local struct {
	hub.Local
	// On: --local is given.
	On bool
}

// AddHost adds the flags that name the host cluster and the namespace.
func (h *Hosted) AddHost(f *pflag.FlagSet) {
	f.StringVar(&h.Context, "host-context", "", "context of the host cluster: an ordinary cluster, in which the hub runs as pods")
	f.StringVar(&h.Namespace, "namespace", manifests.SystemNamespace, "namespace of the host cluster in which the hub runs")
	f.DurationVar(&h.Timeout, "timeout", 10*time.Minute, "how long to wait for the pods of the hub")
}

// Add adds the flags of init.
func (h *Hosted) Add(f *pflag.FlagSet) { h.Flags = h.Hub.AddFlags(f) }

// ExcludeLocal marks the flags of Add that a hub of --local does not read, all but those about its
// addresses.
func (h *Hosted) ExcludeLocal(cmd *cobra.Command) {
	for _, flag := range h.Flags.Names() {
		if name := strings.TrimPrefix(flag, "--"); name != "api-address" && name != "namespace" && name != "karmada-tools" {
			cmd.MarkFlagsMutuallyExclusive("local", name)
		}
	}
}

// CheckMode refuses flags that only --host-context reads.
func (h *Hosted) CheckMode(f *pflag.FlagSet) error {
	return view.OnlyWith(f, "host-context", "namespace", "dry-run", "service-type", "node-port", "image-registry", "etcd-image",
		"kube-apiserver-image", "kube-controller-manager-image", "etcd-replicas", "storage-class", "storage-size", "etcd-empty-dir", "etcd-host-path", "etcd-node")
}

// Check validates the flags.
func (h *Hosted) Check() error {
	return h.Flags.Names().Error(spec.Join(append(h.Flags.Read(), h.Validate()...)))
}

// Options are those of pelago-hub, by the flags about pods alone.
func (h *Hosted) Options() (manifests.MemberOptions, error) {
	err := spec.Join(append(h.Flags.Read(), h.Placement.Validate()...))
	return h.Hub.Options(), h.Flags.Names().Error(err)
}

// AddDir adds the flags that name the hub of this machine.
func (l *Local) AddDir(f *pflag.FlagSet) {
	f.BoolVar(&l.On, "local", false, "the hub consists of processes of this machine")
	f.StringVar(&l.Dir, "dir", "/var/lib/pelago-hub", "directory of the hub of --local: keys, certificates, data of etcd")
	f.StringVar(&l.BinDir, "bin-dir", "", "with --local: `directory` of "+hub.LocalVersions+" (default: $PATH)")
}

// CheckMode refuses flags that only --local reads, and --local itself where its programs do not
// run.
func (l *Local) CheckMode(f *pflag.FlagSet) error {
	if l.On && runtime.GOOS != "linux" {
		return fmt.Errorf("--local: the hub's programs do not run on %s: run this on a Linux machine, or name the hub's cluster by --context", runtime.GOOS)
	}
	return view.OnlyWith(f, "local", "dir", "bin-dir", "foreground")
}

// Add adds the flags of init.
func (l *Local) Add(f *pflag.FlagSet) {
	f.BoolVar(&l.Foreground, "foreground", false, "with --local: run the programs until this command ends, instead of systemd units")
}
