package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pelago-net/pelago/test/images"
	"github.com/pelago-net/pelago/test/lab"
	"github.com/pelago-net/pelago/test/lab/binaries"
	"github.com/pelago-net/pelago/test/need"
)

// The tests named TestLab… bring up real labs. They need root and the packages
// of "pelago-lab prerequisites", and fail without them.

const name = "labtest"

// bringUp brings a lab up, after it removed what an earlier run left, and
// removes it at the end. That nothing is left on the machine is part of every
// test.
func bringUp(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	need.Clusters(t)
	o.Name = name
	o.Progress = func(line string) { t.Log(line) }
	remove(t)
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t)
		}
		remove(t)
		for _, line := range leftovers(t) {
			t.Errorf("left behind: %s", line)
		}
	})
	l, err := lab.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func remove(t *testing.T) {
	t.Helper()
	if err := lab.Down(context.Background(), name, func(string) {}); err != nil && !errors.Is(err, lab.ErrNotFound) {
		t.Error(err)
	}
}

// showLogs prints the end of the nodes' logs.
func showLogs(t *testing.T) {
	l, err := lab.Open(name)
	if err != nil {
		return
	}
	for _, c := range l.Plan().Clusters {
		for _, n := range c.Nodes {
			logs, err := l.Logs(n.Name)
			if err != nil {
				t.Error(err)
			}
			for _, log := range logs {
				// a log may not exist yet
				out, _ := exec.Command("tail", "-n", "8", log.File).Output()
				t.Logf("%s %s:\n%s", n.Name, log.Component, out)
			}
		}
	}
}

// leftovers lists everything on the machine that is named after the lab.
func leftovers(t *testing.T) []string {
	t.Helper()
	var found []string
	add := func(pattern string) {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, matches...)
	}
	add("/run/netns/" + name + "-*")
	add("/var/lib/pelago-lab/" + name)
	add("/sys/fs/cgroup/pelago-lab/" + name)
	add("/sys/fs/cgroup/*/pelago-lab/" + name)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "pelago-lab/"+name) || strings.Contains(line, "netns/"+name) {
			found = append(found, "mount "+line)
		}
	}
	if _, err := net.InterfaceByName("lab-" + name); err == nil {
		found = append(found, "device lab-"+name)
	}
	environs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range environs {
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), "pelago-lab/"+name+"/") {
			found = append(found, "process "+strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return found
}

// sameCIDRs is the shape of the walk-through.
func sameCIDRs() lab.Options {
	return lab.Options{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")}}
}

// kubectl runs the lab's kubectl on the host, and ends the test if it fails.
func kubectl(t *testing.T, l *lab.Lab, args ...string) string {
	t.Helper()
	out, err := tryKubectl(l, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func tryKubectl(l *lab.Lab, args ...string) (string, error) {
	cmd := exec.Command(l.Kubectl(), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.Kubeconfig())
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return string(out), err
}

// eventually repeats check until it returns no error, and ends the test if that takes minutes.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	const limit = 3 * time.Minute
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", limit, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// deploySample loads the whereami image and runs testdata/sample.yaml in g1. It
// returns a client pod on g1-n1.
func deploySample(t *testing.T, l *lab.Lab) (pod string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "whereami")
	if err := binaries.Program(t.Context(), "./test/images/whereami", program); err != nil {
		t.Fatal(err)
	}
	image, err := images.WhereAmIImage(program)
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "whereami.tar")
	if _, err := image.Write(archive); err != nil {
		t.Fatal(err)
	}
	if err := l.LoadImage(t.Context(), archive, "g1"); err != nil {
		t.Fatal(err)
	}
	kubectl(t, l, "--context", "g1", "apply", "-f", "testdata/sample.yaml")
	kubectl(t, l, "--context", "g1", "-n", "sample", "rollout", "status", "deployment/whereami", "--timeout=3m")
	kubectl(t, l, "--context", "g1", "-n", "sample", "rollout", "status", "daemonset/agent", "--timeout=3m")
	return podOn(t, l, "app=whereami", "g1-n1")
}

func podOn(t *testing.T, l *lab.Lab, selector, node string) string {
	t.Helper()
	out := kubectl(t, l, "--context", "g1", "-n", "sample", "get", "pods", "-l", selector,
		"--field-selector", "spec.nodeName="+node, "-o", "jsonpath={.items[0].metadata.name}")
	if out == "" {
		t.Fatalf("no pod %s on %s", selector, node)
	}
	return out
}

// inPod runs a command in a pod of g1's namespace sample.
func inPod(l *lab.Lab, pod string, argv ...string) (string, error) {
	return tryKubectl(l, append([]string{"--context", "g1", "-n", "sample", "exec", pod, "--"}, argv...)...)
}

// checkServices checks cluster DNS, and that the Service reaches pods on both
// nodes from a pod on one of them.
func checkServices(t *testing.T, l *lab.Lab, pod string) {
	t.Helper()
	eventually(t, func() error {
		out, err := inPod(l, pod, "nslookup", "whereami-cs.sample.svc.cluster.local")
		if err != nil || !strings.Contains(out, "Address: 10.77.") {
			return fmt.Errorf("nslookup: %w: %s", err, out)
		}
		return nil
	})
	if out, err := inPod(l, pod, "nslookup", "nothing.example.org"); err == nil || !strings.Contains(out, "NXDOMAIN") {
		t.Errorf("a name outside of the cluster: %v, want NXDOMAIN\n%s", err, out)
	}
	nodes := map[string]bool{}
	eventually(t, func() error {
		out, err := inPod(l, pod, "curl", "--silent", "--fail", "--max-time", "30", "http://whereami-cs/")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if node, ok := strings.CutPrefix(line, "node: "); ok {
				nodes[strings.TrimSpace(node)] = true
			}
		}
		if len(nodes) < 2 {
			return fmt.Errorf("only %v answered", nodes)
		}
		return nil
	})
}

// checkCorefile adds a server block, as Pelago does, and waits for its answers.
func checkCorefile(t *testing.T, l *lab.Lab, pod string) {
	client, err := l.Clientset("g1")
	if err != nil {
		t.Fatal(err)
	}
	maps := client.CoreV1().ConfigMaps("kube-system")
	config, err := maps.Get(t.Context(), "coredns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config.Data["Corefile"] = "extra.test:53 {\n    hosts {\n        192.0.2.7 a.extra.test\n    }\n}\n" + config.Data["Corefile"]
	if _, err := maps.Update(t.Context(), config, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	eventually(t, func() error {
		out, err := inPod(l, pod, "dig", "+short", "+tries=1", "+time=1", "a.extra.test")
		if err != nil || strings.TrimSpace(out) != "192.0.2.7" {
			return fmt.Errorf("dig: %s %w", out, err)
		}
		return nil
	})
	t.Logf("acts after %s", time.Since(start).Round(100*time.Millisecond))
}

func TestLab(t *testing.T) {
	start := time.Now()
	l := bringUp(t, sameCIDRs())
	t.Logf("up after %s", time.Since(start).Round(100*time.Millisecond))
	pod := deploySample(t, l)

	t.Run("status", func(t *testing.T) { checkStatus(t, l) })
	t.Run("services", func(t *testing.T) { checkServices(t, l, pod) })
	t.Run("an edited Corefile acts soon", func(t *testing.T) { checkCorefile(t, l, pod) })
	t.Run("logs and the host's kubectl", func(t *testing.T) {
		if out := kubectl(t, l, "--context", "g1", "-n", "sample", "logs", pod); !strings.Contains(out, "listening") {
			t.Errorf("logs = %q", out)
		}
		if out := kubectl(t, l, "--context", "hub", "get", "--raw", "/readyz"); out != "ok" {
			t.Errorf("the hub's /readyz = %q", out)
		}
	})
	t.Run("pods reach all API servers", func(t *testing.T) {
		for _, c := range l.Plan().Clusters {
			if out, err := inPod(l, pod, "curl", "--silent", "--insecure", "--max-time", "30", c.URL()+"/version"); err != nil || !strings.Contains(out, "gitVersion") {
				t.Errorf("%s: %v %s", c.Name, err, out)
			}
		}
	})
	t.Run("a privileged daemon shares the node's bpffs", func(t *testing.T) { checkBPFFS(t, l) })
	t.Run("the hub has its controllers and no others", func(t *testing.T) { checkHub(t, l) })
	t.Run("links", func(t *testing.T) { checkLinks(t, l) })
	t.Run("paths", func(t *testing.T) { checkPaths(t, l) })
	t.Run("pause", func(t *testing.T) { checkPause(t, l) })
	t.Run("kill and boot", func(t *testing.T) { checkKill(t, l, pod) })
	t.Run("up again", func(t *testing.T) { checkUpAgain(t, l) })
}

func checkStatus(t *testing.T, l *lab.Lab) {
	for _, c := range l.Status(t.Context()).Clusters {
		if c.State != "ready" || c.Link != "up" || c.Version != "v"+binaries.KubernetesVersion {
			t.Errorf("%s: %+v", c.Name, c)
		}
		for _, n := range c.Nodes {
			if n.State != "running" || n.Ready != "True" || n.Link != "up" {
				t.Errorf("%s: %+v", n.Name, n)
			}
		}
	}
}

// checkBPFFS pins a map in a pod and looks for it on both nodes and on the host.
func checkBPFFS(t *testing.T, l *lab.Lab) {
	agent := podOn(t, l, "app=agent", "g1-n1")
	if out, err := inPod(l, agent, "mkdir", "/sys/fs/bpf/shared"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if _, err := l.Exec(t.Context(), "g1-n1", "bpftool", "map", "create", "/sys/fs/bpf/shared/m", "type", "hash", "key", "4", "value", "4", "entries", "8", "name", "m"); err != nil {
		t.Fatal(err)
	}
	if out, err := inPod(l, agent, "ls", "/sys/fs/bpf/shared"); err != nil || strings.TrimSpace(out) != "m" {
		t.Errorf("the pod sees %q, %v, want the map that was pinned on its node", out, err)
	}
	if out, err := l.Exec(t.Context(), "g1-n2", "ls", "/sys/fs/bpf"); err != nil || strings.Contains(out, "shared") {
		t.Errorf("the other node sees %q, %v, want a bpffs of its own", out, err)
	}
	if _, err := os.Stat("/sys/fs/bpf/shared"); err == nil {
		t.Error("the host sees the node's pins")
	}
	// They outlive the pod.
	kubectl(t, l, "--context", "g1", "-n", "sample", "delete", "pod", agent, "--wait")
	if out, err := l.Exec(t.Context(), "g1-n1", "ls", "/sys/fs/bpf/shared"); err != nil || strings.TrimSpace(out) != "m" {
		t.Errorf("without the pod the node sees %q, %v", out, err)
	}
}

// checkHub: the hub runs the controllers of namespaces and tokens, and none of workloads.
func checkHub(t *testing.T, l *lab.Lab) {
	client, err := l.Clientset("hub")
	if err != nil {
		t.Fatal(err)
	}
	ctx, core := t.Context(), client.CoreV1()
	if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The token controller deletes a Secret whose ServiceAccount is not there yet.
	eventually(t, func() error {
		_, err := core.ServiceAccounts("shop").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: corev1.SecretTypeServiceAccountToken}
	if _, err := core.Secrets("shop").Create(ctx, token, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		secret, err := core.Secrets("shop").Get(ctx, "token", metav1.GetOptions{})
		if err == nil && len(secret.Data["token"]) == 0 {
			err = errors.New("the token Secret is empty")
		}
		return err
	})
	kubectl(t, l, "--context", "hub", "-n", "shop", "create", "deployment", "web", "--image=none")
	time.Sleep(2 * time.Second) // no controller may reconcile it
	deployment, err := client.AppsV1().Deployments("shop").Get(ctx, "web", metav1.GetOptions{})
	if err != nil || deployment.Status.ObservedGeneration != 0 {
		t.Errorf("Deployment at the hub: %+v, %v, want one without a controller", deployment.Status, err)
	}
	if err := core.Namespaces().Delete(ctx, "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return gone(ctx, client, "shop") })
}

func gone(ctx context.Context, client kubernetes.Interface, namespace string) error {
	_, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("namespace %s is still there (%w)", namespace, err)
}

// checkUpAgain: a second "up" starts what is missing, and refuses other options.
func checkUpAgain(t *testing.T, l *lab.Lab) {
	status := l.Status(t.Context())
	scheduler := status.Clusters[0].Processes["kube-scheduler"]
	if err := syscall.Kill(scheduler, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if c := l.Status(t.Context()).Clusters[0]; c.State != "degraded" || !strings.Contains(c.Message, "kube-scheduler") {
			return fmt.Errorf("state %s %s", c.State, c.Message)
		}
		return nil
	})
	o := sameCIDRs()
	o.Name = name
	again, err := lab.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	now := again.Status(t.Context())
	if now.Clusters[0].State != "ready" || now.Clusters[0].Processes["kube-scheduler"] == scheduler {
		t.Errorf("g1 after another up: %+v", now.Clusters[0])
	}
	if now.Clusters[0].Processes["etcd"] != status.Clusters[0].Processes["etcd"] {
		t.Error("another up restarted what was running")
	}
	o.Nodes = 3
	if _, err := lab.Up(t.Context(), o); err == nil || !strings.Contains(err.Error(), "Nodes is 2, not 3") {
		t.Errorf("up with other options: %v, want an error that says which", err)
	}
}

func TestLabWithNFTables(t *testing.T) {
	o := sameCIDRs()
	o.Clusters, o.NoHub, o.KubeProxy, o.Gateways = 1, true, lab.NFTables, 1
	l := bringUp(t, o)
	checkServices(t, l, deploySample(t, l))
	if out, err := l.Exec(t.Context(), "g1-n1", "nft", "list", "tables"); err != nil || !strings.Contains(out, "kube-proxy") {
		t.Errorf("nft tables = %q, %v", out, err)
	}
	if out := kubectl(t, l, "get", "nodes", "-l", "submariner.io/gateway=true", "-o", "name"); out != "node/g1-n1\n" {
		t.Errorf("gateways = %q, want g1-n1", out)
	}
}

// TestLabHalfBuilt interrupts bring-ups at several points; bringUp's clean-up
// then has to find everything.
func TestLabHalfBuilt(t *testing.T) {
	need.Clusters(t)
	if err := lab.Build(t.Context(), lab.DefaultCNI, func(line string) { t.Log(line) }); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{100 * time.Millisecond, 700 * time.Millisecond, 2 * time.Second, 5 * time.Second} {
		remove(t)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_, err := lab.Up(ctx, lab.Options{Name: name, Clusters: 1, NoHub: true})
		cancel()
		if err == nil {
			t.Logf("complete within %s", after)
		}
		remove(t)
		for _, line := range leftovers(t) {
			t.Errorf("interrupted after %s, left behind: %s", after, line)
		}
	}
}
