package collect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// healthTimeout bounds one probe of a member that hangs.
const healthTimeout = 5 * time.Second

// probe reads /readyz of the member's API server, or /healthz if it does not exist. It returns the
// condition Ready without times.
func probe(ctx context.Context, member rest.Interface) metav1.Condition {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	code, err := statusCode(ctx, member, "/readyz")
	path := "/readyz"
	if code == http.StatusNotFound {
		path = "/healthz"
		code, err = statusCode(ctx, member, path)
	}
	found := metav1.Condition{Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	var other *OtherCluster
	switch {
	case errors.As(err, &other):
		found.Reason, found.Message = clusterv1alpha1.ReasonClusterIDMismatch, other.Error()
	case code == http.StatusOK:
		found.Status, found.Reason = metav1.ConditionTrue, clusterv1alpha1.ReasonClusterReady
		found.Message = "the API server of the cluster is healthy"
	case code != 0:
		found.Reason = clusterv1alpha1.ReasonClusterNotReady
		found.Message = fmt.Sprintf("the API server of the cluster answers %s with %d %s", path, code, http.StatusText(code))
		if code == http.StatusUnauthorized || code == http.StatusForbidden {
			found.Message += ": renew the token by which it is asked"
		}
	default:
		found.Reason = clusterv1alpha1.ReasonClusterNotReachable
		found.Message = "the API server of the cluster does not answer: " + cause(err)
	}
	return found
}

// statusCode returns that of the response, or 0 and the error if none exists. It does not retry:
// the next probe does.
func statusCode(ctx context.Context, member rest.Interface, path string) (code int, err error) {
	err = member.Get().AbsPath(path).MaxRetries(0).Do(ctx).StatusCode(&code).Error()
	return code, err
}

// cause returns the part of a connection's error that is equal for each attempt: a condition whose
// message held the local port would be written after each probe.
func cause(err error) string {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Sprintf("nothing came within %v", healthTimeout)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// threshold delays changes of the condition Ready until probes have agreed for a time.
type threshold struct {
	failure, success time.Duration
	last             metav1.ConditionStatus // of the last probe; empty before the first
	// when the first probe in a row with that status began: one that hangs takes 5 s
	since time.Time
}

// passes records the status found by a probe that began at a time, and reports whether the
// condition takes it. The first result passes at once, as does one of the same status with another
// reason.
func (t *threshold) passes(now, began time.Time, current *metav1.Condition, found metav1.ConditionStatus) bool {
	first := t.last == ""
	if t.last != found {
		t.last, t.since = found, began
	}
	if first || current == nil || (current.Status == metav1.ConditionTrue) == (found == metav1.ConditionTrue) {
		return true
	}
	limit := t.failure
	if found == metav1.ConditionTrue {
		limit = t.success
	}
	return now.Sub(t.since) >= limit
}

// enablements returns the kinds that discovery has listed, sorted and without subresources, and the
// condition CompleteAPIEnablements, without times. Groups whose discovery failed keep their former
// kinds: an aggregated API that is unavailable for a moment was not removed.
func enablements(
	found []*metav1.APIResourceList, err error, former []clusterv1alpha1.APIEnablement,
) ([]clusterv1alpha1.APIEnablement, metav1.Condition) {
	condition := metav1.Condition{Type: clusterv1alpha1.ConditionCompleteAPIEnablements}
	if len(found) == 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, clusterv1alpha1.ReasonAPIEnablementsEmpty
		condition.Message = "discovery of the kinds that the cluster serves found none"
		if err != nil {
			condition.Message = "discovery of the kinds that the cluster serves failed: " + cause(err)
		}
		return former, condition
	}
	all := map[string]clusterv1alpha1.APIEnablement{}
	for _, list := range found {
		e := clusterv1alpha1.APIEnablement{GroupVersion: list.GroupVersion}
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") {
				e.Resources = append(e.Resources, clusterv1alpha1.APIResource{Name: r.Name, Kind: r.Kind})
			}
		}
		slices.SortFunc(e.Resources, func(a, b clusterv1alpha1.APIResource) int { return strings.Compare(a.Name, b.Name) })
		all[e.GroupVersion] = e
	}
	condition.Status, condition.Reason = metav1.ConditionTrue, clusterv1alpha1.ReasonAPIEnablementsComplete
	condition.Message = "all kinds that the cluster serves are listed"
	if err != nil {
		condition.Status, condition.Reason = metav1.ConditionFalse, clusterv1alpha1.ReasonAPIEnablementsPartial
		condition.Message = "discovery of some of the kinds that the cluster serves failed: " + cause(err)
		if failed := undiscovered(err); len(failed) > 0 {
			condition.Message = "the cluster serves these groups, but does not say what is in them: " + strings.Join(failed, ", ")
			for _, e := range former {
				if _, listed := all[e.GroupVersion]; !listed && slices.Contains(failed, e.GroupVersion) {
					all[e.GroupVersion] = e
				}
			}
		}
	}
	sorted := make([]clusterv1alpha1.APIEnablement, 0, len(all))
	for _, gv := range slices.Sorted(maps.Keys(all)) {
		sorted = append(sorted, all[gv])
	}
	return sorted, condition
}

// undiscovered are the group versions whose discovery failed, sorted.
func undiscovered(err error) []string {
	var failed *discovery.ErrGroupDiscoveryFailed
	if !errors.As(err, &failed) {
		return nil
	}
	var names []string
	for gv := range failed.Groups {
		names = append(names, gv.String())
	}
	slices.Sort(names)
	return names
}
