package operator

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// refusal is an error about an object, with the reason of the condition Degraded.
type refusal struct{ reason, message string }

func (r refusal) Error() string { return r.message }

// refuse is the error about a field of the spec.
func refuse(name, message string) refusal { return refused("spec."+name, message) }

// refused is the error about the field of a path, which is one of the spec or an annotation.
func refused(path, message string) refusal {
	name, inSpec := strings.CutPrefix(path, "spec.")
	if !inSpec {
		return refusal{"InvalidAnnotation", message}
	}
	if !strings.HasPrefix(message, path) {
		message = path + ": " + message
	}
	return refusal{"Invalid" + strings.ToUpper(name[:1]) + name[1:], message}
}

// located is an error in the words of an object: of one about a field the refusal that names what
// the object has in its place. The text of a wrapped error stays whole.
func located(locate func(*spec.Error) *spec.Error, err error) error {
	var about *spec.Error
	if !errors.As(err, &about) {
		return err
	}
	e := locate(&spec.Error{Path: about.Path, Text: err.Error()})
	return refused(e.Path, e.Text)
}

// membership is what a Submariner requests.
type membership struct {
	spec.Object
	info broker.Info
	// grants are what the hub has to grant.
	grants []string
}

func (m membership) locate(err error) error { return located(m.Locate, err) }

// digest identifies what the hub is asked for.
func (m membership) digest() (string, error) {
	text, err := m.info.Encode()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(string(text) + strings.Join(m.grants, "\n")))
	return hex.EncodeToString(sum[:8]), nil
}

// membershipOf translates a Submariner. secrets are the Secrets that it names; own is the
// operator's image.
func membershipOf(s *v1alpha1.Submariner, secrets map[string]map[string][]byte, own string) (m membership, err error) {
	if s.Spec.BrokerK8sInsecure {
		return m, refuse("brokerK8sInsecure", "the certificate of the hub is always verified: remove the field, and give its CA in brokerK8sCA")
	}
	if m.info, err = brokerInfo(s.Spec, secrets); err != nil {
		return m, err
	}
	image, err := image(s.Spec, own)
	if err != nil {
		return m, err
	}
	o, errs := spec.FromSubmariner(s.Spec, s.Annotations)
	o.SetImage(image)
	m.Object, m.grants = o, spec.Grants(s.Spec, s.Annotations)
	return m, m.locate(spec.Join(errs))
}

// image is what the components run.
func image(spec v1alpha1.SubmarinerSpec, own string) (string, error) {
	for name, image := range spec.ImageOverrides {
		if name != "pelago" || len(spec.ImageOverrides) > 1 {
			return "", refuse("imageOverrides", fmt.Sprintf("%q: all components are one image: use the key pelago alone", name))
		}
		return image, nil
	}
	repository, tag, _ := strings.Cut(own[strings.LastIndex(own, "/")+1:], ":")
	repository = own[:strings.LastIndex(own, "/")+1] + repository
	switch {
	case spec.Repository == "" && spec.Version == "":
		return own, nil
	case strings.Contains(own, "@") && (spec.Repository == "" || spec.Version == ""):
		return "", refuse("version", fmt.Sprintf("the operator's image %s is named by its digest: give both repository and version", own))
	}
	if spec.Repository != "" {
		repository = strings.TrimSuffix(spec.Repository, "/") + "/pelago"
	}
	if spec.Version != "" {
		tag = spec.Version
	}
	return repository + ":" + tag, nil
}

// brokerInfo collects what broker-info.subm has.
func brokerInfo(spec v1alpha1.SubmarinerSpec, secrets map[string]map[string][]byte) (broker.Info, error) {
	named := secrets[spec.BrokerK8sSecret]
	if file := named[v1alpha1.BrokerInfoKey]; len(file) > 0 {
		info, err := broker.DecodeInfo(file)
		if err != nil {
			return info, refuse("brokerK8sSecret", fmt.Sprintf("key %s: %v", v1alpha1.BrokerInfoKey, err))
		}
		return info, nil
	}
	token, ca, psk := named[corev1.ServiceAccountTokenKey], named[corev1.ServiceAccountRootCAKey], secrets[spec.CeIPSecPSKSecret]["psk"]
	if len(token) == 0 {
		token = []byte(spec.BrokerK8sApiServerToken)
	}
	namespace := spec.BrokerK8sRemoteNamespace
	if namespace == "" {
		namespace = manifests.BrokerNamespace
	}
	for field, to := range map[string]*[]byte{"brokerK8sCA": &ca, "ceIPSecPSK": &psk} {
		text := map[string]string{"brokerK8sCA": spec.BrokerK8sCA, "ceIPSecPSK": spec.CeIPSecPSK}[field]
		if len(*to) > 0 || text == "" {
			continue
		}
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return broker.Info{}, refuse(field, "it is no base64: "+err.Error())
		}
		*to = decoded
	}
	for _, field := range []struct {
		name, remedy string
		missing      bool
	}{
		{"brokerK8sApiServer", "give the URL of the hub, or a brokerK8sSecret with the key " + v1alpha1.BrokerInfoKey, spec.BrokerK8sApiServer == ""},
		{"brokerK8sApiServerToken", "give it, or a brokerK8sSecret that has the key token", len(token) == 0},
		{"brokerK8sCA", "give it, or a brokerK8sSecret that has the key ca.crt", len(ca) == 0},
		{"ceIPSecPSK", "give it, or a ceIPSecPSKSecret that has the key psk", len(psk) == 0},
	} {
		if field.missing {
			return broker.Info{}, refuse(field.name, "it is missing: "+field.remedy)
		}
	}
	url := spec.BrokerK8sApiServer
	if !strings.Contains(url, "://") {
		url = "https://" + url
	}
	return broker.Info{BrokerURL: url, IPSecPSK: &corev1.Secret{Data: map[string][]byte{"psk": psk}}, ClientToken: &corev1.Secret{Data: map[string][]byte{
		corev1.ServiceAccountTokenKey: token, corev1.ServiceAccountRootCAKey: ca, corev1.ServiceAccountNamespaceKey: []byte(namespace)}}}, nil
}

// secretsOf are the Secrets that a Submariner names.
func secretsOf(namespace string, s *v1alpha1.Submariner) (out []types.NamespacedName) {
	for _, name := range []string{s.Spec.BrokerK8sSecret, s.Spec.CeIPSecPSKSecret} {
		if name != "" {
			out = append(out, types.NamespacedName{Namespace: namespace, Name: name})
		}
	}
	return out
}
