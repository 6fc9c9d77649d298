package manifests

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Oldest versions of Kubernetes.
const (
	// MemberVersion is that of a member.
	MemberVersion = "1.27"
	// HubVersion is that of a hub: its admission policies use functions of IP addresses.
	HubVersion = "1.31"
)

// Cluster is access to the API server of a hub or a member.
type Cluster struct {
	Config *rest.Config
	Client client.Client
	Typed  kubernetes.Interface
}

// Open makes the clients of a hub or a member. It sets timeout and rate of cfg. Warnings of the API
// server are dropped unless cfg has a handler for them.
func Open(cfg *rest.Config) (Cluster, error) {
	cfg.QPS, cfg.Burst = 50, 100
	cfg.Timeout = 30 * time.Second
	if cfg.WarningHandler == nil && cfg.WarningHandlerWithContext == nil {
		cfg.WarningHandler = rest.NoWarnings{}
	}
	c, err := NewClient(cfg)
	if err != nil {
		return Cluster{}, err
	}
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return Cluster{}, fmt.Errorf("reach the API server at %s: %w", cfg.Host, err)
	}
	return Cluster{Config: cfg, Client: c, Typed: typed}, nil
}

// RequireVersion refuses an API server that is too old; what names it, why is the reason of the
// minimum.
func (c Cluster) RequireVersion(what, minimum, why string) error {
	info, err := c.Typed.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("get the version of %s at %s: %w", what, c.Config.Host, err)
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

// RequireHubVersion refuses an API server that is too old for a hub.
func (c Cluster) RequireHubVersion() error {
	return c.RequireVersion("the hub", HubVersion, "admission policies with functions of IP addresses")
}

// RequireMemberVersion refuses an API server that is too old for a member.
func (c Cluster) RequireMemberVersion(what string) error {
	return c.RequireVersion(what, MemberVersion, "the oldest supported version")
}

// CA is the CA of the API server, PEM.
func (c Cluster) CA(ctx context.Context) ([]byte, error) {
	if len(c.Config.CAData) > 0 {
		return c.Config.CAData, nil
	}
	return PublishedCA(ctx, c.Client, BrokerNamespace)
}

// Stream connects the streams to the subresource exec or attach of a pod.
func (c Cluster) Stream(ctx context.Context, url *url.URL, o remotecommand.StreamOptions) error {
	cfg := rest.CopyConfig(c.Config)
	cfg.Timeout = 0 // ctx bounds the command
	spdy, errSPDY := remotecommand.NewSPDYExecutor(cfg, "POST", url)
	websocket, errWebSocket := remotecommand.NewWebSocketExecutor(cfg, "GET", url.String())
	// API servers before 1.30 do not speak the newer protocol.
	executor, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err := errors.Join(errSPDY, errWebSocket, err); err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, o)
}
