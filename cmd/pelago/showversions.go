package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
)

// plugins are the network plugins that are known by the DaemonSet that they run.
var plugins = map[string]string{
	"calico-node": "calico", "canal": "canal-flannel", "kube-flannel-ds": "flannel", "kindnet": "kindnet",
	"weave-net": "weave-net", "cilium": "cilium", "ovnkube-node": "OVNKubernetes", "antrea-agent": "antrea",
}

// networkPlugin names the cluster's network plugin; "generic" is one that is not known.
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

// running is one component and image.
type running struct {
	Component  string   `json:"component"`
	Repository string   `json:"repository"`
	Configured string   `json:"configured"`
	Running    []string `json:"running"`
	Arch       []string `json:"arch"`
}

// versions has a row for each component.
func versions(ctx context.Context, m *member, _ config.Config) (table, error) {
	t := table{header: []string{"COMPONENT", "REPOSITORY", "CONFIGURED", "RUNNING", "ARCH"}}
	images := map[string]string{}
	node, err := m.typed.AppsV1().DaemonSets(deploy.SystemNamespace).Get(ctx, deploy.NodeDaemonSet, metav1.GetOptions{})
	if err != nil {
		return t, fmt.Errorf("get DaemonSet %s: %w", deploy.NodeDaemonSet, err)
	}
	images[node.Name] = node.Spec.Template.Spec.Containers[0].Image
	for _, name := range []string{deploy.AgentDeployment, deploy.DNSDeployment} {
		d, err := m.typed.AppsV1().Deployments(deploy.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return t, fmt.Errorf("get Deployment %s: %w", name, err)
		}
		images[name] = d.Spec.Template.Spec.Containers[0].Image
	}
	pods, err := m.typed.CoreV1().Pods(deploy.SystemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return t, fmt.Errorf("list the pods of namespace %s: %w", deploy.SystemNamespace, err)
	}
	nodes, err := m.typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return t, fmt.Errorf("list nodes: %w", err)
	}
	for _, name := range []string{deploy.NodeDaemonSet, deploy.AgentDeployment, deploy.DNSDeployment} {
		r := runs(name, images[name], pods.Items, nodes.Items)
		t.rows = append(t.rows, row{
			cells:  []string{r.Component, r.Repository, r.Configured, strings.Join(r.Running, ", "), strings.Join(r.Arch, ", ")},
			object: r,
		})
	}
	return t, nil
}

// runs is what the component's pods run, and on what.
func runs(name, image string, pods []corev1.Pod, nodes []corev1.Node) running {
	r := running{Component: name}
	r.Repository, r.Configured = splitImage(image)
	for _, pod := range pods {
		if pod.Labels["app"] != name || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, c := range pod.Spec.Containers {
			_, tag := splitImage(c.Image)
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

// splitImage splits a reference into repository and version (tag or digest); a port is no tag.
func splitImage(image string) (repository, version string) {
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
