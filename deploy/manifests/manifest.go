package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"strconv"
	"text/template"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	mcscrd "sigs.k8s.io/mcs-api/config/crd"

	"github.com/pelago-net/pelago/deploy"
)

// HubObjects is what Hub applies besides CRDs, in the order of application.
func HubObjects() ([]*unstructured.Unstructured, error) {
	return Objects(nil, "hub/namespace.yaml", "hub/policies/*.yaml", "hub/rbac.yaml", "hub/bootstrap.yaml")
}

// MemberObjects is what Member applies besides CRDs, in the order of application.
func MemberObjects(o MemberOptions) ([]*unstructured.Unstructured, error) {
	return Objects(o.Values(), "member/namespace.yaml", "member/rbac/*.yaml", "member/workloads/*.yaml")
}

// ExecutionObjects is what Execution applies.
func ExecutionObjects(o MemberOptions) ([]*unstructured.Unstructured, error) {
	return Objects(o.Values(), "member/execution/*.yaml")
}

// PropagationObjects is what Propagation applies besides CRDs, in the order of application;
// workloads adds the Deployment of pelago-hub.
func PropagationObjects(o MemberOptions, workloads bool) ([]*unstructured.Unstructured, error) {
	patterns := []string{"member/namespace.yaml", "propagation/namespace.yaml", "propagation/policies/*.yaml", "propagation/rbac.yaml", "propagation/users.yaml"}
	if workloads {
		patterns = append(patterns, "propagation/workloads/*.yaml")
	}
	return Objects(o.Values(), patterns...)
}

// PropagationCRDs are the definitions of the kinds by which the hub propagates.
func PropagationCRDs() ([]*unstructured.Unstructured, error) {
	return Objects(nil, "crds/*.karmada.io_*.yaml", "crds/pelago.io_kindrules.yaml", "crds/pelago.io_placementscores.yaml")
}

// HubCRDs are the definitions of the kinds that members exchange.
func HubCRDs() ([]*unstructured.Unstructured, error) {
	return Objects(nil, "crds/submariner.io_clusters.yaml", "crds/submariner.io_endpoints.yaml", "crds/pelago.io_servicecontributions.yaml")
}

// MemberCRDs are the definitions of a member: those of the group submariner.io, those of pelago.io
// that the network needs, and those of the MCS and the About API.
func MemberCRDs() ([]*unstructured.Unstructured, error) {
	crds, err := Objects(nil, "crds/pelago.io_globaladdresses.yaml", "crds/pelago.io_nodeindices.yaml", "crds/pelago.io_peers.yaml",
		"crds/pelago.io_portblocks.yaml", "crds/pelago.io_servicecontributions.yaml", "crds/submariner.io_[cegr]*.yaml", "crds/about.k8s.io_*.yaml")
	if err != nil {
		return nil, err
	}
	for _, text := range [][]byte{mcscrd.ServiceExportCRD, mcscrd.ServiceImportCRD} {
		mcs, err := Decode(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("read the CRDs of the MCS API: %w", err)
		}
		crds = append(crds, mcs...)
	}
	return crds, nil
}

// OperatorObjects is the operator, which runs outside of SystemNamespace.
func OperatorObjects(o MemberOptions) ([]*unstructured.Unstructured, error) {
	return Objects(o.Values(), "operator/*.yaml")
}

// OperatorCRDs are the definitions of the kinds that it reconciles. No other way of installing
// needs them.
func OperatorCRDs() ([]*unstructured.Unstructured, error) {
	return Objects(nil, "crds/submariner.io_brokers.yaml", "crds/submariner.io_servicediscoveries.yaml", "crds/submariner.io_submariners.yaml")
}

// Objects reads the files that match the patterns, in their order; with values, as templates that
// they fill in.
func Objects(values map[string]any, patterns ...string) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, pattern := range patterns {
		files, err := fs.Glob(deploy.Files, pattern)
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("find manifests %s: %d files: %w", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := deploy.Files.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("read manifest: %w", err)
			}
			if values != nil {
				if text, err = render(file, text, values); err != nil {
					return nil, err
				}
			}
			objs, err := Decode(bytes.NewReader(text))
			if err != nil {
				return nil, fmt.Errorf("read manifest %s: %w", file, err)
			}
			all = append(all, objs...)
		}
	}
	return all, nil
}

// Raw is a value that a template takes as it is, as a part of a text.
type Raw string

// render fills in a template; texts other than Raw are inserted as quoted YAML strings.
func render(file string, text []byte, values map[string]any) ([]byte, error) {
	t, err := template.New(path.Base(file)).Option("missingkey=error").Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("read manifest %s: %w", file, err)
	}
	quoted := maps.Clone(values)
	for k, v := range values {
		if s, ok := v.(string); ok {
			quoted[k] = strconv.Quote(s)
		}
	}
	var out bytes.Buffer
	if err := t.Execute(&out, quoted); err != nil {
		return nil, fmt.Errorf("fill in manifest %s: %w", file, err)
	}
	return out.Bytes(), nil
}

// Decode reads the objects of a stream of YAML or JSON documents. Lists are flattened, empty
// documents skipped.
func Decode(from io.Reader) ([]*unstructured.Unstructured, error) {
	var objs []*unstructured.Unstructured
	d := utilyaml.NewYAMLOrJSONDecoder(from, 4096)
	for {
		u := new(unstructured.Unstructured)
		err := d.Decode(&u.Object)
		switch {
		case errors.Is(err, io.EOF):
			return objs, nil
		case err != nil:
			return nil, err
		case len(u.Object) == 0:
			continue
		case u.IsList():
			list, err := u.ToList()
			if err != nil {
				return nil, err
			}
			for i := range list.Items {
				objs = append(objs, &list.Items[i])
			}
			continue
		}
		if u.GetKind() == "" || u.GetAPIVersion() == "" || u.GetName() == "" {
			return nil, errors.New("an object lacks apiVersion, kind or metadata.name")
		}
		objs = append(objs, u)
	}
}
