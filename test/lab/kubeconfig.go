package lab

import (
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// access is how one user reaches one cluster.
type access struct {
	cluster string
	server  string
	ca      []byte
	user    string
	client  keyPair
}

// kubeconfig builds one file with a context per access; context, cluster and
// user are named after the cluster, the user's name being "<cluster>-<user>".
// The first context is the current one.
func kubeconfig(all ...access) *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	for _, a := range all {
		user := a.cluster + "-" + a.user
		config.Clusters[a.cluster] = &clientcmdapi.Cluster{Server: a.server, CertificateAuthorityData: a.ca}
		config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: a.client.cert, ClientKeyData: a.client.key}
		config.Contexts[a.cluster] = &clientcmdapi.Context{Cluster: a.cluster, AuthInfo: user}
	}
	if len(all) > 0 {
		config.CurrentContext = all[0].cluster
	}
	return config
}

// writeKubeconfig replaces file by a kubeconfig for all.
func writeKubeconfig(file string, all ...access) error {
	data, err := clientcmd.Write(*kubeconfig(all...))
	if err != nil {
		return fmt.Errorf("encode kubeconfig %s: %w", file, err)
	}
	if err := writeFile(file, data, 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// mergeKubeconfigs joins files, which were written by writeKubeconfig, into one.
// The current context is that of the first file.
func mergeKubeconfigs(files []string) (*clientcmdapi.Config, error) {
	merged := clientcmdapi.NewConfig()
	for _, file := range slices.Backward(files) {
		config, err := clientcmd.LoadFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("merge kubeconfigs: %w", err)
		}
		for name, cluster := range config.Clusters {
			cluster.LocationOfOrigin = ""
			merged.Clusters[name] = cluster
		}
		for name, user := range config.AuthInfos {
			user.LocationOfOrigin = ""
			merged.AuthInfos[name] = user
		}
		for name, context := range config.Contexts {
			context.LocationOfOrigin = ""
			merged.Contexts[name] = context
		}
		merged.CurrentContext = config.CurrentContext
	}
	return merged, nil
}

// Kubeconfig returns the path of the file with all contexts (g1, g2, …, hub).
// It works from the host and from every namespace of the lab.
func (l *Lab) Kubeconfig() string { return filepath.Join(l.dir, "kubeconfig") }

// ClusterKubeconfig returns the path of the file with one cluster's context.
func (l *Lab) ClusterKubeconfig(cluster string) string {
	return filepath.Join(l.clusterDir(cluster), "admin.kubeconfig")
}

// RESTConfig returns an administrator's client configuration of a cluster or
// the hub, without client-side rate limits.
func (l *Lab) RESTConfig(cluster string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", l.ClusterKubeconfig(cluster))
	if err != nil {
		return nil, fmt.Errorf("load the kubeconfig of %s: %w", cluster, err)
	}
	config.QPS = -1
	return config, nil
}

// Clientset returns an administrator's client of a cluster or the hub.
func (l *Lab) Clientset(cluster string) (kubernetes.Interface, error) {
	config, err := l.RESTConfig(cluster)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}
