package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// fault is one that TestFaults injects into the running clusters.
type fault struct {
	name string
	// code, cluster and object are those of the finding that names it; reason is in its text, or in
	// that of its remedy.
	code, cluster, object, reason string
	inject, heal                  func(ctx context.Context) error
}

// noticed bounds how long a fault is looked for; most are found within seconds.
const noticed = 90 * time.Second

// TestFaults: `pelago check` finds nothing in healthy clusters, the cause of each fault while it is
// there, and nothing after it.
func TestFaults(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName + "flt", Nodes: 3}, twoClusters)
	l := s.needLoad(t)
	within(t, func() error { return s.silent(t.Context()) })
	for _, f := range s.faults(t, l) {
		s.run(t, f.name, func(t *testing.T, s *clusterset) {
			ctx := t.Context()
			healed := false
			heal := func(ctx context.Context) {
				if !healed {
					healed = true
					must(t, f.heal(ctx))
				}
			}
			t.Cleanup(func() { heal(context.WithoutCancel(ctx)) })
			must(t, f.inject(ctx))
			begin := time.Now()
			found := walk.Eventually(ctx, noticed, func() error { return s.finds(ctx, f) })
			took := time.Since(begin)
			heal(ctx)
			must(t, found)
			again := within(t, func() error { return s.silent(ctx) })
			t.Logf("%s after %.1f s; nothing %.1f s after its end", f.code, took.Seconds(), again.Seconds())
		})
	}
}

// found is what the test reads of a finding of `pelago check -o json`.
type found struct{ Code, Verdict, Cluster, Object, Reason, Remedy string }

func (s *clusterset) findings(ctx context.Context) (all []found, err error) {
	cmd := exec.CommandContext(ctx, s.Bin+"/pelago", "check", "--contexts", strings.Join(append(s.Members(), "hub"), ","), "-o", "json")
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+s.Lab.Kubeconfig())
	text, failed := cmd.Output() // 1 and 3 by its findings
	var result struct {
		Outcomes []struct{ Findings []found }
	}
	if err := json.Unmarshal(text, &result); err != nil || len(result.Outcomes) == 0 {
		return nil, fmt.Errorf("pelago check: %w: %.300q: %w", failed, text, err)
	}
	for _, o := range result.Outcomes {
		all = append(all, o.Findings...)
	}
	return all, nil
}

func (s *clusterset) silent(ctx context.Context) error {
	all, err := s.findings(ctx)
	if err == nil && len(all) > 0 {
		err = fmt.Errorf("findings in healthy clusters: %+v", all)
	}
	return err
}

func (s *clusterset) finds(ctx context.Context, f fault) error {
	all, err := s.findings(ctx)
	if err != nil {
		return err
	}
	for _, is := range all {
		if is.Code == f.code && is.Cluster == f.cluster && strings.HasPrefix(is.Object, f.object) &&
			strings.Contains(is.Reason+"; "+is.Remedy, f.reason) && is.Remedy != "" {
			return nil
		}
	}
	return fmt.Errorf("want %s of %s at %q with %q; findings: %+v", f.code, f.cluster, f.object, f.reason, all)
}

// switchRules replaces a table of nftables in the switch of a cluster; without rules it is removed.
func (s *clusterset) switchRules(ctx context.Context, cluster, rules string) error {
	const table = "table bridge e2e"
	text := table + "\ndelete " + table + "\n"
	if rules != "" {
		text += table + " { chain forward { type filter hook forward priority 0; policy accept; " + rules + "; }\n}\n"
	}
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", s.Lab.Plan().Name+"-"+cluster+"-switch", "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// faults are all of them. What they are made of: objects, commands of kubectl, of the CLI and on
// nodes, and the network between nodes.
func (s *clusterset) faults(t *testing.T, l load) []fault {
	t.Helper()
	at := func(node, script string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.Lab.Exec(ctx, node, "sh", "-c", script)
			return err
		}
	}
	kubectl := func(cluster string, args ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.Quietly(ctx, s.Lab.Kubectl(), append([]string{"--context", cluster}, args...)...)
			return err
		}
	}
	pelago := func(args ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.Quietly(ctx, s.Bin+"/pelago", args...)
			return err
		}
	}
	patch := func(cluster, namespace, object, change string) func(context.Context) error {
		return kubectl(cluster, "-n", namespace, "patch", object, "--type=merge", "-p", change)
	}
	objects := func(f fault, manifests map[string]string) fault {
		order := slices.Sorted(maps.Keys(manifests)) // members before the hub
		each := func(order []string, verb ...string) func(context.Context) error {
			return func(ctx context.Context) error {
				for _, cluster := range order {
					cmd := exec.CommandContext(ctx, s.Lab.Kubectl(), append([]string{"--context", cluster}, verb...)...)
					cmd.Env = append(cmd.Environ(), "KUBECONFIG="+s.Lab.Kubeconfig())
					cmd.Stdin = strings.NewReader(manifests[cluster])
					if out, err := cmd.CombinedOutput(); err != nil {
						return fmt.Errorf("%v at %s: %w: %s", verb, cluster, err, out)
					}
				}
				return nil
			}
		}
		f.inject = each(order, "apply", "-f", "-")
		back := slices.Clone(order)
		slices.Reverse(back)
		f.heal = each(back, "delete", "--ignore-not-found", "-f", "-")
		return f
	}
	then := func(steps ...func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, step := range steps {
				if err := step(ctx); err != nil {
					return err
				}
			}
			return nil
		}
	}
	rules := func(cluster, text string) func(context.Context) error {
		return func(ctx context.Context) error { return s.switchRules(ctx, cluster, text) }
	}
	healPaths := func(context.Context) error { return s.Lab.HealPaths() }
	scale := func(cluster, namespace, deployment string, replicas int) func(context.Context) error {
		return kubectl(cluster, "-n", namespace, "scale", "deployment/"+deployment, fmt.Sprintf("--replicas=%d", replicas))
	}
	annotate := func(node, annotation string) func(context.Context) error {
		cluster, _, _ := strings.Cut(node, "-")
		return kubectl(cluster, "annotate", "--overwrite", "node", node, annotation)
	}
	label := func(node, change string) func(context.Context) error {
		cluster, _, _ := strings.Cut(node, "-")
		return kubectl(cluster, "label", "--overwrite", "node", node, "submariner.io/gateway"+change)
	}

	const policy = "pelago-clusters-private"
	binding := s.kubectl(t, "hub", "get", "validatingadmissionpolicybindings", policy, "-o", "json")
	tokens := s.kubectl(t, "g1", "-n", "pelago-system", "get", "secret", "submariner-broker-secret",
		"-o", `jsonpath={"{"}"data":{"{"}"token":"{.data.token}","return-token":"{.data.return-token}"{"}}"}`)
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	expired := base64.StdEncoding.EncodeToString([]byte(strings.Join([]string{encode(`{"alg":"none"}`),
		encode(fmt.Sprintf(`{"exp":%d,"iat":%d}`, time.Now().Add(-time.Hour).Unix(), time.Now().Add(-2*time.Hour).Unix())), encode("none")}, ".")))
	const (
		namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: faults}\n---\n"
		egress    = "apiVersion: submariner.io/v1\nkind: GlobalEgressIP\n"
	)
	return []fault{
		{"UDP 4800 of one node is closed", "PLG-N014", "g1", "RouteAgent g1-n3", "any other gateway",
			rules("g1", `iifname "n3" udp dport 4800 drop; oifname "n3" udp dport 4800 drop`), rules("g1", "")},
		{"a chain rejects connections", "PLG-N022", "g2", "NodeIndex " + l.sinkNode, "chain filter_FORWARD of table inet site (nft) rejects connections",
			func(ctx context.Context) error {
				_, err := s.Lab.Exec(ctx, l.sinkNode, "nft", fmt.Sprintf(zoned, "site"))
				return err
			}, at(l.sinkNode, "nft delete table inet site")},
		{"a rule goes before ours", "PLG-N021", "g1", "NodeIndex " + l.clientNode, "10",
			at(l.clientNode, "ip rule add preference 10 to "+walk.GlobalCIDR2+" lookup main"), at(l.clientNode, "ip rule delete preference 10")},
		{"packets of pods are dropped", "PLG-N020", "g1", "NodeIndex " + l.clientNode, "",
			at(l.clientNode, "iptables -t raw -I PREROUTING -s "+walk.PodCIDR+" -d "+walk.GlobalCIDR2+" -j DROP"),
			at(l.clientNode, "iptables -t raw -D PREROUTING -s "+walk.PodCIDR+" -d "+walk.GlobalCIDR2+" -j DROP")},
		{"a gateway's setting is invalid", "PLG-N016", "g1", "NodeIndex g1-n1", "udp-port",
			annotate("g1-n1", "gateway.submariner.io/udp-port=many"), annotate("g1-n1", "gateway.submariner.io/udp-port-")},
		{"a public address is not known", "PLG-N017", "g1", "NodeIndex g1-n1", "nowhere.invalid",
			annotate("g1-n1", "gateway.submariner.io/public-ip=dns:nowhere.invalid"), annotate("g1-n1", "gateway.submariner.io/public-ip-")},
		{"one path is cut", "PLG-N013", "g1", "Gateway g1-n1", "g2-n1",
			func(context.Context) error { return s.Lab.CutPath("g1-n1", "g2-n1") }, healPaths},
		{"all paths are cut", "PLG-H007", "hub", "Cluster ", "",
			func(context.Context) error { return s.Lab.CutPath("g1", "g2") }, healPaths},
		{"a path loses packets", "PLG-N015", "g1", "Gateway g1-n1", "g2",
			func(ctx context.Context) error { return s.Lab.ImpairPath(ctx, "g1", "g2", lab.Impairment{Loss: 0.2}) }, healPaths},
		{"large packets are lost", "PLG-N025", "g1", "NodeIndex g1-n", "bytes to cluster g2",
			rules("g1", "udp dport 4500 meta length > 1300 drop"), rules("g1", "")},
		{"a gateway has no power", "PLG-N012", "g2", "Gateway g2-n2", "",
			func(ctx context.Context) error { return s.Lab.Kill(ctx, "g2-n2") },
			func(ctx context.Context) error { return s.Lab.Heal(ctx, "g2-n2") }},
		{"one gateway", "PLG-N011", "g1", "Gateway g1-n1", "only gateway", label("g1-n2", "-"), label("g1-n2", "=true")},
		{"no gateway", "PLG-N010", "g1", "", "no node has the label",
			then(label("g1-n1", "-"), label("g1-n2", "-")), then(label("g1-n1", "=true"), label("g1-n2", "=true"))},
		{"a component does not start", "PLG-N001", "g1", "Deployment pelago-system/pelago-dns", "localhost/nothing:1",
			kubectl("g1", "-n", "pelago-system", "set", "image", "deployment/pelago-dns", "*=localhost/nothing:1"),
			kubectl("g1", "-n", "pelago-system", "rollout", "undo", "deployment/pelago-dns")},
		{"a daemon is stopped", "PLG-N001", "g1", "DaemonSet pelago-system/pelago-node", l.clientNode,
			at(l.clientNode, "kill -STOP $(pgrep --exact --oldest pelago-node)"), at(l.clientNode, "kill -CONT $(pgrep --exact --oldest pelago-node)")},
		{"no agent leads, and the DNS does not forward", "PLG-D001", "g1", "ConfigMap kube-system/coredns", "clusterset.local",
			then(scale("g1", "pelago-system", "pelago-agent", 0), func(ctx context.Context) error {
				return patch("g1", "kube-system", "configmap/coredns", `{"data":{"Corefile":".:53 {\n    forward . /etc/resolv.conf\n}\n"}}`)(ctx)
			}), scale("g1", "pelago-system", "pelago-agent", 2)},
		{"the credential for the hub has expired", "PLG-N040", "g1", "Secret pelago-system/submariner-broker-secret", "expired",
			patch("g1", "pelago-system", "secret/submariner-broker-secret", `{"data":{"token":"`+expired+`","return-token":"`+expired+`"}}`),
			patch("g1", "pelago-system", "secret/submariner-broker-secret", tokens)},
		objects(fault{name: "two egress IPs for the same pods", code: "PLG-N034", cluster: "g1", object: "GlobalEgressIP load/second", reason: "selectors"},
			map[string]string{"g1": egress + "metadata: {name: first, namespace: load}\nspec: {numberOfIPs: 1}\n---\n" +
				egress + "metadata: {name: second, namespace: load}\nspec: {numberOfIPs: 1}\n"}),
		objects(fault{name: "an unknown NAT behaviour", code: "PLG-N034", cluster: "g1", object: "GlobalEgressIP faults/voip", reason: "nat-mapping"},
			map[string]string{"g1": namespace + egress + "metadata: {name: voip, namespace: faults, annotations: {pelago.io/nat-mapping: Sometimes}}\nspec: {numberOfIPs: 1}\n"}),
		objects(fault{name: "an export without a Service", code: "PLG-D002", cluster: "g1", object: "ServiceExport faults/nothing", reason: "unexport"},
			map[string]string{"g1": namespace + "apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\nmetadata: {name: nothing, namespace: faults}\n"}),
		objects(fault{name: "exports with different ports", code: "PLG-D004", cluster: "g1", object: "ServiceExport load/web", reason: "80"},
			map[string]string{"g1": "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: load}\nspec: {selector: {app: none}, ports: [{port: 8080}]}\n---\n" +
				"apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\nmetadata: {name: web, namespace: load}\n"}),
		{"an export without pods", "PLG-D006", "g2", "ServiceExport load/web", "no ready pod", scale("g2", loadNamespace, "web", 0), scale("g2", loadNamespace, "web", 4)},
		{"a cluster is not accepted", "PLG-H005", "hub", "Cluster g2", "pelago clusters accept g2",
			pelago("clusters", "reject", "g2", "--context", "hub"), pelago("clusters", "accept", "g2", "--context", "hub")},
		{"the execution agent of a member is down", "PLG-H006", "hub", "Cluster g1", "",
			scale("g1", "pelago-system", "pelago-agent-execution", 0), scale("g1", "pelago-system", "pelago-agent-execution", 2)},
		{"an admission policy has no binding", "PLG-H003", "hub", "ValidatingAdmissionPolicy " + policy, "no binding",
			kubectl("hub", "delete", "validatingadmissionpolicybindings", policy), func(ctx context.Context) error { return s.Apply(ctx, "hub", binding) }},
		{"an admission policy only warns", "PLG-H011", "hub", "ValidatingAdmissionPolicy " + policy, "accepted",
			patch("hub", "default", "validatingadmissionpolicybindings/"+policy, `{"spec":{"validationActions":["Warn"]}}`),
			patch("hub", "default", "validatingadmissionpolicybindings/"+policy, `{"spec":{"validationActions":["Deny"]}}`)},
		objects(fault{name: "an object that a member has already", code: "PLG-H020", cluster: "hub", object: "Work karmada-es-g1/"},
			map[string]string{
				"g1":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: faults, namespace: default}\ndata: {of: g1}\n",
				"hub": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: faults, namespace: default}\ndata: {of: hub}\n---\n" + propagated("ConfigMap", "v1", "clusterNames: [g1]"),
			}),
		objects(fault{name: "no cluster passes", code: "PLG-H022", cluster: "hub", object: "ResourceBinding default/faults-configmap", reason: "cluster"},
			map[string]string{"hub": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: faults, namespace: default}\n---\n" +
				propagated("ConfigMap", "v1", "labelSelector: {matchLabels: {faults: none}}")}),
		objects(fault{name: "an override without a path", code: "PLG-H023", cluster: "hub", object: "ResourceBinding default/faults-configmap", reason: "/data/none/deep"},
			map[string]string{"hub": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: faults, namespace: default}\n---\n" +
				propagated("ConfigMap", "v1", "clusterNames: [g1]") + "---\napiVersion: policy.karmada.io/v1alpha1\nkind: OverridePolicy\n" +
				"metadata: {name: faults, namespace: default}\nspec:\n  resourceSelectors: [{apiVersion: v1, kind: ConfigMap, name: faults}]\n" +
				"  overrideRules:\n  - overriders: {plaintext: [{path: /data/none/deep, operator: replace, value: x}]}\n"}),
	}
}

// propagated is a policy for the object faults of a kind.
func propagated(kind, version, affinity string) string {
	return fmt.Sprintf("apiVersion: policy.karmada.io/v1alpha1\nkind: PropagationPolicy\nmetadata: {name: faults, namespace: default}\n"+
		"spec:\n  resourceSelectors: [{apiVersion: %s, kind: %s, name: faults}]\n  placement: {clusterAffinity: {%s}}\n", version, kind, affinity)
}
