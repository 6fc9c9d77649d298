package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// bindAttempts bounds how often a process that ended at its start is started on another port:
// another process may take the free port before it is used.
const bindAttempts = 3

// URLs of etcd: unix sockets in the working directory of its processes, in the form host:port that
// etcd requires. They use no port, and other users of the machine cannot reach them.
const (
	etcdClientURL = "unix://client:0"
	etcdPeerURL   = "unix://peer:0"
)

// etcd starts an etcd without fsync. Sockets of a killed one are removed first, because a socket
// file means that etcd serves.
func (s *server) etcd(ctx context.Context) error {
	for _, socket := range []string{"client:0", "peer:0"} {
		if err := os.Remove(filepath.Join(s.dir.path, socket)); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("start etcd: %w", err)
		}
	}
	p, err := s.spawn("etcd", "--data-dir="+s.data(), "--unsafe-no-fsync", "--log-level=warn", "--name=test",
		"--listen-client-urls="+etcdClientURL, "--advertise-client-urls="+etcdClientURL,
		"--listen-peer-urls="+etcdPeerURL, "--initial-advertise-peer-urls="+etcdPeerURL, "--initial-cluster=test="+etcdPeerURL)
	if err != nil {
		return err
	}
	return p.await(ctx, func(context.Context) error {
		_, err := os.Stat(filepath.Join(s.dir.path, "client:0"))
		return err
	})
}

// apiserver starts kube-apiserver on a free port and sets s.config once it is ready.
func (s *server) apiserver(ctx context.Context) error {
	var errs []error
	for range bindAttempts {
		port, err := freePort()
		if err != nil {
			return err
		}
		config := &rest.Config{
			Host:            fmt.Sprintf("https://127.0.0.1:%d", port),
			TLSClientConfig: rest.TLSClientConfig{CAData: s.pki.ca, CertData: s.pki.admin, KeyData: s.pki.adminKey},
			QPS:             -1,
		}
		err = s.apiserverAt(ctx, port, config)
		if err == nil {
			s.config = config
			return nil
		}
		errs = append(errs, err)
		if !strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	return errors.Join(errs...)
}

// apiserverAt starts kube-apiserver on a port and waits until config reaches it.
func (s *server) apiserverAt(ctx context.Context, port int, config *rest.Config) error {
	p, err := s.spawn("kube-apiserver", slices.Concat(s.apiserverFlags(port), s.options.flags)...)
	if err != nil {
		return err
	}
	return awaitAPI(ctx, p, config)
}

func (s *server) apiserverFlags(port int) []string {
	pki, o := s.pki, s.options
	flags := []string{
		"--etcd-servers=" + etcdClientURL,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", "--service-cluster-ip-range=" + o.serviceCIDR,
		"--client-ca-file=" + pki.caFile, "--tls-cert-file=" + pki.serverFile, "--tls-private-key-file=" + pki.serverKeyFile,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + pki.serviceAccountPubFile,
		"--service-account-signing-key-file=" + pki.serviceAccountKeyFile,
		"--requestheader-client-ca-file=" + pki.frontCAFile, "--requestheader-allowed-names=" + frontName,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki.frontFile, "--proxy-client-key-file=" + pki.frontKeyFile,
		"--authorization-mode=Node,RBAC", "--allow-privileged=true",
		"--enable-bootstrap-token-auth=true",
	}
	if o.audit != nil {
		flags = append(flags, "--audit-policy-file="+s.auditPolicy(), "--audit-log-path="+s.auditLog())
	}
	if !slices.Contains(o.controllers, "serviceaccount-controller") {
		flags = append(flags, "--disable-admission-plugins=ServiceAccount")
	}
	return flags
}

// awaitAPI waits until the server is ready and has made its namespaces, which it does after
// readiness.
func awaitAPI(ctx context.Context, p *process, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) error {
		api := client.Discovery().RESTClient()
		if err := api.Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
			return err
		}
		for _, namespace := range []string{"default", "kube-system"} {
			if err := api.Get().AbsPath("/api/v1/namespaces/" + namespace).Do(ctx).Error(); err != nil {
				return err
			}
		}
		return nil
	})
}

// adminKubeconfig is a file with an administrator's access, for the other programs of the control
// plane.
func (s *server) adminKubeconfig() (string, error) {
	file := filepath.Join(s.dir.path, "admin.kubeconfig")
	text, err := Kubeconfig(s.config)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", fmt.Errorf("write the control plane's kubeconfig: %w", err)
	}
	return file, nil
}

// controllerManager starts kube-controller-manager with the chosen controllers as the
// administrator.
func (s *server) controllerManager(ctx context.Context) error {
	return s.controlPlane(ctx, "kube-controller-manager", "--allocate-node-cidrs=false",
		"--service-account-private-key-file="+s.pki.serviceAccountKeyFile, "--root-ca-file="+s.pki.caFile,
		"--cluster-signing-cert-file="+s.pki.caFile, "--cluster-signing-key-file="+s.pki.caKeyFile,
		"--controllers="+strings.Join(s.options.controllers, ","))
}

// controlPlane starts a program of the control plane as the administrator and waits until it
// listens.
func (s *server) controlPlane(ctx context.Context, name string, flags ...string) error {
	admin, err := s.adminKubeconfig()
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	p, err := s.spawn(name, append([]string{"--kubeconfig=" + admin, "--kube-api-qps=500", "--kube-api-burst=1000",
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--leader-elect=false",
		"--authentication-skip-lookup=true"}, flags...)...)
	if err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		return c.Close()
	})
}
