package execute

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

// probeTimeout bounds one probe; half of the pause between two, so that a member that hangs is found out as often as one that
// refuses.
const healthTimeout = 5 * time.Second

// probe asks the member's API server how it is: /readyz, and /healthz where that does not exist. The condition Ready of what it
// finds is without times.
func probe(ctx context.Context, member rest.Interface) metav1.Condition {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	code, err := ask(ctx, member, "/readyz")
	path := "/readyz"
	if code == http.StatusNotFound {
		path = "/healthz"
		code, err = ask(ctx, member, path)
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

// ask returns the status code of the answer, 0 with the error if there is none. It does not repeat: the next probe does.
func ask(ctx context.Context, member rest.Interface, path string) (code int, err error) {
	err = member.Get().AbsPath(path).MaxRetries(0).Do(ctx).StatusCode(&code).Error()
	return code, err
}

// cause leaves of a connection's error what stays the same from one attempt to the next: the message of a condition that told the
// local port would be written at each probe.
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

// threshold keeps the condition Ready from following each probe: it changes only after the probes have said so for a while.
type threshold struct {
	failure, success time.Duration
	seen             metav1.ConditionStatus // by the last probe; empty before the first
	since            time.Time              // of the first probe in a row that said so
}

// passes notes what a probe found and says whether the condition is to be it, rather than stay as it is. The first finding
// passes at once, and so does one that only gives another reason.
func (t *threshold) passes(now time.Time, current *metav1.Condition, found metav1.ConditionStatus) bool {
	first := t.seen == ""
	if t.seen != found {
		t.seen, t.since = found, now
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

// enablements are the kinds that discovery has listed, in the order of their names, without subresources, and the condition
// CompleteAPIEnablements, without times. Of groups that could not be discovered the former kinds stay: an aggregated API that is
// away for a moment is no API that the cluster has lost.
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

// undiscovered are the groups and versions that discovery could not read, sorted.
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
