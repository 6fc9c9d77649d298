package rollout

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// Component is a DaemonSet, Deployment or StatefulSet of Pelago.
type Component struct {
	Kind, Name, Image string
	Ready, Want       int32
	// Current: the counts belong to the newest template.
	Current bool
}

// Done reports whether the newest template runs everywhere.
func (c Component) Done() bool { return c.Current && c.Ready >= c.Want }

// Installed reads the components of a member; that for workloads is missing where it takes part in
// the network only.
func Installed(ctx context.Context, c kubernetes.Interface, workloadsOnly bool) ([]Component, error) {
	if workloadsOnly {
		return deployments(ctx, c, manifests.ExecutionDeployment)
	}
	node, err := c.AppsV1().DaemonSets(manifests.SystemNamespace).Get(ctx, manifests.NodeDaemonSet, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get DaemonSet %s: %w", manifests.NodeDaemonSet, err)
	}
	s := node.Status
	out := []Component{{
		Kind: "DaemonSet", Name: node.Name, Image: node.Spec.Template.Spec.Containers[0].Image,
		Ready: min(s.NumberReady, s.UpdatedNumberScheduled), Want: max(s.DesiredNumberScheduled, 1),
		Current: s.ObservedGeneration >= node.Generation,
	}}
	others, err := deployments(ctx, c, manifests.AgentDeployment, manifests.DNSDeployment, manifests.ExecutionDeployment)
	return append(out, others...), err
}

// deployments reads components; that for workloads may be missing next to others.
func deployments(ctx context.Context, c kubernetes.Interface, names ...string) (out []Component, err error) {
	for _, name := range names {
		d, err := c.AppsV1().Deployments(manifests.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
		if name == manifests.ExecutionDeployment && len(names) > 1 && apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get Deployment %s: %w", name, err)
		}
		s := d.Status
		out = append(out, Component{
			Kind: "Deployment", Name: name, Image: d.Spec.Template.Spec.Containers[0].Image,
			Ready: min(s.ReadyReplicas, s.UpdatedReplicas), Want: ptr.Deref(d.Spec.Replicas, 1), Current: s.ObservedGeneration >= d.Generation,
		})
	}
	return out, nil
}
