// Command release builds what a release page offers, into one directory: the CLI for all systems
// with completions and manual pages, the image for all architectures, charts that name it by digest,
// CRDs, the operator, a manifest for krew, release notes, an installation script, SBOM, provenance,
// signed checksums. The same sources and Debian packages give the same bytes, but for the signature.
// `make release` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pelago-net/pelago/test/images"
	"github.com/pelago-net/pelago/test/lab/binaries"
)

func main() {
	r := release{progress: func(line string) { fmt.Fprintln(os.Stderr, line) }}
	flag.StringVar(&r.version, "version", "", "version, vMAJOR.MINOR.PATCH, a suffix may follow (required)")
	flag.StringVar(&r.image, "image", "", "REGISTRY/pelago:VERSION to which the image will be pushed (required)")
	flag.StringVar(&r.url, "url", "https://github.com/pelago-net/pelago/releases/download", "address below which VERSION/FILE will be")
	flag.StringVar(&r.key, "key", "", "file of an ECDSA key (PKCS #8, PEM) that signs the checksums; none: they are not signed")
	flag.StringVar(&r.dir, "out", filepath.Join("out", "release"), "directory of the files, emptied first")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := r.build(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// release is one release.
type release struct {
	version, image, url, dir string
	key                      string
	progress                 func(string)

	root   string    // of the repository
	time   time.Time // of its commit, which files in archives have
	pinned string    // the image with its digest
}

// semantic is a version of Semantic Versioning 2.0.0 without build metadata, which tags of images
// cannot have; charts need one.
var semantic = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

func (r *release) build(ctx context.Context) (err error) {
	switch {
	case !semantic.MatchString(r.version):
		return fmt.Errorf("version %q: charts and krew need vMAJOR.MINOR.PATCH: make release VERSION=v0.9.0", r.version)
	case r.image == "":
		return errors.New("the CLI and the charts are to name their image: make release IMAGE=REGISTRY/pelago:" + r.version)
	}
	if r.root, err = binaries.Repository(); err != nil {
		return err
	}
	if r.time, err = commitTime(ctx, r.root); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(r.dir), os.MkdirAll(r.dir, 0o755)); err != nil {
		return fmt.Errorf("empty %s: %w", r.dir, err)
	}
	build, err := os.MkdirTemp(r.dir, ".build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(build)
	archive, digest, err := images.Release(ctx, build, r.version, r.image, r.progress)
	if err != nil {
		return err
	}
	if err := os.Rename(archive, filepath.Join(r.dir, "pelago-image-"+r.version+".tar")); err != nil {
		return fmt.Errorf("keep the image: %w", err)
	}
	r.pinned = r.image + "@" + digest
	for _, step := range []func(context.Context, string) error{r.programs, r.charts, r.manifests, r.notes, r.krew, r.script, r.sbom} {
		if err := step(ctx, build); err != nil {
			return err
		}
	}
	if err := r.provenance(ctx); err != nil {
		return err
	}
	if err := r.checksums(); err != nil {
		return err
	}
	return r.sign()
}

// commitTime is $SOURCE_DATE_EPOCH (reproducible-builds.org), else the time of the commit.
func commitTime(ctx context.Context, root string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		out, err := exec.CommandContext(ctx, "git", "-C", root, "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("read the time of the commit: %w (outside of a clone set SOURCE_DATE_EPOCH)", err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the time of the release: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
