package view

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// explain shows the round-trip times by which a template is placed.
func TestNear(t *testing.T) {
	cluster := parse[clusterv1alpha1.Cluster]
	clusters := []clusterv1alpha1.Cluster{
		cluster(t, `{metadata: {name: far}, status: {network: [{cluster: db, reachable: true, rtt: 40ms}]}}`),
		cluster(t, `{metadata: {name: m1}, status: {network: [{cluster: db, reachable: true, rtt: 1.2ms}, {cluster: m2, reachable: true, rtt: 9ms}]}}`),
		cluster(t, `{metadata: {name: m2}, status: {network: [{cluster: db, reachable: false}]}}`),
		cluster(t, `{metadata: {name: db}}`),
	}
	contribution := parse[pelagov1alpha1.ServiceContribution](t, `{metadata: {namespace: submariner-k8s-broker, name: db.shop.sql}, spec: {cluster: db, namespace: shop, service: sql, type: Headless}}`)
	for near, want := range map[string]string{
		`{"cluster": "db"}`: `Near:      cluster db, the nearest first
           db: 0s
           m1: 1.2ms
           far: 40ms
           m2: not measured
`,
		`{"service": "shop/sql", "maxRTT": "20ms", "prefer": false}`: `Near:      service shop/sql, exported by db, at most 20ms
           db: 0s
           m1: 1.2ms
           far: 40ms
           m2: not measured
`,
		`{"service": "shop/none"}`: `Near:      service shop/none, exported by no cluster, the nearest first
           db: not measured
           far: not measured
           m1: not measured
           m2: not measured
`,
	} {
		n, err := policyv1alpha1.NearOf(map[string]string{policyv1alpha1.AnnotationNear: near})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		explainNear(n, clusters, []pelagov1alpha1.ServiceContribution{contribution}).print(&out)
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s: -want +got\n%s", near, diff)
		}
	}
}
