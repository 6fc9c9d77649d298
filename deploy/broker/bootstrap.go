package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
)

const (
	// BootstrapGroup is that of the tokens by which clusters register; deploy/hub/bootstrap.yaml
	// has its rights.
	BootstrapGroup = "system:bootstrappers:pelago"
	// signatureTimeout bounds the wait until the hub has signed its cluster-info for a token.
	signatureTimeout = 10 * time.Second
	// registrationLife is the validity of the credential that a bootstrap token is exchanged for:
	// the least that the API server issues.
	registrationLife = 10 * time.Minute
	pinPrefix        = "sha256:"
	// clusterInfoRole lets everybody read cluster-info.
	clusterInfoRole = "pelago-cluster-info"
)

// BootstrapToken is a bootstrap token as it is listed, without its secret.
type BootstrapToken struct {
	ID          string   `json:"id"`
	Expires     string   `json:"expires,omitempty"` // RFC 3339; empty: never
	Usages      []string `json:"usages"`
	Groups      []string `json:"groups"`
	Description string   `json:"description,omitempty"`
}

// CreateBootstrapToken creates a bootstrap token at the hub, with the given text or a random one,
// and returns it. A life of 0 has no end.
func CreateBootstrapToken(ctx context.Context, hub client.Client, text, description string, life time.Duration) (string, error) {
	if life < 0 {
		return "", fmt.Errorf("--ttl %s: use a positive time, or 0 for a token that does not expire", life)
	}
	if text == "" {
		var err error
		if text, err = bootstraputil.GenerateBootstrapToken(); err != nil {
			return "", fmt.Errorf("generate a token: %w", err)
		}
	}
	id, secret, err := splitToken(text)
	if err != nil {
		return "", err
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstraputil.BootstrapTokenSecretName(id)},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey: id, bootstrapapi.BootstrapTokenSecretKey: secret,
			bootstrapapi.BootstrapTokenUsageAuthentication: "true", bootstrapapi.BootstrapTokenUsageSigningKey: "true",
			bootstrapapi.BootstrapTokenExtraGroupsKey: BootstrapGroup,
		},
	}
	if description != "" {
		s.StringData[bootstrapapi.BootstrapTokenDescriptionKey] = description
	}
	if life > 0 {
		s.StringData[bootstrapapi.BootstrapTokenExpirationKey] = time.Now().Add(life).UTC().Format(time.RFC3339)
	}
	if err := hub.Create(ctx, s); apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("token %s exists: delete it first with `pelago token delete %s`", id, id)
	} else if err != nil {
		return "", fmt.Errorf("create Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return text, nil
}

func splitToken(text string) (id, secret string, err error) {
	if !bootstraputil.IsValidBootstrapToken(text) {
		return "", "", errors.New("the token does not have the form [a-z0-9]{6}.[a-z0-9]{16}, as `pelago token create` prints it")
	}
	id, secret, _ = strings.Cut(text, ".")
	return id, secret, nil
}

// BootstrapTokens lists the bootstrap tokens of the hub by id, also those that register no cluster.
func BootstrapTokens(ctx context.Context, hub client.Client) ([]BootstrapToken, error) {
	var list corev1.SecretList
	if err := hub.List(ctx, &list, client.InNamespace(metav1.NamespaceSystem), client.MatchingFields{"type": string(bootstrapapi.SecretTypeBootstrapToken)}); err != nil {
		return nil, fmt.Errorf("list the Secrets of namespace %s: %w", metav1.NamespaceSystem, err)
	}
	out := []BootstrapToken{}
	for _, s := range list.Items {
		t := BootstrapToken{ID: string(s.Data[bootstrapapi.BootstrapTokenIDKey]), Expires: string(s.Data[bootstrapapi.BootstrapTokenExpirationKey]),
			Description: string(s.Data[bootstrapapi.BootstrapTokenDescriptionKey]), Usages: []string{}, Groups: []string{}}
		for key, value := range s.Data {
			if usage, ok := strings.CutPrefix(key, bootstrapapi.BootstrapTokenUsagePrefix); ok && string(value) == "true" {
				t.Usages = append(t.Usages, usage)
			}
		}
		slices.Sort(t.Usages)
		if groups := string(s.Data[bootstrapapi.BootstrapTokenExtraGroupsKey]); groups != "" {
			t.Groups = strings.Split(groups, ",")
		}
		out = append(out, t)
	}
	return out, nil
}

// DeleteBootstrapToken deletes a bootstrap token of the hub by its id, or by all of it.
func DeleteBootstrapToken(ctx context.Context, hub client.Client, id string) error {
	id, _, _ = strings.Cut(id, ".")
	err := hub.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstraputil.BootstrapTokenSecretName(id)}})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no token %q: see `pelago token list`", id)
	}
	if err != nil {
		return fmt.Errorf("delete token %s: %w", id, err)
	}
	return nil
}

// PublishClusterInfo makes what a cluster without credentials reads of the hub: its URL and CA,
// which the controller bootstrap-signer signs for each token. What kubeadm has made stays.
func PublishClusterInfo(ctx context.Context, hub client.Client, server string, ca []byte) error {
	kc := clientcmdapi.NewConfig()
	kc.Clusters[""] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	text, err := clientcmd.Write(*kc)
	if err != nil {
		return fmt.Errorf("write the kubeconfig of %s: %w", bootstrapapi.ConfigMapClusterInfo, err)
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: name}
	}
	for _, obj := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: meta(bootstrapapi.ConfigMapClusterInfo), Data: map[string]string{bootstrapapi.KubeConfigKey: string(text)}},
		&rbacv1.Role{ObjectMeta: meta(clusterInfoRole), Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"},
			ResourceNames: []string{bootstrapapi.ConfigMapClusterInfo}, Verbs: []string{"get"}}}},
		&rbacv1.RoleBinding{ObjectMeta: meta(clusterInfoRole), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: clusterInfoRole},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "system:anonymous"}}},
	} {
		if err := hub.Create(ctx, obj, client.FieldOwner(manifests.Manager)); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("create %s %s/%s: %w", manifests.Kind(hub, obj), obj.GetNamespace(), obj.GetName(), err)
		}
	}
	return nil
}

// Remove removes the broker from a hub without members, with the tokens by which clusters register
// and, unless kubeadm has made it, cluster-info.
func Remove(ctx context.Context, hub client.Client, progress manifests.Progress) error {
	tokens, err := BootstrapTokens(ctx, hub)
	if err != nil {
		return err
	}
	for _, t := range tokens {
		if !slices.Contains(t.Groups, BootstrapGroup) {
			continue
		}
		if err := DeleteBootstrapToken(ctx, hub, t.ID); err != nil {
			return err
		}
	}
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: bootstrapapi.ConfigMapClusterInfo}}
	if err := hub.Get(ctx, client.ObjectKeyFromObject(info), info); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get ConfigMap %s/%s: %w", info.Namespace, info.Name, err)
	}
	role := metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: clusterInfoRole}
	objs := []client.Object{&rbacv1.RoleBinding{ObjectMeta: role}, &rbacv1.Role{ObjectMeta: role}}
	if manifests.Wrote(info) {
		objs = append(objs, info)
	}
	for _, obj := range objs {
		if err := hub.Delete(ctx, obj); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %s %s/%s: %w", manifests.Kind(hub, obj), obj.GetNamespace(), obj.GetName(), err)
		}
	}
	return manifests.RemoveHub(ctx, hub, progress)
}

// Pins are the hashes of the public keys (RFC 7469) of CA certificates, PEM, in the form that
// kubeadm prints.
func Pins(ca []byte) ([]string, error) {
	certs, err := certutil.ParseCertsPEM(ca)
	if err != nil {
		return nil, fmt.Errorf("read the hub's CA: %w", err)
	}
	var pins []string
	for _, c := range certs {
		sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
		pins = append(pins, pinPrefix+hex.EncodeToString(sum[:]))
	}
	return pins, nil
}

// DiscoverHub returns the PEM-encoded CA of the hub at server, after verifying that cluster-info is
// signed with the token and that the CA's hash is pinned. Until then nothing from the server is
// trusted, and the token is not sent to it.
func DiscoverHub(ctx context.Context, server, token string, pins []string) ([]byte, error) {
	id, secret, err := splitToken(token)
	if err != nil {
		return nil, err
	}
	for _, p := range pins {
		if hash, err := hex.DecodeString(strings.TrimPrefix(p, pinPrefix)); err != nil || len(hash) != sha256.Size || !strings.HasPrefix(p, pinPrefix) {
			return nil, fmt.Errorf("--discovery-token-ca-cert-hash %q: it is %s and 64 hexadecimal digits", p, pinPrefix)
		}
	}
	hub, err := kubernetes.NewForConfig(&rest.Config{Host: server, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, Timeout: signatureTimeout})
	if err != nil {
		return nil, fmt.Errorf("reach the hub at %s: %w", server, err)
	}
	key := client.ObjectKey{Namespace: metav1.NamespacePublic, Name: bootstrapapi.ConfigMapClusterInfo}
	var cm *corev1.ConfigMap
	var signature string
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, signatureTimeout, true, func(context.Context) (bool, error) {
		var err error // and not the limited context: the last request completes
		if cm, err = hub.CoreV1().ConfigMaps(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{}); err != nil {
			return false, fmt.Errorf("get ConfigMap %s of the hub at %s: %w: run `pelago token create` there, and have its API server accept "+
				"anonymous requests", key, server, err)
		}
		signature = cm.Data[bootstrapapi.JWSSignatureKeyPrefix+id]
		return signature != "", nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return nil, fmt.Errorf("the hub has not signed its %s for token %s: the token has expired, was deleted or is not for signing, or the "+
			"hub does not run the controller bootstrap-signer: make another with `pelago token create`", bootstrapapi.ConfigMapClusterInfo, id)
	}
	if err != nil {
		return nil, err
	}
	text := cm.Data[bootstrapapi.KubeConfigKey]
	if !jws.DetachedTokenIsValid(signature, text, id, secret) {
		return nil, fmt.Errorf("the signature of the hub's %s does not belong to this token: copy the token again, or something between here and "+
			"%s answers in place of the hub", bootstrapapi.ConfigMapClusterInfo, server)
	}
	kc, err := clientcmd.Load([]byte(text))
	if err != nil || len(kc.Clusters) != 1 {
		return nil, fmt.Errorf("read the kubeconfig in the hub's %s: it names %d clusters instead of one: %w", bootstrapapi.ConfigMapClusterInfo, len(kc.Clusters), err)
	}
	var ca []byte
	for _, c := range kc.Clusters {
		ca = c.CertificateAuthorityData
	}
	found, err := Pins(ca)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(found, func(p string) bool {
		return slices.ContainsFunc(pins, func(q string) bool { return strings.EqualFold(p, q) })
	}) {
		return nil, fmt.Errorf("the CA of the hub at %s has the hash %s, which --discovery-token-ca-cert-hash does not name: compare with "+
			"`pelago token create --print-register-command` at the hub", server, strings.Join(found, ", "))
	}
	return ca, nil
}

// ExchangeToken gets, for a bootstrap token, what broker-info.subm holds, with a credential that is
// valid for registrationLife.
func ExchangeToken(ctx context.Context, server, token string, ca []byte) (Info, error) {
	hub, err := manifests.NewClient(&rest.Config{Host: server, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, Timeout: 30 * time.Second})
	if err != nil {
		return Info{}, fmt.Errorf("use the token: %w", err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: manifests.RegistrarAccount}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(registrationLife / time.Second))}}
	err = hub.SubResource("token").Create(ctx, account, request)
	psk := &corev1.Secret{}
	if err == nil {
		err = hub.Get(ctx, client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: PSKSecret}, psk)
	}
	switch {
	case apierrors.IsUnauthorized(err):
		return Info{}, fmt.Errorf("the hub refuses the token: it has expired, was deleted or is not for authentication: make another with "+
			"`pelago token create`: %w", err)
	case apierrors.IsForbidden(err):
		return Info{}, fmt.Errorf("the token may not register clusters: it is none of group %s (`pelago token list`), or `pelago deploy-broker` "+
			"was not run at the hub since its last update: %w", BootstrapGroup, err)
	case err != nil:
		return Info{}, fmt.Errorf("get the registration credential of the hub at %s: %w", server, err)
	}
	return Info{
		BrokerURL: server,
		ClientToken: &corev1.Secret{Data: map[string][]byte{corev1.ServiceAccountRootCAKey: ca,
			corev1.ServiceAccountNamespaceKey: []byte(manifests.BrokerNamespace), corev1.ServiceAccountTokenKey: []byte(request.Status.Token)}},
		IPSecPSK: &corev1.Secret{Data: psk.Data},
	}, nil
}
