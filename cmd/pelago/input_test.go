package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// run runs the command line without a cluster and returns its error.
func run(args ...string) error {
	cmd := root("pelago")
	cmd.SetArgs(args)
	cmd.SetOut(new(bytes.Buffer))
	cmd.SetErr(new(bytes.Buffer))
	cmd.SetIn(strings.NewReader(""))
	return cmd.ExecuteContext(context.Background())
}

// Flags that are wrong without any cluster are refused even if none can be reached.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	info := func(expiry time.Time) []byte {
		claims := fmt.Sprintf(`{"exp":%d}`, expiry.Unix())
		text, err := broker.Info{
			BrokerURL: "https://192.0.2.1:6443",
			ClientToken: &corev1.Secret{Data: map[string][]byte{"ca.crt": []byte("x"), "namespace": []byte("submariner-k8s-broker"),
				"token": []byte("e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln")}},
			IPSecPSK: &corev1.Secret{Data: map[string][]byte{"psk": []byte("x")}},
		}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good, expired := file("good", info(time.Now().Add(time.Hour))), file("expired", info(time.Now().Add(-time.Hour)))
	garbage, missing := file("garbage", []byte("apiVersion: v1\n")), filepath.Join(dir, "missing")

	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no file":                 {[]string{"join"}, "accepts 1 arg"},
		"missing file":            {[]string{"join", missing, "--clusterid", "c1"}, "run `pelago deploy-broker` at the hub"},
		"unreadable file":         {[]string{"join", garbage, "--clusterid", "c1"}, "not one line of URL-safe base64"},
		"expired file":            {[]string{"join", expired, "--clusterid", "c1"}, "ago: run `pelago deploy-broker` at the hub again"},
		"no id":                   {[]string{"join", good}, "set --clusterid"},
		"long id":                 {[]string{"join", good, "--clusterid", strings.Repeat("a", 49)}, "at most 48"},
		"id with a dot":           {[]string{"join", good, "--clusterid", "a.b"}, "not an RFC 1123 label"},
		"unknown driver":          {[]string{"join", good, "--clusterid", "c1", "--cable-driver", "x"}, `"--cable-driver" flag: use wireguard, libreswan or vxlan`},
		"the overlay's port":      {[]string{"join", good, "--clusterid", "c1", "--nattport", "4800"}, "other than 4800"},
		"port that is none":       {[]string{"join", good, "--clusterid", "c1", "--nattport", "70000"}, "nattport"},
		"GlobalCIDR that is none": {[]string{"join", good, "--clusterid", "c1", "--globalnet-cidr", "x"}, "--globalnet-cidr"},
		"GlobalCIDR and size":     {[]string{"join", good, "--clusterid", "c1", "--globalnet-cidr", "120.1.0.0/24", "--globalnet-cluster-size", "256"}, "none of the others can be"},
		"pull policy":             {[]string{"join", good, "--clusterid", "c1", "--image-pull-policy", "x"}, "use Always, IfNotPresent or Never"},
		"format of a dry run":     {[]string{"join", good, "--clusterid", "c1", "--dry-run", "-o", "table"}, "use yaml or json"},
		"format of a join":        {[]string{"join", good, "--clusterid", "c1", "-o", "yaml"}, "give --dry-run as well"},
		"id in capitals":          {[]string{"join", good, "--clusterid", "G1"}, "not an RFC 1123 label"},
		"proxy":                   {[]string{"join", good, "--clusterid", "c1", "--https-proxy", "proxy"}, `--https-proxy "proxy"`},
		"exceptions to no proxy":  {[]string{"join", good, "--clusterid", "c1", "--no-proxy", "x"}, "give --https-proxy or --http-proxy"},
		"toleration":              {[]string{"join", good, "--clusterid", "c1", "--toleration", "a:Never"}, `--toleration "a:Never"`},
		"node selector":           {[]string{"join", good, "--clusterid", "c1", "--node-selector", "pool"}, `--node-selector "pool"`},
		"pull secret":             {[]string{"join", good, "--clusterid", "c1", "--image-pull-secret", "A B"}, `--image-pull-secret "A B"`},
		"two parts alone":         {[]string{"join", good, "--clusterid", "c1", "--workloads-only", "--network-only"}, "none of the others can be"},
		"ConfigMap of CoreDNS":    {[]string{"join", good, "--clusterid", "c1", "--coredns-custom-configmap", "other/dns"}, "the agent may write in namespace kube-system only"},
		"register without a hash": {[]string{"register", "192.0.2.1:6443", "--token", "a"}, "required flag(s)"},
		"register without a name": {[]string{"register", "192.0.2.1:6443", "--token", "a", "--discovery-token-ca-cert-hash", "sha256:0", "--cluster-name", ""},
			"give the cluster a name"},
		"register in the clear": {[]string{"register", "http://192.0.2.1:6443", "--token", "a", "--discovery-token-ca-cert-hash", "sha256:0", "--cluster-name", "c1"},
			"reached by https"},
		"register by another hash": {[]string{"register", "192.0.2.1:6443", "--token", "abcdef.0123456789abcdef", "--discovery-token-ca-cert-hash", "md5:00", "--cluster-name", "c1"},
			"64 hexadecimal digits"},
		"mode":                         {[]string{"deploy-broker", "--mode", "karmada"}, "use submariner or mcs"},
		"component":                    {[]string{"deploy-broker", "--components", "x"}, "use service-discovery, connectivity or both"},
		"one component":                {[]string{"deploy-broker", "--components", "connectivity"}, "a single component is not supported"},
		"custom domain":                {[]string{"deploy-broker", "--custom-domains", "a_b"}, `"a_b" is no domain name`},
		"range that is none":           {[]string{"deploy-broker", "--globalnet", "--globalnet-cidr-range", "x"}, "--globalnet-cidr-range"},
		"range of loopback":            {[]string{"deploy-broker", "--globalnet", "--globalnet-cidr-range", "127.0.0.0/8"}, "hosts do not route"},
		"cluster size over half":       {[]string{"deploy-broker", "--globalnet", "--globalnet-cidr-range", "120.0.0.0/24", "--globalnet-cluster-size", "200"}, "more than half"},
		"fabric that is none":          {[]string{"deploy-broker", "--fabric-cidr", "x"}, "--fabric-cidr"},
		"small fabric":                 {[]string{"deploy-broker", "--fabric-cidr", "241.0.0.0/16"}, "no IPv4 /8"},
		"fabric in the global range":   {[]string{"deploy-broker", "--globalnet", "--fabric-cidr", "242.0.0.0/8"}, "--globalnet-cidr-range 242.0.0.0/8 overlaps --fabric-cidr 242.0.0.0/8"},
		"output format":                {[]string{"show", "all", "-o", "xml"}, "use table, wide, json or yaml"},
		"kubeconfig that is not there": {[]string{"show", "all", "--kubeconfig", missing}, "missing"},
		"id to remove":                 {[]string{"unjoin", "--clusterid", "A"}, "not an RFC 1123 label"},
		"place at register": {[]string{"register", "192.0.2.1:6443", "--token", "a", "--discovery-token-ca-cert-hash", "sha256:0",
			"--cluster-name", "c1", "--cluster-region", "eu"}, "at the hub: pelago clusters accept c1 --provider, --region, --zone"},
		"a flag of another way to make a hub": {[]string{"init", "--local", "--etcd-replicas", "3"}, "[etcd-replicas local] were all set"},
		"an image of processes":               {[]string{"init", "--local", "--image", "x"}, "[image local] were all set"},
		"a kubeconfig that stays":             {[]string{"hub", "restore", "x", "--local", "--output", "y"}, "[local output] were all set"},
		"settings of a hub in pods":           {[]string{"init", "--etcd-replicas", "3"}, "--etcd-replicas has no effect without --host-context"},
		"two ways to make a hub":              {[]string{"init", "--local", "--hub-runs-workloads-too"}, "none of the others can be"},
		"directory of no hub":                 {[]string{"init", "--dir", "x"}, "--dir has no effect without --local"},
		"a hub here and in pods":              {[]string{"deinit", "--local", "--host-context", "c1"}, "none of the others can be"},
		"a namespace of no host":              {[]string{"deinit", "--namespace", "x", "--kubeconfig", good}, "--namespace has no effect without --host-context"},
		"a backup of a directory":             {[]string{"hub", "backup", "x", "--dir", "x"}, "--dir has no effect without --local"},
		"role of a flow":                      {[]string{"nat", "list", "--role", "x"}, "use client or server"},
		"protocol of a flow":                  {[]string{"nat", "list", "--protocol", "sctp"}, "use tcp, udp or icmp"},
		"unknown verb":                        {[]string{"connect"}, "unknown command"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(tt.args...); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("pelago %s: error %v, want one with %q", strings.Join(tt.args, " "), err, tt.want)
			}
		})
	}
}

func TestOldAPIServerIsRefused(t *testing.T) {
	for version, want := range map[string]string{
		"v1.30.9": "the hub runs Kubernetes v1.30.9: at least 1.31 is needed", "v1.31.0": "", "v1.34.4-eks-abc": "", "x": "read the version",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"gitVersion":%q}`, version)
		}))
		c, err := openCluster(&rest.Config{Host: s.URL})
		if err == nil {
			err = manifests.Cluster(c.Member).RequireVersion("the hub", "1.31", "why")
		}
		s.Close()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", version, err, want)
		}
	}
}

// Every command has a short help and an example.
func TestEveryCommandHasHelp(t *testing.T) {
	queue := root("pelago").Commands()
	for len(queue) > 0 {
		cmd := queue[0]
		queue = append(queue[1:], cmd.Commands()...)
		if cmd.Short == "" || !cmd.HasSubCommands() && cmd.Example == "" {
			t.Errorf("%s has no help with an example", cmd.CommandPath())
		}
	}
}

// The steps in the help of pelago are in the order in which they are done: a member that joins
// before init gets no workloads.
func TestOrderOfSteps(t *testing.T) {
	help, at := root("pelago").Long, 0
	for i, verb := range []string{"init", "deploy-broker", "join", "clusters accept", "export service", "apply"} {
		step := strings.Index(help, fmt.Sprintf("  %d. pelago %s ", i+1, verb))
		if step < at {
			t.Errorf("step %d is not pelago %s:\n%s", i+1, verb, help)
		}
		at = step
	}
}

func TestPlugin(t *testing.T) {
	cmd := root("kubectl-pelago")
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"join", "--help"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "kubectl pelago join broker-info.subm | NAME [flags]") {
		t.Errorf("as a plugin its usage is\n%s", out.String())
	}
}

func TestKindAndName(t *testing.T) {
	for want, args := range map[string][]string{"deploy nginx": {"deploy", "nginx"}, "deploy a": {"deploy/a"}} {
		k, n, err := kindAndName(args)
		if err != nil || k+" "+n != want {
			t.Errorf("%q: %s %s, %v", args, k, n, err)
		}
	}
	for _, args := range [][]string{{"deploy"}, {"deploy/"}, {"/a"}, {"deploy", ""}} {
		if _, _, err := kindAndName(args); err == nil {
			t.Errorf("%q passes", args)
		}
	}
}
