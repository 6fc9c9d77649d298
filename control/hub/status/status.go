package status

import (
	"bytes"
	"encoding/json"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// same compares statuses; what members report is compared as JSON, whatever the order of its keys.
var same = func() conversion.Equalities {
	e := equality.Semantic.Copy()
	if err := e.AddFunc(func(a, b runtime.RawExtension) bool {
		if bytes.Equal(a.Raw, b.Raw) {
			return true
		}
		var x, y any
		return json.Unmarshal(a.Raw, &x) == nil && json.Unmarshal(b.Raw, &y) == nil && reflect.DeepEqual(x, y)
	}); err != nil {
		panic(err) // the function's form is wrong
	}
	return e
}()
