package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
)

// kubeconfigFile are the flags that name the access to a push member.
type kubeconfigFile struct{ file, context string }

func (k *kubeconfigFile) add(f *pflag.FlagSet) {
	f.StringVar(&k.file, "cluster-kubeconfig", "", "kubeconfig of the cluster, of an administrator; the kubeconfig of --kubeconfig "+
		"and --context is the hub's")
	f.StringVar(&k.context, "cluster-context", "", "context of that kubeconfig (default: its current one)")
}

// open returns the cluster, and the URL of the proxy on the way to it, empty for none.
func (k *kubeconfigFile) open() (m *cluster, proxy string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("reach the cluster by --cluster-kubeconfig %s: %w", k.file, err)
		}
	}()
	a := access{kubeconfig: k.file}
	cfg, err := a.config(k.context)
	if err != nil {
		return nil, "", err
	}
	opened, proxy, err := member.OpenPush(cfg)
	return &cluster{Member: view.Member(opened)}, proxy, err
}

// title names the kubeconfig and the context in it.
func (k *kubeconfigFile) title() string {
	context := k.context
	if raw, err := (&access{kubeconfig: k.file}).loader("").RawConfig(); err == nil && context == "" {
		context = raw.CurrentContext
	}
	return fmt.Sprintf("context %q of --cluster-kubeconfig %s", context, k.file)
}

// pushFlags are the flags of join that a push member takes besides those of access.
var pushFlags = []string{"cluster-kubeconfig", "cluster-context", "cluster-provider", "cluster-region", "cluster-zones"}

// isPush decides what the argument of join is: a file that can be read is a broker-info.subm,
// anything else with --cluster-kubeconfig the name of a push member.
func (j *join) isPush(argument string) (bool, error) {
	info, err := os.Stat(argument)
	file := err == nil && info.Mode().IsRegular()
	given := j.cluster.file != "" || j.cluster.context != ""
	if file && given {
		return false, fmt.Errorf("%s is a file here, so it is taken as broker-info.subm, and joining by it takes no "+
			"--cluster-kubeconfig and --cluster-context: "+
			"leave them out, or run this in another directory if %s is the name of a push member", argument, argument)
	}
	if !file && j.cluster.file == "" && j.cluster.context != "" {
		return false, fmt.Errorf("--cluster-context %s: give --cluster-kubeconfig as well", j.cluster.context)
	}
	return !file && given, nil
}

// pushRefusal is why the other flags mean nothing for a push member.
const pushRefusal = "joining with --cluster-kubeconfig makes a push member, which needs no such flag; a cluster joins the network with its " +
	"broker-info.subm"

// refuseFlags refuses flags that were given, other than those of access and the allowed ones.
func refuseFlags(flags *pflag.FlagSet, allowed []string, why string) error {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(access).addFlags(own)
	var wrong []string
	flags.Visit(func(f *pflag.Flag) {
		if own.Lookup(f.Name) == nil && !slices.Contains(allowed, f.Name) {
			wrong = append(wrong, "--"+f.Name)
		}
	})
	if len(wrong) > 0 {
		return fmt.Errorf("%s: %s", wrong, why)
	}
	return nil
}

// push makes a cluster a member that the hub writes.
func (j *join) push(ctx context.Context, name string, out io.Writer) error {
	if err := config.CheckClusterID(name); err != nil {
		return err
	}
	m, proxy, err := j.cluster.open()
	if err != nil {
		return err
	}
	progress := newProgress(out)
	hub, err := j.open()
	if err != nil {
		return err
	}
	p := member.Push{Name: name, Access: j.cluster.title(), Proxy: proxy, Place: j.place}
	if err := p.Join(ctx, manifests.Cluster(hub.Member), manifests.Cluster(m.Member), progress); err != nil {
		return err
	}
	progress("Cluster %s has joined", name)
	fmt.Fprintf(out, "\nCheck whether the hub reaches it:\n\n  kubectl get clusters.cluster.karmada.io %s\n", name)
	return nil
}
