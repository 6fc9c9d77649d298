package view

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"
)

// watchPause is the pause before a watch that the server has ended begins again.
const watchPause = 200 * time.Millisecond

// watchTables watches the selected objects of an API server since a resource version, through the
// watches that the server ends, until the context ends. request makes a request for their list.
func watchTables(ctx context.Context, request func() *rest.Request, s Selection, since string, changed func(metav1.Table) error) error {
	for ctx.Err() == nil {
		r := request().Param("watch", "true").Param("resourceVersion", since)
		if len(s.Names) > 0 {
			r = r.Param("fieldSelector", "metadata.name="+s.Names[0])
		}
		if s.Labels != nil {
			r = r.Param("labelSelector", s.Labels.String())
		}
		stream, err := r.Stream(ctx)
		if err != nil {
			return err
		}
		err = readEvents(stream, func(t metav1.Table) error {
			for _, row := range t.Rows {
				var o metav1.PartialObjectMetadata
				if err := json.Unmarshal(row.Object.Raw, &o); err != nil {
					return fmt.Errorf("read an object: %w", err)
				}
				since = o.ResourceVersion
			}
			return changed(t)
		})
		if err = errors.Join(err, stream.Close()); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
	return nil
}

// readEvents reads the events of a watch of tables until the server ends it.
func readEvents(stream io.Reader, changed func(metav1.Table) error) error {
	for d := json.NewDecoder(stream); ; {
		var e struct {
			Type   watch.EventType
			Object json.RawMessage
		}
		if err := d.Decode(&e); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the watch: %w", err)
		}
		if e.Type == watch.Error {
			var status metav1.Status
			if err := json.Unmarshal(e.Object, &status); err != nil {
				return fmt.Errorf("read the end of the watch: %w", err)
			}
			err := apierrors.FromObject(&status)
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				return fmt.Errorf("changes were missed, run the command again: %w", err)
			}
			return err
		}
		var t metav1.Table
		if err := json.Unmarshal(e.Object, &t); err != nil {
			return fmt.Errorf("read the watch: %w", err)
		}
		if err := changed(t); err != nil {
			return err
		}
	}
}

// Follow prints the objects of several clusters, then each that changes, until the context ends or
// a watch fails.
func Follow(ctx context.Context, out io.Writer, output string, objects []Listing, of Selection) error {
	f := follower{out: out, output: output, namespaces: of.AllNamespaces, columns: printers.GetNewTabWriter(out)}
	for _, l := range objects {
		if err := f.print(l); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range objects {
		group.Go(func() error {
			if err := l.watch(ctx, f.print); err != nil {
				return fmt.Errorf("watch %s of %s: %w", of.Kind, cmp.Or(l.Cluster, "the hub"), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// follower prints rows as they come.
type follower struct {
	out        io.Writer
	output     string
	namespaces bool

	mu      sync.Mutex
	columns interface { // keeps their widths
		io.Writer
		Flush() error
	}
	shape []metav1.TableColumnDefinition // of the first object
}

func (f *follower) print(l Listing) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var rows []Row
	if f.shape == nil && len(l.Table.Rows) > 0 {
		f.shape = l.Table.ColumnDefinitions
		if f.output == "table" || f.output == "wide" {
			rows = append(rows, listingTitles(f.shape, f.namespaces))
		}
	}
	for _, r := range l.Table.Rows {
		row, err := listingRow(l, r, f.shape, f.namespaces)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	for _, row := range rows {
		var err error
		switch f.output {
		case "json", "yaml":
			if f.output == "yaml" {
				fmt.Fprintln(f.out, "---")
			}
			err = Encode(f.out, f.output, row.Object)
		case "name":
			_, err = fmt.Fprintln(f.out, row.Name)
		case "wide":
			_, err = fmt.Fprintln(f.columns, strings.Join(slices.Concat(row.Cells, row.Wide), "\t"))
		default:
			_, err = fmt.Fprintln(f.columns, strings.Join(row.Cells, "\t"))
		}
		if err != nil {
			return err
		}
	}
	return f.columns.Flush()
}
