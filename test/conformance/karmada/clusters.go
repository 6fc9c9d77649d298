package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/test/hubset"
)

// suiteKubeconfig has the two contexts that the suite wants, both of the hub, at the address for
// Karmada's tools.
const suiteKubeconfig = "suite.kubeconfig"

const members = 3

// bringUp makes the hub and three push members, and what the suite expects in them: the kind
// Workload and the webhook that interprets it, which are examples of its module.
func bringUp(ctx context.Context, o options, module string) (s *hubset.Set, err error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	tools, err := freePort()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(o.out, "hub-certificate")
	certificate, err := writeCertificate(dir)
	if err != nil {
		return nil, err
	}
	s, err = hubset.Open(ctx, hubset.Options{Binaries: o.bin, Dir: o.out, Real: members, Workloads: true, HubFlags: []string{"--events=all", "--deployment-replicas-syncer",
		fmt.Sprintf("--proxy-address=127.0.0.1:%d", port), "--proxy-host=127.0.0.1",
		fmt.Sprintf("--karmada-address=127.0.0.1:%d", tools), "--karmada-tls-cert-file=" + filepath.Join(dir, "tls.crt"),
		"--karmada-tls-private-key-file=" + filepath.Join(dir, "tls.key")}})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bring the clusters up: %w", err), s.Close())
		}
	}()
	if _, err := s.Up(ctx); err != nil {
		return s, err
	}
	examples := filepath.Join(module, "examples", "customresourceinterpreter")
	servers := []*rest.Config{s.Server.Config()}
	for _, m := range s.Members {
		servers = append(servers, m.Config)
		if err := makeFixtures(ctx, m.Name, m.Config); err != nil {
			return s, err
		}
	}
	for _, server := range servers {
		if _, err := envtest.InstallCRDs(server, envtest.CRDInstallOptions{Paths: []string{filepath.Join(examples, "apis")}}); err != nil {
			return s, fmt.Errorf("install the CRD of Workload: %w", err)
		}
	}
	admin := rest.CopyConfig(s.Server.Config())
	admin.Host, admin.CAData = fmt.Sprintf("https://127.0.0.1:%d", tools), certificate
	if err := writeKubeconfig(filepath.Join(o.out, suiteKubeconfig), admin, "karmada-apiserver", "karmada-host"); err != nil {
		return s, err
	}
	return s, errors.Join(startWebhook(ctx, s, o, examples), served(ctx, s, "workload.example.io/v1alpha1"))
}

// served waits until all Clusters report an API: a cluster that does not is left out when a
// template is divided.
func served(ctx context.Context, s *hubset.Set, groupVersion string) error {
	c, err := client.New(s.Server.Config(), client.Options{})
	if err != nil {
		return fmt.Errorf("wait for %s in the members: %w", groupVersion, err)
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		clusters := &unstructured.UnstructuredList{}
		clusters.SetAPIVersion("cluster.karmada.io/v1alpha1")
		clusters.SetKind("ClusterList")
		if err := c.List(ctx, clusters); err != nil {
			return false, err
		}
		return !slices.ContainsFunc(clusters.Items, func(u unstructured.Unstructured) bool {
			all, _, _ := unstructured.NestedSlice(u.Object, "status", "apiEnablements")
			return !slices.ContainsFunc(all, func(api any) bool {
				m, _ := api.(map[string]any)
				return m["groupVersion"] == groupVersion
			})
		}), nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s in the members: %w", groupVersion, err)
	}
	return nil
}

// writeKubeconfig writes an administrator's access to a server under the names of contexts, the
// first of them the current one.
func writeKubeconfig(file string, to *rest.Config, contexts ...string) error {
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"server": {Server: to.Host, CertificateAuthorityData: to.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"admin": {ClientCertificateData: to.CertData, ClientKeyData: to.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{},
		CurrentContext: contexts[0],
	}
	for _, name := range contexts {
		config.Contexts[name] = &clientcmdapi.Context{Cluster: "server", AuthInfo: "admin"}
	}
	if err := clientcmd.WriteToFile(config, file); err != nil {
		return fmt.Errorf("write a kubeconfig for the suite: %w", err)
	}
	return nil
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a port: %w", err)
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

// writeCertificate writes tls.crt and tls.key of a server at 127.0.0.1, and returns the former.
func writeCertificate(dir string) ([]byte, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, fmt.Errorf("make the certificate in %s: %w", dir, err)
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600)); err != nil {
		return nil, fmt.Errorf("write the certificate in %s: %w", dir, err)
	}
	return certificate, nil
}

// startWebhook runs the suite's example of an interpreter webhook and registers it.
func startWebhook(ctx context.Context, s *hubset.Set, o options, examples string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	dir := filepath.Join(o.out, "webhook-certificate")
	certificate, err := writeCertificate(dir)
	if err != nil {
		return err
	}
	if _, err := s.Start("webhook", filepath.Join(o.out, "webhook"), "--kubeconfig="+filepath.Join(o.out, suiteKubeconfig),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+dir); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(examples, "webhook-configuration.yaml"))
	if err != nil {
		return fmt.Errorf("register the webhook: %w", err)
	}
	text = []byte(strings.NewReplacer("{{karmada-interpreter-webhook-example-svc-address}}:443", fmt.Sprintf("127.0.0.1:%d", port),
		"{{caBundle}}", base64.StdEncoding.EncodeToString(certificate)).Replace(string(text)))
	hook := new(unstructured.Unstructured)
	if err := yaml.Unmarshal(text, &hook.Object); err != nil {
		return fmt.Errorf("register the webhook: %w", err)
	}
	c, err := client.New(s.Server.Config(), client.Options{})
	if err != nil {
		return fmt.Errorf("register the webhook: %w", err)
	}
	if err := c.Create(ctx, hook); err != nil {
		return fmt.Errorf("register the webhook: %w", err)
	}
	return nil
}
