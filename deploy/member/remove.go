package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// RemoveMember removes Pelago from a member: the agent and the DNS server, what the node daemon has
// installed on the nodes, what the agent has created, then rights and workloads. CRDs stay, since
// deleting one deletes all objects of its kind, and other software may use them. Nodes that are not
// clean after the timeout are reported as progress, not as an error. gateways are the nodes that
// keep their gateway label, because join has not set it.
func RemoveMember(ctx context.Context, c client.Client, hubID string, timeout time.Duration, progress manifests.Progress) (gateways []string, err error) {
	progress("Stopping the agent and the DNS server")
	for _, name := range []string{manifests.ExecutionDeployment, manifests.AgentDeployment, manifests.DNSDeployment} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: manifests.SystemNamespace}}
		if err := c.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationForeground)); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete Deployment %s: %w", name, err)
		}
	}
	progress("Cleaning the nodes")
	if err := cleanNodes(ctx, c, timeout, progress); err != nil {
		return nil, err
	}
	if gateways, err = releaseNodes(ctx, c); err != nil {
		return nil, err
	}
	progress("Removing the objects of the agent")
	if err := removeAgentObjects(ctx, c, hubID); err != nil {
		return nil, err
	}
	return gateways, removeManifests(ctx, c, progress)
}

// releaseNodes removes our annotations from the nodes, and the label of a gateway where join has
// set it. It returns the nodes that keep the label.
func releaseNodes(ctx context.Context, c client.Client) (labelled []string, err error) {
	nodes := &corev1.NodeList{}
	if err := c.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		before := n.DeepCopy()
		for _, key := range []string{pelagov1alpha1.AnnotationDrained, pelagov1alpha1.AnnotationRotateKeys} {
			delete(n.Annotations, key)
		}
		if _, ok := n.Labels[submarinerv1.LabelGateway]; ok && setsLabel(n, submarinerv1.LabelGateway) {
			delete(n.Labels, submarinerv1.LabelGateway)
		} else if ok {
			labelled = append(labelled, n.Name)
		}
		if maps.Equal(before.Labels, n.Labels) && maps.Equal(before.Annotations, n.Annotations) {
			continue
		}
		if err := c.Patch(ctx, n, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("patch Node %s: %w", n.Name, err)
		}
	}
	return labelled, nil
}

// setsLabel reports whether our field manager has set a label of an object.
func setsLabel(obj client.Object, label string) bool {
	return slices.ContainsFunc(obj.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool {
		var fields struct {
			Metadata struct {
				Labels map[string]any `json:"f:labels"`
			} `json:"f:metadata"`
		}
		if m.Manager != manifests.Manager || m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			return false
		}
		_, ok := fields.Metadata.Labels["f:"+label]
		return ok
	})
}

// cleanNodes makes the node daemon's pods clean their nodes, once, and waits for them.
func cleanNodes(ctx context.Context, c client.Client, timeout time.Duration, progress manifests.Progress) error {
	key := client.ObjectKey{Namespace: manifests.SystemNamespace, Name: manifests.NodeDaemonSet}
	have := &appsv1.DaemonSet{}
	if err := c.Get(ctx, key, have); err != nil {
		return client.IgnoreNotFound(err)
	}
	pod := have.Spec.Template.Spec
	o := manifests.MemberOptions{Image: pod.Containers[0].Image, PullPolicy: string(pod.Containers[0].ImagePullPolicy)}
	for _, s := range pod.ImagePullSecrets {
		o.PullSecrets = append(o.PullSecrets, s.Name)
	}
	want, err := cleaner(o)
	if err != nil {
		return err
	}
	if err := manifests.Apply(ctx, c, want); err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, key, have); err != nil {
			return false, nil // retried until the timeout
		}
		s := have.Status
		return s.ObservedGeneration >= have.Generation && s.UpdatedNumberScheduled >= s.DesiredNumberScheduled && s.NumberReady >= s.DesiredNumberScheduled, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		s := have.Status
		progress("After %s only %d of %d nodes are clean: restart the others, or run `pelago-node cleanup` there",
			timeout, min(s.NumberReady, s.UpdatedNumberScheduled), s.DesiredNumberScheduled)
		return nil
	}
	return err
}

// cleaner is the DaemonSet of the node daemon with pods that clean the node and then sleep.
func cleaner(o manifests.MemberOptions) (*unstructured.Unstructured, error) {
	objs, err := manifests.MemberObjects(o)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(objs, func(u *unstructured.Unstructured) bool { return u.GetKind() == "DaemonSet" })
	u := objs[i]
	containers, _, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	if err != nil {
		return nil, fmt.Errorf("read the containers of DaemonSet %s: %w", manifests.NodeDaemonSet, err)
	}
	clean := containers[0].(map[string]any)
	delete(clean, "readinessProbe")
	delete(clean, "livenessProbe") // init containers have none
	delete(clean, "ports")
	rest := map[string]any{"name": clean["name"], "image": clean["image"], "imagePullPolicy": clean["imagePullPolicy"],
		"command": []any{"sleep", "86400"}}
	clean["name"], clean["args"] = "clean", []any{"cleanup"}
	err = errors.Join(
		unstructured.SetNestedSlice(u.Object, []any{clean}, "spec", "template", "spec", "initContainers"),
		unstructured.SetNestedSlice(u.Object, []any{rest}, "spec", "template", "spec", "containers"),
		unstructured.SetNestedField(u.Object, "100%", "spec", "updateStrategy", "rollingUpdate", "maxUnavailable"),
	)
	return u, err
}

// removeManifests deletes what Member, Execution and MemberBase have installed, except CRDs.
func removeManifests(ctx context.Context, c client.Client, progress manifests.Progress) error {
	objs, err := manifests.MemberObjects(manifests.MemberOptions{})
	if err != nil {
		return err
	}
	execution, err := manifests.ExecutionObjects(manifests.MemberOptions{})
	if err != nil {
		return err
	}
	objs = append(objs, execution...)
	err = c.Get(ctx, client.ObjectKey{Namespace: manifests.SystemNamespace, Name: manifests.HubName}, new(corev1.ServiceAccount))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get ServiceAccount %s/%s: %w", manifests.SystemNamespace, manifests.HubName, err)
	}
	hub := err == nil
	if hub {
		shared := []string{"Namespace", "ResourceQuota"}
		objs = slices.DeleteFunc(objs, func(u *unstructured.Unstructured) bool { return slices.Contains(shared, u.GetKind()) })
	}
	progress("Removing workloads and rights")
	if err := manifests.DeleteAll(ctx, c, objs, metav1.DeletePropagationForeground); err != nil {
		return err
	}
	if hub {
		progress("Namespace %s stays: this cluster is a hub as well", manifests.SystemNamespace)
		return nil
	}
	return manifests.AwaitNoNamespace(ctx, c, manifests.SystemNamespace, progress)
}

// removeAgentObjects deletes the objects that the agent has created outside of the system
// namespace. The agent must have stopped. Objects of users (ServiceExports, egress IPs,
// GlobalIngressIPs without our label) and of another hub's agent stay.
func removeAgentObjects(ctx context.Context, c client.Client, hubID string) error {
	var errs []error
	for _, obj := range []client.Object{
		&pelagov1alpha1.NodeIndex{}, &pelagov1alpha1.PortBlock{}, &pelagov1alpha1.GlobalAddress{}, &pelagov1alpha1.Peer{},
	} {
		if err := c.DeleteAllOf(ctx, obj); err != nil && !meta.IsNoMatchError(err) {
			errs = append(errs, fmt.Errorf("delete all %T: %w", obj, err))
		}
	}
	owns := kube.Owner{HubID: hubID}.Owns
	for kind, ours := range map[schema.GroupKind]func(client.Object) bool{
		{Group: submarinerv1.GroupVersion.Group, Kind: "GlobalIngressIP"}: func(client.Object) bool { return true },
		{Group: discoveryv1.GroupName, Kind: "EndpointSlice"}:             owns,
		{Group: "multicluster.x-k8s.io", Kind: "ServiceImport"}:           owns,
		{Group: "about.k8s.io", Kind: "ClusterProperty"}:                  owns,
	} {
		errs = append(errs, removeLabelled(ctx, c, kind, ours))
	}
	return errors.Join(append(errs, removeForwards(ctx, c))...)
}

// removeLabelled deletes the objects of a kind that have our label and match. A kind that is not
// served has none.
func removeLabelled(ctx context.Context, c client.Client, kind schema.GroupKind, match func(client.Object) bool) error {
	mapping, err := c.RESTMapper().RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find kind %s: %w", kind.Kind, err)
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(mapping.GroupVersionKind)
	if err := c.List(ctx, list, client.MatchingLabels{pelagov1alpha1.LabelManagedBy: pelagov1alpha1.ManagedBy}); err != nil {
		return fmt.Errorf("list %ss: %w", kind.Kind, err)
	}
	var errs []error
	for i := range list.Items {
		obj := &list.Items[i]
		if !match(obj) {
			continue
		}
		if err := c.Delete(ctx, obj); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete %s %s: %w", kind.Kind, manifests.Title(client.ObjectKeyFromObject(obj)), err))
		}
	}
	return errors.Join(errs...)
}

// removeForwards removes our block from the configuration of CoreDNS, wherever `pelago join` has
// put it.
func removeForwards(ctx context.Context, c client.Client) error {
	cm := &corev1.ConfigMap{}
	err := c.Get(ctx, client.ObjectKey{Namespace: manifests.SystemNamespace, Name: config.ConfigMapName}, cm)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get ConfigMap %s: %w", config.ConfigMapName, err)
	}
	targets := clusterdns.Targets("")
	if custom := cm.Data[config.KeyCoreDNSCustom]; custom != "" {
		targets = append(targets, clusterdns.TargetOf(custom))
	}
	errs := []error{removeOperatorForward(ctx, c)}
	for _, t := range targets {
		errs = append(errs, RemoveForward(ctx, c, t))
	}
	return errors.Join(errs...)
}

// removeOperatorForward removes our entry from OpenShift's DNS operator.
func removeOperatorForward(ctx context.Context, c client.Client) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		u := clusterdns.NewOperator()
		if err := c.Get(ctx, client.ObjectKey{Name: clusterdns.OperatorName}, u); err != nil {
			if meta.IsNoMatchError(err) {
				return nil
			}
			return client.IgnoreNotFound(err)
		}
		if changed, err := clusterdns.ApplyOperator(u, nil); err != nil || !changed {
			return err
		}
		if err := c.Update(ctx, u); err != nil {
			return fmt.Errorf("update DNS %s of OpenShift: %w", u.GetName(), err)
		}
		return nil
	})
}

// RemoveForward removes our block from a ConfigMap of CoreDNS.
func RemoveForward(ctx context.Context, c client.Client, from clusterdns.Target) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm := &corev1.ConfigMap{}
		if err := c.Get(ctx, from.ConfigMap, cm); err != nil {
			return client.IgnoreNotFound(err)
		}
		if changed, err := from.Clean(cm); err != nil || !changed {
			return err
		}
		if err := c.Update(ctx, cm); err != nil {
			return fmt.Errorf("update ConfigMap %s: %w", from.ConfigMap, err)
		}
		return nil
	})
}
