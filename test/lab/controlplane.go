package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
)

// hubControllers are the controllers of a hub's kube-controller-manager: what
// namespaces, owner references, service account tokens, certificate requests,
// bootstrap tokens and admission policies need, and nothing that would run a
// workload.
var hubControllers = []string{
	"namespace-controller",
	"garbage-collector-controller",
	"serviceaccount-controller",
	"serviceaccount-token-controller",
	"root-ca-certificate-publisher-controller",
	"certificatesigningrequest-signing-controller",
	"certificatesigningrequest-approving-controller",
	"certificatesigningrequest-cleaner-controller",
	"bootstrap-signer-controller",
	"token-cleaner-controller",
	"clusterrole-aggregation-controller",
	"ttl-after-finished-controller",
	"validatingadmissionpolicy-status-controller",
}

// components are the processes of the cluster's control plane.
func (c Cluster) components() []string {
	components := []string{"etcd", "kube-apiserver", "kube-controller-manager"}
	if c.Hub {
		return components
	}
	return append(components, "kube-scheduler")
}

// clusterDir is where a cluster's files are.
func (l *Lab) clusterDir(name string) string { return filepath.Join(l.dir, "cluster", name) }

// controlPlaneLog is the log of one component of a control plane.
func (l *Lab) controlPlaneLog(cluster, component string) string {
	return filepath.Join(l.clusterDir(cluster), "log", component+".log")
}

// prepareControlPlane writes the keys, certificates and kubeconfigs of a cluster.
func (l *Lab) prepareControlPlane(c Cluster) error {
	dir := l.clusterDir(c.Name)
	pki := filepath.Join(dir, "pki")
	ca, err := openAuthority(pki, "ca")
	if err != nil {
		return err
	}
	front, err := openAuthority(pki, "front-proxy-ca")
	if err != nil {
		return err
	}
	hosts := []string{c.ControlPlane.String(), c.Kubernetes.String(), "127.0.0.1", "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	err = errors.Join(
		ca.issueFiles("apiserver", identity{name: "kube-apiserver", hosts: hosts}),
		ca.issueFiles("apiserver-kubelet-client", identity{name: "kube-apiserver-kubelet-client", orgs: []string{"system:masters"}}),
		front.issueFiles("front-proxy-client", identity{name: "front-proxy-client"}),
		serviceAccountKey(pki),
	)
	if err != nil {
		return err
	}
	for file, user := range map[string]identity{
		"admin":              {name: "kubernetes-admin", orgs: []string{"system:masters"}},
		"controller-manager": {name: "system:kube-controller-manager"},
		"scheduler":          {name: "system:kube-scheduler"},
		"kube-proxy":         {name: "system:kube-proxy"},
	} {
		path := filepath.Join(dir, file+".kubeconfig")
		if exists(path) {
			continue
		}
		client, err := ca.issue(user)
		if err != nil {
			return err
		}
		if err := writeKubeconfig(path, access{cluster: c.Name, server: c.URL(), ca: ca.pem, user: file, client: client}); err != nil {
			return err
		}
	}
	return nil
}

// etcdArgs, apiServerArgs, controllerManagerArgs and schedulerArgs are pure:
// dir is the cluster's directory.
func etcdArgs(dir string) []string {
	return []string{"--data-dir=" + filepath.Join(dir, "etcd"), "--log-level=warn",
		"--unsafe-no-fsync", // a lab's data need not survive a power failure
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380"}
}

func apiServerArgs(c Cluster, dir string) []string {
	pki := func(name string) string { return filepath.Join(dir, "pki", name) }
	args := []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--secure-port=6443",
		"--advertise-address=" + c.ControlPlane.String(),
		"--service-cluster-ip-range=" + c.ServiceCIDR.String(),
		"--client-ca-file=" + pki("ca.crt"),
		"--tls-cert-file=" + pki("apiserver.crt"),
		"--tls-private-key-file=" + pki("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pki("sa.pub"),
		"--service-account-signing-key-file=" + pki("sa.key"),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + pki("apiserver-kubelet-client.key"),
		"--kubelet-certificate-authority=" + pki("ca.crt"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + pki("front-proxy-client.key"),
		"--authorization-mode=Node,RBAC",
		"--allow-privileged=true",
		"--enable-bootstrap-token-auth",
	}
	if c.Hub {
		// Without workload controllers the objects that these wait for are never created.
		return append(args, "--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection")
	}
	// No kube-proxy runs next to the API server. At the hub the Service of pelago-hub is an
	// ExternalName, which this flag excludes.
	return append(args, "--enable-aggregator-routing", "--enable-admission-plugins=NodeRestriction")
}

func controllerManagerArgs(c Cluster, dir string) []string {
	pki := func(name string) string { return filepath.Join(dir, "pki", name) }
	config := filepath.Join(dir, "controller-manager.kubeconfig")
	args := []string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		// else it makes one below /usr
		"--flex-volume-plugin-dir=" + filepath.Join(dir, "volume-plugins"),
		"--use-service-account-credentials",
		// Its default of 20 requests a second would be used up by making tokens.
		"--kube-api-qps=500", "--kube-api-burst=1000",
		"--service-account-private-key-file=" + pki("sa.key"),
		"--root-ca-file=" + pki("ca.crt"),
		"--cluster-signing-cert-file=" + pki("ca.crt"),
		"--cluster-signing-key-file=" + pki("ca.key"),
	}
	if c.Hub {
		return append(args, "--controllers="+strings.Join(hubControllers, ","))
	}
	return append(args,
		// Nodes get their pod CIDRs from the lab's plan.
		"--controllers=*,bootstrap-signer-controller,token-cleaner-controller,-node-ipam-controller",
		"--allocate-node-cidrs=false", "--cluster-cidr="+c.PodCIDR.String(),
		"--node-monitor-period=2s", "--node-monitor-grace-period=20s")
}

func schedulerArgs(dir string) []string {
	config := filepath.Join(dir, "scheduler.kubeconfig")
	return []string{"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1", "--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000"}
}

// ensureComponent starts one component of a control plane unless it runs.
func (l *Lab) ensureComponent(c Cluster, component string, args []string) error {
	_, err := l.ensureProcess(program{
		name:      c.Name + "/" + component,
		namespace: l.record.Plan.Namespace(c.Name),
		argv:      append([]string{filepath.Join(l.record.Kubernetes, component)}, args...),
		log:       l.controlPlaneLog(c.Name, component),
	})
	return err
}

// ensureControlPlane starts a cluster's control plane, which is prepared, and
// waits until its API server is ready.
func (l *Lab) ensureControlPlane(ctx context.Context, c Cluster) error {
	dir := l.clusterDir(c.Name)
	if err := l.ensureComponent(c, "etcd", etcdArgs(dir)); err != nil {
		return err
	}
	if err := l.ensureComponent(c, "kube-apiserver", apiServerArgs(c, dir)); err != nil {
		return err
	}
	client, err := l.Clientset(c.Name)
	if err != nil {
		return err
	}
	if err := l.awaitAPIServer(ctx, c, client); err != nil {
		return err
	}
	if err := l.ensureComponent(c, "kube-controller-manager", controllerManagerArgs(c, dir)); err != nil {
		return err
	}
	if c.Hub {
		return nil
	}
	return l.ensureComponent(c, "kube-scheduler", schedulerArgs(dir))
}

// awaitAPIServer polls /readyz and gives up early if a process has ended.
func (l *Lab) awaitAPIServer(ctx context.Context, c Cluster, client kubernetes.Interface) error {
	for {
		var status int
		result := client.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(2 * time.Second).Do(ctx).StatusCode(&status)
		if result.Error() == nil && status == http.StatusOK {
			return nil
		}
		for _, component := range []string{"etcd", "kube-apiserver"} {
			if !l.recorded(c.Name + "/" + component).alive() {
				log := l.controlPlaneLog(c.Name, component)
				return fmt.Errorf("start %s of %s: it ended; the end of %s:\n%s", component, c.Name, log, lastLines(log, 5))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server of %s: %w (last answer: %w)", c.Name, ctx.Err(), result.Error())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
