// Command amend changes definitions that controller-gen has written, where no marker can: `go run
// ./api/amend DIR`.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// amendments are what changes each file.
var amendments = map[string]func(crd map[string]any) error{
	"cluster.karmada.io_clusters.yaml":          reasonMayBeEmpty,
	"search.karmada.io_resourceregistries.yaml": addStored,
}

func main() {
	for name, amend := range amendments {
		if err := file(filepath.Join(os.Args[1], name), amend); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
	}
}

func file(path string, amend func(map[string]any) error) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	crd := map[string]any{}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if err := amend(crd); err != nil {
		return fmt.Errorf("amend %s: %w", path, err)
	}
	if text, err = yaml.Marshal(crd); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.WriteFile(path, append([]byte("---\n"), text...), 0o644)
}

// versions are those of a definition.
func versions(crd map[string]any) ([]any, error) {
	all, _, err := unstructured.NestedSlice(crd, "spec", "versions")
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("it has no versions")
	}
	return all, err
}

// reasonMayBeEmpty: clients of Karmada write conditions of Clusters without a reason, and no marker
// reaches into metav1.Condition.
func reasonMayBeEmpty(crd map[string]any) error {
	all, err := versions(crd)
	if err != nil {
		return err
	}
	path := []string{"schema", "openAPIV3Schema", "properties", "status", "properties", "conditions", "items"}
	version := all[0].(map[string]any)
	condition, ok, err := unstructured.NestedMap(version, path...)
	if err != nil || !ok {
		return fmt.Errorf("it has no conditions: %w", err)
	}
	required, _, err := unstructured.NestedStringSlice(condition, "required")
	if err != nil {
		return err
	}
	required = slices.DeleteFunc(required, func(name string) bool { return name == "reason" })
	reason, _, err := unstructured.NestedMap(condition, "properties", "reason")
	if err != nil {
		return err
	}
	delete(reason, "minLength")
	reason["description"] = strings.ReplaceAll(reason["description"].(string), "field may not be empty", "field may be empty")
	if pattern := reason["pattern"].(string); !strings.HasPrefix(pattern, "^(") {
		reason["pattern"] = "^(" + strings.TrimSuffix(strings.TrimPrefix(pattern, "^"), "$") + ")?$"
	}
	if err := unstructured.SetNestedStringSlice(condition, required, "required"); err != nil {
		return err
	}
	if err := unstructured.SetNestedMap(condition, reason, "properties", "reason"); err != nil {
		return err
	}
	if err := unstructured.SetNestedMap(version, condition, path...); err != nil {
		return err
	}
	return unstructured.SetNestedSlice(crd, all, "spec", "versions")
}

// addStored adds the version under which pelago-hub reads and writes ResourceRegistries
// (control/hub/access/search.md), equal to v1alpha1.
func addStored(crd map[string]any) error {
	all, err := versions(crd)
	if err != nil || len(all) > 1 {
		return err
	}
	stored := unstructured.Unstructured{Object: all[0].(map[string]any)}
	next := stored.DeepCopy().Object
	next["name"], next["storage"] = "stored", false
	return unstructured.SetNestedSlice(crd, append(all, next), "spec", "versions")
}
