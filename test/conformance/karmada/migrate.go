package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/pelago-net/pelago/test/hubset"
)

// karmadaPrograms are Karmada's control plane, of the module.
var karmadaPrograms = map[string]string{
	"karmada-controller-manager": "./cmd/controller-manager", "karmada-scheduler": "./cmd/scheduler", "karmada-webhook": "./cmd/webhook",
	"karmada-aggregated-apiserver": "./cmd/aggregated-apiserver", "karmadactl": "./cmd/karmadactl",
}

// Numbers of workloads: with the ConfigMap that the mounting Deployment depends on they are 200.
const (
	dividedCount, duplicatedCount, configCount = 60, 20, 118
	configCopies                               = (configCount + 1) * members
	runningPods                                = dividedCount*3 + duplicatedCount*members + members
	awaitLimit                                 = 10 * time.Minute
)

// migrate has Karmada's own control plane propagate 200 workloads, moves it to Pelago and back, and
// compares what members have.
func migrate(ctx context.Context, o options) (err error) {
	module, err := compile(ctx, o, karmadaPrograms)
	if err != nil {
		return err
	}
	s, err := hubset.Open(ctx, hubset.Options{Binaries: o.bin, Dir: o.out, Real: members, Workloads: true})
	if err != nil {
		return err
	}
	defer s.Close()
	m := &migration{Set: s, o: o, module: module, ports: map[string]int{}}
	return m.run(ctx)
}

type migration struct {
	*hubset.Set
	o       options
	module  string
	hub     client.Client
	ports   map[string]int // of Karmada's servers
	servers []*hubset.Process
}

func (m *migration) run(ctx context.Context) error {
	var err error
	if m.hub, err = client.New(m.Server.Config(), client.Options{}); err != nil {
		return err
	}
	if err := m.install(ctx); err != nil {
		return fmt.Errorf("install Karmada: %w", err)
	}
	controllers, err := m.startControllers()
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(m.o.out, "hub.kubeconfig")
	for _, member := range m.Members {
		cmd := command(ctx, m.o.out, filepath.Join(m.o.out, "karmadactl"), "join", member.Name, "--kubeconfig="+kubeconfig,
			"--cluster-kubeconfig="+filepath.Join(m.o.out, member.Name+".kubeconfig"))
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("join %s to Karmada: %w: %s", member.Name, err, text)
		}
	}
	if err := m.AwaitReady(ctx); err != nil {
		return err
	}
	if err := m.apply(ctx, workloads()); err != nil {
		return err
	}
	if err := m.await(ctx, "Karmada has propagated all", func(st state) bool { return st.count("Pod") == runningPods && st.count("ConfigMap") == configCopies }); err != nil {
		return err
	}
	before, err := m.state(ctx)
	if err != nil {
		return err
	}
	slog.Info("Karmada has propagated the workloads", "objects", len(before))

	for _, p := range controllers {
		if err := p.Stop(ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := m.Pelago(ctx, "migrate", "karmada", "--kubeconfig", kubeconfig, "--output-kubeconfig", filepath.Join(m.o.out, "pelago-hub.kubeconfig")); err != nil {
		return err
	}
	for _, p := range m.servers {
		p.Kill()
	}
	hub, err := m.StartHub("pelago-hub")
	if err != nil {
		return err
	}
	if err := m.edited(ctx, "divided-0", "v2"); err != nil {
		return fmt.Errorf("an edit under Pelago: %w; the hub's last words:\n%s", err, hub.Tail())
	}
	if err := m.adopted(ctx); err != nil {
		return fmt.Errorf("%w; the hub's last words:\n%s", err, hub.Tail())
	}
	slog.Info("Pelago has adopted all", "after", time.Since(began).Round(time.Second))
	if err := m.same(ctx, before, "divided-0"); err != nil {
		return fmt.Errorf("after moving to Pelago: %w", err)
	}

	if err := hub.Stop(ctx); err != nil {
		return err
	}
	if err := m.startServers(); err != nil {
		return err
	}
	if err := m.Pelago(ctx, "migrate", "karmada", "--back", "--kubeconfig", kubeconfig); err != nil {
		return err
	}
	if _, err := m.startControllers(); err != nil {
		return err
	}
	if err := m.edited(ctx, "divided-1", "v3"); err != nil {
		return fmt.Errorf("an edit after the way back: %w", err)
	}
	if err := m.same(ctx, before, "divided-0", "divided-1"); err != nil {
		return fmt.Errorf("after moving back: %w", err)
	}
	slog.Info("moved to Pelago and back: nothing restarted, nothing decided again", "objects", len(before))
	return nil
}

// install makes the hub's API server Karmada's: definitions, webhooks, the aggregated API.
func (m *migration) install(ctx context.Context) error {
	dirs, err := filepath.Glob(filepath.Join(m.module, "charts", "karmada", "_crds", "bases", "*"))
	if err != nil {
		return err
	}
	if _, err := envtest.InstallCRDs(m.Server.Config(), envtest.CRDInstallOptions{Paths: dirs}); err != nil {
		return err
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return err
	}
	dir := m.certificates()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	for _, name := range []string{"karmada-webhook", "karmada-aggregated-apiserver"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		m.ports[name] = l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			return err
		}
	}
	if err := m.apply(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: karmada-system}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: karmada-cluster}}\n"); err != nil {
		return err
	}
	if err := m.startServers(); err != nil {
		return err
	}
	hooks, err := os.ReadFile(filepath.Join(m.module, "artifacts", "deploy", "webhook-configuration.yaml"))
	if err != nil {
		return err
	}
	if err := m.apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: karmada-aggregated-apiserver, namespace: karmada-system}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1alpha1.cluster.karmada.io, labels: {app: karmada-aggregated-apiserver, apiserver: "true"}}
spec:
  {insecureSkipTLSVerify: true, group: cluster.karmada.io, version: v1alpha1, groupPriorityMinimum: 2000, versionPriority: 10,
  service: {name: karmada-aggregated-apiserver, namespace: karmada-system, port: %d}}
`, m.ports["karmada-aggregated-apiserver"])); err != nil {
		return err
	}
	if err := m.poll(ctx, "the aggregated API is served", func() (bool, error) {
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "ClusterList"}}
		return m.hub.List(ctx, list) == nil, nil
	}); err != nil {
		return err
	}
	return m.apply(ctx, strings.NewReplacer("karmada-webhook.karmada-system.svc:443", fmt.Sprintf("127.0.0.1:%d", m.ports["karmada-webhook"]),
		"{{caBundle}}", base64.StdEncoding.EncodeToString(certificate)).Replace(string(hooks)))
}

func (m *migration) certificates() string { return filepath.Join(m.o.out, "webhook-certificate") }

func (m *migration) startServers() error {
	kubeconfig := filepath.Join(m.o.out, "hub.kubeconfig")
	webhook, err := m.Start("karmada-webhook", filepath.Join(m.o.out, "karmada-webhook"), "--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", m.ports["karmada-webhook"]), "--cert-dir="+m.certificates(), "--metrics-bind-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0")
	if err != nil {
		return err
	}
	// etcd listens at a socket of its directory.
	aggregated, err := m.Start("karmada-aggregated-apiserver", "/bin/sh", "-c", fmt.Sprintf(`cd %q && exec %q --kubeconfig=%[3]q --authentication-kubeconfig=%[3]q --authorization-kubeconfig=%[3]q `+
		`--etcd-servers=unix://client:0 --bind-address=127.0.0.1 --secure-port=%[4]d --cert-dir=%[5]q`, m.Server.Directory(), filepath.Join(m.o.out, "karmada-aggregated-apiserver"), kubeconfig,
		m.ports["karmada-aggregated-apiserver"], filepath.Join(m.o.out, "aggregated-certificate")))
	m.servers = []*hubset.Process{webhook, aggregated}
	return err
}

func (m *migration) startControllers() ([]*hubset.Process, error) {
	var out []*hubset.Process
	for name, flags := range map[string][]string{"karmada-controller-manager": nil, "karmada-scheduler": {"--enable-scheduler-estimator=false"}} {
		p, err := m.Start(name, filepath.Join(m.o.out, name), append(flags, "--kubeconfig="+filepath.Join(m.o.out, "hub.kubeconfig"),
			// ends it on a busy machine
			"--metrics-bind-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0", "--leader-elect=false")...)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func (m *migration) apply(ctx context.Context, text string) error {
	for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096); ; {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if len(u.Object) == 0 {
			continue
		}
		if err := m.poll(ctx, "create "+u.GetKind()+" "+u.GetName(), func() (bool, error) {
			err := m.hub.Create(ctx, u.DeepCopy())
			return client.IgnoreAlreadyExists(err) == nil, err
		}); err != nil {
			return err
		}
	}
}

// poll waits until done; the last error is that of its last call.
func (m *migration) poll(ctx context.Context, what string, done func() (bool, error)) error {
	for end := time.Now().Add(awaitLimit); ; {
		ok, err := done()
		switch {
		case ok:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("wait until %s: %v", what, err)
		}
		time.Sleep(time.Second)
	}
}

// state is what must not change, by the name of what has it.
type state map[string]string

func (s state) count(kind string) (n int) {
	for key := range s {
		if strings.Contains(key, " "+kind+" ") {
			n++
		}
	}
	return n
}

var observed = []struct{ apiVersion, kind string }{{"apps/v1", "Deployment"}, {"apps/v1", "ReplicaSet"}, {"v1", "Pod"}, {"v1", "ConfigMap"}}

// state reads UIDs and specs in members, and the decisions at the hub.
func (m *migration) state(ctx context.Context) (state, error) {
	out := state{}
	read := func(where string, config *rest.Config, apiVersion, kind string, value func(*unstructured.Unstructured) string) error {
		c, err := client.New(config, client.Options{})
		if err != nil {
			return err
		}
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": apiVersion, "kind": kind + "List"}}
		if err := c.List(ctx, list, client.InNamespace("shop")); err != nil {
			return fmt.Errorf("list %s of %s: %w", kind, where, err)
		}
		for i := range list.Items {
			u := &list.Items[i]
			phase, _, _ := unstructured.NestedString(u.Object, "status", "phase")
			if u.GetName() != "kube-root-ca.crt" && (kind != "Pod" || phase == "Running") {
				out[where+" "+kind+" "+u.GetName()] = value(u)
			}
		}
		return nil
	}
	for _, member := range m.Members {
		for _, k := range observed {
			if err := read(member.Name, member.Config, k.apiVersion, k.kind, func(u *unstructured.Unstructured) string {
				// Not the generation: the API server counts annotations of Deployments into it.
				text, _ := json.Marshal([]any{u.Object["spec"], u.Object["data"]}) // what was decoded from JSON
				return fmt.Sprintf("%s %s", u.GetUID(), text)
			}); err != nil {
				return nil, err
			}
		}
	}
	return out, read("hub", m.Server.Config(), "work.karmada.io/v1alpha2", "ResourceBinding", func(u *unstructured.Unstructured) string {
		clusters, _, _ := unstructured.NestedSlice(u.Object, "spec", "clusters")
		// sorted: Karmada's scheduler writes the same clusters in another order when it starts
		var names []string
		for _, c := range clusters {
			names = append(names, fmt.Sprint(c))
		}
		slices.Sort(names)
		return fmt.Sprintf("%s %v", u.GetUID(), names)
	})
}

func (m *migration) await(ctx context.Context, what string, done func(state) bool) error {
	var last state
	return m.poll(ctx, what, func() (bool, error) {
		var err error
		if last, err = m.state(ctx); err != nil {
			return false, err
		}
		return done(last), fmt.Errorf("%d objects, %d pods that run", len(last), last.count("Pod"))
	})
}

// same compares the state, but for the Deployments that were edited.
func (m *migration) same(ctx context.Context, before state, edited ...string) error {
	after, err := m.state(ctx)
	if err != nil {
		return err
	}
	strip := func(s state) state {
		s = maps.Clone(s)
		maps.DeleteFunc(s, func(key, _ string) bool {
			for _, name := range edited {
				if !strings.HasPrefix(key, "hub ") && (strings.HasSuffix(key, " "+name) || strings.Contains(key, " "+name+"-")) {
					return true
				}
			}
			return false
		})
		return s
	}
	before, after = strip(before), strip(after)
	var changes []string
	for key, was := range before {
		if is := after[key]; is != was {
			changes = append(changes, fmt.Sprintf("%s: %q, before %q", key, is, was))
		}
	}
	for key := range after {
		if _, there := before[key]; !there {
			changes = append(changes, key+" is new")
		}
	}
	if slices.Sort(changes); len(changes) > 0 {
		return fmt.Errorf("%d of %d objects of members or decisions changed:\n%s", len(changes), len(before), strings.Join(changes, "\n"))
	}
	return nil
}

// edited changes the image of a template, and waits until all members that have it run the new one.
func (m *migration) edited(ctx context.Context, name, tag string) error {
	d := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment"}}
	d.SetNamespace("shop")
	d.SetName(name)
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"nginx:%s"}]`, tag)
	if err := m.poll(ctx, "edit "+name, func() (bool, error) {
		err := m.hub.Patch(ctx, d, client.RawPatch(types.JSONPatchType, []byte(patch)))
		return err == nil, err
	}); err != nil {
		return err
	}
	return m.poll(ctx, "the image of "+name+" is "+tag+" in all members", func() (bool, error) {
		return m.everyCopy(ctx, name, func(u *unstructured.Unstructured) bool {
			containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
			return len(containers) == 1 && containers[0].(map[string]any)["image"] == "nginx:"+tag
		})
	})
}

// adopted waits until every copy has the hub's id.
func (m *migration) adopted(ctx context.Context) error {
	return m.poll(ctx, "all objects in members are Pelago's", func() (bool, error) {
		return m.everyCopy(ctx, "", func(u *unstructured.Unstructured) bool {
			return u.GetAnnotations()["pelago.io/hub-id"] != ""
		})
	})
}

// everyCopy reports whether all Deployments, or those of a name, and ConfigMaps in members match;
// at least one exists.
func (m *migration) everyCopy(ctx context.Context, name string, match func(*unstructured.Unstructured) bool) (bool, error) {
	n := 0
	for _, member := range m.Members {
		c, err := client.New(member.Config, client.Options{})
		if err != nil {
			return false, err
		}
		for _, k := range []struct{ apiVersion, kind string }{observed[0], observed[3]} {
			list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": k.apiVersion, "kind": k.kind + "List"}}
			if err := c.List(ctx, list, client.InNamespace("shop")); err != nil {
				return false, err
			}
			for i := range list.Items {
				u := &list.Items[i]
				if u.GetName() == "kube-root-ca.crt" || name != "" && u.GetName() != name {
					continue
				}
				if n++; !match(u) {
					return false, fmt.Errorf("%s %s of %s is not", k.kind, u.GetName(), member.Name)
				}
			}
		}
	}
	return n > 0, nil
}
