package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fixtures are what the suite expects in a cluster of kind, and the rights that its user has there
// by kind's certificate, and by Karmada's controllers at the hub. Through Pelago a user has only
// rights that the member grants. MEMBER is the name.
const fixtures = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: suite}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: administrator}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: impersonator}
rules: [{apiGroups: [""], resources: [users, groups, serviceaccounts], verbs: [impersonate]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: impersonator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: impersonator}
subjects: [{kind: ServiceAccount, namespace: karmada-cluster, name: karmada-impersonator}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  selector: {matchLabels: {app: coredns}}
  template: {metadata: {labels: {app: coredns}}, spec: {containers: [{name: coredns, image: coredns}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {app: kube-proxy}}
  template: {metadata: {labels: {app: kube-proxy}}, spec: {containers: [{name: kube-proxy, image: kube-proxy}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: etcd-MEMBER-control-plane, namespace: kube-system}
spec: {containers: [{name: etcd, image: etcd}]}
`

// makeFixtures creates the fixtures of a member.
func makeFixtures(ctx context.Context, member string, config *rest.Config) error {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("connect to %s: %w", member, err)
	}
	for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(strings.ReplaceAll(fixtures, "MEMBER", member))), 4096); ; {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the fixtures: %w", err)
		}
		if err := c.Create(ctx, u); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %s %s in %s: %w", u.GetKind(), u.GetName(), member, err)
		}
	}
}
