package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// Removal is how Pelago is removed from a member.
type Removal struct {
	HubID string
	// Timeout bounds the wait until the nodes are clean.
	Timeout time.Duration
	// Force: nodes that are not clean then are given up. What the node daemon has installed on them
	// stays there.
	Force    bool
	Progress manifests.Progress
}

// UncleanError names the nodes that the removal of a member still waits for. The DaemonSet of the node
// daemon stays for them, with pods that clean the node and nothing else: kubelet starts one as soon as
// the node is back. Nothing of ours that could remove it runs any more, so that the next removal does.
type UncleanError struct{ Nodes []string }

func (e *UncleanError) Error() string {
	return fmt.Sprintf("not clean yet: nodes %s: DaemonSet %s/%s stays for them and cleans each as soon as it is back. Run `pelago unjoin` again then; "+
		"of a node that never returns, delete the Node, or give all of them up with --force",
		strings.Join(e.Nodes, ", "), manifests.SystemNamespace, manifests.NodeDaemonSet)
}

// RemoveMember removes Pelago from a member: the agent and the DNS server, what the node daemon has
// installed on the nodes, what the agent has created, then rights and workloads. CRDs stay, since
// deleting one deletes all objects of its kind, and other software may use them. If nodes are not
// clean after the timeout, it returns an UncleanError and may be repeated: the configuration stays, and
// of the rest what cleans them. gateways are the nodes that keep their gateway label, because join has
// not set it.
func RemoveMember(ctx context.Context, c client.Client, o Removal) (gateways []string, err error) {
	progress := o.Progress
	progress("Stopping the agent and the DNS server")
	for _, name := range []string{manifests.ExecutionDeployment, manifests.AgentDeployment, manifests.DNSDeployment} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: manifests.SystemNamespace}}
		if err := c.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationForeground)); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete Deployment %s: %w", name, err)
		}
	}
	progress("Cleaning the nodes")
	unclean, err := cleanNodes(ctx, c, o.Timeout, progress)
	if err != nil {
		return nil, err
	}
	if gateways, err = releaseNodes(ctx, c); err != nil {
		return nil, err
	}
	progress("Removing the objects of the agent")
	if err := removeAgentObjects(ctx, c, o.HubID); err != nil {
		return nil, err
	}
	if len(unclean) > 0 && !o.Force {
		return gateways, errors.Join(keepCleaner(ctx, c, unclean, progress), &UncleanError{unclean})
	}
	if len(unclean) > 0 {
		progress("Giving up nodes %s: their rules, routes and programs stay until `pelago-node cleanup` runs there or the machine is replaced",
			strings.Join(unclean, ", "))
	}
	return gateways, removeManifests(ctx, c, unclean, progress)
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
		_, kept := n.Annotations[pelagov1alpha1.AnnotationGatewayKept]
		delete(n.Annotations, pelagov1alpha1.AnnotationGatewayKept)
		if _, ok := n.Labels[submarinerv1.LabelGateway]; ok && (kept || setsLabel(n, submarinerv1.LabelGateway)) {
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

// cleanNodes makes the node daemon's pods clean their nodes, once, and waits for them. It returns the
// nodes that are not clean after the timeout, sorted. Nodes that an earlier call has found clean are
// not cleaned again, those that do not exist any more or cannot run the daemon are not waited for.
func cleanNodes(ctx context.Context, c client.Client, timeout time.Duration, progress manifests.Progress) ([]string, error) {
	key := client.ObjectKey{Namespace: manifests.SystemNamespace, Name: manifests.NodeDaemonSet}
	have := &appsv1.DaemonSet{}
	if err := c.Get(ctx, key, have); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	pod := have.Spec.Template.Spec
	var left []string // by an earlier call
	if slices.ContainsFunc(pod.InitContainers, func(c corev1.Container) bool { return c.Name == cleanContainer }) {
		left = topology.AffinityNames(pod.Affinity)
	}
	if err := applyCleaner(ctx, c, have, left); err != nil {
		return nil, err
	}
	// Read once whatever the timeout is, so that nodes are named even if it is over at once.
	unclean, ready, err := uncleanNodes(ctx, c, left)
	if err != nil {
		return nil, err
	}
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		if u, r, err := uncleanNodes(ctx, c, left); err == nil { // otherwise retried until the timeout
			unclean, ready = u, r
		}
		return len(unclean) == 0, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		for _, name := range unclean {
			reason := "it has not been cleaned yet: see `kubectl -n " + manifests.SystemNamespace + " get pods -o wide`"
			if !ready[name] {
				reason = "it is not Ready"
			}
			progress("After %s node %s is not clean: %s", timeout, name, reason)
		}
		return unclean, nil
	}
	return nil, err
}

// uncleanNodes are the nodes, of the given ones unless there are none, on which no pod has cleaned yet.
// ready are those that are Ready.
func uncleanNodes(ctx context.Context, c client.Client, of []string) (unclean []string, ready map[string]bool, err error) {
	nodes, pods := &corev1.NodeList{}, &corev1.PodList{}
	if err := c.List(ctx, nodes); err != nil {
		return nil, nil, fmt.Errorf("list Nodes: %w", err)
	}
	if err := c.List(ctx, pods, client.InNamespace(manifests.SystemNamespace), client.MatchingLabels{"app": manifests.NodeDaemonSet}); err != nil {
		return nil, nil, fmt.Errorf("list the pods of DaemonSet %s: %w", manifests.NodeDaemonSet, err)
	}
	clean := map[string]bool{}
	for _, p := range pods.Items {
		for _, s := range p.Status.InitContainerStatuses {
			if s.Name == cleanContainer && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
				clean[p.Spec.NodeName] = true
			}
		}
	}
	ready = map[string]bool{}
	for _, n := range nodes.Items {
		if !topology.HasDatapath(n.Labels) || clean[n.Name] || len(of) > 0 && !slices.Contains(of, n.Name) {
			continue
		}
		unclean = append(unclean, n.Name)
		ready[n.Name] = slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	slices.Sort(unclean)
	return unclean, ready, nil
}

// applyCleaner turns the DaemonSet of the node daemon into the cleaner, for the given nodes or all.
func applyCleaner(ctx context.Context, c client.Client, have *appsv1.DaemonSet, nodes []string) error {
	pod := have.Spec.Template.Spec
	o := manifests.MemberOptions{Image: pod.Containers[0].Image, PullPolicy: string(pod.Containers[0].ImagePullPolicy)}
	for _, s := range pod.ImagePullSecrets {
		o.PullSecrets = append(o.PullSecrets, s.Name)
	}
	want, err := cleaner(o, nodes)
	if err != nil {
		return err
	}
	return manifests.Apply(ctx, c, want)
}

// cleanContainer is the init container that cleans a node; it ends with 0 when the node is clean.
const cleanContainer = "clean"

// cleaner is the DaemonSet of the node daemon with pods that clean the node and then sleep. They need
// no Secret and no access to the API server.
func cleaner(o manifests.MemberOptions, nodes []string) (*unstructured.Unstructured, error) {
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
	volumes, _, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "volumes")
	if err != nil {
		return nil, fmt.Errorf("read the volumes of DaemonSet %s: %w", manifests.NodeDaemonSet, err)
	}
	clean := containers[0].(map[string]any)
	delete(clean, "readinessProbe")
	delete(clean, "livenessProbe") // init containers have none
	delete(clean, "ports")
	// Not left out: with a chart, Helm's field manager would keep them.
	for _, v := range volumes {
		if secret, ok := v.(map[string]any)["secret"].(map[string]any); ok {
			secret["optional"] = true
		}
	}
	rest := map[string]any{"name": clean["name"], "image": clean["image"], "imagePullPolicy": clean["imagePullPolicy"],
		"command": []any{"sleep", "86400"}, "args": []any{}}
	clean["name"], clean["args"] = cleanContainer, []any{"cleanup"}
	affinity, err := runtime.DefaultUnstructuredConverter.ToUnstructured(topology.DatapathAffinity(nodes...))
	return u, errors.Join(err,
		unstructured.SetNestedSlice(u.Object, []any{clean}, "spec", "template", "spec", "initContainers"),
		unstructured.SetNestedSlice(u.Object, []any{rest}, "spec", "template", "spec", "containers"),
		unstructured.SetNestedSlice(u.Object, volumes, "spec", "template", "spec", "volumes"),
		unstructured.SetNestedMap(u.Object, affinity, "spec", "template", "spec", "affinity"),
		unstructured.SetNestedField(u.Object, false, "spec", "template", "spec", "automountServiceAccountToken"),
		unstructured.SetNestedField(u.Object, "100%", "spec", "updateStrategy", "rollingUpdate", "maxUnavailable"),
	)
}

// keepCleaner restricts the cleaner to the nodes that are not clean, and deletes everything else of the
// member but its configuration, by which the next removal finds it, and what the cleaner's pods need
// to be admitted. The credentials for the hub and the cables go.
func keepCleaner(ctx context.Context, c client.Client, nodes []string, progress manifests.Progress) error {
	have := &appsv1.DaemonSet{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: manifests.SystemNamespace, Name: manifests.NodeDaemonSet}, have); err != nil {
		return fmt.Errorf("get DaemonSet %s: %w", manifests.NodeDaemonSet, err)
	}
	if err := applyCleaner(ctx, c, have, nodes); err != nil {
		return err
	}
	objs, err := removable()
	if err != nil {
		return err
	}
	objs = slices.DeleteFunc(objs, func(u *unstructured.Unstructured) bool {
		own := u.GetName() == manifests.NodeDaemonSet && u.GetKind() != "ClusterRole" && u.GetKind() != "ClusterRoleBinding"
		return own || u.GetKind() == "Namespace" || u.GetKind() == "ResourceQuota"
	})
	progress("Removing workloads and rights, except what cleans %s", strings.Join(nodes, ", "))
	errs := []error{manifests.DeleteAll(ctx, c, objs, metav1.DeletePropagationForeground)}
	for _, name := range []string{config.BrokerSecretName, config.PSKSecretName, config.OverlayTokenSecretName} {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: name}}
		if err := c.Delete(ctx, s); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete Secret %s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	return errors.Join(errs...)
}

// removable is what Member, Execution and MemberBase have installed, except CRDs.
func removable() ([]*unstructured.Unstructured, error) {
	objs, err := manifests.MemberObjects(manifests.MemberOptions{})
	if err != nil {
		return nil, err
	}
	execution, err := manifests.ExecutionObjects(manifests.MemberOptions{})
	return append(objs, execution...), err
}

// deletePods deletes the pods of nodes at once: kubelet does not confirm the end of those of a node that
// is off, and they would keep the namespace.
func deletePods(ctx context.Context, c client.Client, nodes []string) error {
	pods := &corev1.PodList{}
	if err := c.List(ctx, pods, client.InNamespace(manifests.SystemNamespace)); err != nil {
		return fmt.Errorf("list the pods of namespace %s: %w", manifests.SystemNamespace, err)
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		if !slices.Contains(nodes, p.Spec.NodeName) {
			continue
		}
		if err := c.Delete(ctx, p, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete Pod %s of node %s: %w", p.Name, p.Spec.NodeName, err))
		}
	}
	return errors.Join(errs...)
}

// removeManifests deletes what Member, Execution and MemberBase have installed, except CRDs. Pods of
// nodes that were given up are not waited for.
func removeManifests(ctx context.Context, c client.Client, givenUp []string, progress manifests.Progress) error {
	objs, err := removable()
	if err != nil {
		return err
	}
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
	if err := deletePods(ctx, c, givenUp); err != nil {
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
