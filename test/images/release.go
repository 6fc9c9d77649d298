package images

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pelago-net/pelago/test/lab/binaries"
)

// Architectures returns those of a release, as GOARCH.
func Architectures() []string { return slices.Sorted(maps.Keys(architectures)) }

// Release builds Pelago's programs for all architectures into dir/linux-ARCH, and its image for all
// of them into dir/pelago.tar. Debian's programs come from the package sources of this machine, so
// that its own architecture and packages do not matter. The version is the tag of the image and
// what the programs report; reference is where the image will be, which they install if none is
// named. It returns the digest of the index.
func Release(ctx context.Context, dir, version, reference string, progress func(string)) (file, digest string, err error) {
	if _, err := name.NewTag("pelago:" + version); err != nil {
		return "", "", fmt.Errorf("version %q is no tag of an image: %w (give another with --version)", version, err)
	}
	if _, err := name.ParseReference(reference, name.StrictValidation); reference != "" && err != nil {
		return "", "", fmt.Errorf("image %q is no name with a tag: %w (give another with --image)", reference, err)
	}
	var all []Image
	for _, arch := range Architectures() {
		built := map[string]string{}
		for _, name := range PelagoPrograms() {
			built[name] = filepath.Join(dir, "linux-"+arch, name)
			if err := binaries.Release(ctx, "./cmd/"+name, built[name], binaries.Platform{OS: "linux", Arch: arch}, version, reference); err != nil {
				return "", "", fmt.Errorf("for %s: %w", arch, err)
			}
		}
		progress("built the programs for " + arch)
		system, err := Debian(ctx, arch, filepath.Join(dir, "debian-"+arch), pelagoPackages...)
		if err != nil {
			return "", "", err
		}
		progress("unpacked Debian's packages for " + arch)
		image, err := Pelago(system, built)
		if err != nil {
			return "", "", err
		}
		image.Labels = map[string]string{
			"org.opencontainers.image.title": "Pelago", "org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"}
		all = append(all, image)
	}
	file = filepath.Join(dir, "pelago.tar")
	digest, err = WriteIndex(file, version, all...)
	return file, digest, err
}

// WriteIndex assembles the same image for several architectures into file, an OCI image layout as a
// tar whose only entry is an index of them, named tag. Layers are compressed: the archive goes to a
// registry. It returns the digest of the index.
func WriteIndex(file, tag string, all ...Image) (digest string, err error) {
	var index v1.ImageIndex = empty.Index
	for _, i := range all {
		img, err := i.build(compressed)
		if err != nil {
			return "", fmt.Errorf("for %s: %w", i.Arch, err)
		}
		img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: i.Arch}}})
	}
	tmp, err := os.MkdirTemp("", "pelago-index-")
	if err != nil {
		return "", fmt.Errorf("write index %s: %w", file, err)
	}
	defer os.RemoveAll(tmp)
	at, err := layout.Write(tmp, empty.Index)
	if err == nil {
		err = at.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag}))
	}
	if err == nil {
		err = replace(file, func(w io.Writer) error { return tarTree(w, tmp) })
	}
	if err != nil {
		return "", fmt.Errorf("write index %s: %w", file, err)
	}
	hash, err := index.Digest()
	return hash.String(), err
}

func compressed(data []byte) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// tarTree writes the files below dir, sorted, without owners and times.
func tarTree(w io.Writer, dir string) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		p, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return File{Source: path, Mode: 0o644}.write(out, filepath.ToSlash(p))
	})
	if err != nil {
		return err
	}
	return out.Close()
}
