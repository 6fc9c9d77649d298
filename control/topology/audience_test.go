package topology_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/control/topology"
)

func TestAudience(t *testing.T) {
	clusters := map[string]map[string]string{
		"c1": {"env": "prod", "region": "eu"}, "c2": {"env": "prod"}, "c3": {"env": "test"}, "c4": nil,
	}
	for text, want := range map[string]string{
		"c1":                  "c1",
		" c2 , c1, c1":        "c1 c2",
		"c9":                  "",
		"env=prod":            "c1 c2",
		"env=prod,region=eu":  "c1",
		"env in (prod, test)": "c1 c2 c3",
		"env!=prod":           "c3 c4",
		"!env":                "c4",
		"env":                 "", // a cluster of this name
	} {
		a, err := topology.ParseAudience(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		var got []string
		for _, id := range []string{"c1", "c2", "c3", "c4"} {
			if a.Includes(id, clusters[id]) {
				got = append(got, id)
			}
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%q: -want +got\n%s", text, diff)
		}
	}
}

func TestInvalidAudience(t *testing.T) {
	many := make([]string, 1024)
	for i := range many {
		many[i] = fmt.Sprintf("c%d", i)
	}
	for text, want := range map[string]string{
		"":                              "the name of a cluster is empty",
		"c1,,c2":                        "the name of a cluster is empty",
		"c1 c2":                         `"c1 c2" is no cluster id`,
		"C1":                            `"C1" is no cluster id`,
		"*":                             `"*" is no cluster id`,
		"c1," + strings.Repeat("a", 49): "at most 48 characters",
		"env=prod,=":                    "is no label selector",
		"env in prod(":                  "is no label selector",
		strings.Join(many, ","):         "1024 clusters are named, a clusterset has at most 1023",
	} {
		if _, err := topology.ParseAudience(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}
