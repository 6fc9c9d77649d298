package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// podSpecs are where the kinds that Karmada's overriders know have their containers.
var podSpecs = map[string][]string{
	"Pod":         {"spec", "containers"},
	"ReplicaSet":  {"spec", "template", "spec", "containers"},
	"Deployment":  {"spec", "template", "spec", "containers"},
	"StatefulSet": {"spec", "template", "spec", "containers"},
	"DaemonSet":   {"spec", "template", "spec", "containers"},
	"Job":         {"spec", "template", "spec", "containers"},
}

// containers returns the containers of an object, which may be changed in place; none of a kind that has none.
func containers(obj *unstructured.Unstructured) ([]map[string]any, error) {
	path, known := podSpecs[obj.GetKind()]
	if !known {
		return nil, nil
	}
	value, found, err := unstructured.NestedFieldNoCopy(obj.Object, path...)
	if err != nil || !found {
		return nil, err
	}
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("%s is no list", strings.Join(path, "."))
	}
	out := make([]map[string]any, 0, len(list))
	for i, c := range list {
		m, ok := c.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s[%d] is no container", strings.Join(path, "."), i)
		}
		out = append(out, m)
	}
	return out, nil
}

// overrideList adds to the command or the arguments of the containers of a name, or removes what is equal.
func overrideList(obj *unstructured.Unstructured, field string, o policyv1alpha1.CommandArgsOverrider) error {
	all, err := containers(obj)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c["name"] != o.ContainerName {
			continue
		}
		list, _, err := unstructured.NestedStringSlice(c, field)
		if err != nil {
			return fmt.Errorf("container %s: %w", o.ContainerName, err)
		}
		switch o.Operator {
		case policyv1alpha1.OverriderOpAdd:
			list = append(list, o.Value...)
		case policyv1alpha1.OverriderOpRemove:
			list = slices.DeleteFunc(list, func(v string) bool { return slices.Contains(o.Value, v) })
		}
		if len(list) == 0 {
			delete(c, field)
			continue
		}
		if err := unstructured.SetNestedStringSlice(c, list, field); err != nil {
			return fmt.Errorf("container %s: %w", o.ContainerName, err)
		}
	}
	return nil
}

// overrideImages changes the image at the predicate's path, or those of all containers; init containers need a predicate.
func overrideImages(obj *unstructured.Unstructured, o policyv1alpha1.ImageOverrider) error {
	if o.Predicate != nil {
		return overrideImageAt(obj, o)
	}
	all, err := containers(obj)
	if err != nil {
		return err
	}
	for i, c := range all {
		image, ok := c["image"].(string)
		if !ok {
			return fmt.Errorf("container %d has no image", i)
		}
		c["image"] = changeImage(image, o)
	}
	return nil
}

func overrideImageAt(obj *unstructured.Unstructured, o policyv1alpha1.ImageOverrider) error {
	parent, key, err := walk(obj.Object, o.Predicate.Path)
	if err != nil {
		return fmt.Errorf("predicate.path %s: %w", o.Predicate.Path, err)
	}
	image, ok := parent[key].(string)
	switch {
	case parent[key] == nil:
		return fmt.Errorf("predicate.path %s: %w", o.Predicate.Path, errPathMissing)
	case !ok:
		return fmt.Errorf("predicate.path %s is no image", o.Predicate.Path)
	}
	parent[key] = changeImage(image, o)
	return nil
}

// walk follows a JSON pointer (RFC 6901) to the map that holds its last step.
func walk(root map[string]any, pointer string) (parent map[string]any, key string, err error) {
	steps := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	var at any = root
	for i, step := range steps {
		step = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
		switch x := at.(type) {
		case map[string]any:
			if i == len(steps)-1 {
				return x, step, nil
			}
			at = x[step]
		case []any:
			n, err := strconv.Atoi(step)
			if err != nil || n < 0 || n >= len(x) {
				return nil, "", fmt.Errorf("the list at step %d has no element %q: %w", i, step, errPathMissing)
			}
			at = x[n]
		default:
			return nil, "", fmt.Errorf("nothing is at step %d (%q): %w", i, step, errPathMissing)
		}
	}
	return nil, "", fmt.Errorf("it ends in a list")
}
