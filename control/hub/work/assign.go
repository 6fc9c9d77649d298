package work

import (
	"errors"
	"fmt"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
)

// Writes are the Works of one object to be created and updated. Bindings, namespaces,
// MultiClusterServices and FederatedResourceQuotas make theirs with an assigner.
type Writes struct {
	Create, Update []*workv1alpha1.Work
	// Failed are the clusters whose Work could not be made; the one that exists stays as it is. It
	// stops no other cluster.
	Failed []Failure
	// Skipped are the override rules that were not applied, of all clusters.
	Skipped []policy.SkippedRule
}

// Err joins the failures.
func (w Writes) Err() error {
	var errs []error
	for _, f := range w.Failed {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}

// Failure is a cluster whose Work could not be made.
type Failure struct {
	Object, Cluster string
	Err             error
}

func (f Failure) Error() string {
	return fmt.Sprintf("make the Work of %s for cluster %s: %v", f.Object, f.Cluster, f.Err)
}

func (f Failure) Unwrap() error { return f.Err }

// assigner makes the Works of clusters one by one.
type assigner struct {
	interpreter *kinds.Interpreter
	hubID       string
	newID       func() string // makes a permanent id
	Writes
}

// assign creates or updates the Work of an object in a cluster; have is the one that exists, nil if
// none exists. input returns what it is made of, except for Name, ID and HubID. The result is
// false if the cluster will not have the Work: it could not be made, or the former one is being
// deleted and another can be made when it is gone.
func (a *assigner) assign(object, cluster string, have *workv1alpha1.Work, names Names, input func() (RenderInput, error)) bool {
	if have != nil && have.DeletionTimestamp != nil {
		return false
	}
	want, err := a.make(cluster, have, names, input)
	switch {
	case err != nil:
		a.fail(object, cluster, err)
		return have != nil
	case have == nil:
		a.Create = append(a.Create, want)
	default:
		if next := Updated(have, want); next != nil {
			a.Update = append(a.Update, next)
		}
	}
	return true
}

func (a *assigner) fail(object, cluster string, err error) {
	a.Failed = append(a.Failed, Failure{object, cluster, err})
}

// make makes a Work. An existing one keeps its name and its id.
func (a *assigner) make(cluster string, have *workv1alpha1.Work, names Names, input func() (RenderInput, error)) (
	*workv1alpha1.Work, error) {
	var name, id string
	if have != nil {
		name, id = have.Name, have.Labels[workv1alpha1.LabelWorkID]
	} else {
		var err error
		if name, err = names.Free(cluster); err != nil {
			return nil, err
		}
	}
	if id == "" {
		id = a.newID()
	}
	in, err := input()
	if err != nil {
		return nil, err
	}
	in.Name, in.ID, in.HubID = name, id, a.hubID
	w, skipped, err := Render(a.interpreter, in)
	a.Skipped = append(a.Skipped, skipped...)
	return w, err
}
