// Command kube is every Kubernetes component that a lab cluster needs, with etcd
// and etcdutl, in one binary: kube-apiserver, kube-controller-manager,
// kube-scheduler, kubelet, kube-proxy, kubectl, etcd and etcdutl. The base name
// of argv[0] chooses the component, so the binary is installed under symbolic
// links of those names; "kube COMPONENT ARGS…" works as well.
//
// One binary links in a fifth of the disk space of seven, and all processes of
// all clusters of a lab share its text pages. With the build tag controlplane it
// has no components of nodes.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	// What the components' own main packages register.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// components holds one entry point per name. Entry points that return an int
// return the exit status of the process.
var components = map[string]func() int{
	"etcd":                    runEtcd,
	"etcdutl":                 runEtcdutl,
	"kubectl":                 runKubectl,
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
}

func main() {
	maps.Copy(components, nodeComponents)
	if run, ok := components[filepath.Base(os.Args[0])]; ok {
		os.Exit(run())
	}
	if len(os.Args) > 1 {
		if run, ok := components[os.Args[1]]; ok {
			os.Args = os.Args[1:]
			os.Exit(run())
		}
	}
	fmt.Fprintln(os.Stderr, "usage: kube etcd|etcdutl|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kube-proxy|kubectl [flags]")
	os.Exit(2)
}

func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

// runEtcdutl is etcdutl with its commands about snapshots.
func runEtcdutl() int {
	cmd := &cobra.Command{Use: "etcdutl"}
	cmd.AddCommand(etcdutl.NewSnapshotCommand())
	return cli.Run(cmd)
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints and exits with kubectl's own status
	}
	return 0
}
