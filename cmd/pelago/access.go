package main

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/spf13/pflag"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// access is how a cluster is reached: the flags that kubectl has.
type access struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
}

func (a *access) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.kubeconfig, "kubeconfig", "", "kubeconfig file (default: $KUBECONFIG or ~/.kube/config)")
	fs.StringVar(&a.overrides.CurrentContext, "context", "", "context of the kubeconfig (default: its current one)")
	fs.StringVar(&a.overrides.Context.Cluster, "cluster", "", "cluster of the kubeconfig")
	fs.StringVar(&a.overrides.Context.AuthInfo, "user", "", "user of the kubeconfig")
}

func (a *access) loader(context string) clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	overrides := a.overrides
	if context != "" {
		overrides.CurrentContext = context
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &overrides)
}

// config is the access to the cluster that the flags name.
func (a *access) config() (*rest.Config, error) { return a.configOf("") }

// configOf is the access to the cluster of a context; "" is the one that the flags name.
func (a *access) configOf(context string) (*rest.Config, error) {
	cfg, err := a.loader(context).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w (choose one with --kubeconfig and --context)", err)
	}
	cfg.QPS, cfg.Burst = 50, 100
	cfg.Timeout = 30 * time.Second
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg, nil
}

// raw is the kubeconfig and the name of the context in use.
func (a *access) raw() (clientcmdapi.Config, string, error) {
	raw, err := a.loader("").RawConfig()
	if err != nil {
		return raw, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	current := raw.CurrentContext
	if a.overrides.CurrentContext != "" {
		current = a.overrides.CurrentContext
	}
	return raw, current, nil
}

// contexts lists the contexts to look at: those named, else the one of --context, else all, sorted.
func (a *access) contexts(named []string) ([]string, error) {
	raw, _, err := a.raw()
	if err != nil {
		return nil, err
	}
	var all []string
	for name := range raw.Contexts {
		all = append(all, name)
	}
	sort.Strings(all)
	if len(named) == 0 && a.overrides.CurrentContext != "" {
		named = []string{a.overrides.CurrentContext}
	}
	if len(named) == 0 {
		return all, nil
	}
	for _, name := range named {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("context %q is not in the kubeconfig, which has %q", name, all)
		}
	}
	return named, nil
}

// requireVersion refuses an API server that is too old.
func requireVersion(cfg *rest.Config, what, minimum, why string) error {
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return fmt.Errorf("reach %s at %s: %w", what, cfg.Host, err)
	}
	info, err := d.ServerVersion()
	if err != nil {
		return fmt.Errorf("ask %s at %s for its version: %w", what, cfg.Host, err)
	}
	have, err := utilversion.ParseGeneric(info.GitVersion)
	if err != nil {
		return fmt.Errorf("read the version of %s: %w", what, err)
	}
	if have.LessThan(utilversion.MustParseGeneric(minimum)) {
		return fmt.Errorf("%s runs Kubernetes %s: at least %s is needed (%s)", what, info.GitVersion, minimum, why)
	}
	return nil
}
