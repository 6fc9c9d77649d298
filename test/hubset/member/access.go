package member

import (
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
)

// Annotation and type of the Secrets that request a token of a ServiceAccount.
const (
	serviceAccountName = "kubernetes.io/service-account.name"
	serviceAccountType = "kubernetes.io/service-account-token"
)

// issue makes a token of a user. Whoever has one may do everything: rights are not simulated,
// identity is.
func (m *Member) issue(user string) string {
	token := rand.String(40)
	m.tokens[token] = user
	return token
}

// user is whose token a request carries.
func (m *Member) user(r *http.Request) (string, bool) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	m.mu.Lock()
	defer m.mu.Unlock()
	user, ok := m.tokens[token]
	return user, ok
}

// createToken answers a TokenRequest.
func (m *Member) createToken(r *request, o *unstructured.Unstructured) (int, any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.get(serviceAccounts, r.name); err != nil {
		return 0, nil, err
	}
	seconds, found, err := unstructured.NestedInt64(o.Object, "spec", "expirationSeconds")
	if err != nil {
		return 0, nil, apierrors.NewBadRequest(err.Error())
	}
	if !found {
		seconds = 3600
	}
	o.Object["status"] = map[string]any{
		"token":               m.issue(userOf(r.name)),
		"expirationTimestamp": time.Now().UTC().Add(time.Duration(seconds) * time.Second).Format(time.RFC3339),
	}
	return http.StatusCreated, o, nil
}

// fillToken puts a token into a Secret that requests one, as kube-controller-manager does, if its
// ServiceAccount exists.
func (m *Member) fillToken(o *unstructured.Unstructured) {
	account := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetAnnotations()[serviceAccountName]}
	// what is no text is another type
	if kind, _, _ := unstructured.NestedString(o.Object, "type"); kind != serviceAccountType {
		return
	}
	// what is no text is filled as well
	if _, filled, _ := unstructured.NestedString(o.Object, "data", "token"); filled {
		return
	}
	if _, err := m.get(serviceAccounts, account); err != nil {
		return
	}
	full := o.DeepCopy()
	full.Object["data"] = map[string]any{
		"token":     base64.StdEncoding.EncodeToString([]byte(m.issue(userOf(account)))),
		"ca.crt":    base64.StdEncoding.EncodeToString(m.config.CAData),
		"namespace": base64.StdEncoding.EncodeToString([]byte(o.GetNamespace())),
	}
	m.put(secrets, full)
}

func userOf(account types.NamespacedName) string {
	return "system:serviceaccount:" + account.Namespace + ":" + account.Name
}
