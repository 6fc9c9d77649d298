package images

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"pgregory.net/rapid"
)

func write(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// list names the entries of a tar: "drwxr-xr-x etc/", with targets and texts.
func list(t *testing.T, data []byte) []string {
	t.Helper()
	var lines []string
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.ModTime.Unix() != 0 {
			t.Errorf("%s carries an owner or a time: %+v", h.Name, h)
		}
		line := h.FileInfo().Mode().String() + " " + h.Name
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		if h.Typeflag == tar.TypeReg {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			line += " " + string(text)
		}
		lines = append(lines, line)
	}
}

func TestLayer(t *testing.T) {
	program := write(t, filepath.Join(t.TempDir(), "program"), "binary")
	got, err := Layer{
		{Path: "/usr/bin/b", Link: "a"},
		{Path: "/usr/bin/a", Source: program},
		{Path: "/etc/hosts", Content: "text"},
		{Path: "/root/secret", Content: "x", Mode: 0o600},
	}.tar(false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"drwxr-xr-x etc/", "-rw-r--r-- etc/hosts text",
		"drwxr-xr-x root/", "-rw------- root/secret x",
		"drwxr-xr-x usr/", "drwxr-xr-x usr/bin/", "-rwxr-xr-x usr/bin/a binary", "Lrwxrwxrwx usr/bin/b -> a",
	}
	if diff := cmp.Diff(want, list(t, got)); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func TestBaseLayerHasARootFileSystem(t *testing.T) {
	got, err := Layer{{Path: "/tmp/x", Content: "x"}}.tar(true)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"drwxr-xr-x dev/", "drwxr-xr-x etc/", "dr-xr-xr-x proc/", "drwx------ root/", "drwxr-xr-x run/", "dr-xr-xr-x sys/",
		"dtrwxrwxrwx tmp/", "drwxr-xr-x var/", "dtrwxrwxrwx var/tmp/", "-rw-r--r-- tmp/x x"}
	if diff := cmp.Diff(want, list(t, got)); diff != "" {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func TestLayerRefusesDuplicatesAndMissingFiles(t *testing.T) {
	if _, err := (Layer{{Path: "/a", Content: "1"}, {Path: "/a", Content: "2"}}).tar(false); err == nil || !strings.Contains(err.Error(), "/a is in one layer twice") {
		t.Errorf("duplicate: %v", err)
	}
	if _, err := (Layer{{Path: "/a", Source: "/no/such/file"}}).tar(false); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("missing source: %v", err)
	}
}

// TestLayerIgnoresOrder: whatever order files are listed in, the layer is the same.
func TestLayerIgnoresOrder(t *testing.T) {
	files := Layer{{Path: "/a/1", Content: "x"}, {Path: "/a/2", Content: "y"}, {Path: "/b", Link: "a"}, {Path: "/c/d/e", Content: "z"}}
	want, err := files.tar(true)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		got, err := Layer(rapid.Permutation([]File(files)).Draw(t, "files")).tar(true)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("another order gives another layer (%v)", err)
		}
	})
}

func TestArchive(t *testing.T) {
	dir := t.TempDir()
	program := write(t, filepath.Join(dir, "program"), "binary")
	image := Image{Name: "localhost/thing:dev", Entrypoint: []string{"/thing"}, Env: []string{"A=b"},
		Layers: []Layer{{{Path: "/etc/x", Content: "x"}}, {{Path: "/thing", Source: program}}}}
	file := filepath.Join(dir, "out/thing.tar")
	digest, err := image.Write(file)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || !cmp.Equal(manifest[0].RepoTags, []string{"localhost/thing:dev"}) {
		t.Errorf("manifest = %+v, want the name as it was given", manifest)
	}
	tag, err := name.NewTag(image.Name)
	if err != nil {
		t.Fatal(err)
	}
	read, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := read.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(config.Config.Entrypoint, image.Entrypoint) || !cmp.Equal(config.Config.Env, []string{"PATH=" + Path, "A=b"}) || config.OS != "linux" {
		t.Errorf("config = %+v", config.Config)
	}
	// The same input, later and from another file, gives the same digest and archive.
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	copied := write(t, filepath.Join(dir, "copy"), "binary")
	if err := os.Chtimes(copied, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	image.Layers[1][0].Source = copied
	again, err := image.Write(file)
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if again != digest || !bytes.Equal(first, second) {
		t.Errorf("digests %s and %s, archives equal: %v", digest, again, bytes.Equal(first, second))
	}
}

func TestArchiveErrors(t *testing.T) {
	dir := t.TempDir()
	for _, image := range []Image{{Name: "Not A Name"}, {Name: "localhost/x:dev", Layers: []Layer{{{Path: "/a", Source: "/no/such/file"}}}}} {
		if _, err := image.Write(filepath.Join(dir, "x.tar")); err == nil || !strings.Contains(err.Error(), "assemble image "+image.Name) {
			t.Errorf("%s: %v, want an error that names the image", image.Name, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("entries = %v, %v, want nothing left behind", entries, err)
	}
}
