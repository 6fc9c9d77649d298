package hubset

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pelago-net/pelago/test/await"

	"github.com/pelago-net/pelago/test/need"
)

// childVariable makes this test binary a process that starts another one and waits to be killed.
const childVariable = "HUBSET_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		p, err := spawn(filepath.Join(dir, "log"), "/bin/sleep", "1000")
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.PID)
		<-p.Done
	}
	os.Exit(m.Run())
}

func TestServers(t *testing.T) {
	need.Kubernetes(t)
	var led []string
	s, err := Open(t.Context(), Options{
		Dir: t.TempDir(), Real: 1, Simulated: 2,
		Through: func(name string, to *rest.Config) (*rest.Config, error) {
			led = append(led, name)
			return to, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if diff := cmp.Diff([]string{"hub", "member1", "member2", "member3"}, led); diff != "" {
		t.Error(diff)
	}
	uids := map[string]bool{}
	for _, file := range []string{s.kubeconfig, s.Members[0].kubeconfig, s.Members[1].kubeconfig, s.Members[2].kubeconfig} {
		config, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			t.Fatal(err)
		}
		c, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		ns, err := c.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		uids[string(ns.UID)] = true
	}
	if len(uids) != 4 {
		t.Errorf("%d clusters, not 4", len(uids))
	}
}

// script is a program in a directory, in place of one of the product's.
func script(t *testing.T, name, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func state(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "gone"
	}
	return string(text[strings.LastIndexByte(string(text), ')')+2])
}

func TestProcess(t *testing.T) {
	s := &Set{options: Options{Binaries: script(t, "pelago-hub", "echo \"$@\"; exec sleep 1000\n"), Dir: t.TempDir(),
		HubFlags: []string{"--more"}}, kubeconfig: "file"}
	p, err := s.StartHub("hub-a")
	if err != nil {
		t.Fatal(err)
	}
	await.True(t, "its flags are in the log", func() bool { return p.Tail() != "" })
	if got := p.Tail(); !strings.HasPrefix(got, "--kubeconfig="+s.hubKubeconfig()+" --identity=hub-a --metrics-address=127.0.0.1:") ||
		!strings.HasSuffix(got, " --more") {
		t.Errorf("flags %q", got)
	}
	p.Pause()
	await.Equal(t, "T", func() string { return state(t, p.PID) })
	p.Continue()
	await.Equal(t, "S", func() string { return state(t, p.PID) })
	if now, largest, err := p.RSS(); err != nil || now <= 0 || largest < now {
		t.Errorf("memory %d, %d, %v", now, largest, err)
	}
	p.Pause()
	p.Kill()
	if p.Alive() || state(t, p.PID) != "gone" {
		t.Error("a killed process lives")
	}
	p.Kill() // again: nothing
	if p, err = s.StartHub("hub-a"); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if got := strings.Count(p.Tail(), "--kubeconfig"); got < 1 {
		t.Errorf("the log of the first process is gone")
	}
	if p, err = s.StartHub("hub-b"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil || p.Alive() {
		t.Errorf("after Close: alive %t, %v", p.Alive(), err)
	}
}

func TestProcessEndsWithItsParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), childVariable+"="+t.TempDir())
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if state(t, pid) == "gone" {
		t.Fatal("there is no child")
	}
	if err := parent.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // the error is that it was killed
	await.True(t, "the child has ended", func() bool { s := state(t, pid); return s == "gone" || s == "Z" })
}

func TestPelago(t *testing.T) {
	s := &Set{options: Options{Binaries: script(t, "pelago", "echo said: \"$@\" >&2\ntest \"$1\" = init\n")}, kubeconfig: "file"}
	if err := s.Init(t.Context()); err != nil {
		t.Error(err)
	}
	s.Members = []*Member{{Name: "member1", kubeconfig: "own"}}
	if err := s.Join(t.Context()); err == nil || !strings.Contains(err.Error(),
		"said: join member1 --kubeconfig file --cluster-kubeconfig own") {
		t.Errorf("join: %v", err)
	}
}

func TestQueues(t *testing.T) {
	got, err := parseMetrics(`# HELP workqueue_depth Current depth
# TYPE workqueue_depth gauge
workqueue_depth{controller="works",name="works",priority="0"} 3
workqueue_depth{controller="works",name="works",priority="-100"} 4
workqueue_depth{controller="policies",name="policies"} 0
process_resident_memory_bytes 1.5e+07
`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]float64{"works": 7, "policies": 0}, Queues(got)); diff != "" {
		t.Error(diff)
	}
	if _, err := parseMetrics("nonsense\n"); err == nil {
		t.Error("nonsense was understood")
	}
}

func TestReady(t *testing.T) {
	for status, want := range map[string]bool{"True": true, "False": false, "Unknown": false, "": false} {
		c := &unstructured.Unstructured{Object: map[string]any{}}
		if status != "" {
			c.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": status}}}
		}
		if got := isReady(c); got != want {
			t.Errorf("Ready=%q: %t", status, got)
		}
	}
}
