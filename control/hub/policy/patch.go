package policy

import (
	"encoding/json"
	"fmt"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    policyv1alpha1.OverriderOperator `json:"op"`
	Path  string                           `json:"path"`
	Value *apiextensionsv1.JSON            `json:"value,omitempty"`
}

func newOperation(op policyv1alpha1.OverriderOperator, path string, value apiextensionsv1.JSON) operation {
	o := operation{Op: op, Path: path}
	if op != policyv1alpha1.OverriderOpRemove {
		o.Value = &value
	}
	return o
}

// patch applies operations to a document. What is added below a parent that is not there is an error, as RFC 6902 says.
func patch(document []byte, operations []operation) ([]byte, error) {
	raw, err := json.Marshal(operations)
	if err != nil {
		return nil, err
	}
	p, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return nil, err
	}
	return p.Apply(document)
}

// overridePlain applies a JSON patch to the whole object.
func overridePlain(obj *unstructured.Unstructured, all []policyv1alpha1.PlaintextOverrider) error {
	if len(all) == 0 {
		return nil
	}
	var operations []operation
	for _, x := range all {
		operations = append(operations, newOperation(x.Operator, x.Path, x.Value))
	}
	raw, err := obj.MarshalJSON()
	if err != nil {
		return err
	}
	if raw, err = patch(raw, operations); err != nil {
		return err
	}
	changed := &unstructured.Unstructured{}
	if err := changed.UnmarshalJSON(raw); err != nil {
		return fmt.Errorf("the result is no object: %w", err)
	}
	if changed.GroupVersionKind() != obj.GroupVersionKind() || changed.GetNamespace() != obj.GetNamespace() || changed.GetName() != obj.GetName() {
		return fmt.Errorf("the result is another object: apiVersion, kind, name and namespace cannot be overridden")
	}
	obj.Object = changed.Object
	return nil
}

// overrideField patches the JSON or YAML document that a string field holds.
func overrideField(obj *unstructured.Unstructured, o policyv1alpha1.FieldOverrider) error {
	parent, key, err := walk(obj.Object, o.FieldPath)
	if err != nil {
		return fmt.Errorf("fieldPath %s: %w", o.FieldPath, err)
	}
	text, ok := parent[key].(string)
	switch {
	case parent[key] == nil:
		return fmt.Errorf("fieldPath %s: %w", o.FieldPath, errPathMissing)
	case !ok:
		return fmt.Errorf("fieldPath %s is no string", o.FieldPath)
	}
	all, isYAML := o.JSON, len(o.YAML) > 0
	document := []byte(text)
	if isYAML {
		all = o.YAML
		if document, err = yaml.YAMLToJSON(document); err != nil {
			return fmt.Errorf("fieldPath %s: %w", o.FieldPath, err)
		}
	}
	var operations []operation
	for _, x := range all {
		operations = append(operations, newOperation(x.Operator, x.SubPath, x.Value))
	}
	if document, err = patch(document, operations); err != nil {
		return fmt.Errorf("fieldPath %s: %w", o.FieldPath, err)
	}
	if isYAML {
		if document, err = yaml.JSONToYAML(document); err != nil {
			return fmt.Errorf("fieldPath %s: %w", o.FieldPath, err)
		}
	}
	parent[key] = string(document)
	return nil
}
