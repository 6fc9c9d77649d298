package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

func TestTaints(t *testing.T) {
	for name, tt := range map[string]struct {
		args      []string
		overwrite bool
		want      string
		wantErr   string
	}{
		"one more":           {args: []string{"b=2:NoExecute"}, want: "a=1:NoSchedule b=2:NoExecute!"},
		"without value":      {args: []string{"b:NoSchedule"}, want: "a=1:NoSchedule b=:NoSchedule"},
		"there already":      {args: []string{"a=1:NoSchedule"}, want: "a=1:NoSchedule"},
		"another value":      {args: []string{"a=2:NoSchedule"}, wantErr: "use --overwrite"},
		"overwritten":        {args: []string{"a=2:NoSchedule"}, overwrite: true, want: "a=2:NoSchedule"},
		"another effect":     {args: []string{"a=1:NoExecute"}, want: "a=1:NoSchedule a=1:NoExecute!"},
		"removed":            {args: []string{"a:NoSchedule-"}},
		"removed with value": {args: []string{"a=1:NoSchedule-"}},
		"all of a key":       {args: []string{"a-"}},
		"not there":          {args: []string{"a:NoExecute-"}, want: "a=1:NoSchedule"},
		"added and removed":  {args: []string{"b:NoSchedule", "a-"}, want: "b=:NoSchedule"},
		"no effect":          {args: []string{"b=2"}, wantErr: "KEY=VALUE:EFFECT"},
		"unknown effect":     {args: []string{"b=2:PreferNoSchedule"}, wantErr: "NoSchedule or NoExecute"},
		"bad key":            {args: []string{"b b:NoSchedule"}, wantErr: `the key "b b"`},
		"bad value":          {args: []string{"b=c d:NoSchedule"}, wantErr: `the value "c d"`},
		"twice":              {args: []string{"b=1:NoSchedule", "b=2:NoSchedule"}, wantErr: "named twice"},
	} {
		t.Run(name, func(t *testing.T) {
			before := []clusterv1alpha1.Taint{{Key: "a", Value: "1", Effect: corev1.TaintEffectNoSchedule}}
			changes, err := parseTaints(tt.args)
			var after []clusterv1alpha1.Taint
			if err == nil {
				after, err = tainted(before, changes, tt.overwrite, metav1.Now())
			}
			if (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Fatalf("error %v, want one with %q", err, tt.wantErr)
			}
			var got []string
			for _, x := range after {
				text := x.Key + "=" + x.Value + ":" + string(x.Effect)
				if x.TimeAdded != nil {
					text += "!"
				}
				got = append(got, text)
			}
			if text := strings.Join(got, " "); err == nil && text != tt.want {
				t.Errorf("%q, want %q", text, tt.want)
			}
			if before[0].Value != "1" || len(before) != 1 {
				t.Error("what was there has been changed")
			}
		})
	}
}
