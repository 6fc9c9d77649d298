package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// devImage is the image of a build without a release, in charts and manifests.
const devImage = "localhost/pelago:dev"

// charts packs the charts with the release's version and image: NAME-VERSION.tgz for `helm install`,
// and NAME-VERSION.oci.tar, an OCI image layout of it, for registries.
func (r *release) charts(context.Context, string) error {
	version := strings.TrimPrefix(r.version, "v")
	dirs, err := filepath.Glob(filepath.Join(r.root, "deploy", "charts", "*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		name := filepath.Base(dir)
		all, meta, err := r.chart(dir, version)
		if err != nil {
			return fmt.Errorf("chart %s: %w", name, err)
		}
		file := filepath.Join(r.dir, name+"-"+version)
		if err := writeArchive(file+".tgz", r.time, all); err != nil {
			return fmt.Errorf("chart %s: %w", name, err)
		}
		packed, err := os.ReadFile(file + ".tgz")
		if err != nil {
			return fmt.Errorf("chart %s: %w", name, err)
		}
		layout, err := chartLayout(meta, packed, version)
		if err != nil {
			return fmt.Errorf("chart %s: %w", name, err)
		}
		if err := writeArchive(file+".oci.tar", r.time, layout); err != nil {
			return fmt.Errorf("chart %s: %w", name, err)
		}
	}
	r.progress(fmt.Sprintf("packed %d charts", len(dirs)))
	return nil
}

// chart reads a chart, with the version and the image set, and its Chart.yaml as JSON.
func (r *release) chart(dir, version string) (all []entry, meta []byte, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(filepath.Dir(dir), path)
		if err != nil {
			return err
		}
		switch filepath.Base(path) {
		case "Chart.yaml":
			if data, meta, err = stamped(data, version, r.version); err != nil {
				return err
			}
		case "values.yaml":
			data = bytes.ReplaceAll(data, []byte("image: "+devImage+"\n"), []byte("image: "+r.pinned+"\n"))
			if bytes.Contains(data, []byte(devImage)) {
				return fmt.Errorf("values.yaml names %s where no release replaces it", devImage)
			}
		}
		all = append(all, entry{filepath.ToSlash(rel), 0o644, data})
		return nil
	})
	return sorted(all), meta, err
}

// stamped sets the versions of a Chart.yaml.
func stamped(data []byte, version, app string) (text, meta []byte, err error) {
	var chart map[string]any
	if err := yaml.Unmarshal(data, &chart); err != nil {
		return nil, nil, fmt.Errorf("read Chart.yaml: %w", err)
	}
	chart["version"], chart["appVersion"] = version, app
	if text, err = yaml.Marshal(chart); err == nil {
		meta, err = json.Marshal(chart)
	}
	return text, meta, err
}

// Media types of charts in registries (helm.sh/docs/topics/registries).
const (
	chartConfig  = "application/vnd.cncf.helm.config.v1+json"
	chartContent = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chartLayout is an OCI image layout of a packed chart, tagged with its version.
func chartLayout(meta, packed []byte, tag string) ([]entry, error) {
	var all []entry
	blob := func(data []byte, mediaType string, annotations map[string]string) map[string]any {
		digest := sha256.Sum256(data)
		name := hex.EncodeToString(digest[:])
		all = append(all, entry{"blobs/sha256/" + name, 0o644, data})
		out := map[string]any{"mediaType": mediaType, "digest": "sha256:" + name, "size": len(data)}
		if annotations != nil {
			out["annotations"] = annotations
		}
		return out
	}
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": manifestType,
		"config": blob(meta, chartConfig, nil), "layers": []any{blob(packed, chartContent, nil)}})
	if err != nil {
		return nil, err
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []any{blob(manifest, manifestType, map[string]string{"org.opencontainers.image.ref.name": tag})}})
	if err != nil {
		return nil, err
	}
	all = append(all, entry{"index.json", 0o644, index}, entry{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)})
	return sorted(all), nil
}

// manifests writes the CRDs as one file, and the operator with the release's image.
func (r *release) manifests(context.Context, string) error {
	files, err := filepath.Glob(filepath.Join(r.root, "deploy", "crds", "*.yaml"))
	if err != nil {
		return err
	}
	var crds bytes.Buffer
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		fmt.Fprintf(&crds, "---\n%s", strings.TrimPrefix(string(data), "---\n"))
	}
	operator, err := os.ReadFile(filepath.Join(r.root, "deploy", "operator.yaml"))
	if err != nil {
		return err
	}
	if n := bytes.Count(operator, []byte(devImage)); n != 1 {
		return fmt.Errorf("operator.yaml names %s %d times, want once", devImage, n)
	}
	_, operator, _ = bytes.Cut(operator, []byte("\n")) // how it was made
	operator = bytes.ReplaceAll(operator, []byte(devImage), []byte(r.pinned))
	if err := os.WriteFile(filepath.Join(r.dir, "crds.yaml"), crds.Bytes(), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, "operator.yaml"), operator, 0o644)
}
