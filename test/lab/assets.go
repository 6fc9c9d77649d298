package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pelago-net/pelago/test/images"
	"github.com/pelago-net/pelago/test/lab/binaries"
)

// assets are the files on the host that a lab is made of.
type assets struct {
	kubernetes string // directory of the component binaries
	containerd string // directory of containerd, its shim and ctr
	nodeInit   string // the node's first process
	images     string // directory of pause.tar and coredns.tar
	network    string // directory of the CNI's programs; empty: it has none
}

// Build builds everything that a lab with a CNI needs, as far as the cache lacks it.
func Build(ctx context.Context, cni string, progress binaries.Progress) error {
	n, err := networkOf(cni)
	if err != nil {
		return err
	}
	_, err = buildAssets(ctx, n, progress)
	return err
}

func buildAssets(ctx context.Context, n network, progress binaries.Progress) (assets, error) {
	var a assets
	cache, err := binaries.CacheDir()
	if err != nil {
		return a, err
	}
	if n.programs != nil {
		if a.network, err = n.programs(ctx, progress); err != nil {
			return a, err
		}
	}
	if a.kubernetes, err = binaries.Kubernetes(ctx, progress); err != nil {
		return a, err
	}
	if a.containerd, err = binaries.Containerd(ctx, progress); err != nil {
		return a, err
	}
	coredns, err := binaries.CoreDNS(ctx, progress)
	if err != nil {
		return a, err
	}
	a.nodeInit = filepath.Join(cache, "node", "nodeinit")
	if err := binaries.Program(ctx, "./test/lab/nodeinit", a.nodeInit); err != nil {
		return a, err
	}
	pause := filepath.Join(cache, "node", "pause")
	if err := binaries.Program(ctx, "./test/images/pause", pause); err != nil {
		return a, err
	}
	a.images, err = nodeImages(filepath.Join(cache, "node"), pause, coredns)
	return a, err
}

// nodeImages assembles the images that every node has from the start. Their
// directory is named by what is in them.
func nodeImages(parent, pause, coredns string) (string, error) {
	data, err := os.ReadFile(pause)
	if err != nil {
		return "", fmt.Errorf("assemble the nodes' images: %w", err)
	}
	h := sha256.New()
	h.Write(data)
	h.Write([]byte(coredns)) // its path names its version and sources
	dir := filepath.Join(parent, "images-"+hex.EncodeToString(h.Sum(nil))[:12])
	if exists(filepath.Join(dir, "pause.tar")) {
		return dir, nil
	}
	if _, err := images.CoreDNSImage(coredns).Write(filepath.Join(dir, "coredns.tar")); err != nil {
		return "", err
	}
	_, err = images.PauseImage(pause).Write(filepath.Join(dir, "pause.tar"))
	return dir, err
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
