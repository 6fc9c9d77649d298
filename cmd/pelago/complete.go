package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// noCompletion is the directive of all completions; errors complete nothing, since a shell cannot show them.
const noCompletion = cobra.ShellCompDirectiveNoFileComp

// completeCluster completes one name of a cluster.
func (f *hubFlags) completeCluster(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noCompletion
	}
	return f.clusterNames(cmd), noCompletion
}

// completeClusters completes the last of several names, separated by commas.
func (f *hubFlags) completeClusters(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	before := begun[:strings.LastIndex(begun, ",")+1]
	named := strings.Split(before, ",")
	var out []string
	for _, name := range f.clusterNames(cmd) {
		if !slices.Contains(named, name) {
			out = append(out, before+name)
		}
	}
	return out, noCompletion | cobra.ShellCompDirectiveNoSpace
}

func (f *hubFlags) clusterNames(cmd *cobra.Command) []string {
	h, err := f.open()
	if err != nil {
		return nil
	}
	all, err := h.clusters(cmd.Context())
	if err != nil {
		return nil
	}
	return names(all)
}

// completeObject completes a kind, then the name of an object of the hub.
func (f *hubFlags) completeObject(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	h, err := f.open()
	if err != nil || len(args) > 1 {
		return nil, noCompletion
	}
	if len(args) == 0 {
		return h.kinds(), noCompletion
	}
	mapping, err := h.kind(args[0])
	if err != nil {
		return nil, noCompletion
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(mapping.GroupVersionKind.GroupVersion().WithKind(mapping.GroupVersionKind.Kind + "List"))
	var opts []client.ListOption
	if mapping.Scope.Name() == "namespace" {
		opts = append(opts, client.InNamespace(f.namespace))
	}
	if h.client.List(cmd.Context(), &list, opts...) != nil {
		return nil, noCompletion
	}
	var out []string
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	return out, noCompletion
}

// kinds are the plural names of all kinds that can be listed, with the group unless it is one of Kubernetes.
func (h *cluster) kinds() []string {
	lists, _ := h.typed.Discovery().ServerPreferredResources() // with an error, those of the available groups
	var out []string
	for _, list := range lists {
		group, _, versioned := strings.Cut(list.GroupVersion, "/")
		for _, r := range list.APIResources {
			switch {
			case !slices.Contains(r.Verbs, "list"):
			case versioned && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io"):
				out = append(out, r.Name+"."+group)
			default:
				out = append(out, r.Name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
