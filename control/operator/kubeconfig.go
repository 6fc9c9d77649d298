package operator

import (
	"errors"
	"fmt"
	"net/url"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// maxKubeconfig bounds a kubeconfig, bytes: whoever can write a Secret decides what the operator
// parses.
const maxKubeconfig = 64 << 10

// vetted returns the kubeconfig of a Secret, reduced to its current context. Whoever can write the
// Secret controls its content, so anything that would run a program or read a file in the
// operator's pod is refused. No error quotes the content, since it has credentials.
func vetted(text []byte) ([]byte, error) {
	if len(text) > maxKubeconfig {
		return nil, fmt.Errorf("the kubeconfig has %d bytes: at most %d are allowed", len(text), maxKubeconfig)
	}
	in, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("it is no kubeconfig: write one as `clusterctl get kubeconfig` prints")
	}
	current := in.Contexts[in.CurrentContext]
	if current == nil {
		return nil, errors.New("the kubeconfig has no current context: set current-context")
	}
	cluster, user := in.Clusters[current.Cluster], in.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil {
		return nil, errors.New("the kubeconfig lacks the cluster or the user of its current context")
	}
	for _, c := range []struct {
		refused bool
		message string
	}{
		{user.Exec != nil, "its user has exec, which would run a program of the operator's pod: embed a certificate or a token"},
		{user.AuthProvider != nil, "its user has auth-provider: embed a certificate or a token"},
		{user.ClientCertificate != "" || user.ClientKey != "" || user.TokenFile != "" || cluster.CertificateAuthority != "",
			"it refers to files, which would be those of the operator's pod: embed them as …-data, and a token as token"},
		{user.Impersonate != "" || user.ImpersonateUID != "" || len(user.ImpersonateGroups)+len(user.ImpersonateUserExtra) > 0,
			"its user impersonates another one: use an account of its own"},
		{cluster.InsecureSkipTLSVerify, "the certificate of the cluster is always verified: remove insecure-skip-tls-verify, and give certificate-authority-data"},
		{user.Token == "" && len(user.ClientKeyData) == 0 && user.Password == "", "its user has no credential: embed a certificate or a token"},
	} {
		if c.refused {
			return nil, errors.New("the kubeconfig is refused: " + c.message)
		}
	}
	for _, field := range []struct{ name, value string }{{"server", cluster.Server}, {"proxy-url", cluster.ProxyURL}} {
		u, err := url.Parse(field.value)
		if err != nil || u.User != nil || field.name == "server" && (u.Scheme != "https" || u.Host == "") {
			return nil, fmt.Errorf("the kubeconfig is refused: its %s must be a URL without user, that of the server beginning with https://", field.name)
		}
	}
	const name = "cluster"
	out := clientcmdapi.NewConfig()
	out.CurrentContext = name
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	out.Clusters[name] = &clientcmdapi.Cluster{Server: cluster.Server, CertificateAuthorityData: cluster.CertificateAuthorityData,
		TLSServerName: cluster.TLSServerName, ProxyURL: cluster.ProxyURL}
	out.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: user.ClientCertificateData, ClientKeyData: user.ClientKeyData,
		Token: user.Token, Username: user.Username, Password: user.Password}
	content, err := clientcmd.Write(*out)
	if err != nil {
		return nil, errors.New("write the kubeconfig again") // the cause could quote it
	}
	return content, nil
}
