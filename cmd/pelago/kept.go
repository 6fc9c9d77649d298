package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// keepFlags sets the flags that were not given to the values of an earlier run, by flag.
func keepFlags(flags *pflag.FlagSet, former map[string]string) error {
	for name, value := range former {
		f := flags.Lookup(name)
		if f.Changed {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			return fmt.Errorf("keep --%s %s of the earlier run: %w: give the flag", name, value, err)
		}
	}
	return nil
}

// changes lists the settings that differ, sorted.
func changes(before, after map[string]string) []string {
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	var out []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if before[key] != after[key] {
			out = append(out, fmt.Sprintf("%s: %s → %s", key, cmp.Or(before[key], "unset"), cmp.Or(after[key], "unset")))
		}
	}
	return out
}

// joinFlags are the flags of the join that has left a configuration.
func joinFlags(c config.Config) map[string]string {
	mode := activeActive
	if c.SingleGateway {
		mode = activePassive
	}
	return map[string]string{
		"cable-driver":        c.CableDriver,
		"nattport":            strconv.Itoa(int(c.CablePort)),
		"cable-tunnels":       strconv.Itoa(max(1, c.CableTunnels)),
		"xdp":                 cmp.Or(c.XDP, config.XDPOff),
		"natt":                strconv.FormatBool(!c.NoNAT),
		"natt-discovery-port": strconv.Itoa(int(cmp.Or(c.DiscoveryPort, natt.DefaultPort))),
		"preferred-server":    strconv.FormatBool(c.PreferredServer),
		"load-balancer":       strconv.FormatBool(c.LoadBalancer),
		"air-gapped":          strconv.FormatBool(c.AirGapped),
		"gateway-mode":        mode,
		"network-only":        strconv.FormatBool(c.NetworkOnly),
	}
}

// imageFlags are the flags of the join that has installed the workloads. An image of the default repository is left out: its
// tag is the version, which another join updates.
func (m *member) imageFlags(ctx context.Context) (map[string]string, error) {
	ds := &appsv1.DaemonSet{}
	key := client.ObjectKey{Namespace: config.SystemNamespace, Name: "pelago-node"}
	if err := m.client.Get(ctx, key, ds); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("get DaemonSet %s: %w", key, err)
	}
	first := ds.Spec.Template.Spec.Containers[0]
	flags := map[string]string{"image-pull-policy": string(first.ImagePullPolicy)}
	if repository(first.Image) != repository(deploy.DefaultImage) {
		flags["image"] = first.Image
	}
	return flags, nil
}

// repository is the name of an image without its tag and digest.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		return image[:i]
	}
	return image
}

// keep sets the flags that were not given to those of the earlier join, if there was one.
func (j *join) keep(ctx context.Context, m *member, former config.Config) error {
	if former.ClusterID == "" {
		return nil
	}
	images, err := m.imageFlags(ctx)
	if err != nil {
		return err
	}
	kept := joinFlags(former)
	maps.Copy(kept, images)
	return keepFlags(j.flags, kept)
}

// brokerFlags are the flags of the deploy-broker that has written these settings.
func brokerFlags(set broker.Clusterset, book broker.Book) map[string]string {
	flags := map[string]string{
		"mode":           set.Mode,
		"custom-domains": strings.Join(set.CustomDomains, ","),
		"components":     strings.Join(set.Components, ","),
		"broker-url":     set.BrokerURL,
		"auto-accept":    strconv.FormatBool(set.AutoAccept),
		"globalnet":      strconv.FormatBool(book.Globalnet),
	}
	if set.Fabric.IsValid() {
		flags["fabric-cidr"] = set.Fabric.String()
	}
	if book.Globalnet {
		flags["globalnet-cidr-range"], flags["globalnet-cluster-size"] = book.Range.String(), strconv.FormatUint(book.ClusterSize, 10)
	}
	return flags
}
