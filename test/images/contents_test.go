package images

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/dataplane/cable"
)

func paths(l Layer) []string {
	var all []string
	for _, f := range l {
		all = append(all, f.Path)
	}
	return all
}

// has reports whether a path of l ends with suffix.
func has(l Layer, suffix string) bool {
	return slices.ContainsFunc(paths(l), func(p string) bool { return strings.HasSuffix(p, suffix) })
}

func TestProgramsBringTheirLibraries(t *testing.T) {
	one, err := Programs("/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	if !has(one, "/usr/bin/env") || !has(one, "/libc.so.6") || !slices.ContainsFunc(paths(one), func(p string) bool { return strings.Contains(filepath.Base(p), "ld-linux") }) {
		t.Errorf("env needs %q, want itself, the C library and the dynamic linker", paths(one))
	}
	two, err := Programs("/usr/bin/env", "/usr/bin/sort")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range paths(two) {
		if seen[p] {
			t.Errorf("%s appears twice", p)
		}
		seen[p] = true
	}
	if !slices.IsSorted(paths(two)) {
		t.Errorf("files are not sorted: %q", paths(two))
	}
}

func TestProgramsErrors(t *testing.T) {
	if _, err := Programs("/no/such/program"); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("missing program: %v", err)
	}
	script := write(t, filepath.Join(t.TempDir(), "script"), "#!/bin/sh\n")
	if _, err := Programs(script); err == nil || !strings.Contains(err.Error(), script) {
		t.Errorf("a script: %v, want an error that names it", err)
	}
}

func TestStaticProgramStandsAlone(t *testing.T) {
	layer, err := Programs(busybox) // busybox-static, which the images use
	if err != nil {
		t.Fatal(err)
	}
	if len(layer) != 1 {
		t.Errorf("busybox needs %q: install busybox-static", paths(layer))
	}
}

func TestPelagoImage(t *testing.T) {
	dir := t.TempDir()
	image, err := Pelago(Host(), map[string]string{
		"pelago-node": write(t, filepath.Join(dir, "pelago-node"), "node"),
		"pelago":      write(t, filepath.Join(dir, "pelago"), "cli"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(image.Layers) != 4 || !has(image.Layers[2], "/usr/bin/pelago") || !has(image.Layers[3], "/usr/bin/pelago-node") {
		t.Errorf("%d layers, want the base, the IKE daemon and one per program", len(image.Layers))
	}
	base := image.Layers[0]
	for _, file := range []string{"/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi", "/usr/sbin/iptables", "/usr/sbin/iptables-save",
		"/usr/sbin/iptables-legacy", "/usr/sbin/ip6tables-nft", "/xtables/libxt_conntrack.so", "/xtables/libxt_MARK.so", "/libxtables.so.12", "/bin/sh"} {
		if !has(base, file) {
			t.Errorf("the base layer lacks %s", file)
		}
	}
	file := filepath.Join(dir, "pelago.tar")
	first, err := image.Write(file)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := image.Write(file); err != nil || first != second {
		t.Errorf("digests %s and %s (%v)", first, second, err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() > 50<<20 {
		t.Errorf("archive of %d bytes without the programs, %v", info.Size(), err)
	}
	if _, err := Pelago(Host(), nil); err == nil {
		t.Error("no program is built: no error")
	}
}

// TestIKEDaemonHasItsPlugins: each that a configuration names is in the image, with its libraries.
func TestIKEDaemonHasItsPlugins(t *testing.T) {
	layer, err := Host().strongswan()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"/usr/lib/ipsec/charon", "/libcharon.so.0", "/libstrongswan.so.0", "/libipsec.so.0", "/libcrypto.so.3", "/libgcc_s.so.1", "/libc.so.6", "/var/run"} {
		if !has(layer, file) {
			t.Errorf("the layer lacks %s", file)
		}
	}
	_, rest, ok := strings.Cut(cable.Charon{Userspace: true}.File(), "load = ")
	if !ok {
		t.Fatal("the configuration names no plugins")
	}
	line, _, _ := strings.Cut(rest, "\n")
	for _, p := range strings.Fields(line) {
		if !has(layer, "/usr/lib/ipsec/plugins/libstrongswan-"+p+".so") {
			t.Errorf("the layer lacks plugin %s", p)
		}
	}
}

func TestWhereAmIImageHasItsTools(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "whereami")
	if err := os.WriteFile(program, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	image, err := WhereAmIImage(program)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, layer := range image.Layers {
		for _, f := range layer {
			files = append(files, f.Path)
		}
	}
	for _, want := range []string{"/usr/bin/whereami", "/bin/sh", "/bin/ping", "/usr/bin/nslookup", "/usr/bin/dig", "/usr/bin/curl", "/usr/bin/nc", "/usr/bin/iperf3", "/usr/bin/tcpdump", "/etc/nsswitch.conf"} {
		if !slices.Contains(files, want) {
			t.Errorf("the image lacks %s", want)
		}
	}
	// The rarely changing tools come first, the server last.
	if last := image.Layers[len(image.Layers)-1]; len(last) != 1 || last[0].Path != "/usr/bin/whereami" {
		t.Errorf("last layer = %+v, want just the server", last)
	}
}

func TestSmallImages(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, image := range []Image{PauseImage(program), CoreDNSImage(program)} {
		digest, err := image.Write(filepath.Join(t.TempDir(), "image.tar"))
		if err != nil || !strings.HasPrefix(digest, "sha256:") {
			t.Errorf("%s: %q, %v", image.Name, digest, err)
		}
	}
}
