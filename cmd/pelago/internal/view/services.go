package view

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// exporter is one cluster's part of an imported service.
type exporter struct {
	Namespace    string   `json:"namespace"`
	Service      string   `json:"service"`
	Type         string   `json:"type"`
	ClusterSetIP string   `json:"clusterSetIP,omitempty"`
	Cluster      string   `json:"cluster"`
	Addresses    []string `json:"addresses"`
	// of a ClusterSetIP service above 8 rounded down
	ReadyBackends int            `json:"readyBackends"`
	Ports         []exporterPort `json:"ports"`
	Why           string         `json:"why"`

	ready bool // an address of it is
}

// exporterPort is a port of the merged service.
type exporterPort struct {
	Name     string `json:"name,omitempty"`
	Port     int32  `json:"port"`
	Protocol string `json:"protocol"`
	Has      bool   `json:"has"` // the cluster has it
	// Share of the new connections of this cluster's pods that the exporter gets, 0–1; of a
	// headless service clients decide.
	Share float64 `json:"share"`
}

// services has a row for each cluster that exports a service to this one.
func services(ctx context.Context, m Member, c config.Config) (Table, error) {
	t := Table{
		Header: []string{"NAMESPACE", "SERVICE", "TYPE", "CLUSTERSET IP", "CLUSTER", "ADDRESSES", "READY", "SHARE", "WHY"},
		Wide:   []string{"PORTS"},
		Empty:  "No services: no cluster exports one to this cluster, or its namespace does not exist here.",
	}
	imports, err := ListImports(ctx, m.Client)
	if err != nil {
		return t, err
	}
	list := &discoveryv1.EndpointSliceList{}
	if err := m.Client.List(ctx, list, client.HasLabels{mcs.LabelSourceCluster}, client.MatchingLabels{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}); err != nil {
		return t, fmt.Errorf("list EndpointSlices: %w", err)
	}
	of := map[types.NamespacedName][]discoveryv1.EndpointSlice{}
	for _, s := range list.Items {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[mcs.LabelServiceName]}
		of[name] = append(of[name], s)
	}
	for i := range imports {
		for _, e := range exporters(&imports[i], of[client.ObjectKeyFromObject(&imports[i])], c) {
			t.Rows = append(t.Rows, Row{
				Cells: []string{e.Namespace, e.Service, e.Type, cmp.Or(e.ClusterSetIP, "-"), e.Cluster, few(e.Addresses), strconv.Itoa(e.ReadyBackends), e.share(), e.Why},
				Wide:  []string{e.ports()}, Object: e,
			})
		}
	}
	return t, nil
}

// ListImports returns the merged ServiceImports, in whichever version the cluster serves them.
func ListImports(ctx context.Context, c client.Client) ([]mcs.ServiceImport, error) {
	mapping, err := c.RESTMapper().RESTMapping(schema.GroupKind{Group: mcs.GroupName, Kind: mcs.ServiceImportKindName})
	if meta.IsNoMatchError(err) {
		return nil, nil // nothing has been imported
	}
	if err != nil {
		return nil, fmt.Errorf("find kind ServiceImport: %w", err)
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(mapping.GroupVersionKind)
	if err := c.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list ServiceImports: %w", err)
	}
	var out []mcs.ServiceImport
	for _, item := range list.Items {
		var i mcs.ServiceImport
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &i); err != nil {
			return nil, fmt.Errorf("read ServiceImport %s/%s: %w", item.GetNamespace(), item.GetName(), err)
		}
		if i.Namespace != manifests.SystemNamespace { // there are copies of single exports
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b mcs.ServiceImport) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// exporters are the clusters of an import, sorted, with their shares of this cluster's new
// connections.
func exporters(i *mcs.ServiceImport, of []discoveryv1.EndpointSlice, c config.Config) []*exporter {
	byID := map[string]*exporter{}
	for _, s := range i.Status.Clusters {
		byID[s.Cluster] = &exporter{Cluster: s.Cluster, Addresses: []string{}}
	}
	known := map[string]map[[2]string]bool{} // cluster → protocol and number of its ports
	for _, slice := range of {
		e := byID[slice.Labels[mcs.LabelSourceCluster]]
		if e == nil {
			continue // left out of the merged service
		}
		e.add(slice, i.Spec.Type == mcs.Headless)
		for _, p := range slice.Ports {
			if known[e.Cluster] == nil {
				known[e.Cluster] = map[[2]string]bool{}
			}
			known[e.Cluster][[2]string{string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)), strconv.Itoa(int(ptr.Deref(p.Port, 0)))}] = true
		}
	}
	all := slices.SortedFunc(maps.Values(byID), func(a, b *exporter) int { return strings.Compare(a.Cluster, b.Cluster) })
	for _, e := range all {
		e.Namespace, e.Service, e.Type = i.Namespace, i.Name, string(i.Spec.Type)
		if len(i.Spec.IPs) > 0 {
			e.ClusterSetIP = i.Spec.IPs[0]
		}
		slices.Sort(e.Addresses)
		e.Addresses = slices.Compact(e.Addresses)
		for _, p := range i.Spec.Ports {
			protocol := cmp.Or(p.Protocol, corev1.ProtocolTCP)
			has := i.Spec.Type == mcs.Headless || known[e.Cluster][[2]string{string(protocol), strconv.Itoa(int(p.Port))}]
			e.Ports = append(e.Ports, exporterPort{Name: p.Name, Port: p.Port, Protocol: string(protocol), Has: has})
		}
	}
	set, _ := topology.ReadBalancing(i.Annotations)
	set = set.Rounded()
	for n := range i.Spec.Ports {
		divide(all, n, set, c)
	}
	return all
}

// add adds a slice of the cluster.
func (e *exporter) add(slice discoveryv1.EndpointSlice, headless bool) {
	for _, endpoint := range slice.Endpoints {
		e.Addresses = append(e.Addresses, endpoint.Addresses...)
		if ptr.Deref(endpoint.Conditions.Ready, true) {
			e.ready = true
			if headless {
				e.ReadyBackends++
			}
		}
	}
	if n, err := strconv.Atoi(slice.Annotations[v1alpha1.AnnotationReadyBackends]); err == nil {
		e.ReadyBackends = max(e.ReadyBackends, n)
	}
}

// divide sets the shares of port n and the reasons for them, as the edge divides connections to a
// ClusterSetIP, or else the name server.
func divide(all []*exporter, n int, set topology.Balancing, c config.Config) {
	var candidates []topology.Candidate
	var chosen []*exporter
	for _, e := range all {
		switch {
		case e.Type == string(mcs.Headless) && e.ready:
			e.Why = "clients choose among the ready pods"
		case e.ready && e.ClusterSetIP != "" && !e.Ports[n].Has:
			e.Why = cmp.Or(e.Why, "it does not have all ports")
		case e.ready:
			chosen = append(chosen, e)
			candidates = append(candidates, topology.Candidate{ID: e.Cluster, Ready: e.ReadyBackends, Own: e.Cluster == c.ClusterID})
		case e.ReadyBackends > 0:
			e.Why = "no gateway of it answers"
		case len(e.Addresses) == 0:
			e.Why = "it has published no address, or has been dead for an hour"
		default:
			e.Why = "no ready backend"
		}
	}
	vip := len(chosen) > 0 && chosen[0].ClusterSetIP != ""
	if len(chosen) > 0 && !vip {
		set.Weights = nil // the name server knows none, and counts backends only to spill
		for i := range candidates {
			if set.MinLocal == 0 {
				candidates[i].Ready = 1
			}
		}
	}
	weights, by := set.Weigh(candidates)
	sum := 0
	for _, w := range weights {
		sum += w
	}
	for i, e := range chosen {
		e.Ports[n].Share = float64(weights[i]) / float64(max(sum, 1))
		switch {
		case !vip && c.Mode == config.ModeMCS:
			e.Ports[n].Share, e.Why = 0, "no ClusterSetIP: see the conditions of the ServiceImport"
		case !vip && by == topology.ByReadyBackends:
			e.Why = "DNS names the ready clusters in turn"
		case !vip && by == topology.OwnClusterFirst:
			e.Why = "DNS names the own cluster first"
		case !vip:
			e.Why = "DNS: " + string(by)
		case by == topology.ByWeights:
			e.Why = fmt.Sprintf("weight %d (%s%s)", weights[i], submarinerv1.AnnotationWeightPrefix, e.Cluster)
		default:
			e.Why = string(by)
		}
	}
}

// share is one figure where all ports have the same.
func (e *exporter) share() string {
	if e.Type == string(mcs.Headless) || len(e.Ports) == 0 {
		return "-"
	}
	percent := func(p exporterPort) string { return fmt.Sprintf("%.0f%%", 100*p.Share) }
	if !slices.ContainsFunc(e.Ports, func(p exporterPort) bool { return p.Share != e.Ports[0].Share }) {
		return percent(e.Ports[0])
	}
	var out []string
	for _, p := range e.Ports {
		out = append(out, fmt.Sprintf("%d/%s %s", p.Port, p.Protocol, percent(p)))
	}
	return strings.Join(out, ", ")
}

// ports are those that the cluster has.
func (e *exporter) ports() string {
	var out []string
	for _, p := range e.Ports {
		if p.Has {
			out = append(out, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
	}
	return strings.Join(out, ", ")
}

// few names some of many addresses.
func few(addresses []string) string {
	const most = 3
	switch n := len(addresses); {
	case n == 0:
		return "-"
	case n > most:
		return fmt.Sprintf("%s and %d more", strings.Join(addresses[:most], ", "), n-most)
	}
	return strings.Join(addresses, ", ")
}
