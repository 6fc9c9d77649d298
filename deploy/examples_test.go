package deploy_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// TestPrometheusExample: the PodMonitors select every pod of ours that has metrics, and each alert
// uses metrics, labels and verdicts that exist.
func TestPrometheusExample(t *testing.T) {
	text, err := os.ReadFile("examples/prometheus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objs, err := manifests.Decode(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objs {
		spec, err := json.Marshal(u.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		switch u.GetKind() {
		case "PodMonitor":
			var m struct {
				Selector            metav1.LabelSelector
				PodMetricsEndpoints []struct{ Port string }
			}
			if err := json.Unmarshal(spec, &m); err != nil {
				t.Fatal(err)
			}
			checkMonitor(t, &m.Selector, m.PodMetricsEndpoints[0].Port, u.GetNamespace())
		case "PrometheusRule":
			var r struct {
				Groups []struct {
					Rules []struct{ Alert, Expr string }
				}
			}
			if err := json.Unmarshal(spec, &r); err != nil {
				t.Fatal(err)
			}
			for _, group := range r.Groups {
				for _, rule := range group.Rules {
					checkAlert(t, rule.Alert, rule.Expr)
				}
			}
		default:
			t.Errorf("unexpected %s", u.GetKind())
		}
	}
}

func checkMonitor(t *testing.T, by *metav1.LabelSelector, port, namespace string) {
	t.Helper()
	ways := installations(t, manifests.MemberOptions{})
	objs := slices.Concat(ways["member"], ways["hub"])
	if namespace != manifests.SystemNamespace {
		objs = ways["operator"]
	}
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range podsOf(t, objs) {
		found := slices.ContainsFunc(p.Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool { return c.Name == port })
		if !found || !selector.Matches(labels.Set(p.Labels)) {
			t.Errorf("%s: has port %s: %t, selected: %t", p.Name, port, found, selector.Matches(labels.Set(p.Labels)))
		}
	}
}

var (
	metricName = regexp.MustCompile(`\b(?:pelago|cluster)_[a-z]+_[a-z_]+`)
	foreign    = regexp.MustCompile(`\b(?:etcd|kube)_[a-z_]+`)
	leads      = regexp.MustCompile(`\bleader_election_master_status\{name="([^"]*)"\}`)
	grouping   = regexp.MustCompile(`by \(([^)]*)\)`)
	matcher    = regexp.MustCompile(`([a-z_]+)=~?"([^"]*)"`)
	verdictRow = regexp.MustCompile("(?m)^\\| `(drop-[a-z-]+)`")
	value      = regexp.MustCompile("`([a-z]+)`")
)

func checkAlert(t *testing.T, alert, expr string) {
	t.Helper()
	reference, err := os.ReadFile("../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	if lease := leads.FindStringSubmatch(expr); lease != nil { // of controller-runtime
		if !slices.Contains([]string{manifests.AgentDeployment, manifests.HubName}, lease[1]) || !bytes.Contains(reference, []byte("`"+expr+"`")) {
			t.Errorf("%s: lease %q is no component's, or docs/reference.md lacks the expression", alert, lease[1])
		}
		return
	}
	names := metricName.FindAllString(expr, -1)
	if len(names) == 0 && foreign.MatchString(expr) {
		return // etcd's and those of kube-state-metrics
	}
	if len(names) == 0 {
		t.Fatalf("%s: no metric in %s", alert, expr)
	}
	rowOf := func(metric string) [][]byte {
		if !inCode(t, `"`+metric+`"`) {
			t.Errorf("%s: no code has metric %s", alert, metric)
		}
		row := regexp.MustCompile("(?m)^\\| [^|]*`" + metric + "`[^|]*\\|([^|]*)\\|.*").FindSubmatch(reference)
		if row == nil {
			t.Fatalf("%s: docs/reference.md lacks %s", alert, metric)
		}
		return row
	}
	for _, other := range names[1:] { // compared with the first, by the same labels
		rowOf(other)
	}
	row := rowOf(names[0])
	var used []string
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		used = append(used, strings.Split(m[1], ", ")...)
	}
	for _, m := range matcher.FindAllStringSubmatch(expr, -1) {
		used = append(used, m[1])
		pattern := regexp.MustCompile("^(?:" + m[2] + ")$")
		values := verdictRow.FindAllSubmatch(reference, -1)
		if m[1] != "verdict" { // the row of the metric names them
			values = value.FindAllSubmatch(row[0], -1)
		}
		matched := 0
		for _, v := range values {
			if pattern.Match(v[1]) {
				matched++
			}
		}
		if want := strings.Count(m[2], "|") + 1; matched != want {
			t.Errorf("%s: %s selects %d values of docs/reference.md, want %d", alert, m[0], matched, want)
		}
	}
	for _, label := range used {
		// the Prometheus operator adds the label pod to the targets of a PodMonitor
		if label != "pod" && !bytes.Contains(row[1], []byte("`"+label+"`")) {
			t.Errorf("%s: %s has no label %s", alert, names[0], label)
		}
	}
}

// inCode reports whether a file that is no test has the text.
func inCode(t *testing.T, text string) bool {
	t.Helper()
	found := false
	for _, dir := range []string{"../control", "../dataplane", "../dns", "../cmd"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || found || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(path)
			found = bytes.Contains(content, []byte(text))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}
