package services

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
)

var (
	g1     = sourceCluster{id: "g1", systemNamespace: "pelago-system", owner: kube.Owner{HubID: "hub"}}
	start  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	joined = map[string]time.Time{"g1": start, "g2": start, "g3": start}
)

// contribution of a cluster; without an IP it is headless.
func contribution(cluster, ip string, minutes int) v1alpha1.ServiceContribution {
	spec := v1alpha1.ServiceContributionSpec{
		Cluster: cluster, Namespace: "sample", Service: "web", Type: v1alpha1.ContributionHeadless,
		Ports:      []v1alpha1.ContributionPort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		ExportedAt: metav1.NewTime(start.Add(time.Duration(minutes) * time.Minute)), SessionAffinity: "None",
	}
	if ip != "" {
		spec.Type, spec.IPs = v1alpha1.ContributionClusterSetIP, []string{ip}
	}
	return v1alpha1.ServiceContribution{Spec: spec}
}

func hubSlice(cluster, name string, addresses ...string) discoveryv1.EndpointSlice {
	s := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{mcs.LabelSourceCluster: cluster}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// sample is the state of service sample/web in an existing namespace.
func sample(contributions ...v1alpha1.ServiceContribution) importState {
	return importState{
		namespace: "sample", name: "web", namespaceExists: true, joined: joined, contributions: contributions,
		hubSlices: []discoveryv1.EndpointSlice{hubSlice("g2", "g2.web.1", "120.2.0.9"), hubSlice("g3", "g3.web.1", "120.3.0.9")},
	}
}

func (s importState) with(change func(*importState)) importState { change(&s); return s }

// local adds the own cluster's Service with one pod.
func local(clusterIP string) func(*importState) {
	return func(s *importState) {
		s.exported = true
		s.service = &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}}}
		s.localSlices = []discoveryv1.EndpointSlice{{
			ObjectMeta: metav1.ObjectMeta{Name: "web-abcde"}, AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.7.0.2"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-0"}}},
		}}
	}
}

func onlyTo(x v1alpha1.ServiceContribution, clusters ...string) v1alpha1.ServiceContribution {
	x.Spec.ExportTo = clusters
	return x
}

// refuse has a cluster refused for a reason; without one it is not judged yet.
func refuse(cluster, reason string) func(*importState) {
	return func(s *importState) {
		r, _ := refusalOf(peer(cluster, metav1.ConditionFalse, reason, "this is why"))
		s.refused = map[string]refusal{cluster: r}
	}
}

func stale(clusters ...string) func(*importState) {
	return func(s *importState) { s.dead, s.stale = clusters, clusters }
}

// lines describes a result: the import, the copies, the slices.
func importLines(r result) []string {
	var out []string
	if r.imported != nil {
		text := "import " + string(r.imported.Spec.Type)
		for _, c := range r.imported.Status.Clusters {
			text += " " + c.Cluster
		}
		out = append(out, text)
	}
	for _, c := range r.copies {
		out = append(out, strings.TrimSpace("copy "+c.Name+" "+strings.Join(c.Spec.IPs, ",")))
	}
	for _, s := range r.slices {
		text := "slice " + s.Labels[mcs.LabelSourceCluster] + " headless=" + s.Labels[submarinerv1.LabelIsHeadless]
		for _, e := range s.Endpoints {
			text += " " + strings.TrimPrefix(ptr.Deref(e.Hostname, "")+"="+e.Addresses[0], "=")
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// A cluster whose lease has expired stays in status.clusters, as its export stands; Ready names it
// and the remedy, and is False if no other exports the service.
func TestReadyNamesClustersThatAreGone(t *testing.T) {
	both := func() importState {
		return sample(contribution("g2", "120.2.0.9", 0), contribution("g3", "120.3.0.9", 1))
	}
	const remedy = "cluster g3: no gateway has reached it for 1h0m0s; if it is gone for good, remove it by `pelago unjoin --clusterid g3` at the hub"
	for name, tt := range map[string]struct {
		state                        importState
		clusters, reason, wantPhrase string
	}{
		"none is":           {both(), "g2 g3", "True Ready", "the service is imported"},
		"one of two":        {both().with(stale("g3")), "g2 g3", "True Ready", remedy},
		"both":              {both().with(stale("g2", "g3")), "g2 g3", "False ClusterGone", remedy},
		"one, one refused":  {both().with(refuse("g2", v1alpha1.ReasonWireMismatch)).with(stale("g3")), "g2 g3", "False ClusterGone", remedy},
		"no exporter of it": {both().with(stale("g9")), "g2 g3", "True Ready", "the service is imported"},
	} {
		r := sourceCluster{id: "g1", systemNamespace: "pelago-system"}.desired(tt.state)
		var clusters []string
		for _, c := range r.imported.Status.Clusters {
			clusters = append(clusters, c.Cluster)
		}
		ready := meta.FindStatusCondition(r.imported.Status.Conditions, string(mcs.ServiceImportConditionReady))
		if got := strings.Join(clusters, " "); got != tt.clusters || string(ready.Status)+" "+ready.Reason != tt.reason || !strings.Contains(ready.Message, tt.wantPhrase) {
			t.Errorf("%s: clusters %s, %s %s %q; want %s, %s %q", name, got, ready.Status, ready.Reason, ready.Message, tt.clusters, tt.reason, tt.wantPhrase)
		}
	}
}

func TestImportDesired(t *testing.T) {
	tests := map[string]struct {
		state importState
		want  []string
	}{
		"no exporter": {sample(), nil},
		"one remote exporter": {sample(contribution("g2", "120.2.0.9", 0)), []string{
			"copy web-sample-g2 120.2.0.9", "import ClusterSetIP g2", "slice g2 headless=false 120.2.0.9"}},
		"slices without a contribution are left out": {sample(contribution("g3", "120.3.0.9", 0)), []string{
			"copy web-sample-g3 120.3.0.9", "import ClusterSetIP g3", "slice g3 headless=false 120.3.0.9"}},
		"no namespace: only a copy": {sample(contribution("g2", "120.2.0.9", 0)).with(func(s *importState) { s.namespaceExists = false }), []string{
			"copy web-sample-g2 120.2.0.9"}},
		"own and remote: the own ClusterIP": {sample(contribution("g1", "120.1.0.9", 0), contribution("g2", "120.2.0.9", 1)).with(local("10.77.0.5")), []string{
			"copy web-sample-g1 120.1.0.9", "copy web-sample-g2 120.2.0.9", "import ClusterSetIP g1 g2",
			"slice g1 headless=false 10.77.0.5", "slice g2 headless=false 120.2.0.9"}},
		"own headless: the pods' own addresses": {sample(contribution("g1", "", 0)).with(local("None")), []string{
			"copy web-sample-g1", "import Headless g1", "slice g1 headless=true web-0=10.7.0.2"}},
		"own export gone, the hub is behind": {sample(contribution("g1", "120.1.0.9", 0), contribution("g2", "120.2.0.9", 1)), []string{
			"copy web-sample-g2 120.2.0.9", "import ClusterSetIP g2", "slice g2 headless=false 120.2.0.9"}},
		"a cluster that is no member": {sample(contribution("g2", "120.2.0.9", 0), contribution("g9", "120.9.0.9", 0)), []string{
			"copy web-sample-g2 120.2.0.9", "import ClusterSetIP g2", "slice g2 headless=false 120.2.0.9"}},
		"a cluster that is not judged yet": {sample(contribution("g2", "120.2.0.9", 0), contribution("g3", "120.3.0.9", 1)).with(refuse("g3", "")), []string{
			"copy web-sample-g2 120.2.0.9", "import ClusterSetIP g2", "slice g2 headless=false 120.2.0.9"}},
		"only one that is not judged yet": {sample(contribution("g3", "120.3.0.9", 1)).with(refuse("g3", "")), nil},
		"a cluster that is refused keeps its names, without the addresses of others": {
			sample(contribution("g2", "120.2.0.9", 0), contribution("g3", "120.3.0.9", 1)).with(refuse("g3", v1alpha1.ReasonOverlappingCIDR)), []string{
				"copy web-sample-g2 120.2.0.9", "copy web-sample-g3 120.3.0.9", "import ClusterSetIP g2 g3", "slice g2 headless=false 120.2.0.9", "slice g3 headless=false"}},
		"only one that is refused": {sample(contribution("g3", "120.3.0.9", 1)).with(refuse("g3", v1alpha1.ReasonWireMismatch)), []string{
			"copy web-sample-g3 120.3.0.9", "import ClusterSetIP g3", "slice g3 headless=false 120.3.0.9"}},
		"the type of one that is refused does not count": {sample(contribution("g2", "120.2.0.9", 1), contribution("g3", "", 0)).with(refuse("g3", v1alpha1.ReasonWireMismatch)), []string{
			"copy web-sample-g2 120.2.0.9", "import ClusterSetIP g2", "slice g2 headless=false 120.2.0.9"}},
		"the type of one that is gone for good does not count": {sample(contribution("g2", "120.2.0.9", 1), contribution("g3", "", 0)).with(stale("g3")), []string{
			"copy web-sample-g2 120.2.0.9", "import ClusterSetIP g2", "slice g2 headless=false 120.2.0.9"}},
		"the only exporter is gone for good": {sample(contribution("g3", "120.3.0.9", 0)).with(stale("g3")), []string{
			"copy web-sample-g3 120.3.0.9", "import ClusterSetIP g3"}},
		"exported to others only": {sample(onlyTo(contribution("g2", "120.2.0.9", 0), "g2", "g3"), contribution("g3", "120.3.0.9", 1)), []string{
			"copy web-sample-g3 120.3.0.9", "import ClusterSetIP g3", "slice g3 headless=false 120.3.0.9"}},
		"the type of one that is not exported to this cluster does not count": {sample(onlyTo(contribution("g2", "", 0), "g2"), contribution("g3", "120.3.0.9", 1)), []string{
			"copy web-sample-g3 120.3.0.9", "import ClusterSetIP g3", "slice g3 headless=false 120.3.0.9"}},
		"exported to this cluster": {sample(onlyTo(contribution("g2", "120.2.0.9", 0), "g1", "g2")), []string{
			"copy web-sample-g2 120.2.0.9", "import ClusterSetIP g2", "slice g2 headless=false 120.2.0.9"}},
		"own, exported to others": {sample(onlyTo(contribution("g1", "120.1.0.9", 0), "g2")).with(local("10.77.0.5")), []string{
			"copy web-sample-g1 120.1.0.9", "import ClusterSetIP g1", "slice g1 headless=false 10.77.0.5"}},
		"only one that is no member": {sample(contribution("g9", "120.9.0.9", 0)), nil},
		"the younger of two types is left out": {sample(contribution("g2", "120.2.0.9", 0), contribution("g3", "", 1)), []string{
			"copy web-sample-g2 120.2.0.9", "import ClusterSetIP g2", "slice g2 headless=false 120.2.0.9"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, importLines(g1.desired(tt.state))); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// Ports and affinity of a service follow the oldest exporter that lives.
func TestAGoneClusterDecidesNothing(t *testing.T) {
	old, young := contribution("g2", "120.2.0.9", 0), contribution("g3", "120.3.0.9", 1)
	old.Spec.Ports[0].Name, old.Spec.SessionAffinity = "old", corev1.ServiceAffinityClientIP
	young.Spec.Ports[0].Name = "young"
	decided := func(s importState) string {
		i := g1.desired(s).imported
		var ports []string
		for _, p := range i.Spec.Ports {
			ports = append(ports, p.Name)
		}
		return string(i.Spec.SessionAffinity) + " " + strings.Join(ports, " ")
	}
	dead := func(s *importState) { s.dead = []string{"g2"} }
	for name, tt := range map[string]struct {
		state importState
		want  string
	}{
		"it lives": {sample(old, young), "ClientIP old"}, "it is dead": {sample(old, young).with(dead), "ClientIP old"},
		"it is gone for good": {sample(old, young).with(stale("g2")), "None young"}, "both are": {sample(old, young).with(stale("g2", "g3")), "ClientIP old"},
	} {
		if got := decided(tt.state); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
	for _, words := range []string{"cluster g2", "for 1h0m0s", "`pelago unjoin --clusterid g2`"} {
		if text := clusterGone("g2", staleAfter+time.Second); !strings.Contains(text, words) {
			t.Errorf("Event %q, want one with %q", text, words)
		}
	}
}

// The import of a refused cluster says why, and none of its endpoints is ready.
func TestARefusedClusterIsNotReady(t *testing.T) {
	ready := func(s importState) string {
		c := meta.FindStatusCondition(g1.desired(s).imported.Status.Conditions, "Ready")
		return string(c.Status) + " " + c.Reason + ": " + c.Message
	}
	only := sample(contribution("g3", "120.3.0.9", 1)).with(refuse("g3", v1alpha1.ReasonWireMismatch))
	if got, want := ready(only), "False PeerRefused: the service is imported, without ready endpoints of cluster g3: WireMismatch: this is why"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	slice := g1.desired(only).slices[0]
	if e := slice.Endpoints[0]; ptr.Deref(e.Conditions.Ready, true) || ptr.Deref(e.Conditions.Serving, true) {
		t.Errorf("endpoint %+v is ready", e)
	}
	if marked := (present{slices: g1.desired(only).slices}).marked(); marked != nil {
		t.Errorf("%v count as dead: they would stay so once they are accepted, as long as there is no verdict", marked)
	}
	both := sample(contribution("g2", "120.2.0.9", 0), contribution("g3", "120.3.0.9", 1)).with(refuse("g3", v1alpha1.ReasonWireMismatch))
	if got, want := ready(both), "True Ready: the service is imported, without ready endpoints of cluster g3: WireMismatch: this is why"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestImportedSlice(t *testing.T) {
	got := g1.desired(sample(contribution("g2", "120.2.0.9", 0))).slices[0]
	want := map[string]string{
		"multicluster.kubernetes.io/service-name": "web", "multicluster.kubernetes.io/source-cluster": "g2",
		"lighthouse.submariner.io/sourceNamespace": "sample", "lighthouse.submariner.io/is-headless": "false",
		"endpointslice.kubernetes.io/managed-by":   "lighthouse-agent.submariner.io",
		"service.kubernetes.io/service-proxy-name": "pelago", "app.kubernetes.io/managed-by": "pelago",
	}
	if diff := cmp.Diff(want, got.Labels); diff != "" {
		t.Errorf("labels -want +got\n%s", diff)
	}
	if got.Annotations["pelago.io/hub-id"] != "hub" || !strings.HasPrefix(got.Name, "web-g2-") || got.Namespace != "sample" {
		t.Errorf("metadata %+v", got.ObjectMeta)
	}
}

func TestImportStatus(t *testing.T) {
	condition := func(c sourceCluster, x v1alpha1.ServiceContribution) string {
		i := c.desired(sample(x)).imported
		if len(i.Spec.IPs) > 0 || i.Status.EndpointSliceObjects != mcs.EndpointSliceObjectsPresent {
			t.Errorf("import %+v", i)
		}
		if headless := i.Spec.Type == mcs.Headless; headless != slices.Equal(i.Spec.IPFamilies, []corev1.IPFamily{corev1.IPv4Protocol}) {
			t.Errorf("families of a %s import without addresses of its own: %v", i.Spec.Type, i.Spec.IPFamilies)
		}
		return string(i.Status.Conditions[0].Status) + "/" + i.Status.Conditions[0].Reason
	}
	mcsMode := g1
	mcsMode.modeMCS = true
	for what, pair := range map[string][2]string{
		"mode submariner":    {condition(g1, contribution("g2", "120.2.0.9", 0)), "True/Ready"},
		"mode mcs, headless": {condition(mcsMode, contribution("g2", "", 0)), "True/Ready"},
		"mode mcs, no VIPs":  {condition(mcsMode, contribution("g2", "120.2.0.9", 0)), "False/Pending"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: Ready is %s, want %s", what, pair[0], pair[1])
		}
	}
}

// spec.ips and spec.ipFamilies have one length and order (KEP-1645); a headless import has families
// only.
func TestImportIPs(t *testing.T) {
	x := contribution("g2", "120.2.0.9", 0)
	x.Spec.ClusterSetIP = "243.0.16.1"
	s := sample(x)
	s.vips = vips{joined: joined, ranges: map[string][]netip.Prefix{"g2": {netip.MustParsePrefix("243.0.16.0/20")}}}
	got := g1.desired(s).imported.Spec
	if !slices.Equal(got.IPs, []string{"243.0.16.1"}) || !slices.Equal(got.IPFamilies, []corev1.IPFamily{corev1.IPv4Protocol}) {
		t.Errorf("ips %v, ipFamilies %v", got.IPs, got.IPFamilies)
	}
	s.contributions[0].Spec.Type = v1alpha1.ContributionHeadless
	if got := g1.desired(s).imported.Spec; len(got.IPs) > 0 || !slices.Equal(got.IPFamilies, []corev1.IPFamily{corev1.IPv4Protocol}) || got.Type != mcs.Headless {
		t.Errorf("headless: %+v", got)
	}
}

// Exported labels reach the import, but cannot take it out of our hands.
func TestExportedLabels(t *testing.T) {
	x := contribution("g2", "120.2.0.9", 0)
	x.Spec.ExportedLabels = map[string]string{"tier": "1", "app.kubernetes.io/managed-by": "somebody"}
	x.Spec.ExportedAnnotations = map[string]string{"pelago.io/hub-id": "other"}
	got := g1.desired(sample(x)).imported
	if !g1.owner.Owns(got) || got.Labels["tier"] != "1" {
		t.Errorf("metadata %+v", got.ObjectMeta)
	}
}

// The order of clusters by round-trip time is on imports that prefer the nearest one, and changes
// only with a clear difference.
func TestNearestClusters(t *testing.T) {
	x := contribution("g2", "120.2.0.9", 0)
	order := func(former string, g2, g3 time.Duration) string {
		s := sample(x)
		s.roundTrips = map[string]time.Duration{"g2": g2, "g3": g3}
		if former != "" {
			s.nearest = strings.Split(former, ",")
		}
		return g1.desired(s).imported.Annotations["pelago.io/nearest-clusters"]
	}
	if got := order("", 1, 2); got != "" {
		t.Errorf("without the annotation: %q", got)
	}
	x.Spec.ExportedAnnotations = map[string]string{"pelago.io/prefer": "nearest", "pelago.io/nearest-clusters": "g9", "pelago.io/min-local-backends": "0"}
	for _, tt := range []struct {
		former string
		g2, g3 time.Duration
		want   string
	}{
		{"", 30 * time.Millisecond, 10 * time.Millisecond, "g3,g2"}, {"g2,g3", 12 * time.Millisecond, 10 * time.Millisecond, "g2,g3"},
		{"g2,g3", 14 * time.Millisecond, 10 * time.Millisecond, "g3,g2"},
	} {
		if got := order(tt.former, tt.g2, tt.g3); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
	if got, ok := g1.desired(sample(x)).imported.Annotations["pelago.io/min-local-backends"]; ok {
		t.Errorf("an invalid number is imported: %q", got)
	}
}

// Metadata that no object can have, published by a hostile member, does not keep the import from
// being written.
func TestInvalidExportedMetadata(t *testing.T) {
	x := contribution("g2", "120.2.0.9", 0)
	x.Spec.ExportedLabels = map[string]string{"tier": "1", "a b": "1", "long": strings.Repeat("a", 64), "multicluster.kubernetes.io/source-cluster": "g3"}
	x.Spec.ExportedAnnotations = map[string]string{"a b": "1", "lighthouse-lb-weight.submariner.io/g3": "100", "note": "2"}
	got := g1.desired(sample(x)).imported
	if want := map[string]string{"tier": "1", "app.kubernetes.io/managed-by": "pelago"}; cmp.Diff(want, got.Labels) != "" {
		t.Errorf("labels %v", got.Labels)
	}
	if want := map[string]string{"note": "2", "pelago.io/hub-id": "hub"}; cmp.Diff(want, got.Annotations) != "" {
		t.Errorf("annotations %v", got.Annotations)
	}
	x.Spec.ExportedAnnotations = map[string]string{"note": "2", "large": strings.Repeat("x", maxExported)}
	if got := g1.desired(sample(x)).imported; len(got.Annotations) > 2 {
		t.Errorf("%d annotations", len(got.Annotations))
	}
}

// The endpoints of a cluster that no gateway reaches stay, not ready; those of the own cluster are
// what they are.
func TestDeadClusterIsNotReady(t *testing.T) {
	s := sample(contribution("g1", "120.1.0.9", 0), contribution("g2", "120.2.0.9", 1), contribution("g3", "120.3.0.9", 1)).with(local("10.77.0.5"))
	s.dead = []string{"g1", "g2"}
	for _, slice := range g1.desired(s).slices {
		id := slice.Labels[mcs.LabelSourceCluster]
		for _, e := range slice.Endpoints {
			if ready := ptr.Deref(e.Conditions.Ready, true); ready != (id != "g2") {
				t.Errorf("cluster %s: endpoint %s is ready: %t", id, e.Addresses[0], ready)
			}
		}
	}
	s.stale = []string{"g2"}
	if diff := cmp.Diff([]string{
		"copy web-sample-g1 120.1.0.9", "copy web-sample-g2 120.2.0.9", "copy web-sample-g3 120.3.0.9", "import ClusterSetIP g1 g2 g3",
		"slice g1 headless=false 10.77.0.5", "slice g3 headless=false 120.3.0.9",
	}, importLines(g1.desired(s))); diff != "" {
		t.Errorf("g2 has been dead for longer than its lease: -want +got\n%s", diff)
	}
	if s.hubSlices[0].Endpoints[0].Conditions.Ready != nil {
		t.Error("the hub's slice was changed")
	}
}

// Whatever the hub says and in whichever order, the result is the same and its names do not clash.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []v1alpha1.ServiceContribution
		for _, id := range []string{"g1", "g2", "g3"} {
			if rapid.Bool().Draw(t, id) {
				ip := rapid.SampledFrom([]string{"", "120.0.0.1"}).Draw(t, id+" ip")
				all = append(all, contribution(id, ip, rapid.IntRange(0, 2).Draw(t, id+" minute")))
			}
		}
		s := sample(all...)
		if rapid.Bool().Draw(t, "local") {
			s = s.with(local("10.77.0.5"))
		}
		one := g1.desired(s)
		s.contributions = rapid.Permutation(all).Draw(t, "order")
		s.hubSlices = rapid.Permutation(s.hubSlices).Draw(t, "slices")
		if diff := cmp.Diff(importLines(one), importLines(g1.desired(s))); diff != "" {
			t.Fatalf("-one order +another\n%s", diff)
		}
		names := map[string]bool{}
		for _, slice := range one.slices {
			if names[slice.Name] {
				t.Fatalf("two slices are named %s", slice.Name)
			}
			names[slice.Name] = true
		}
	})
}
