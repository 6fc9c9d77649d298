package images

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/deploy/images"
)

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
	for _, image := range []images.Image{PauseImage(program), CoreDNSImage(program)} {
		digest, err := image.Write(filepath.Join(t.TempDir(), "image.tar"))
		if err != nil || !strings.HasPrefix(digest, "sha256:") {
			t.Errorf("%s: %q, %v", image.Name, digest, err)
		}
	}
}
