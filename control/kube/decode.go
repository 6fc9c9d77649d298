package kube

import (
	"bufio"
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
)

// longest event, in bytes, as client-go has it; etcd takes less than a tenth of it.
const maxEvent = 16 << 20

// object is what an event's object is read into.
type object interface {
	// read returns the object of a text, which is valid during the call only.
	read(text []byte) (runtime.Object, error)
}

// typed are objects with a Go type. Their kind stays empty, as client-go leaves it.
type typed struct{ of runtime.Object }

func (t *typed) read(text []byte) (runtime.Object, error) {
	err := json.Unmarshal(text, t.of)
	t.of.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return t.of, err
}

// untyped are objects without a Go type; as is nil, or how they are read.
type untyped struct {
	as func(text []byte) (*unstructured.Unstructured, error)
}

func (u untyped) read(text []byte) (runtime.Object, error) {
	if u.as != nil {
		return u.as(text)
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &o.Object); err != nil {
		return nil, err
	}
	if o.GetKind() == "" {
		return nil, runtime.NewMissingKindErr(string(text))
	}
	return o, nil
}

// decoder reads the events of one watch (k8s.io/apimachinery/pkg/watch.Decoder).
type decoder struct {
	body  io.ReadCloser
	lines *bufio.Scanner
	as    func() object
}

func newDecoder(body io.ReadCloser, as func() object) *decoder {
	d := &decoder{body: body, lines: bufio.NewScanner(body), as: as}
	d.lines.Buffer(nil, maxEvent)
	d.lines.Split(event)
	return d
}

// Decode implements watch.Decoder.
func (d *decoder) Decode() (watch.EventType, runtime.Object, error) {
	if !d.lines.Scan() {
		err := d.lines.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("an event of more than %d MiB", maxEvent>>20)
		} else if err == nil {
			err = io.EOF
		}
		return "", nil, err
	}
	kind, text, err := parts(d.lines.Bytes())
	if err != nil {
		return "", nil, err
	}
	switch kind {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
		o, err := d.as().read(text)
		if err != nil {
			return "", nil, fmt.Errorf("the object of an event of type %s: %w", kind, err)
		}
		return kind, o, nil
	case watch.Error:
		status := &metav1.Status{}
		if err := json.Unmarshal(text, status); err != nil {
			return "", nil, fmt.Errorf("the status of an event of type %s: %w", kind, err)
		}
		return kind, status, nil
	}
	return "", nil, fmt.Errorf("an event of the unknown type %q", kind)
}

// Close implements watch.Decoder.
func (d *decoder) Close() {
	_ = d.body.Close() // it was read to its end, or nobody wants the rest
}

// An event as API servers write it.
var (
	before  = []byte(`{"type":"`)
	between = []byte(`","object":{`)
	after   = []byte(`}}`)
)

// event splits a stream into events (bufio.SplitFunc). API servers write each as one line (Framer in
// k8s.io/apimachinery/pkg/runtime/serializer/json); what else is one in JSON is looked for with a decoder.
func event(data []byte, atEOF bool) (advance int, token []byte, err error) {
	n, ours := bytes.IndexByte(data, '\n'), bytes.HasPrefix(data, before)
	switch {
	case n >= 0 && ours && bytes.HasSuffix(data[:n], after):
		return n + 1, data[:n], nil
	case n < 0 && !atEOF && (ours || len(data) < len(before)):
		return 0, nil, nil // the line goes on
	}
	d := stdjson.NewDecoder(bytes.NewReader(data))
	var one stdjson.RawMessage
	switch err := d.Decode(&one); {
	case err == nil:
		return int(d.InputOffset()), one, nil
	case !atEOF && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return 0, nil, nil
	case errors.Is(err, io.EOF):
		return len(data), nil, nil // nothing but space
	default:
		return 0, nil, err
	}
}

// parts are type and object of an event.
func parts(event []byte) (watch.EventType, []byte, error) {
	if rest, ok := bytes.CutPrefix(event, before); ok {
		kind, object, ok := bytes.Cut(rest, between)
		if ok && !bytes.ContainsAny(kind, `"\`) {
			// The brace before the object is its own, the last one is the event's.
			return watch.EventType(kind), rest[len(rest)-len(object)-1 : len(rest)-1], nil
		}
	}
	var e metav1.WatchEvent
	if err := json.Unmarshal(event, &e); err != nil {
		return "", nil, fmt.Errorf("an event that is none: %w", err)
	}
	return watch.EventType(e.Type), e.Object.Raw, nil
}
