package arch

import (
	"os"
	"testing"
)

// linuxOnly begins the paths of packages that build, or work, on Linux only.
var linuxOnly = []string{
	module + "dataplane/loader", module + "dataplane/netdev", module + "dataplane/observe", module + "dataplane/probe",
	"github.com/cilium/ebpf/link", "github.com/cilium/ebpf/rlimit", "github.com/coreos/go-iptables", "github.com/google/nftables",
	"github.com/mdlayher/", "github.com/strongswan/", "github.com/vishvananda/", "golang.zx2c4.com/",
}

// The CLI runs on laptops: on other systems than Linux it imports nothing that works on Linux only.
// That it compiles there is a matter of the cross-builds.
func TestCLIIsPortable(t *testing.T) {
	for _, system := range []string{"darwin", "windows"} {
		for _, p := range list(t, append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0"), "-deps", module+"cmd/pelago") {
			for _, imp := range p.Imports {
				if begins(imp, linuxOnly) {
					t.Errorf("on %s, %s imports %s, which works on Linux only: move what it needs into a package of plain Go, or tag the file //go:build linux", system, p.ImportPath, imp)
				}
			}
		}
	}
}
