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
func versions(ctx context.Context, m *cluster, _ config.Config) (table, error) {
	t := table{header: []string{"COMPONENT", "REPOSITORY", "CONFIGURED", "RUNNING", "ARCH"}}
	components, err := installed(ctx, m.typed)
	if err != nil {
		return t, err
	}
	pods, err := m.typed.CoreV1().Pods(deploy.SystemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return t, fmt.Errorf("list the pods of namespace %s: %w", deploy.SystemNamespace, err)
	}
	nodes, err := m.typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return t, fmt.Errorf("list nodes: %w", err)
	}
	for _, c := range components {
		if c.name == deploy.ExecutionDeployment {
			continue
		}
		r := runs(c.name, c.image, pods.Items, nodes.Items)
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
