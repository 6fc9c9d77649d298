package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab/machine"
)

const submarinerObject = `apiVersion: submariner.io/v1alpha1
kind: Submariner
metadata: {name: submariner, namespace: submariner-operator}
spec: {clusterID: g1, brokerK8sSecret: hub, cableDriver: vxlan}
`

// testOperator: an operator takes over g1 and rolls out another version node by node under traffic;
// deleting its object removes Pelago from the cluster. It is the last part of a test.
func testOperator(t *testing.T, s *clusterset) {
	ctx := t.Context()
	for _, node := range s.nodes(t, "g1") {
		s.node(t, node, "ctr", "--address="+machine.Socket, "--namespace=k8s.io", "images", "tag", "--force", "localhost/pelago:dev", "localhost/pelago:next")
	}
	_, err := s.Pelago(ctx, "deploy-broker", "--context", "hub")
	must(t, err)
	s.kubectl(t, "g1", "apply", "--server-side", "-f", absolute(t, "../../deploy/operator.yaml"))
	s.kubectl(t, "g1", "-n", "submariner-operator", "create", "secret", "generic", "hub", "--from-file="+filepath.Join(s.Dir, "broker-info.subm"))
	file := filepath.Join(s.Dir, "submariner.yaml")
	must(t, os.WriteFile(file, []byte(submarinerObject), 0o600))
	s.kubectl(t, "g1", "apply", "-f", file)
	ready := func(version string) {
		t.Helper()
		within(t, func() error {
			out := s.kubectl(t, "g1", "-n", "submariner-operator", "get", "submariner", "submariner",
				"-o", `jsonpath={.status.version} {.status.conditions[?(@.type=="Ready")]}`)
			if !strings.HasPrefix(out, version+" ") || !strings.Contains(out, `"status":"True"`) {
				return fmt.Errorf("the Submariner: %s; want %s and Ready", out, version)
			}
			return nil
		})
	}
	ready("dev")
	l := s.needLoad(t)
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	s.kubectl(t, "g1", "-n", "submariner-operator", "patch", "submariner", "submariner", "--type=merge", "-p", `{"spec":{"version":"next"}}`)
	ready("next")
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
	for _, of := range []string{"pelago-system daemonset/pelago-node", "submariner-operator deployment/pelago-operator"} {
		namespace, object, _ := strings.Cut(of, " ")
		if image := s.kubectl(t, "g1", "-n", namespace, "get", object, "-o", "jsonpath={.spec.template.spec.containers[0].image}"); image != "localhost/pelago:next" {
			t.Errorf("%s runs %s", object, image)
		}
	}
	s.kubectl(t, "g1", "-n", "submariner-operator", "delete", "submariner", "submariner", walk.WaitFlag)
	if out := s.kubectl(t, "g1", "get", "namespace", "pelago-system", "--ignore-not-found"); out != "" {
		t.Errorf("after the deletion: %s", out)
	}
	for _, node := range s.nodes(t, "g1") {
		if out := s.node(t, node, "ip", "-o", "link"); strings.Contains(out, "pelago0") {
			t.Errorf("%s keeps its device:\n%s", node, out)
		}
	}
}
