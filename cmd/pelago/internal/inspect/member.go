package inspect

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/cmd/annotate"
	"k8s.io/kubectl/pkg/cmd/apiresources"
	"k8s.io/kubectl/pkg/cmd/attach"
	"k8s.io/kubectl/pkg/cmd/delete"
	"k8s.io/kubectl/pkg/cmd/describe"
	"k8s.io/kubectl/pkg/cmd/edit"
	"k8s.io/kubectl/pkg/cmd/exec"
	"k8s.io/kubectl/pkg/cmd/explain"
	"k8s.io/kubectl/pkg/cmd/label"
	"k8s.io/kubectl/pkg/cmd/logs"
	"k8s.io/kubectl/pkg/cmd/patch"
	"k8s.io/kubectl/pkg/cmd/portforward"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// Through turns access to the hub into access to a member through the hub, with the same credential
// (proxy.pelago.io).
func Through(hub *rest.Config, cluster string) *rest.Config {
	cfg := rest.CopyConfig(hub)
	cfg.Host = strings.TrimSuffix(cfg.Host, "/") + v1alpha1.ProxyPath(url.PathEscape(cluster), "proxy")
	return cfg
}

// Direct is the access to a push member by the data of its Secret at the hub.
func Direct(spec *clusterv1alpha1.ClusterSpec, data map[string][]byte) (*rest.Config, error) {
	cfg := &rest.Config{Host: spec.APIEndpoint, BearerToken: string(data[clusterv1alpha1.SecretKeyToken])}
	if cfg.TLSClientConfig.Insecure = spec.InsecureSkipTLSVerification; !cfg.TLSClientConfig.Insecure {
		cfg.TLSClientConfig.CAData = data[clusterv1alpha1.SecretKeyCA]
	}
	if spec.ProxyURL != "" {
		proxy, err := url.Parse(spec.ProxyURL)
		if err != nil {
			return nil, fmt.Errorf("read proxyURL: %w", err)
		}
		if len(spec.ProxyHeader) > 0 {
			return nil, errors.New("its proxy requires headers, which this command does not send: name a context with --member-context")
		}
		cfg.Proxy = http.ProxyURL(proxy)
	}
	return cfg, nil
}

// checkHub returns an error if the API server does not lead to members.
func checkHub(hub *rest.Config) error {
	c, err := discovery.NewDiscoveryClientForConfig(hub)
	if err != nil {
		return err
	}
	group := v1alpha1.ProxyGroup + "/" + v1alpha1.ProxyVersion
	if _, err := c.ServerResourcesForGroupVersion(group); apierrors.IsNotFound(err) {
		return fmt.Errorf("the API server at %s does not serve %s: name the hub with --context, and run pelago-hub with --proxy-address", hub.Host, group)
	} else if err != nil {
		return fmt.Errorf("look for %s at the hub: %w", group, err)
	}
	return nil
}

// kubectlCommand makes one of kubectl's commands.
type kubectlCommand func(cmdutil.Factory, genericiooptions.IOStreams) *cobra.Command

// MemberCommands are kubectl's commands for a member of the hub, which -C names; those that change
// objects, without it, for the hub itself. Everything else is as in kubectl.
func MemberCommands(streams genericiooptions.IOStreams) []*cobra.Command {
	out := []*cobra.Command{topCommand(streams)}
	for _, kubectl := range []kubectlCommand{logs.NewCmdLogs, exec.NewCmdExec, attach.NewCmdAttach, portforward.NewCmdPortForward,
		func(f cmdutil.Factory, s genericiooptions.IOStreams) *cobra.Command {
			return apiresources.NewCmdAPIResources(f, s)
		},
	} {
		cmd := memberCommand(kubectl, streams, "")
		_ = cmd.MarkPersistentFlagRequired("clusters") // fails only without such a flag
		out = append(out, cmd)
	}
	for _, kubectl := range []kubectlCommand{delete.NewCmdDelete, edit.NewCmdEdit, patch.NewCmdPatch, label.NewCmdLabel,
		func(f cmdutil.Factory, s genericiooptions.IOStreams) *cobra.Command {
			return annotate.NewCmdAnnotate("kubectl", f, s)
		},
	} {
		out = append(out, memberCommand(kubectl, streams, `
Without -C it changes the hub's objects, templates and policies among them. What the hub has
propagated is to be changed there: in the cluster the change is undone.`))
	}
	return out
}

// throughHub is the help of commands for members.
const throughHub = `

The cluster that -C names is reached through the hub, also a pull member. It needs a right at the hub
on clusters/proxy of proxy.pelago.io, and in the cluster the rights of the own name
(control/hub/access/README.md). --context and --cluster choose the hub in the kubeconfig.`

func memberCommand(kubectl kubectlCommand, streams genericiooptions.IOStreams, hub string) *cobra.Command {
	var cluster string
	flags := genericclioptions.NewConfigFlags(true).WithWrapConfigFn(func(hub *rest.Config) *rest.Config {
		if cluster == "" {
			return hub
		}
		return Through(hub, cluster)
	})
	cmd := kubectl(cmdutil.NewFactory(cmdutil.NewMatchVersionFlags(flags)), streams)
	cmd.Example = strings.ReplaceAll(cmd.Example, "kubectl "+cmd.Name(), "pelago "+cmd.Name()+" -C m1")
	cmd.Long += throughHub + hub
	flags.AddFlags(cmd.PersistentFlags())
	cmd.PersistentFlags().StringVarP(&cluster, "clusters", "C", "", "the cluster, by its name at the hub")
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error {
		// kubectl's commands do not end with their context
		signal.Reset(os.Interrupt, syscall.SIGTERM)
		hub, err := flags.ToRawKubeConfigLoader().ClientConfig()
		if err != nil || cluster == "" {
			return err
		}
		return checkHub(hub)
	}
	return cmd
}

// Describe prints objects of a member as kubectl does.
func Describe(cmd *cobra.Command, cluster string, args []string) error {
	return asKubectl(cmd, cluster, func(f cmdutil.Factory, s genericiooptions.IOStreams) *cobra.Command {
		return describe.NewCmdDescribe("pelago", f, s)
	}, args)
}

// Fields are the flags of `pelago explain`.
type Fields struct {
	Cluster    string // "": the hub
	Recursive  bool
	APIVersion string
}

// Explain prints the fields of a kind as kubectl does.
func (e Fields) Explain(cmd *cobra.Command, kind string) error {
	return asKubectl(cmd, e.Cluster, func(f cmdutil.Factory, s genericiooptions.IOStreams) *cobra.Command {
		return explain.NewCmdExplain("pelago", f, s)
	}, []string{kind, fmt.Sprintf("--recursive=%t", e.Recursive), "--api-version=" + e.APIVersion})
}

// asKubectl runs one of kubectl's commands for a member, or "", the hub, with the flags of cmd that
// choose a kubeconfig and a namespace.
func asKubectl(cmd *cobra.Command, cluster string, kubectl kubectlCommand, args []string) error {
	streams := genericiooptions.IOStreams{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), ErrOut: cmd.ErrOrStderr()}
	c := memberCommand(kubectl, streams, "")
	args = append(args, "--clusters="+cluster)
	for _, flag := range []string{"kubeconfig", "context", "cluster", "user", "namespace"} {
		args = append(args, "--"+flag+"="+cmd.Flag(flag).Value.String())
	}
	c.SetArgs(args)
	return c.ExecuteContext(cmd.Context())
}
