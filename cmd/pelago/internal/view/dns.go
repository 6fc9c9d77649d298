package view

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// DNSState is one configuration of the cluster's DNS in -o json and -o yaml.
type DNSState struct {
	Configuration string   `json:"configuration"`
	NameServer    string   `json:"nameServer"`
	Zones         []string `json:"zones"`
	Forwards      bool     `json:"forwards"`
	Message       string   `json:"message,omitempty"`
}

// clusterDNS has a row for each configuration of the cluster's DNS that pelago-agent knows how to
// change. Without any it has the lines that a person has to add.
func clusterDNS(ctx context.Context, m Member, c config.Config) (Table, error) {
	t := Table{
		Header: []string{"CONFIGURATION", "NAME SERVER", "FORWARDS"},
		Wide:   []string{"ZONES", "MESSAGE"},
	}
	states, missing, err := ReadDNS(ctx, m.Client, c)
	for _, s := range states {
		t.Rows = append(t.Rows, Row{Cells: []string{s.Configuration, s.NameServer, yesNo(s.Forwards)}, Wide: []string{strings.Join(s.Zones, ", "), s.Message}, Object: s})
	}
	t.Empty = missing
	return t, err
}

// ReadDNS reads the configurations of the cluster's DNS that pelago-agent knows how to change.
// Without any, missing is what a person has to do.
func ReadDNS(ctx context.Context, r client.Reader, c config.Config) (states []DNSState, missing string, err error) {
	svc := &corev1.Service{}
	key := client.ObjectKey{Namespace: config.SystemNamespace, Name: manifests.DNSDeployment}
	if err := r.Get(ctx, key, svc); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, fmt.Sprintf("No Service %s: install it with `pelago join`.", key), nil
		}
		return nil, "", fmt.Errorf("get Service %s: %w", key, err)
	}
	f := clusterdns.ForwardTo(svc, clusterdns.Zones(c), c.DNSCache)
	add := func(configuration string, problem error) {
		s := DNSState{Configuration: configuration, NameServer: svc.Spec.ClusterIP, Zones: f.Zones, Forwards: problem == nil}
		if problem != nil {
			s.Message = problem.Error()
		}
		states = append(states, s)
	}
	for _, target := range clusterdns.Targets(c.CoreDNSCustom) {
		cm := &corev1.ConfigMap{}
		if err := r.Get(ctx, target.ConfigMap, cm); client.IgnoreNotFound(err) != nil {
			return states, "", fmt.Errorf("get ConfigMap %s: %w", target.ConfigMap, err)
		} else if err == nil {
			add("ConfigMap "+target.ConfigMap.String(), target.Forwards(cm, f))
		}
	}
	operator := clusterdns.NewOperator()
	switch err := r.Get(ctx, client.ObjectKey{Name: clusterdns.OperatorName}, operator); {
	case err == nil:
		changed, err := clusterdns.ApplyOperator(operator, &f)
		if changed {
			err = fmt.Errorf("spec.servers has no or another entry: see the events of pelago-agent")
		}
		add("DNS "+clusterdns.OperatorName+" of OpenShift", err)
	case !meta.IsNoMatchError(err) && client.IgnoreNotFound(err) != nil:
		return states, "", fmt.Errorf("get DNS %s of OpenShift: %w", clusterdns.OperatorName, err)
	}
	if len(states) > 0 {
		return states, "", nil
	}
	lines, err := f.Lines()
	return nil, "The cluster's DNS is configured where pelago-agent does not write. In CoreDNS, add these lines to the Corefile:\n\n" + lines, err
}
