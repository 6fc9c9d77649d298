package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// notes writes the section of CHANGELOG.md about the version, else of what is unreleased.
func (r *release) notes(context.Context, string) error {
	text, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	notes, err := section(string(text), strings.TrimPrefix(r.version, "v"))
	if err != nil {
		return err
	}
	notes = fmt.Sprintf("# Pelago %s\n\nImage: `%s`\n\n%s", r.version, r.pinned, notes)
	return os.WriteFile(filepath.Join(r.dir, "RELEASE_NOTES.md"), []byte(notes), 0o644)
}

// section is the part of a changelog about a version, without its title.
func section(text, version string) (string, error) {
	for _, name := range []string{version, "Unreleased"} {
		if _, after, ok := strings.Cut(text, "\n## ["+name+"]"); ok {
			_, body, _ := strings.Cut(after, "\n")   // the date
			body, _, _ = strings.Cut(body, "\n## [") // the last section ends with the file
			return strings.TrimSpace(body) + "\n", nil
		}
	}
	return "", fmt.Errorf("CHANGELOG.md has neither a section [%s] nor [Unreleased]", version)
}

// krew writes the manifest of the kubectl plugin (krew.sigs.k8s.io/docs/developer-guide).
func (r *release) krew(context.Context, string) error {
	var all []any
	for _, p := range platforms {
		s, err := sum(filepath.Join(r.dir, r.archive(p)))
		if err != nil {
			return err
		}
		all = append(all, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]string{"os": p.OS, "arch": p.Arch}},
			"uri":      r.address(r.archive(p)), "sha256": s, "bin": program(p),
			"files": []any{map[string]string{"from": program(p), "to": "."}, map[string]string{"from": "LICENSE", "to": "."}},
		})
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
		"metadata": map[string]any{"name": "pelago"},
		"spec": map[string]any{"version": r.version, "homepage": "https://github.com/pelago-net/pelago", "platforms": all,
			"shortDescription": "Connect clusters and propagate workloads to them",
			"description":      "Joins clusters to a clusterset, exports services, places workloads, and shows what is wrong."},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, "krew.yaml"), text, 0o644)
}

// address is where a file of the release will be.
func (r *release) address(file string) string {
	return strings.TrimSuffix(r.url, "/") + "/" + r.version + "/" + file
}

//go:embed install.sh
var installScript []byte

// script writes install.sh, which installs the CLI of this release unless another is asked for.
func (r *release) script(context.Context, string) error {
	text := bytes.ReplaceAll(installScript, []byte("@VERSION@"), []byte(r.version))
	text = bytes.ReplaceAll(text, []byte("@URL@"), []byte(strings.TrimSuffix(r.url, "/")))
	return os.WriteFile(filepath.Join(r.dir, "install.sh"), text, 0o755)
}
