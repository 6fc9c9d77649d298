package machine

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Run is the node: it returns only when the node cannot start.
func Run(s Spec) error {
	if os.Getpid() != 1 {
		return errors.New("start a node: this program must be pid 1 of a new pid namespace; pelago-lab starts it")
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := enterRoot(s); err != nil {
		return err
	}
	if err := MakeCgroup(s.CgroupRoot); err != nil {
		return err
	}
	if err := showCgroup(s.CgroupRoot); err != nil {
		return err
	}
	r := newReaper("/var/log")
	go r.loop()
	if s.Ruleset != "" {
		if err := r.run("nft", service{argv: []string{"nft", "-f", "-"}, input: s.Ruleset}); err != nil {
			return fmt.Errorf("load the masquerade rules: %w", err)
		}
	}
	if s.Rules != "" {
		if err := r.run("ip", service{argv: []string{"ip", "-batch", "-"}, input: s.Rules}); err != nil {
			return fmt.Errorf("add the CNI's rules and routes: %w", err)
		}
	}
	go r.supervise("containerd", service{argv: []string{filepath.Join(ContainerdDir, "containerd"), "--config", ContainerdConfig}})
	awaitSocket(Socket)
	if err := importImages(r); err != nil {
		return err
	}
	slog.Info("images are imported, waiting for the Node object", "server", s.Server)
	if err := awaitNode(s); err != nil {
		return err
	}
	go r.supervise("kubelet", service{argv: []string{filepath.Join(BinDir, "kubelet"),
		"--config=" + KubeletConfig, "--kubeconfig=" + KubeletKubeconfig, "--hostname-override=" + s.Hostname}})
	if !s.NoProxy {
		go r.supervise("kube-proxy", service{argv: []string{filepath.Join(BinDir, "kube-proxy"), "--config=" + ProxyConfig}})
	}
	for _, d := range s.Daemons {
		go func() {
			awaitGone(HoldFile)
			r.supervise(d.Name, service{argv: d.Argv, env: d.Env})
		}()
	}
	slog.Info("node is started")
	select {}
}

// showCgroup mounts the node's cgroup of the v2 hierarchy, where the machine has one, at CgroupDir.
func showCgroup(name string) error {
	if _, err := os.Stat(filepath.Join(unifiedCgroup(name), "cgroup.controllers")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(CgroupDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(unifiedCgroup(name), CgroupDir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount cgroup %s at %s: %w", name, CgroupDir, err)
	}
	return nil
}

// importImages loads every archive of ImageDir into containerd.
func importImages(r *reaper) error {
	archives, err := filepath.Glob(filepath.Join(ImageDir, "*.tar"))
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := r.run("ctr", service{argv: []string{filepath.Join(ContainerdDir, "ctr"), "--namespace=k8s.io", "images", "import", archive}}); err != nil {
			return fmt.Errorf("import image %s: %w", archive, err)
		}
	}
	return nil
}

// awaitSocket returns when a Unix socket has a listener.
func awaitSocket(path string) {
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
			return
		}
		time.Sleep(20 * time.Millisecond) // the caller of Up has the deadline
	}
}

// longestHold bounds how long daemons are held by HoldFile.
const longestHold = 10 * time.Minute

// awaitGone returns when a file does not exist, or after longestHold.
func awaitGone(path string) {
	begin := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Since(begin) > longestHold {
			slog.Warn("file was not removed: the daemons of the network start", "file", path, "after", longestHold)
			return
		}
	}
}

// awaitNode returns when the API server hands out the Node object to the
// kubelet's certificate: kubelet and kube-proxy would otherwise back off for
// seconds, and the kubelet would make a Node without the planned pod CIDR.
func awaitNode(s Spec) error {
	ca, err := os.ReadFile(filepath.Join(PKIDir, "ca.crt"))
	if err != nil {
		return fmt.Errorf("wait for the Node object: %w", err)
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(PKIDir, "kubelet-client.crt"), filepath.Join(PKIDir, "kubelet-client.key"))
	if err != nil {
		return fmt.Errorf("wait for the Node object: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}}}}
	url := strings.TrimRight(s.Server, "/") + "/api/v1/nodes/" + s.Hostname
	for {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("wait for the Node object: %w", err)
		}
		response, err := client.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				client.CloseIdleConnections()
				return nil
			}
		}
		time.Sleep(100 * time.Millisecond) // likewise
	}
}
