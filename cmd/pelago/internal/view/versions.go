package view

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
)

// plugins maps the DaemonSets of network plugins to their names.
var plugins = map[string]string{
	"calico-node": "calico", "canal": "canal-flannel", "kube-flannel-ds": "flannel", "kindnet": "kindnet",
	"weave-net": "weave-net", "cilium": "cilium", "ovnkube-node": "OVNKubernetes", "antrea-agent": "antrea",
}

// networkPlugin is the name of the cluster's network plugin; "generic" if it is unknown.
func networkPlugin(ctx context.Context, c kubernetes.Interface) (string, error) {
	list, err := c.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list DaemonSets: %w", err)
	}
	i := slices.IndexFunc(list.Items, func(d appsv1.DaemonSet) bool { return plugins[d.Name] != "" })
	if i < 0 {
		return "generic", nil
	}
	return plugins[list.Items[i].Name], nil
}

// running is a component and its images.
type running struct {
	Component  string   `json:"component"`
	Repository string   `json:"repository"`
	Configured string   `json:"configured"`
	Running    []string `json:"running"`
	Arch       []string `json:"arch"`
}

// versions has a row for each component of the network.
func versions(ctx context.Context, m Member, _ config.Config) (Table, error) {
	t := Table{Header: []string{"COMPONENT", "REPOSITORY", "CONFIGURED", "RUNNING", "ARCH"}}
	components, err := Installed(ctx, m.Typed)
	if err != nil {
		return t, err
	}
	pods, err := m.Typed.CoreV1().Pods(deploy.SystemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return t, fmt.Errorf("list the pods of namespace %s: %w", deploy.SystemNamespace, err)
	}
	nodes, err := m.Typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return t, fmt.Errorf("list nodes: %w", err)
	}
	for _, c := range components {
		if c.Name == deploy.ExecutionDeployment {
			continue
		}
		r := runs(c.Name, c.Image, pods.Items, nodes.Items)
		t.Rows = append(t.Rows, Row{
			Cells:  []string{r.Component, r.Repository, r.Configured, strings.Join(r.Running, ", "), strings.Join(r.Arch, ", ")},
			Object: r,
		})
	}
	return t, nil
}

// runs is what the component's pods run, and on what.
func runs(name, image string, pods []corev1.Pod, nodes []corev1.Node) running {
	r := running{Component: name}
	r.Repository, r.Configured = SplitImage(image)
	for _, pod := range pods {
		if pod.Labels["app"] != name || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, c := range pod.Spec.Containers {
			_, tag := SplitImage(c.Image)
			r.Running = append(r.Running, tag)
		}
		for _, n := range nodes {
			if n.Name == pod.Spec.NodeName {
				r.Arch = append(r.Arch, n.Status.NodeInfo.Architecture)
			}
		}
	}
	slices.Sort(r.Running)
	slices.Sort(r.Arch)
	r.Running, r.Arch = slices.Compact(r.Running), slices.Compact(r.Arch)
	return r
}

// SplitImage splits a reference into repository and version (tag or digest); a port is no tag.
func SplitImage(image string) (repository, version string) {
	if repository, digest, ok := strings.Cut(image, "@"); ok {
		return repository, digest
	}
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		return image[:i], image[i+1:]
	}
	return image, "latest"
}

func prefixTexts(prefixes []netip.Prefix) []string {
	out := []string{}
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}

// Component is a DaemonSet or Deployment of Pelago in a member.
type Component struct {
	Kind, Name, Image string
	Ready, Want       int32
	// Current: the counts belong to the newest template.
	Current bool
}

// Done reports whether the newest template runs everywhere.
func (c Component) Done() bool { return c.Current && c.Ready >= c.Want }

// Installed reads the components of a member; that for workloads is missing where it takes part in the network only.
func Installed(ctx context.Context, c kubernetes.Interface) ([]Component, error) {
	node, err := c.AppsV1().DaemonSets(deploy.SystemNamespace).Get(ctx, deploy.NodeDaemonSet, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get DaemonSet %s: %w", deploy.NodeDaemonSet, err)
	}
	s := node.Status
	out := []Component{{
		Kind: "DaemonSet", Name: node.Name, Image: node.Spec.Template.Spec.Containers[0].Image,
		Ready: min(s.NumberReady, s.UpdatedNumberScheduled), Want: max(s.DesiredNumberScheduled, 1),
		Current: s.ObservedGeneration >= node.Generation,
	}}
	for _, name := range []string{deploy.AgentDeployment, deploy.DNSDeployment, deploy.ExecutionDeployment} {
		d, err := c.AppsV1().Deployments(deploy.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
		if name == deploy.ExecutionDeployment && apierrors.IsNotFound(err) {
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
