// Package apiserver runs real Kubernetes API servers for tests: etcd, kube-apiserver and, on
// request, some controllers of kube-controller-manager, as processes on the loopback interface.
//
// A server belongs to one test (Start), to the tests of one package (Shared) or to a program that
// measures (Open). It ends with them, also when their process is killed, and leaves no file behind.
// Nothing runs workloads: there is no kubelet.
package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/test/lab/binaries"
	"github.com/pelago-net/pelago/test/need"
)

// startTimeout bounds the start of each process, which takes half a minute when both cores are
// busy.
const startTimeout = 5 * time.Minute

// Option changes what a server is made of.
type Option func(*options)

type options struct {
	crds        *crdSelection
	controllers []string
	flags       []string
	serviceCIDR string
	audit       []byte
	scheduler   bool
	hub         bool
}

// Environment variables that set the version of Kubernetes of hubs (HubControllers) and of all
// other servers, one of those that binaries.KubernetesRelease builds, for tests of what a release
// of Pelago supports (test/versions).
const (
	HubVersion    = "PELAGO_HUB_KUBERNETES"
	MemberVersion = "PELAGO_MEMBER_KUBERNETES"
)

// CRDs installs the definitions of deploy/crds and those of the MCS API, or only the named ones of
// them (such as "portblocks.pelago.io"), and waits until they are served.
func CRDs(names ...string) Option {
	return func(o *options) { o.crds = &crdSelection{names: names} }
}

// InstalledCRDs is CRDs with a label on each of the named definitions, by which an installation
// recognizes its own: it finds them as an earlier one has left them, and need not wait until they
// are served.
func InstalledCRDs(label, value string, names ...string) Option {
	return func(o *options) { o.crds = &crdSelection{names: names, labels: map[string]string{label: value}} }
}

// Controllers runs kube-controller-manager with the named controllers (its own names, such as
// "namespace-controller"). Without serviceaccount-controller pods can be created without a
// ServiceAccount.
func Controllers(names ...string) Option {
	return func(o *options) { o.controllers = append(o.controllers, names...) }
}

// HubControllers are the controllers that a hub runs: those that serve the API itself and start no
// workload.
func HubControllers() Option {
	controllers := Controllers("namespace-controller", "garbage-collector-controller", "serviceaccount-controller",
		"serviceaccount-token-controller", "root-ca-certificate-publisher-controller",
		"certificatesigningrequest-signing-controller", "certificatesigningrequest-approving-controller",
		"certificatesigningrequest-cleaner-controller", "bootstrap-signer-controller", "token-cleaner-controller",
		"clusterrole-aggregation-controller", "ttl-after-finished-controller",
		"validatingadmissionpolicy-status-controller")
	return func(o *options) {
		controllers(o)
		o.hub = true
	}
}

// WorkloadControllers runs all controllers of a cluster that runs workloads, except those that
// monitor node heartbeats, and kube-scheduler. Pods then need something that plays their kubelet.
func WorkloadControllers() Option {
	return func(o *options) {
		o.controllers, o.scheduler = []string{"*", "serviceaccount-controller", "-node-lifecycle-controller"}, true
	}
}

// Flags adds flags of kube-apiserver.
func Flags(flags ...string) Option {
	return func(o *options) { o.flags = append(o.flags, flags...) }
}

// Audit has the API server write its audit log, which policy (audit.k8s.io/v1, YAML) chooses from;
// see Server.AuditLog.
func Audit(policy string) Option {
	return func(o *options) { o.audit = []byte(policy) }
}

// ServiceCIDR sets the range of ClusterIPs, 10.77.0.0/16 if not given.
func ServiceCIDR(prefix string) Option {
	return func(o *options) { o.serviceCIDR = prefix }
}

// Start runs an API server that ends with the test and returns an administrator's access to it,
// without client-side rate limits. Several servers may run in one test.
func Start(t testing.TB, opts ...Option) *rest.Config {
	t.Helper()
	need.Kubernetes(t)
	s, err := start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s.config
}

// server is what one start has made, in the order of making.
type server struct {
	dir       *directory
	bin       string
	options   options
	pki       *pki
	processes []*process // that live
	config    *rest.Config
}

func start(opts []Option) (*server, error) {
	o := options{serviceCIDR: "10.77.0.0/16"}
	for _, opt := range opts {
		opt(&o)
	}
	s, err := newServer(o)
	if err != nil {
		return nil, err
	}
	if err := s.run(); err != nil {
		return nil, errors.Join(fmt.Errorf("start API server: %w", err), s.stop())
	}
	return s, nil
}

func newServer(o options) (*server, error) {
	bin, err := binDirectory(o.hub)
	if err != nil {
		return nil, err
	}
	dir, err := newDirectory()
	if err != nil {
		return nil, fmt.Errorf("start API server: %w", err)
	}
	return &server{dir: dir, bin: bin, options: o}, nil
}

func (s *server) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := s.seed(ctx); err != nil {
		return err
	}
	if err := s.serve(ctx); err != nil {
		return err
	}
	if s.options.crds != nil {
		if err := s.options.crds.await(s.config); err != nil {
			return err
		}
	}
	if len(s.options.controllers) > 0 {
		if err := s.controllerManager(ctx); err != nil {
			return err
		}
	}
	if s.options.scheduler {
		return s.controlPlane(ctx, "kube-scheduler")
	}
	return nil
}

// serve starts etcd, on the data that exists, and the API server.
func (s *server) serve(ctx context.Context) (err error) {
	if s.pki, err = newPKI(s.dir.path); err != nil {
		return err
	}
	if err := s.writeAuditPolicy(); err != nil {
		return err
	}
	if err := s.etcd(ctx); err != nil {
		return err
	}
	return s.apiserver(ctx)
}

// stop ends the processes, the last started first, and removes the files.
func (s *server) stop() error {
	for i := len(s.processes) - 1; i >= 0; i-- {
		s.processes[i].kill()
	}
	return s.dir.remove()
}

// binDirectory holds etcd, kube-apiserver and kube-controller-manager: the cached build of the
// version requested, by default the lab's, or PELAGO_KUBE_BIN. A test does not build them itself,
// that takes longer than a test may run.
func binDirectory(hub bool) (string, error) {
	dir, version := os.Getenv("PELAGO_KUBE_BIN"), os.Getenv(MemberVersion)
	if hub {
		version = os.Getenv(HubVersion)
	}
	if dir == "" {
		onlyLook, cancel := context.WithCancel(context.Background())
		cancel()
		var err error
		if dir, err = binaries.KubernetesRelease(onlyLook, cmp.Or(version, binaries.KubernetesVersion), func(string) {}); err != nil {
			return "", fmt.Errorf("find the cached build of Kubernetes: %w: make it with `make setup`, "+
				"or set PELAGO_KUBE_BIN to a directory that holds etcd, kube-apiserver and kube-controller-manager", err)
		}
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("find %s: %w: make it with `make setup`, and unset PELAGO_KUBE_BIN", name, err)
		}
	}
	return dir, nil
}
