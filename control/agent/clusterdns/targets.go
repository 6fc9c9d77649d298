package clusterdns

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Namespace is the one of CoreDNS' configuration.
const Namespace = "kube-system"

// CustomName is the ConfigMap of server blocks that the CoreDNS of AKS and k3s imports.
const CustomName = "coredns-custom"

// customImport is in a Corefile that imports the keys *.server of a ConfigMap as server blocks.
const customImport = "*.server"

// Target is the key of a ConfigMap that holds configuration of CoreDNS, or of kube-dns.
type Target struct {
	ConfigMap types.NamespacedName
	Key       string
	// Optional: the key is created if it is missing, and removed when its content becomes empty.
	Optional bool
	// stubDomains: the key is not configuration of CoreDNS but stubDomains of kube-dns.
	stubDomains bool
}

// TargetOf is the key for a ConfigMap of server blocks that the Corefile imports; if custom is
// empty, the Corefile itself, in the ConfigMap that kubeadm and most distributions have.
func TargetOf(custom string) Target {
	if custom == "" {
		return corefileOf("coredns")
	}
	return Target{ConfigMap: types.NamespacedName{Namespace: Namespace, Name: custom}, Key: "pelago.server", Optional: true}
}

func corefileOf(name string) Target {
	return Target{ConfigMap: types.NamespacedName{Namespace: Namespace, Name: name}, Key: "Corefile"}
}

// Targets are all that a cluster may have: that of TargetOf, and the Corefiles of RKE2's chart and
// of NodeLocal DNSCache, under the names of its manifest and of Kubespray. NodeLocal DNSCache sends
// queries outside cluster.local to upstream name servers, so it needs the block as well as the
// CoreDNS behind it. The last one is kube-dns, which is changed only where no CoreDNS is.
func Targets(custom string) []Target {
	return []Target{TargetOf(custom), corefileOf("rke2-coredns-rke2-coredns"), corefileOf("node-local-dns"), corefileOf("nodelocaldns"), kubeDNS}
}

// ImportsServers reports whether a Corefile imports server blocks from another ConfigMap.
func ImportsServers(corefile string) bool { return strings.Contains(corefile, customImport) }

// set replaces the content of the key.
func (t Target) set(cm *corev1.ConfigMap, text string) {
	if text == "" && t.Optional {
		delete(cm.Data, t.Key)
		return
	}
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[t.Key] = text
}

// apply changes the ConfigMap to forward, or not to if f is nil, and reports whether that is a
// change.
func (t Target) apply(cm *corev1.ConfigMap, f *Forward) (changed bool, err error) {
	if t.stubDomains {
		if changed, err = t.applyStub(cm, f); err != nil {
			return false, fmt.Errorf("ConfigMap %s: %w", t.ConfigMap, err)
		}
		return changed, nil
	}
	text, ok := cm.Data[t.Key]
	if !ok && !t.Optional {
		return false, fmt.Errorf("read ConfigMap %s: it has no key %s; this cluster's DNS is configured elsewhere", t.ConfigMap, t.Key)
	}
	want := ""
	if f == nil {
		want, err = Remove(text)
	} else {
		want, err = f.Patch(text)
	}
	if err != nil {
		return false, fmt.Errorf("ConfigMap %s: %w", t.ConfigMap, err)
	}
	if want == text {
		return false, nil
	}
	t.set(cm, want)
	return true, nil
}

// Clean removes the block from a ConfigMap, and reports whether there was one.
func (t Target) Clean(cm *corev1.ConfigMap) (changed bool, err error) {
	if cm.Data[t.Key] == "" && !t.stubDomains {
		return false, nil
	}
	return t.apply(cm, nil)
}

// Forwards returns why a ConfigMap does not forward as f has it, or nil.
func (t Target) Forwards(cm *corev1.ConfigMap, f Forward) error {
	changed, err := t.apply(cm.DeepCopy(), &f)
	if changed {
		return fmt.Errorf("ConfigMap %s has no or another block: see the events of pelago-agent", t.ConfigMap)
	}
	return err
}
