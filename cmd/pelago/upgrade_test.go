package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/cmd/pelago/internal/check"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/rollout"
)

// component is one that runs, or waits, with an image.
func component(image string, ready int32) rollout.Component {
	return rollout.Component{Kind: "DaemonSet", Name: "pelago-node", Image: image, Ready: ready, Want: 3, Current: true}
}

func upgradeSet(clusters ...check.Cluster) *check.Set { return &check.Set{Clusters: clusters} }

func networkMember(id string, components ...rollout.Component) check.Cluster {
	return check.Cluster{Context: id, Member: true, Config: config.Config{ClusterID: id}, Components: components}
}

// The plan: the hub first, then what an earlier run has begun, then the others; current members
// need nothing.
func TestUpgradePlan(t *testing.T) {
	const v1, v2 = "r/pelago:v1.2.3", "r/pelago:v1.3.0"
	hub := check.Cluster{Context: "hub", Hub: true, Broker: true}
	workloads := networkMember("w", component(v1, 3))
	workloads.Config.WorkloadsOnly = true
	for name, tt := range map[string]struct {
		u     upgrade
		set   *check.Set
		given bool
		want  []string
		err   string
	}{
		"two members": {upgrade{image: v2}, upgradeSet(networkMember("g1", component(v1, 3)), networkMember("g2", component(v1, 3)), hub), false, []string{
			"hub: deploy-broker --output info --context hub",
			"g1: join info --clusterid g1 --image r/pelago:v1.3.0 --timeout 1m0s --keep-registration --context g1",
			"g2: join info --clusterid g2 --image r/pelago:v1.3.0 --timeout 1m0s --keep-registration --context g2"}, ""},
		"an earlier run has ended in g2": {upgrade{image: v2}, upgradeSet(hub, networkMember("g1", component(v1, 3)), networkMember("g2", component(v2, 1)), networkMember("g3", component(v2, 3))), false, []string{
			"hub: deploy-broker --output info --context hub",
			"g2: join info --clusterid g2 --image r/pelago:v1.3.0 --timeout 1m0s --keep-registration --context g2",
			"g1: join info --clusterid g1 --image r/pelago:v1.3.0 --timeout 1m0s --keep-registration --context g1",
			"g3: runs the image already"}, ""},
		"a hub in a host cluster": {upgrade{image: v2, hostContext: "mgmt", backup: "b.tar.gz", checks: checks{hubKubeconfig: "hub.kubeconfig", access: access{kubeconfig: "k"}}},
			upgradeSet(hub, workloads), false, []string{
				"hub: hub backup b.tar.gz --host-context mgmt --kubeconfig k",
				"hub: init --image r/pelago:v1.3.0 --output hub.kubeconfig --host-context mgmt --kubeconfig k",
				"hub: deploy-broker --output info --kubeconfig hub.kubeconfig",
				"w: join info --clusterid w --image r/pelago:v1.3.0 --timeout 1m0s --keep-registration --kubeconfig k --context w --workloads-only"}, ""},
		"members alone": {upgrade{image: v2}, upgradeSet(networkMember("g1", component(v1, 3))), true, []string{
			"g1: join info --clusterid g1 --image r/pelago:v1.3.0 --timeout 1m0s --keep-registration --context g1"}, ""},
		"no hub":             {upgrade{image: v2}, upgradeSet(networkMember("g1", component(v1, 3))), false, nil, "no hub with a broker"},
		"a version left out": {upgrade{image: "r/pelago:v1.4.0"}, upgradeSet(hub, networkMember("g1", component(v1, 3))), false, nil, "upgrade to 1.3 first"},
		"downgrade":          {upgrade{image: v1}, upgradeSet(hub, networkMember("g1", component(v2, 3))), false, nil, "newer than v1.2.3"},
		"another major":      {upgrade{image: "r/pelago:v2.0.0"}, upgradeSet(hub, networkMember("g1", component(v2, 3))), false, nil, "one minor version at a time"},
		"no release": {upgrade{image: "r/pelago:dev"}, upgradeSet(networkMember("g1", component(v2, 3))), true, []string{
			"g1: join info --clusterid g1 --image r/pelago:dev --timeout 1m0s --keep-registration --context g1"}, ""},
		"not reached":       {upgrade{image: v2}, upgradeSet(hub, check.Cluster{Context: "g1", Err: errors.New("refused")}), false, nil, "read cluster g1: refused"},
		"nothing installed": {upgrade{image: v2}, upgradeSet(hub, check.Cluster{Context: "g1", Member: true, Missing: "no DaemonSet"}), false, nil, "no DaemonSet"},
	} {
		tt.u.timeout = time.Minute
		steps, err := tt.u.steps(tt.set, "info", tt.given)
		var got []string
		for _, s := range steps {
			text := s.Note
			if len(s.Args) > 0 {
				text = strings.Join(s.Args, " ")
			}
			got = append(got, s.Cluster+": "+text)
		}
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v\n%s", name, err, strings.Join(got, "\n"))
		}
	}
}

// A step that fails, or whose checks do, ends the run; checks count once what was begun is done.
func TestUpgradeSteps(t *testing.T) {
	steps := []upgradeStep{{Cluster: "hub", Args: []string{"deploy-broker"}}, {Cluster: "g1", Args: []string{"join", "g1"}}, {Cluster: "g2", Args: []string{"join", "g2"}},
		{Cluster: "g3", Note: "runs the image already"}}
	broken := check.Result{Outcomes: []check.Outcome{{Verdict: check.Error, Findings: []check.Finding{{Code: "PLG-N013", Verdict: check.Error, Cluster: "g1", Reason: "no connection"}}}}}
	for name, tt := range map[string]struct {
		fails       string // the cluster whose command fails
		brokenAfter string // the cluster after which the checks find an error
		begun       int    // number of the step that an earlier run has begun
		ran         string
		err         string
	}{
		"all":               {ran: "hub g1 g2"},
		"a command fails":   {fails: "g1", ran: "hub g1", err: "upgrade of g1, step 2 of 4: not today"},
		"the checks fail":   {brokenAfter: "g1", ran: "hub g1", err: "cluster g1: PLG-N013: no connection"},
		"the hub is broken": {brokenAfter: "hub", ran: "hub", err: "upgrade of hub"},
		"begun before":      {brokenAfter: "hub", begun: 1, ran: "hub g1 g2"},
	} {
		var ran []string
		all := slices.Clone(steps)
		if tt.begun > 0 {
			all[tt.begun].begun = true
		}
		run := func(_ context.Context, args []string) error {
			ran = append(ran, all[len(ran)].Cluster)
			if tt.fails == ran[len(ran)-1] {
				return errors.New("not today")
			}
			return nil
		}
		checked := func(context.Context) (check.Result, error) {
			if ran[len(ran)-1] == tt.brokenAfter {
				return broken, nil
			}
			return check.Result{}, nil
		}
		var said []string
		err := runSteps(t.Context(), all, run, checked, false, 0, func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
		if strings.Join(ran, " ") != tt.ran || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: ran %v, %v", name, ran, err)
		}
		if done := strings.Contains(strings.Join(said, "\n"), "All clusters run the image"); done != (err == nil) {
			t.Errorf("%s: %q", name, said)
		}
	}
}

func TestPrintSteps(t *testing.T) {
	var out bytes.Buffer
	steps := []upgradeStep{{Cluster: "g1", From: "v1", To: "v2", Args: []string{"join", "info"}}, {Cluster: "g2", From: "v2", To: "v2", Note: "runs the image already"}}
	if err := printSteps(&out, "table", steps); err != nil {
		t.Fatal(err)
	}
	want := "STEP   CLUSTER   FROM   TO   COMMAND\n1      g1        v1     v2   pelago join info\n2      g2        v2     v2   runs the image already\n\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	for _, d := range []string{"0s", "2m"} {
		if _, err := execute(t, "benchmark", "latency", "--duration", d); err == nil || !strings.Contains(err.Error(), "--duration") {
			t.Errorf("--duration %s: %v", d, err)
		}
	}
	if _, err := execute(t, "upgrade", "--backup", "f"); err == nil || !strings.Contains(err.Error(), "--host-context") {
		t.Errorf("--backup without --host-context: %v", err)
	}
}
