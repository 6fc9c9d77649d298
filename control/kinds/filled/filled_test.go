package filled

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// What is left of an object, with the managed fields of the API server and with the reduced ones.
func TestDrop(t *testing.T) {
	const service = `apiVersion: v1
kind: Service
metadata:
  name: a
  managedFields:
  - {manager: kubectl, operation: Update, apiVersion: v1, fieldsV1: {f:spec: {f:type: {}, f:selector: {},
      f:ports: {".": {}, 'k:{"port":80,"protocol":"TCP"}': {".": {}, f:port: {}, f:protocol: {}}, 'k:{"port":81,"protocol":"TCP"}': {".": {}, f:port: {}, f:protocol: {}, f:nodePort: {}}}}}}
spec:
  type: NodePort
  selector: {app: web}
  clusterIP: 10.0.0.1
  clusterIPs: [10.0.0.1]
  ports:
  - {port: 80, protocol: TCP, nodePort: 31000}
  - {port: 81, protocol: TCP, nodePort: 32123}`
	for name, tt := range map[string]struct{ template, overridden, want string }{
		"what nobody owns": {template: service, want: `{type: NodePort, selector: {app: web}, ports: [{port: 80, protocol: TCP}, {port: 81, protocol: TCP, nodePort: 32123}]}`},
		"what an override has set": {template: service,
			overridden: `{type: NodePort, selector: {app: web}, clusterIP: 10.0.0.9, clusterIPs: [10.0.0.1],
				ports: [{port: 90, protocol: TCP, nodePort: 31000}, {port: 80, protocol: TCP, nodePort: 31001}, {port: 81, protocol: TCP, nodePort: 32123}]}`,
			want: `{type: NodePort, selector: {app: web}, clusterIP: 10.0.0.9, ports: [{port: 90, protocol: TCP, nodePort: 31000}, {port: 80, protocol: TCP, nodePort: 31001}, {port: 81, protocol: TCP, nodePort: 32123}]}`},
		"the port moved within the list": {template: service,
			overridden: `{type: NodePort, ports: [{port: 90, protocol: TCP}, {port: 80, protocol: TCP, nodePort: 31000}]}`,
			want:       `{type: NodePort, ports: [{port: 90, protocol: TCP}, {port: 80, protocol: TCP}]}`},
		"an element that nobody owns": {template: `{apiVersion: v1, kind: Pod, metadata: {name: a, managedFields: [{manager: kubectl, operation: Update, apiVersion: v1,
			fieldsV1: {f:spec: {f:volumes: {".": {}, 'k:{"name":"mine"}': {".": {}, f:name: {}, f:emptyDir: {}}}}}}]},
			spec: {priority: 5, volumes: [{name: mine, emptyDir: {}}, {name: kube-api-access, projected: {}}]}}`,
			want: `{volumes: [{name: mine, emptyDir: {}}]}`},
		"what only a controller owns": {template: `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: a, managedFields: [
			{manager: kubectl, operation: Update, apiVersion: rbac.authorization.k8s.io/v1, fieldsV1: {f:spec: {f:a: {}}}},
			{manager: clusterrole-aggregation-controller, operation: Apply, apiVersion: rbac.authorization.k8s.io/v1, fieldsV1: {f:spec: {f:b: {}}}}]}, spec: {a: 1, b: 2}}`,
			want: `{a: 1}`},
		"what a subresource owns": {template: `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a, managedFields: [
			{manager: kubectl, operation: Update, apiVersion: v1, fieldsV1: {f:spec: {f:a: {}}}},
			{manager: kubectl, operation: Update, apiVersion: v1, subresource: scale, fieldsV1: {f:spec: {f:b: {}}}},
			{manager: kubectl, operation: Update, apiVersion: v1, subresource: status, fieldsV1: {f:spec: {f:c: {}}}}]}, spec: {a: 1, b: 2, c: 3}}`,
			want: `{a: 1, b: 2}`},
		"what admission sets in an empty value": {template: `{apiVersion: v1, kind: Pod, metadata: {managedFields: [{manager: a, apiVersion: v1,
			fieldsV1: {f:spec: {f:containers: {'k:{"name":"c"}': {".": {}, f:name: {}, f:resources: {}}}}}}]}, spec: {containers: [{name: c, resources: {requests: {cpu: "1"}}}]}}`,
			want: `{containers: [{name: c, resources: {}}]}`},
		"content that nobody owns":            {template: `{apiVersion: v1, kind: Namespace, metadata: {managedFields: [{manager: a, apiVersion: v1, fieldsV1: {f:metadata: {}}}]}, spec: {finalizers: [kubernetes]}}`, want: `{finalizers: [kubernetes]}`},
		"a set":                               {template: `{apiVersion: v1, kind: Namespace, metadata: {managedFields: [{manager: a, apiVersion: v1, fieldsV1: {f:spec: {f:finalizers: {'v:"mine"': {}}}}}]}, spec: {finalizers: [kubernetes, mine]}}`, want: `{finalizers: [mine]}`},
		"no managed fields":                   {template: `{apiVersion: v1, kind: Service, spec: {clusterIP: 10.0.0.1}}`, want: `{clusterIP: 10.0.0.1}`},
		"only controllers":                    {template: `{apiVersion: v1, kind: Service, metadata: {managedFields: [{manager: kubelet, apiVersion: v1, fieldsV1: {}}]}, spec: {clusterIP: 10.0.0.1}}`, want: `{clusterIP: 10.0.0.1}`},
		"data that was applied as stringData": {template: `{apiVersion: v1, kind: Secret, metadata: {managedFields: [{manager: a, apiVersion: v1, fieldsV1: {f:stringData: {f:a: {}}, f:spec: {f:a: {}}}}]}, spec: {b: 2}}`, want: `{b: 2}`},
		"another version":                     {template: `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {managedFields: [{manager: a, apiVersion: autoscaling/v1, fieldsV1: {f:spec: {f:a: {}}}}]}, spec: {a: 1, b: 2}}`, want: `{a: 1, b: 2}`},
		"a kind of another API":               {template: `{apiVersion: example.com/v1, kind: Farm, metadata: {managedFields: [{manager: a, apiVersion: example.com/v1, fieldsV1: {f:spec: {f:a: {}}}}]}, spec: {a: 1, b: 2}}`, want: `{a: 1, b: 2}`},
		"a kind with a template":              {template: `{apiVersion: apps/v1, kind: Deployment, metadata: {managedFields: [{manager: a, apiVersion: apps/v1, fieldsV1: {f:spec: {f:a: {}}}}]}, spec: {a: 1, b: 2}}`, want: `{a: 1, b: 2}`},
	} {
		t.Run(name, func(t *testing.T) {
			template := object(t, tt.template)
			reduced := template.DeepCopy()
			Reduce(reduced)
			Reduce(reduced) // once more: no change
			for title, template := range map[string]*unstructured.Unstructured{"API server": template, "reduced": reduced} {
				obj := template.DeepCopy()
				if tt.overridden != "" {
					obj.Object["spec"] = object(t, tt.overridden).Object
				}
				before := template.DeepCopy()
				Drop(obj, template)
				if diff := cmp.Diff(object(t, tt.want).Object, obj.Object["spec"]); diff != "" {
					t.Errorf("%s: -want +got\n%s", title, diff)
				}
				if diff := cmp.Diff(before, template); diff != "" {
					t.Errorf("%s: the template was changed\n%s", title, diff)
				}
			}
		})
	}
}

// What is dropped is named, so that what a member has there is kept; elements of lists are not.
func TestDropped(t *testing.T) {
	u := object(t, `{apiVersion: v1, kind: Service, metadata: {labels: {a/b: c}, managedFields: [
		{manager: kubelet, apiVersion: v1, fieldsV1: {f:metadata: {f:labels: {f:a/b: {}}}}},
		{manager: a, apiVersion: v1, fieldsV1: {f:spec: {f:ports: {'k:{"port":80,"protocol":"TCP"}': {f:port: {}, f:protocol: {}}}}}}]},
		spec: {clusterIP: 10.0.0.1, ports: [{port: 90, protocol: TCP}, {port: 80, protocol: TCP, nodePort: 31000}]}}`)
	want := []string{"/metadata/labels/a~1b", "/spec/clusterIP", "/spec/ports/0/nodePort"}
	if diff := cmp.Diff(want, Drop(u, u)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// Labels and annotations that only controllers own are dropped; those without an owner may be of a
// webhook of the hub, and stay.
func TestMarks(t *testing.T) {
	u := object(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {labels: {mine: a, both: b, hook: c}, annotations: {deployment.kubernetes.io/revision: "1", note: a}, managedFields: [
		{manager: kubectl, operation: Update, apiVersion: apps/v1, fieldsV1: {f:metadata: {f:labels: {".": {}, f:mine: {}, f:both: {}}, f:annotations: {f:note: {}}}}},
		{manager: kube-controller-manager, operation: Update, apiVersion: apps/v1, fieldsV1: {f:metadata: {f:labels: {f:both: {}}, f:annotations: {f:deployment.kubernetes.io/revision: {}}}}}]}}`)
	Drop(u, u)
	if diff := cmp.Diff(map[string]string{"mine": "a", "both": "b", "hook": "c"}, u.GetLabels()); diff != "" {
		t.Errorf("labels -want +got\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"note": "a"}, u.GetAnnotations()); diff != "" {
		t.Errorf("annotations -want +got\n%s", diff)
	}
}
