package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// podSpecs are where kinds have their containers: those that Karmada's overriders know, and others
// of Kubernetes with pod templates, which an override that selects them would leave as they are.
var podSpecs = map[string][]string{
	"Pod":                   {"spec", "containers"},
	"ReplicaSet":            {"spec", "template", "spec", "containers"},
	"Deployment":            {"spec", "template", "spec", "containers"},
	"StatefulSet":           {"spec", "template", "spec", "containers"},
	"DaemonSet":             {"spec", "template", "spec", "containers"},
	"Job":                   {"spec", "template", "spec", "containers"},
	"ReplicationController": {"spec", "template", "spec", "containers"},
	"PodTemplate":           {"template", "spec", "containers"},
	"CronJob":               {"spec", "jobTemplate", "spec", "template", "spec", "containers"},
}

// containers returns the containers of an object, which may be changed in place; none of a kind
// that has none.
func containers(obj *unstructured.Unstructured) ([]map[string]any, error) {
	return containersAt(obj, podSpecs[obj.GetKind()])
}

// containersAt returns those at a path; none if it is empty.
func containersAt(obj *unstructured.Unstructured, path []string) ([]map[string]any, error) {
	if len(path) == 0 {
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

// overrideList adds to the command or the arguments of the containers of a name, or removes what is
// equal.
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

// overrideImages changes the image at the predicate's path, or those of all containers.
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

// initContainers reports whether a policy is also for the images of init containers.
func initContainers(policy metav1.Object) bool {
	return policy.GetAnnotations()[policyv1alpha1.AnnotationInitContainers] == "true"
}

// overrideInitContainers changes the images of init containers as those of containers, without
// predicate. Otherwise it reports which keep an image that would be another one.
func overrideInitContainers(obj *unstructured.Unstructured, all []policyv1alpha1.ImageOverrider, wanted bool) (kept string, err error) {
	path := slices.Clone(podSpecs[obj.GetKind()])
	if len(path) == 0 {
		return "", nil
	}
	path[len(path)-1] = "initContainers"
	list, err := containersAt(obj, path)
	if err != nil {
		return "", err
	}
	var names []string
	for i, c := range list {
		image, ok := c["image"].(string)
		if !ok {
			return "", fmt.Errorf("init container %d has no image", i)
		}
		next := image
		for _, o := range all {
			if o.Predicate == nil {
				next = changeImage(next, o)
			}
		}
		switch {
		case wanted:
			c["image"] = next
		case next != image:
			names = append(names, fmt.Sprint(c["name"]))
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	return fmt.Sprintf("the images of the init containers %s stay; they are changed if the policy has the annotation %s=true",
		strings.Join(names, ", "), policyv1alpha1.AnnotationInitContainers), nil
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

// image is a reference in its parts; each may be empty. suffix is a tag with its colon, a digest
// with its @, or both.
type image struct {
	registry, repository, suffix string
}

// parseImage splits a reference as container runtimes do: the part before the first slash is a
// registry if it has a dot or a port, or is localhost. Nothing is completed: nginx stays nginx.
func parseImage(ref string) (out image) {
	rest := ref
	if head, tail, ok := strings.Cut(rest, "/"); ok && (strings.ContainsAny(head, ".:") || head == "localhost") {
		out.registry, rest = head, tail
	}
	named, _, _ := strings.Cut(rest, "@")
	at := strings.LastIndexByte(named, ':') // a port would be before a slash
	if at < 0 {
		at = len(named)
	}
	out.repository, out.suffix = rest[:at], rest[at:]
	return out
}

func (i image) String() string {
	if i.registry == "" {
		return i.repository + i.suffix
	}
	return i.registry + "/" + i.repository + i.suffix
}

// changeImage adds to a component, replaces or removes it.
func changeImage(ref string, o policyv1alpha1.ImageOverrider) string {
	i := parseImage(ref)
	switch o.Component {
	case policyv1alpha1.Registry:
		i.registry = change(i.registry, o)
	case policyv1alpha1.Repository:
		i.repository = change(i.repository, o)
	case policyv1alpha1.Tag:
		i.suffix = changeSuffix(i.suffix, o)
	}
	return i.String()
}

func change(part string, o policyv1alpha1.ImageOverrider) string {
	switch o.Operator {
	case policyv1alpha1.OverriderOpAdd:
		return part + o.Value
	case policyv1alpha1.OverriderOpReplace:
		return o.Value
	}
	return ""
}

// changeSuffix changes a tag or a digest; a value in the form of a digest becomes one. Of both, the
// digest is dropped, as in Karmada: it is that of the former tag.
func changeSuffix(suffix string, o policyv1alpha1.ImageOverrider) string {
	if tag, _, both := strings.Cut(suffix, "@"); both && tag != "" {
		suffix = tag
	}
	separator, value := "", suffix
	if suffix != "" {
		separator, value = suffix[:1], suffix[1:]
	}
	value = change(value, o)
	if value == "" {
		return ""
	}
	if o.Operator == policyv1alpha1.OverriderOpReplace || separator == "" {
		separator = ":"
		if algorithm, _, digest := strings.Cut(value, ":"); digest && algorithm != "" {
			separator = "@"
		}
	}
	return separator + value
}
