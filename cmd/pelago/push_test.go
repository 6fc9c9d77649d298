package main

import (
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/test/apiserver"
)

// testUnverified joins m1 with kubeconfigs that skip the check of the certificate: the hub never
// does.
func (c clusterset) testUnverified(t *testing.T, hub *apiserver.Cluster) {
	join := func(server string) []string {
		kc := clientcmdapi.NewConfig()
		kc.Clusters["x"] = &clientcmdapi.Cluster{Server: server, InsecureSkipTLSVerify: true}
		kc.AuthInfos["x"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.member.CertData, ClientKeyData: c.member.KeyData}
		kc.Contexts["lab"] = &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}
		kc.CurrentContext = "lab"
		file := filepath.Join(t.TempDir(), "kubeconfig")
		must(t, clientcmd.WriteToFile(*kc, file))
		return []string{"join", "m1", "--context", "hub", "--cluster-kubeconfig", file}
	}
	state := func() (cluster clusterv1alpha1.Cluster, secret corev1.Secret) {
		must(t, hub.Get(t.Context(), client.ObjectKey{Name: "m1"}, &cluster))
		must(t, hub.Get(t.Context(), client.ObjectKey{Namespace: "karmada-cluster", Name: "m1"}, &secret))
		return cluster, secret
	}
	cluster, _ := state()
	cluster.Spec.InsecureSkipTLSVerification = true // as older versions have registered it
	must(t, hub.Update(t.Context(), &cluster))
	c.must(t, join(c.member.Host)...)
	cluster, secret := state()
	if cluster.Spec.InsecureSkipTLSVerification || cluster.Spec.APIEndpoint != c.member.Host {
		t.Errorf("the Cluster has %+v", cluster.Spec)
	}
	checkPushRights(t, c.member.Host, &secret)

	to, err := url.Parse(c.member.Host)
	must(t, err)
	transport, err := rest.TransportFor(c.member)
	must(t, err)
	foreign := httptest.NewTLSServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	defer foreign.Close()
	c.fails(t, `context "lab" of --cluster-kubeconfig`, join(foreign.URL)...)
	c.fails(t, "certificate-authority-data", join(foreign.URL)...)
	if after, _ := state(); after.Spec.APIEndpoint != c.member.Host {
		t.Errorf("the refused join has changed the Cluster: %+v", after.Spec)
	}
}
