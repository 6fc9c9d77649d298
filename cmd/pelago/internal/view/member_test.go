package view

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
)

var update = flag.Bool("update", false, "write testdata")

// routeAgent is the report of a node about the gateways that do not answer it.
func routeAgent(name, silent string) *submarinerv1.RouteAgent {
	return &submarinerv1.RouteAgent{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: manifests.SystemNamespace, Annotations: map[string]string{submarinerv1.AnnotationSilentGateways: silent}}}
}

// The three views of a cluster with a dead gateway, in every output format.
func TestShowGolden(t *testing.T) {
	m := testMember(t)
	for _, a := range []*submarinerv1.RouteAgent{routeAgent("n1", "n2"), routeAgent("n2", ""), routeAgent("n3", "n2")} {
		if err := m.Client.Create(context.Background(), a); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range Views {
		if v.Name != "gateways" && v.Name != "connections" && v.Name != "endpoints" {
			continue
		}
		for _, form := range []string{"table", "wide", "json", "yaml"} {
			t.Run(v.Name+" "+form, func(t *testing.T) {
				var out bytes.Buffer
				state, err := Show(context.Background(), form, "one", m, config.Config{ClusterID: "g1"}, []View{v}, &out)
				if err != nil {
					t.Fatal(err)
				}
				if err := Encode(&out, form, []State{state}); err != nil {
					t.Fatal(err)
				}
				golden := filepath.Join("testdata", "show", v.Name+"."+form)
				if *update {
					if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), out.String()); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
			})
		}
	}
}

func TestGatewayHealth(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	agents := func(silent ...string) (out []*submarinerv1.RouteAgent) { // of n1, n2 …
		for i, s := range silent {
			out = append(out, routeAgent("n"+strconv.Itoa(i+1), s))
		}
		return out
	}
	witnesses := func(all []*submarinerv1.RouteAgent) []*submarinerv1.RouteAgent {
		for _, a := range all {
			metav1.SetMetaDataAnnotation(&a.ObjectMeta, submarinerv1.AnnotationUnreachableClusters, "")
		}
		return all
	}
	for what, tt := range map[string]struct {
		agents []*submarinerv1.RouteAgent
		age    time.Duration // of n1's report
		gone   bool
		words  string
	}{
		"all is well":     {agents("", "", ""), 20 * time.Second, false, ""},
		"no node reports": {nil, 0, false, ""},
		"dead":            {agents("", "n1", "n1"), 20 * time.Second, true, "2 of 2 nodes get no answer"},
		"the port of the only other node is closed":     {agents("", "n1"), 20 * time.Second, false, "1 of 1 nodes gets no answer"},
		"dead, and the only other node reaches another": {witnesses(agents("", "n1")), 20 * time.Second, true, "1 of 1 nodes gets no answer"},
		"dead beside another dead one":                  {agents("", "", "n1,n2"), 45 * time.Second, true, "1 of 1 nodes gets no answer"},
		"one node is cut off from all gateways":         {agents("", "", "n1,n2", ""), 0, false, "1 of 2 nodes gets no answer"},
		"its own report is ignored":                     {agents("n1", ""), 0, false, ""},
		"does not report":                               {agents("", "", ""), 10 * time.Minute, true, "no report for 10 minutes"},
	} {
		m := testMember(t)
		for _, a := range tt.agents {
			if err := m.Client.Create(context.Background(), a); err != nil {
				t.Fatal(err)
			}
		}
		g := submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
			submarinerv1.AnnotationUpdated: strconv.FormatInt(now.Add(-tt.age).Unix(), 10)}}}
		all, err := GatewayHealth(context.Background(), m.Client, []submarinerv1.Gateway{g}, now)
		if err != nil {
			t.Fatal(err)
		}
		if h := all["n1"]; h.Gone() != tt.gone || h.Text() != tt.words {
			t.Errorf("%s: gone %t, %q; want %t, %q", what, h.Gone(), h.Text(), tt.gone, tt.words)
		}
	}
}
