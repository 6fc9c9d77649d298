package services_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/agent/services"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// contribution is a ClusterSetIP contribution exported the given number of minutes after the start.
func contribution(cluster string, minutes int, change ...func(*v1alpha1.ServiceContributionSpec)) v1alpha1.ServiceContribution {
	spec := v1alpha1.ServiceContributionSpec{
		Cluster: cluster, Namespace: "sample", Service: "web", Type: v1alpha1.ContributionClusterSetIP,
		IPs: []string{"120.1.0.9"}, Ports: []v1alpha1.ContributionPort{tcp("http", 80)},
		SessionAffinity: corev1.ServiceAffinityNone,
		ExportedAt:      metav1.NewTime(start.Add(time.Duration(minutes) * time.Minute)),
	}
	for _, c := range change {
		c(&spec)
	}
	return v1alpha1.ServiceContribution{Spec: spec}
}

// createdAfter sets when the hub got a contribution, in minutes after the start.
func createdAfter(c v1alpha1.ServiceContribution, minutes int) v1alpha1.ServiceContribution {
	c.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(minutes) * time.Minute))
	return c
}

func tcp(name string, port int32) v1alpha1.ContributionPort {
	return v1alpha1.ContributionPort{Name: name, Protocol: corev1.ProtocolTCP, Port: port}
}

func ports(p ...v1alpha1.ContributionPort) func(*v1alpha1.ServiceContributionSpec) {
	return func(s *v1alpha1.ServiceContributionSpec) { s.Ports = p }
}

func headless(s *v1alpha1.ServiceContributionSpec) {
	s.Type, s.IPs = v1alpha1.ContributionHeadless, nil
}

func TestOf(t *testing.T) {
	local, cluster, close := corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster, "PreferClose"
	seconds := int32(10)
	tests := map[string]struct {
		contributions []v1alpha1.ServiceContribution
		joined        map[string]time.Time
		want          services.MergedService
		reasons       string
	}{
		"one exporter": {
			contributions: []v1alpha1.ServiceContribution{contribution("g2", 0)},
			want:          services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, SessionAffinity: "None", Clusters: []string{"g2"}},
		},
		"two that agree": {
			contributions: []v1alpha1.ServiceContribution{contribution("g2", 0), contribution("g1", 1)},
			want:          services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, SessionAffinity: "None", Clusters: []string{"g1", "g2"}},
		},
		"the order in which ports are listed is no conflict": {
			contributions: []v1alpha1.ServiceContribution{
				contribution("g1", 0, ports(tcp("a", 1), tcp("b", 2))), contribution("g2", 1, ports(tcp("b", 2), tcp("a", 1)))},
			want: services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("a", 1), tcp("b", 2)}, SessionAffinity: "None", Clusters: []string{"g1", "g2"}},
		},
		"other ports are united": {
			contributions: []v1alpha1.ServiceContribution{
				contribution("g1", 1, ports(tcp("metrics", 9090))), contribution("g2", 0, ports(tcp("http", 80)))},
			want:    services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80), tcp("metrics", 9090)}, SessionAffinity: "None", Clusters: []string{"g1", "g2"}},
			reasons: "PortConflict",
		},
		"same name, other number: the oldest's": {
			contributions: []v1alpha1.ServiceContribution{
				contribution("g1", 0, ports(tcp("http", 80))), contribution("g2", 1, ports(tcp("http", 8080)))},
			want:    services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, SessionAffinity: "None", Clusters: []string{"g1", "g2"}},
			reasons: "PortConflict",
		},
		"no name is a name": {
			contributions: []v1alpha1.ServiceContribution{
				contribution("g1", 0, ports(tcp("", 80))), contribution("g2", 1, ports(tcp("", 8080)))},
			want:    services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("", 80)}, SessionAffinity: "None", Clusters: []string{"g1", "g2"}},
			reasons: "PortConflict",
		},
		"same number, other name: the oldest's": {
			contributions: []v1alpha1.ServiceContribution{
				contribution("g1", 0, ports(tcp("http", 80))), contribution("g2", 1, ports(tcp("web", 80)))},
			want:    services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, SessionAffinity: "None", Clusters: []string{"g1", "g2"}},
			reasons: "PortConflict",
		},
		"headless and not: the oldest's type, the other is left out": {
			contributions: []v1alpha1.ServiceContribution{contribution("g1", 1, headless, ports(tcp("x", 1))), contribution("g2", 0)},
			want:          services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, SessionAffinity: "None", Clusters: []string{"g2"}},
			reasons:       "TypeConflict",
		},
		"several conflicts, the oldest decides all": {
			contributions: []v1alpha1.ServiceContribution{
				contribution("g1", 0, func(s *v1alpha1.ServiceContributionSpec) {
					s.SessionAffinity = corev1.ServiceAffinityClientIP
					s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
					s.InternalTrafficPolicy, s.TrafficDistribution = &local, &close
					s.ExportedLabels, s.ExportedAnnotations = map[string]string{"tier": "1"}, map[string]string{"note": "a"}
				}),
				contribution("g2", 1, func(s *v1alpha1.ServiceContributionSpec) {
					s.InternalTrafficPolicy, s.IPs = &cluster, []string{"fd00::9"}
				}),
			},
			want: services.MergedService{
				Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, Clusters: []string{"g1", "g2"},
				SessionAffinity:       "ClientIP",
				SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}},
				InternalTrafficPolicy: &local, TrafficDistribution: &close,
				Labels: map[string]string{"tier": "1"}, Annotations: map[string]string{"note": "a"},
			},
			reasons: "SessionAffinityConflict,SessionAffinityConfigConflict,InternalTrafficPolicyConflict,TrafficDistributionConflict,LabelsConflict,AnnotationsConflict,IPFamilyConflict",
		},
		"one family of two": {
			contributions: []v1alpha1.ServiceContribution{
				contribution("g1", 0, func(s *v1alpha1.ServiceContributionSpec) { s.IPs = []string{"120.1.0.9", "fd00::9"} }),
				contribution("g2", 1, func(s *v1alpha1.ServiceContributionSpec) { s.IPs = []string{"fd00::9"} }),
			},
			want:    services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, SessionAffinity: "None", Clusters: []string{"g1", "g2"}},
			reasons: "IPFamilyConflict",
		},
		"a newcomer's old export does not take over": {
			contributions: []v1alpha1.ServiceContribution{contribution("g1", 5), contribution("g2", 0, headless)},
			joined:        map[string]time.Time{"g1": start, "g2": start.Add(time.Hour)},
			want:          services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, SessionAffinity: "None", Clusters: []string{"g1"}},
			reasons:       "TypeConflict",
		},
		"a backdated export does not take over": {
			contributions: []v1alpha1.ServiceContribution{createdAfter(contribution("g1", 5), 5), createdAfter(contribution("g2", 0, headless), 7)},
			want:          services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, SessionAffinity: "None", Clusters: []string{"g1"}},
			reasons:       "TypeConflict",
		},
		"a contribution that comes a minute later": {
			contributions: []v1alpha1.ServiceContribution{createdAfter(contribution("g1", 5), 5), createdAfter(contribution("g2", 4, headless), 5)},
			want:          services.MergedService{Type: "Headless", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, SessionAffinity: "None", Clusters: []string{"g2"}},
			reasons:       "TypeConflict",
		},
		"exports of one second: the lower id": {
			contributions: []v1alpha1.ServiceContribution{contribution("g2", 0, headless), contribution("g1", 0)},
			want:          services.MergedService{Type: "ClusterSetIP", Ports: []v1alpha1.ContributionPort{tcp("http", 80)}, SessionAffinity: "None", Clusters: []string{"g1"}},
			reasons:       "TypeConflict",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := services.Merge(tt.contributions, tt.joined)
			if reasons := services.ConflictReasons(got.Conflicts); reasons != tt.reasons {
				t.Errorf("reasons %q, want %q", reasons, tt.reasons)
			}
			got.Conflicts = nil
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestMessageNamesTheDecidingExport(t *testing.T) {
	got := services.Merge([]v1alpha1.ServiceContribution{
		contribution("g1", 1, ports(tcp("http", 8080))), contribution("g2", 0), contribution("g3", 2)}, nil)
	want := "ports: 1/3 clusters disagree with the oldest export, that of cluster g2 (2026-01-02T03:04:05Z): the import has the union, its ports first; " +
		"not served: http 8080/TCP of cluster g1"
	if m := services.ConflictMessages(got.Conflicts); m != want {
		t.Errorf("message\n%s\nwant\n%s", m, want)
	}
}

// drawContributions draws contributions of distinct clusters over small alphabets, so that clashes
// are common.
func drawContributions(t *rapid.T) []v1alpha1.ServiceContribution {
	clusters := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 4, rapid.ID).Draw(t, "clusters")
	port := rapid.Custom(func(t *rapid.T) v1alpha1.ContributionPort {
		return tcp(rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "name"), rapid.Int32Range(1, 3).Draw(t, "port"))
	})
	var out []v1alpha1.ServiceContribution
	for _, c := range clusters {
		change := []func(*v1alpha1.ServiceContributionSpec){
			// A Service has no two ports of one name.
			ports(rapid.SliceOfNDistinct(port, 0, 3, func(p v1alpha1.ContributionPort) string { return p.Name }).Draw(t, "ports")...)}
		if rapid.Bool().Draw(t, "headless") {
			change = append(change, headless)
		}
		out = append(out, contribution(c, rapid.IntRange(0, 2).Draw(t, "minute"), change...))
	}
	return out
}

func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawContributions(t)
		if diff := cmp.Diff(services.Merge(in, nil), services.Merge(rapid.Permutation(in).Draw(t, "order"), nil)); diff != "" {
			t.Fatalf("-one order +another\n%s", diff)
		}
	})
}

// The result, contributed by one cluster, merges to itself.
func TestIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := services.Merge(drawContributions(t), nil)
		got := services.Merge([]v1alpha1.ServiceContribution{contribution("all", 0, ports(want.Ports...), func(s *v1alpha1.ServiceContributionSpec) {
			s.Type, s.SessionAffinity = want.Type, want.SessionAffinity
		})}, nil)
		want.Clusters, want.Conflicts = []string{"all"}, nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("-once +twice\n%s", diff)
		}
	})
}

func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawContributions(t)
		got := services.Merge(in, nil)
		names, numbers := map[string]bool{}, map[int32]bool{}
		for _, p := range got.Ports {
			if names[p.Name] {
				t.Fatalf("port name %q twice in %v", p.Name, got.Ports)
			}
			names[p.Name], numbers[p.Port] = true, true
		}
		for _, c := range in {
			if c.Spec.Type != got.Type {
				continue
			}
			for _, p := range c.Spec.Ports {
				if !names[p.Name] && !numbers[p.Port] {
					t.Fatalf("port %v of %s is served under neither its name nor its number: %v", p, c.Spec.Cluster, got.Ports)
				}
			}
		}
		if len(in) == 1 && len(got.Conflicts) > 0 {
			t.Fatalf("one exporter conflicts with itself: %v", got.Conflicts)
		}
	})
}
