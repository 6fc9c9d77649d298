package inspect

import (
	"bytes"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// The tables of the clusters become one, with one header.
func TestTopTables(t *testing.T) {
	tables := func() []bytes.Buffer {
		return []bytes.Buffer{*bytes.NewBufferString("NAME   CPU(cores)   MEMORY(bytes)\nweb    1m           2Mi\ndb     20m          300Mi\n"),
			{}, *bytes.NewBufferString("NAME  CPU(cores)  MEMORY(bytes)\nweb   3m  4Mi\n")}
	}
	for hidden, want := range map[bool]string{
		false: "CLUSTER   NAME   CPU(cores)   MEMORY(bytes)\nm1        web    1m           2Mi\nm1        db     20m          300Mi\nm3        web    3m           4Mi\n",
		true:  "m1    web   1m    2Mi\nm1    db    20m   300Mi\nm3    web   3m    4Mi\n",
	} {
		var out, errOut bytes.Buffer
		top := topMembers{streams: genericiooptions.IOStreams{Out: &out, ErrOut: &errOut}}
		if err := top.print([]string{"m1", "m2", "m3"}, tables(), hidden); err != nil || out.String() != want || errOut.Len() > 0 {
			t.Errorf("without header %t: %v, %q\n%s\nwant\n%s", hidden, err, errOut.String(), out.String(), want)
		}
	}
	var out, errOut bytes.Buffer
	top := topMembers{streams: genericiooptions.IOStreams{Out: &out, ErrOut: &errOut}}
	if err := top.print([]string{"m1"}, make([]bytes.Buffer, 1), false); err != nil || out.Len() > 0 || errOut.String() != "No resources found.\n" {
		t.Errorf("none: %v, %q, %q", err, out.String(), errOut.String())
	}
}
