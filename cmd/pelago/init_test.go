package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
)

// An API server on which workload controllers run, and Karmada did.
func TestInitWhereWorkloadsRun(t *testing.T) {
	t.Parallel()
	cfg := apiserver.Start(t, apiserver.Controllers("deployment-controller", "serviceaccount-controller",
		"serviceaccount-token-controller"))
	c := apiserver.Connect(t, cfg, apiextensionsv1.AddToScheme)
	s := clusterset{dir: t.TempDir(), hub: cfg}
	s.kubeconfig = filepath.Join(s.dir, "kubeconfig")
	text, err := apiserver.Kubeconfig(cfg)
	must(t, err)
	must(t, os.WriteFile(s.kubeconfig, text, 0o600))
	init := []string{"init", "--output", filepath.Join(s.dir, "pelago-hub.kubeconfig")}

	api := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1alpha1.cluster.karmada.io"},
		"spec": map[string]any{"group": "cluster.karmada.io", "version": "v1alpha1", "groupPriorityMinimum": int64(2000),
			"versionPriority":       int64(10),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "karmada-system",
				"name": "karmada-aggregated-apiserver"}}}}
	c.Make(api)
	s.fails(t, "belongs to Karmada: APIService v1alpha1.cluster.karmada.io leads to its service "+
		"karmada-system/karmada-aggregated-apiserver", init...)
	c.Remove(api)
	renewed := func(age time.Duration) *metav1.MicroTime { return ptr.To(metav1.NewMicroTime(time.Now().Add(-age))) }
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-system", Name: "karmada-scheduler"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("x"), RenewTime: renewed(0)}}
	c.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "karmada-system"}}, lease)
	s.fails(t, "this API server is used by Karmada: Lease karmada-system/karmada-scheduler", init...)
	lease.Spec.RenewTime = renewed(time.Hour)
	must(t, c.Update(t.Context(), lease))

	s.fails(t, "runs workloads itself", init...)
	crds, deployments := &apiextensionsv1.CustomResourceDefinitionList{}, &appsv1.DeploymentList{}
	must(t, c.List(t.Context(), crds))
	must(t, c.List(t.Context(), deployments))
	if len(crds.Items)+len(deployments.Items) > 0 {
		t.Errorf("init was refused and left %d definitions and %d Deployments", len(crds.Items), len(deployments.Items))
	}
	s.fails(t, "--image-pull-policy", append(init, "--image-pull-policy", "Sometimes")...)

	init = append(init, "--hub-runs-workloads-too")
	if out := s.must(t, init...); !strings.Contains(out, ".kubeconfig --hub-runs-workloads-too") {
		t.Errorf("without nodes pelago-hub is a process with the flag for such a hub:\n%s", out)
	} else if !strings.Contains(out, "get workloads once they join again") {
		t.Errorf("init does not name what members of before need:\n%s", out)
	}
	c.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	if out := s.must(t, append(init, "--image", "registry.example/pelago:1", "--node-selector", "pool=infra")...); !strings.Contains(out,
		"rollout status deployment/pelago-hub") {
		t.Errorf("with nodes pelago-hub is a Deployment:\n%s", out)
	}
	hub := &appsv1.Deployment{}
	must(t, c.Get(t.Context(), client.ObjectKey{Namespace: manifests.SystemNamespace, Name: manifests.HubName}, hub))
	if container := hub.Spec.Template.Spec.Containers[0]; container.Image != "registry.example/pelago:1" ||
		!slices.Contains(container.Args, "--hub-runs-workloads-too") {
		t.Errorf("pelago-hub runs %s with %v", container.Image, container.Args)
	}
	if nodes := hub.Spec.Template.Spec.NodeSelector; nodes["pool"] != "infra" {
		t.Errorf("pelago-hub runs on nodes %v", nodes)
	}
}

func TestInitUnreachable(t *testing.T) {
	s := clusterset{dir: t.TempDir()}
	s.kubeconfig = filepath.Join(s.dir, "kubeconfig")
	text, err := apiserver.Kubeconfig(&rest.Config{Host: "https://127.0.0.1:1"})
	must(t, err)
	must(t, os.WriteFile(s.kubeconfig, text, 0o600))
	s.fails(t, "get the version of the hub at https://127.0.0.1:1", "init")
	s.kubeconfig = filepath.Join(s.dir, "none")
	s.fails(t, "no such file", "init")
}
