package inspect

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// noCluster is the access to no cluster: what is refused before is refused without one.
type noCluster struct{}

var errNoCluster = errors.New("no cluster is reached")

func (noCluster) AddFlags(fs *pflag.FlagSet) { fs.String("context", "", "") }

func (noCluster) Open(string) (view.Member, string, error) { return view.Member{}, "", errNoCluster }

func TestInput(t *testing.T) {
	for line, want := range map[string]string{
		"trace --to sample/web":                                      "--from-node NODE",
		"trace --from a --from-node b --to sample/web":               "--from-node NODE",
		"trace --from a":                                             `"to" not set`,
		"trace --from a --to sample/web --size 20":                   "--size 20: a packet has 28 to 65535",
		"trace --from a --to sample/web --protocol sctp":             "tcp, udp or icmp",
		"trace --from a --to sample/web -o xml":                      "table, wide, json or yaml",
		"trace --from a --to sample/web":                             errNoCluster.Error(),
		"nat flush --yes":                                            "one of --pod, --far-cluster and --all",
		"nat flush --all --pod 10.7.0.1 --yes":                       "one of --pod, --far-cluster and --all",
		"nat flush --pod nobody --yes":                               "nobody",
		"nat flush --all":                                            "all flows end: confirm with --yes",
		"nat flush --pod 10.7.0.1":                                   "pod 10.7.0.1 end: confirm with --yes",
		"nat flush --far-cluster 2 --yes":                            errNoCluster.Error(),
		"nat get nobody":                                             `"nobody" is no address`,
		"nat get 10.7.0.1 nobody":                                    `"nobody" is no address`,
		"map dump":                                                   "accepts 1 arg",
		"map dump everything --local --pin-path /nowhere":            `map "everything" is not known: name one of settings, routes`,
		"map list --local --pin-path " + "/sys/fs/bpf/pelago-no-one": "pelago-node has not run on this node",
	} {
		root := &cobra.Command{SilenceUsage: true, SilenceErrors: true}
		root.AddCommand(Commands(func() Access { return noCluster{} })...)
		root.SetArgs(strings.Fields(line))
		root.SetOut(io.Discard)
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("pelago %s: %v; want an error with %q", line, err, want)
		}
	}
}

// Every verb has an example, and its flags with fixed values are completed.
func TestHelp(t *testing.T) {
	root := &cobra.Command{Use: "pelago"}
	root.AddCommand(Commands(func() Access { return noCluster{} })...)
	view.CompleteChoices(root)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.RunE == nil {
			return
		}
		if !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s: the examples are %q", cmd.CommandPath(), cmd.Example)
		}
		if _, ok := cmd.GetFlagCompletionFunc("output"); !ok {
			t.Errorf("%s: --output is not completed", cmd.CommandPath())
		}
		for _, flag := range []string{"node", "from-node"} {
			if _, ok := cmd.GetFlagCompletionFunc(flag); !ok && cmd.Flag(flag) != nil {
				t.Errorf("%s: --%s is not completed", cmd.CommandPath(), flag)
			}
		}
	}
	walk(root)
}

type fakeCluster struct {
	noCluster
	typed kubernetes.Interface
}

func (c fakeCluster) Open(string) (view.Member, string, error) {
	return view.Member{Typed: c.typed}, "default", nil
}

// --node completes the nodes that run the daemon, and each only once.
func TestCompletionOfNodes(t *testing.T) {
	pod := func(node string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: "pelago-node-" + node, Labels: map[string]string{"app": manifests.NodeDaemonSet}},
			Spec:       corev1.PodSpec{NodeName: node},
			Status:     corev1.PodStatus{Phase: phase},
		}
	}
	c := fakeCluster{typed: fake.NewClientset(pod("n1", corev1.PodRunning), pod("n2", corev1.PodRunning), pod("n3", corev1.PodPending))}
	for _, line := range []string{"nat list", "nat get", "nat stats", "nat flush", "service list", "map list", "map dump routes"} {
		for begun, want := range map[string]string{"": "n1\nn2\n:4\n", "n2,": "n2,n1\n:4\n"} {
			var out bytes.Buffer
			root := &cobra.Command{Use: "pelago"}
			root.AddCommand(Commands(func() Access { return c })...)
			root.SetArgs(append(append([]string{"__complete"}, strings.Fields(line)...), "--node", begun))
			root.SetOut(&out)
			root.SetErr(io.Discard)
			if err := root.ExecuteContext(t.Context()); err != nil || out.String() != want {
				t.Errorf("pelago %s --node %s: %v, %q; want %q", line, begun, err, out.String(), want)
			}
		}
	}
}
