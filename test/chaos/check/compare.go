package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	gocmp "github.com/google/go-cmp/cmp"
)

// Fault is the kind of a violation.
type Fault string

// What can be wrong.
const (
	Lost  Fault = "lost"  // wanted, and not there
	Left  Fault = "left"  // there, and not wanted
	Wrong Fault = "wrong" // there with another content
	// two bindings for a template, or two Works for one object in a member
	Duplicated Fault = "duplicated"
	Deleted    Fault = "deleted"    // taken away although it was wanted all the time
	Recreated  Fault = "re-created" // the same, and made again
)

// Violation is one thing that is wrong.
type Violation struct {
	Fault Fault
	What  string
}

func (v Violation) String() string { return string(v.Fault) + ": " + v.What }

// Actual is what was found, in members and of the hub's own objects.
type Actual struct {
	Members map[Place]Content
	// Bindings and Works name, for each object, the bindings and Works that speak of it; those that
	// are being deleted are not among them.
	Bindings map[Object][]string
	Works    map[Place][]string
}

// Compare finds what is lost, left, wrong and duplicated. Labels next to the wanted ones are the
// members' and the marks of the product. With orphans, what is there and not wanted is no fault:
// after a restore from an older state, no controller may delete it.
func Compare(wanted map[Place]Content, a Actual, orphans bool) (found []Violation) {
	for place, want := range wanted {
		got, ok := a.Members[place]
		if !ok {
			found = append(found, Violation{Lost, place.String()})
			continue
		}
		got.Labels = only(got.Labels, want.Labels)
		if diff := gocmp.Diff(plain(want), plain(got)); diff != "" {
			found = append(found, Violation{Wrong, fmt.Sprintf("%s, -want +got:\n%s", place, diff)})
		}
	}
	if !orphans {
		for place := range a.Members {
			if _, ok := wanted[place]; !ok {
				found = append(found, Violation{Left, place.String()})
			}
		}
		for place, works := range a.Works {
			if _, ok := wanted[place]; !ok {
				found = append(found, Violation{Left, fmt.Sprintf("Works %v of %s", works, place)})
			}
		}
	}
	for object, bindings := range a.Bindings {
		if len(bindings) > 1 {
			found = append(found, Violation{Duplicated, fmt.Sprintf("bindings %v of %s", bindings, object)})
		}
	}
	for place, works := range a.Works {
		if len(works) > 1 {
			found = append(found, Violation{Duplicated, fmt.Sprintf("Works %v of %s", works, place)})
		}
	}
	slices.SortFunc(found, func(a, b Violation) int { return cmp.Or(cmp.Compare(a.Fault, b.Fault), cmp.Compare(a.What, b.What)) })
	return found
}

// only are those labels of got that want has.
func only(got, want map[string]string) map[string]string {
	got = maps.Clone(got)
	maps.DeleteFunc(got, func(k, _ string) bool { _, ok := want[k]; return !ok })
	return got
}

// plain makes empty maps nil.
func plain(c Content) Content {
	if len(c.Labels) == 0 {
		c.Labels = nil
	}
	if len(c.Data) == 0 {
		c.Data = nil
	}
	return c
}
