package node

import (
	"reflect"

	"github.com/pelago-net/pelago/control/node/tables"
)

// computed are the tables of the last reconcile, and what they were computed from.
type computed struct {
	objs   tables.Objects
	host   tables.Host
	result tables.Result
	valid  bool
}

// desired returns tables.Desired(objs, host). It computes them only if something has changed since
// the last call: most reconciles only report, or confirm what the kernel has.
func (c *computed) desired(objs tables.Objects, host tables.Host) tables.Result {
	if !c.valid || !unchanged(c.objs, objs) || !unchanged(c.host, host) {
		*c = computed{objs, host, tables.Desired(objs, host), true}
	}
	return c.result
}

// unchanged reports whether two structs have equal fields. Lists and maps are equal, without a
// comparison of what they hold, if they are the same ones: they are replaced when an element
// changes.
func unchanged[T any](a, b T) bool {
	before, after := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range before.NumField() {
		x, y := before.Field(i), after.Field(i)
		switch x.Kind() {
		case reflect.Map, reflect.Slice:
			if x.Len() == y.Len() && x.Pointer() == y.Pointer() {
				continue
			}
		}
		if !reflect.DeepEqual(x.Interface(), y.Interface()) {
			return false
		}
	}
	return true
}
