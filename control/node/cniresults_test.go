package node

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/test/clusterset"
)

// cached is a file of libcni's cache, as version 1.3.1 of it writes them.
func cached(device, args, result string) string {
	return fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c0ffee","config":"e30=","ifName":%q,"networkName":"lab","netns":"/var/run/netns/cni-1",
"cniArgs":[["IgnoreUnknown","1"]%s],"capabilityArgs":{"portMappings":[]},"result":%s}`, device, args, result)
}

const (
	argsOfJob = `,["K8S_POD_NAMESPACE","sample"],["K8S_POD_NAME","job"],["K8S_POD_INFRA_CONTAINER_ID","c0ffee"]`
	uidOfJob  = `,["K8S_POD_UID","uid-job"]`
	oneIP     = `{"cniVersion":"1.0.0","interfaces":[{"name":"cni0"},{"name":"eth0","sandbox":"/var/run/netns/cni-1"}],"ips":[{"address":"10.7.2.9/24","gateway":"10.7.2.1","interface":1}]}`
)

func TestParseCNIResult(t *testing.T) {
	job := types.NamespacedName{Namespace: "sample", Name: "job"}
	address := netip.MustParseAddr("10.7.2.9")
	for _, tt := range []struct {
		name, content string
		want          cniResult
		err           string
	}{
		{"with the pod's UID", cached("eth0", argsOfJob+uidOfJob, oneIP), cniResult{job, "uid-job", address}, ""},
		{"without", cached("eth0", argsOfJob, oneIP), cniResult{job, "", address}, ""},
		{"dual stack", cached("eth0", argsOfJob, `{"cniVersion":"1.0.0","ips":[{"address":"fd00::9/64"},{"address":"10.7.2.9/32"}]}`), cniResult{job, "", address}, ""},
		{"version 0.2.0", cached("eth0", argsOfJob, `{"cniVersion":"0.2.0","ip4":{"ip":"10.7.2.9/24"}}`), cniResult{job, "", address}, ""},
		{"another network of the pod", cached("net1", argsOfJob, oneIP), cniResult{}, `for device "net1"`},
		{"loopback", cached("lo", argsOfJob, oneIP), cniResult{}, `for device "lo"`},
		{"no pod", cached("eth0", "", oneIP), cniResult{}, "no IPv4 address of a pod"},
		{"IPv6 only", cached("eth0", argsOfJob, `{"ips":[{"address":"fd00::9/64"}]}`), cniResult{}, "no IPv4 address of a pod"},
		{"being written", cached("eth0", argsOfJob, oneIP)[:200], cniResult{}, "unexpected end"},
		{"before libcni 0.8", oneIP, cniResult{}, `kind ""`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseCNIResult([]byte(tt.content))
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v; want %q", err, tt.err)
			}
			if got != tt.want {
				t.Errorf("%+v; want %+v", got, tt.want)
			}
		})
	}
}

// A pod whose CNI ADD has ended is in the tables before the API shows its address, which then takes
// precedence.
func TestStartingPods(t *testing.T) {
	job := types.NamespacedName{Namespace: "sample", Name: "job"}
	first, second, other := netip.MustParseAddr("10.7.2.9"), netip.MustParseAddr("10.7.2.10"), netip.MustParseAddr("10.7.2.5")
	for _, tt := range []struct {
		name    string
		change  func(*corev1.Pod)
		results []cniResult
		want    netip.Addr // of the source; invalid: none
	}{
		{"no result", nil, nil, netip.Addr{}},
		{"a result", nil, []cniResult{{job, "uid-job", first}}, first},
		{"a result without UID", nil, []cniResult{{job, "", first}}, first},
		{"that of a former pod of the name", nil, []cniResult{{job, "uid-former", first}}, netip.Addr{}},
		{"two sandboxes, the newest last", nil, []cniResult{{job, "uid-job", first}, {job, "uid-job", second}}, second},
		{"a newer result gives the address to another pod", nil, []cniResult{{job, "uid-job", first}, {types.NamespacedName{Namespace: "sample", Name: "other"}, "", first}}, netip.Addr{}},
		{"the API shows another address", func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: second.String()}} }, []cniResult{{job, "uid-job", first}}, second},
		{"the API shows the address at another pod", nil, []cniResult{{job, "uid-job", other}}, netip.Addr{}},
		{"hostNetwork", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, []cniResult{{job, "uid-job", first}}, netip.Addr{}},
		{"finished", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, []cniResult{{job, "uid-job", first}}, netip.Addr{}},
		{"another node's", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }, []cniResult{{job, "uid-job", first}}, netip.Addr{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs, host := clusterset.Globalnet("n2")
			pod := clusterset.Pod("job", "n2", "")
			pod.Status.PodIPs, pod.UID = nil, "uid-job"
			if tt.change != nil {
				tt.change(&pod)
			}
			objs.Pods = append(objs.Pods, pod)
			before := len(objs.Pods[len(objs.Pods)-1].Status.PodIPs)
			for _, a := range []netip.Addr{first, second} {
				host.Devices[a] = 9
			}
			r := tables.Desired(withStarting(objs, tt.results), host)
			for _, a := range []netip.Addr{first, second} {
				if _, ok := r.State.Sources[a]; ok != (a == tt.want) {
					t.Errorf("%s is a source: %t; want that of %s alone", a, ok, tt.want)
				}
			}
			if r.Owners[other] != "uid-web-1" {
				t.Errorf("owner of %s: %q; want the pod that the API shows there", other, r.Owners[other])
			}
			if len(objs.Pods[len(objs.Pods)-1].Status.PodIPs) != before {
				t.Error("the API's objects have been changed")
			}
		})
	}
}

// The daemon is woken when a result is written, wherever the container runtime keeps them, also in a
// directory made later.
func TestWatchCNI(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "results"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 100), make(chan error, 1)
	c := cniResults{dir: dir}
	go func() { ended <- watchCNI(ctx, cniResults{dir: dir}, func() { changed <- struct{}{} }) }()
	write := func(path, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	await := func(n int) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; {
			select {
			case <-changed:
			case <-time.After(10 * time.Millisecond):
				write(fmt.Sprintf("results/poke-%d", time.Now().UnixNano()), "{}") // the watch begins late
			}
			got, err := c.read()
			if err != nil {
				t.Fatal(err)
			}
			if len(got) == n {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d results; want %d", len(got), n)
			}
		}
	}
	write("results/lab-c0ffee-eth0", cached("eth0", argsOfJob+uidOfJob, oneIP))
	await(1)
	for len(changed) > 0 {
		<-changed
	}
	write("results/lab-c0ffed-eth0", cached("eth0", strings.Replace(argsOfJob, "job", "job2", 1), oneIP))
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("not woken by a new result")
	}
	write("cache/results/lab-c0ffec-eth0", cached("eth0", strings.Replace(argsOfJob, "job", "job3", 1), oneIP))
	await(3)
	if err := os.Remove(filepath.Join(dir, "results/lab-c0ffee-eth0")); err != nil {
		t.Fatal(err)
	}
	await(2)
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the watch does not end")
	}
}

// A directory that cannot be watched is an error; one that does not exist yet is none.
func TestWatchCNIFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "results"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := watchCNI(t.Context(), cniResults{dir: dir}, func() {})
	if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "results")+": not a directory") {
		t.Errorf("error %v, want one that names the file", err)
	}
}
