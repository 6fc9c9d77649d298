package operator

import (
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestVetted: nothing of a kubeconfig that would be executed, or read from the operator's pod, gets
// past, and no error quotes it.
func TestVetted(t *testing.T) {
	const secret = "s3cr3t"
	of := func(change func(*clientcmdapi.Config, *clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
		t.Helper()
		c := clientcmdapi.NewConfig()
		cluster := &clientcmdapi.Cluster{Server: "https://192.0.2.1:6443", CertificateAuthorityData: []byte("CA")}
		user := &clientcmdapi.AuthInfo{Token: secret}
		c.Clusters["c"], c.AuthInfos["u"], c.Contexts["x"] = cluster, user, &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: "n"}
		c.AuthInfos["other"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{Command: "touch", APIVersion: "v1"}}
		c.CurrentContext = "x"
		change(c, cluster, user)
		text, err := clientcmd.Write(*c)
		must(t, err)
		return text
	}
	type (
		config  = clientcmdapi.Config
		cluster = clientcmdapi.Cluster
		user    = clientcmdapi.AuthInfo
	)
	out, err := vetted(of(func(*config, *cluster, *user) {}))
	must(t, err)
	if text := string(out); strings.Contains(text, "touch") || strings.Contains(text, "other") || !strings.Contains(text, secret) {
		t.Errorf("the current context alone: %s", text)
	}
	for want, text := range map[string][]byte{
		"it is no kubeconfig":    []byte("token: [" + secret),
		"has no current context": of(func(c *config, _ *cluster, _ *user) { c.CurrentContext = "" }),
		"lacks the cluster":      of(func(c *config, _ *cluster, _ *user) { delete(c.Clusters, "c") }),
		"has exec": of(func(_ *config, _ *cluster, u *user) {
			u.Exec = &clientcmdapi.ExecConfig{Command: secret, APIVersion: "v1"}
		}),
		"has auth-provider":          of(func(_ *config, _ *cluster, u *user) { u.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: secret} }),
		"refers to files, which":     of(func(_ *config, _ *cluster, u *user) { u.TokenFile = "/var/run/secrets/" + secret }),
		"refers to files":            of(func(_ *config, _ *cluster, u *user) { u.ClientKey = "/etc/" + secret }),
		"refers to files, ":          of(func(_ *config, _ *cluster, u *user) { u.ClientCertificate = "/etc/" + secret }),
		"refers to":                  of(func(_ *config, c *cluster, _ *user) { c.CertificateAuthority = "/etc/" + secret }),
		"impersonates":               of(func(_ *config, _ *cluster, u *user) { u.Impersonate = secret }),
		"insecure-skip-tls-verify":   of(func(_ *config, c *cluster, _ *user) { c.InsecureSkipTLSVerify, c.CertificateAuthorityData = true, nil }),
		"has no credential":          of(func(_ *config, _ *cluster, u *user) { u.Token = "" }),
		"its server must be a URL":   of(func(_ *config, c *cluster, _ *user) { c.Server = "https://admin:" + secret + "@192.0.2.1" }),
		"beginning with https://":    of(func(_ *config, c *cluster, _ *user) { c.Server = "http://" + secret }),
		"proxy-url must be a URL":    of(func(_ *config, c *cluster, _ *user) { c.ProxyURL = "http://u:" + secret + "@192.0.2.1" }),
		"at most 65536 are allowed":  []byte(strings.Repeat("#"+secret+"\n", 10000)),
		"its server must be":         of(func(_ *config, c *cluster, _ *user) { c.Server = "https://%" + secret }),
		"the user of its current":    of(func(c *config, _ *cluster, _ *user) { delete(c.AuthInfos, "u") }),
		"no current context: set cu": of(func(c *config, _ *cluster, _ *user) { c.CurrentContext = "other" }),
	} {
		_, err := vetted(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error quotes the kubeconfig: %v", err)
		}
	}
}
