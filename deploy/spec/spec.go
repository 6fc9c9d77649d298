// Package spec has what Pelago installs as values: a Member, a Pods placement and the settings of a
// Broker. Flags, the objects of the operator, Submariner's own objects and what an earlier
// installation has left all make the same values, which are validated here once.
//
// Errors are about fields, by their paths (spec.globalCIDR), and their texts name other fields in
// the same way. Names shows a text in the words of the caller: the flags of the command line, the
// fields of an object. The package reads and writes nothing.
package spec

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Error is an error about a field.
type Error struct {
	// Path is that of the field, such as spec.globalCIDR.
	Path string
	Text string
}

func (e *Error) Error() string { return e.Text }

// Refuse makes an error about a field; name is the last part of its path.
func Refuse(name, format string, args ...any) error {
	return &Error{Path: "spec." + name, Text: fmt.Sprintf(format, args...)}
}

// Within returns err as an error about a field, unless it is nil or already about one.
func Within(name string, err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &Error{Path: "spec." + name, Text: err.Error()}
}

// Join is the error of a list; nil if it is empty.
func Join(list field.ErrorList) error {
	var errs []error
	for _, e := range list {
		errs = append(errs, &Error{Path: e.Field, Text: e.Detail})
	}
	return errors.Join(errs...)
}

// Names are what a caller calls fields, by path. Fields that it does not contain are shown by their
// paths.
type Names map[string]string

var path = regexp.MustCompile(`\bspec\.[a-zA-Z]+\b`)

// Text shows a text with the names of the caller.
func (n Names) Text(text string) string {
	return path.ReplaceAllStringFunc(text, func(p string) string {
		if name, ok := n[p]; ok {
			return name
		}
		return p
	})
}

// Error shows an error with the names of the caller.
func (n Names) Error(err error) error {
	if err == nil {
		return nil
	}
	return named{n.Text(err.Error()), err}
}

type named struct {
	text string
	err  error
}

func (n named) Error() string { return n.text }
func (n named) Unwrap() error { return n.err }

// Flags are the names of the fields of a Member or a Broker in the command line.
func Flags(of any) Names {
	names := Names{}
	for _, f := range fields(reflect.ValueOf(of)) {
		if flag := f.tag.Get("flag"); flag != "" {
			names[f.path] = "--" + flag
		}
	}
	return names
}

// member is a field of a struct, or of one that is embedded in it.
type member struct {
	path  string
	tag   reflect.StructTag
	value reflect.Value
}

func fields(v reflect.Value) (out []member) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			out = append(out, fields(v.Field(i))...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, member{"spec." + name, f.Tag, v.Field(i)})
	}
	return out
}

// keep copies the fields that were not given from a former value, except those with the tag
// keep:"-", which the caller reads elsewhere. Both are pointers to the same type.
func keep(to, former any, given func(path string) bool) {
	was := fields(reflect.ValueOf(former).Elem())
	for i, f := range fields(reflect.ValueOf(to).Elem()) {
		if f.tag.Get("keep") != "-" && !given(f.path) {
			f.value.Set(was[i].value)
		}
	}
}

// complete copies all fields that were not given.
func complete(to, from any, given func(path string) bool) {
	other := fields(reflect.ValueOf(from).Elem())
	for i, f := range fields(reflect.ValueOf(to).Elem()) {
		if !given(f.path) {
			f.value.Set(other[i].value)
		}
	}
}

// list collects errors about fields.
type list field.ErrorList

func (l *list) add(name string, value any, format string, args ...any) {
	*l = append(*l, field.Invalid(field.NewPath("spec", name), value, fmt.Sprintf(format, args...)))
}
