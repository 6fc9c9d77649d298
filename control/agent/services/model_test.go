package services

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

var (
	modelClusters = []string{"c1", "c2", "c3", "c4"}
	modelServices = []string{"web", "db"}
	modelLabels   = map[string]map[string]string{"c1": {"env": "prod"}, "c2": {"env": "prod"}, "c3": {"env": "test"}, "c4": nil}
	// modelAudiences are values of annotation pelago.io/export-to, and the other clusters that they
	// mean; "": it is not set.
	modelAudiences = map[string][]string{"": modelClusters, "c2,c4": {"c2", "c4"}, "env=prod": {"c1", "c2"}, "env=none": nil}
)

// userExport is what a user has made of a service in a cluster.
type userExport struct {
	at       time.Time
	headless bool
	audience string
	ports    []v1alpha1.ContributionPort
	address  string // in its cluster, and elsewhere: there is no globalnet
}

// world is a clusterset: what users did, what is at the hub, and what agents made of it.
type world struct {
	now        time.Time
	joined     map[string]time.Time
	namespaces map[string]bool                  // clusters that have the namespace
	exports    map[string]map[string]userExport // by cluster and service

	contributions map[[2]string]v1alpha1.ServiceContribution // by cluster and service
	hubSlices     map[[2]string][]discoveryv1.EndpointSlice
	imports       map[[2]string]string // described
}

func (w *world) index(id string) byte { return byte(slices.Index(modelClusters, id) + 1) }

// local is the Service and its EndpointSlices in a cluster.
func (u userExport) local(service string) (*corev1.Service, []discoveryv1.EndpointSlice) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: service},
		Spec: corev1.ServiceSpec{ClusterIP: u.address, ClusterIPs: []string{u.address}}}
	for _, p := range u.ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p.Name, Port: p.Port, Protocol: p.Protocol})
	}
	backend := discoveryv1.Endpoint{Addresses: []string{u.address}, NodeName: ptr.To("n1")}
	if u.headless {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	}
	return s, []discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Name: service + "-abcde"}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{backend}}}
}

// export is one reconcile of an exporter.
func (w *world) export(id, service string) {
	key := [2]string{id, service}
	delete(w.contributions, key)
	delete(w.hubSlices, key)
	s := state{members: map[string]map[string]string{}}
	for member := range w.joined {
		s.members[member] = modelLabels[member]
	}
	if u, ok := w.exports[id][service]; ok {
		s.export = &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: service, CreationTimestamp: metav1.NewTime(u.at)}}
		if u.audience != "" {
			s.export.Annotations = map[string]string{v1alpha1.AnnotationExportTo: u.audience}
		}
		s.service, s.slices = u.local(service)
	}
	c := cluster{id: id, brokerNamespace: "broker", routed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	o := c.desired(s)
	if o.contribution != nil {
		w.contributions[key] = *o.contribution
	}
	for _, slice := range o.slices {
		w.hubSlices[key] = append(w.hubSlices[key], *slice)
	}
}

// imported is one reconcile of an importer.
func (w *world) imported(id, service string) {
	s := importState{namespace: "sample", name: service, namespaceExists: w.namespaces[id], joined: w.joined}
	for _, from := range modelClusters {
		if x, ok := w.contributions[[2]string{from, service}]; ok {
			s.contributions = append(s.contributions, x)
		}
		s.hubSlices = append(s.hubSlices, w.hubSlices[[2]string{from, service}]...)
	}
	var u userExport
	if u, s.exported = w.exports[id][service]; s.exported {
		s.service, s.localSlices = u.local(service)
	}
	r := sourceCluster{id: id, systemNamespace: "pelago-system", owner: kube.Owner{HubID: "hub"}}.desired(s)
	delete(w.imports, [2]string{id, service})
	if r.imported == nil {
		return
	}
	lines := []string{string(r.imported.Spec.Type)}
	for _, c := range r.imported.Status.Clusters {
		lines[0] += " " + c.Cluster
	}
	for _, p := range r.imported.Spec.Ports {
		lines[0] += fmt.Sprintf(" %s:%d", p.Name, p.Port)
	}
	for _, slice := range r.slices {
		lines = append(lines, slice.Labels[mcs.LabelSourceCluster]+" "+slice.Endpoints[0].Addresses[0])
	}
	slices.Sort(lines[1:])
	w.imports[[2]string{id, service}] = strings.Join(lines, ", ")
}

// want is what a cluster is to have of a service, from what users did alone.
func (w *world) want(id, service string) string {
	if _, member := w.joined[id]; !member || !w.namespaces[id] {
		return ""
	}
	type exporter struct {
		id  string
		age time.Time
		userExport
	}
	var all []exporter
	for from, join := range w.joined {
		u, ok := w.exports[from][service]
		if !ok || from != id && !slices.Contains(modelAudiences[u.audience], id) {
			continue
		}
		age := u.at
		if join.After(age) {
			age = join
		}
		all = append(all, exporter{from, age, u})
	}
	if len(all) == 0 {
		return ""
	}
	slices.SortFunc(all, func(a, b exporter) int { return cmp.Or(a.age.Compare(b.age), cmp.Compare(a.id, b.id)) })
	all = slices.DeleteFunc(all, func(e exporter) bool { return e.headless != all[0].headless })
	head, names, numbers := "", map[string]bool{}, map[int32]bool{}
	var clusters, parts []string
	for _, e := range all {
		clusters, parts = append(clusters, e.id), append(parts, e.id+" "+e.address)
		var added []v1alpha1.ContributionPort
		for _, p := range e.ports {
			if !names[p.Name] && !numbers[p.Port] {
				head += fmt.Sprintf(" %s:%d", p.Name, p.Port)
				added = append(added, p)
			}
		}
		for _, p := range added {
			names[p.Name], numbers[p.Port] = true, true
		}
	}
	slices.Sort(clusters)
	slices.Sort(parts)
	kind := "ClusterSetIP "
	if all[0].headless {
		kind = "Headless "
	}
	return strings.Join(append([]string{kind + strings.Join(clusters, " ") + head}, parts...), ", ")
}

// Whatever is exported, un-exported and exported again, whichever namespace is deleted and
// whichever cluster leaves and joins, in any order, for 1,000 steps, with agents that run late:
// once they have run, the imports of every cluster are those of the model.
func TestImportsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{now: start, joined: map[string]time.Time{"c1": start, "c2": start, "c3": start}, namespaces: map[string]bool{"c1": true, "c2": true},
			exports: map[string]map[string]userExport{}, contributions: map[[2]string]v1alpha1.ServiceContribution{},
			hubSlices: map[[2]string][]discoveryv1.EndpointSlice{}, imports: map[[2]string]string{}}
		number := rapid.Custom(func(t *rapid.T) v1alpha1.ContributionPort {
			return v1alpha1.ContributionPort{Name: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), Port: rapid.Int32Range(1, 3).Draw(t, "port"), Protocol: "TCP"}
		})
		unique := func(p v1alpha1.ContributionPort) string { return p.Name }
		audiences := slices.Sorted(maps.Keys(modelAudiences))
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"export", "unexport", "export", "reconcile", "reconcile", "delete namespace", "create namespace", "unjoin", "collect", "join", "settle"}),
			1000, 1000).Draw(t, "steps")
		for n, do := range append(steps, "settle") {
			// some things happen within one second
			w.now = w.now.Add(time.Duration(n%2) * time.Second)
			id := modelClusters[rapid.IntRange(0, len(modelClusters)-1).Draw(t, "cluster")]
			service := modelServices[rapid.IntRange(0, len(modelServices)-1).Draw(t, "service")]
			_, member := w.joined[id]
			_, exported := w.exports[id][service]
			switch {
			case do == "export" && w.namespaces[id] && !exported:
				if w.exports[id] == nil {
					w.exports[id] = map[string]userExport{}
				}
				w.exports[id][service] = userExport{
					at: w.now, headless: rapid.Bool().Draw(t, "headless"), audience: rapid.SampledFrom(audiences).Draw(t, "audience"),
					ports:   rapid.SliceOfNDistinct(number, 1, 2, unique).Draw(t, "ports"),
					address: netip.AddrFrom4([4]byte{10, w.index(id), byte(n >> 8), byte(n)}).String(),
				}
			case do == "unexport":
				delete(w.exports[id], service)
			case do == "reconcile" && member:
				if rapid.Bool().Draw(t, "export") {
					w.export(id, service)
				} else {
					w.imported(id, service)
				}
			case do == "delete namespace":
				delete(w.namespaces, id)
				delete(w.exports, id)
			case do == "create namespace":
				w.namespaces[id] = true
			case do == "unjoin":
				delete(w.joined, id)
				for _, service := range modelServices { // by the command, in the cluster
					delete(w.imports, [2]string{id, service})
				}
			case do == "collect" && !member || do == "join" && !member:
				// what the hub has of a former member
				for _, service := range modelServices {
					delete(w.contributions, [2]string{id, service})
					delete(w.hubSlices, [2]string{id, service})
				}
				if do == "join" {
					w.joined[id] = w.now
				}
			case do == "settle":
				for _, reconcile := range []func(string, string){w.export, w.imported} {
					for id := range w.joined {
						for _, service := range modelServices {
							reconcile(id, service)
						}
					}
				}
				for _, id := range modelClusters {
					for _, service := range modelServices {
						if diff := gocmp.Diff(w.want(id, service), w.imports[[2]string{id, service}]); diff != "" {
							t.Fatalf("after step %d, service %s in %s: -want +got\n%s", n, service, id, diff)
						}
					}
				}
			}
		}
	})
}
