// Package images assembles container images from local files, without a registry and without a
// container engine: the image of Pelago, and those of the lab (pause, CoreDNS, whereami). "docker
// load" and "ctr images import" read the resulting archive, which depends on the contents of the
// files only: the same input gives the same digest. A release is an OCI archive of Pelago's image
// for each architecture.
package images

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Path is the PATH of every image.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// File is one entry of a layer; exactly one of Source, Content and Link is set.
type File struct {
	Path    string // absolute, in the image
	Source  string // file on this machine
	Content string // text
	Link    string // target of a symbolic link
	Mode    int64  // permission bits; 0 stands for 0755 (Source) or 0644 (Content)
}

// Layer is a set of files. Directories above them are added, mode 0755.
type Layer []File

// Image is an image to be assembled. Layers that change often belong last: a
// container runtime neither stores nor unpacks unchanged layers again.
type Image struct {
	Name       string   // reference with tag, such as "localhost/pelago:dev"
	Also       []string // further references to the same image
	Layers     []Layer
	Entrypoint []string
	Cmd        []string
	Env        []string // in addition to PATH
	Arch       string   // GOARCH of its programs; "": that of this machine
	Labels     map[string]string
}

// directories that programs expect in any root file system, with their modes.
var directories = map[string]int64{"dev": 0o755, "etc": 0o755, "proc": 0o555, "root": 0o700, "run": 0o755, "sys": 0o555, "tmp": 0o1777, "var/tmp": 0o1777}

// Write assembles the image into file, replacing it at once, and returns the
// digest of its manifest.
func (i Image) Write(file string) (digest string, err error) {
	// Not compressed: the archive goes to a runtime on this machine.
	img, err := i.build(func(data []byte) (v1.Layer, error) { return static.NewLayer(data, types.DockerUncompressedLayer), nil })
	if err != nil {
		return "", err
	}
	// Not strict: strict validation refuses "localhost" as a registry without a
	// port.
	tags := map[name.Tag]v1.Image{}
	for _, n := range append([]string{i.Name}, i.Also...) {
		tag, err := name.NewTag(n)
		if err != nil {
			return "", fmt.Errorf("assemble image %s: %w", i.Name, err)
		}
		tags[tag] = img
	}
	if err := replace(file, func(w io.Writer) error { return tarball.MultiWrite(tags, w) }); err != nil {
		return "", fmt.Errorf("write image %s: %w", i.Name, err)
	}
	hash, err := img.Digest()
	return hash.String(), err
}

// replace writes file, which is the old or the new one at any time.
func replace(file string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".new-image-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if err := errors.Join(write(tmp), tmp.Chmod(0o644), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// build assembles the image from layers that newLayer makes of their tars.
func (i Image) build(newLayer func(tar []byte) (v1.Layer, error)) (img v1.Image, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("assemble image %s: %w", i.Name, err)
		}
	}()
	arch := cmp.Or(i.Arch, runtime.GOARCH)
	if img, err = mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: time.Unix(0, 0).UTC()},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Entrypoint: i.Entrypoint, Cmd: i.Cmd, Env: append([]string{"PATH=" + Path}, i.Env...), WorkingDir: "/", Labels: i.Labels},
	}); err != nil {
		return nil, err
	}
	for n, files := range i.Layers {
		for _, f := range files {
			if err := f.runsOn(arch); err != nil {
				return nil, err
			}
		}
		data, err := files.tar(n == 0)
		if err != nil {
			return nil, err
		}
		layer, err := newLayer(data)
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// tar writes the layer sorted by path. With base it begins with the directories
// of a root file system.
func (l Layer) tar(base bool) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	seen := map[string]bool{}
	var dir func(p string, mode int64) error
	dir = func(p string, mode int64) error {
		if p == "." || seen[p] {
			return nil
		}
		if err := dir(path.Dir(p), 0o755); err != nil {
			return err
		}
		seen[p] = true
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: p + "/", Mode: mode, Format: tar.FormatUSTAR})
	}
	if base {
		for _, p := range slices.Sorted(maps.Keys(directories)) {
			if err := dir(p, directories[p]); err != nil {
				return nil, err
			}
		}
	}
	files := slices.Clone(l)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for n, f := range files {
		if n > 0 && files[n-1].Path == f.Path {
			return nil, fmt.Errorf("%s is in one layer twice", f.Path)
		}
		p := strings.TrimPrefix(path.Clean(f.Path), "/")
		if err := dir(path.Dir(p), 0o755); err != nil {
			return nil, err
		}
		if err := f.write(w, p); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func (f File) write(w *tar.Writer, p string) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: p, Mode: f.Mode, Format: tar.FormatUSTAR}
	data := []byte(f.Content)
	switch {
	case f.Link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.Link, 0o777
		return w.WriteHeader(header)
	case f.Source != "":
		var err error
		if data, err = os.ReadFile(f.Source); err != nil {
			return err
		}
		if header.Mode == 0 {
			header.Mode = 0o755
		}
	case header.Mode == 0:
		header.Mode = 0o644
	}
	header.Size = int64(len(data))
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
