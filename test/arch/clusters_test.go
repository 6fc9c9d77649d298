package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// clusterLists are the files of the controllers that list Clusters without asking whether they take
// anything, with the reason.
var clusterLists = map[string]string{
	"control/hub/cluster/controller.go":    "registration itself; nothing is sent",
	"control/hub/cluster/lease.go":         "conditions of each member; reports of those not accepted do not count (dataplane.go)",
	"control/hub/cluster/metrics.go":       "metrics of each member",
	"control/hub/policy/registry.go":       "the condition says what would be selected; the search itself asks",
	"control/hub/propagate/clusters.go":    "the scheduler filters by the taint, which no toleration covers",
	"control/hub/propagate/decide.go":      "silent members count only if they are accepted",
	"control/hub/work/namespace.go":        "input; DesiredNamespaceWorks asks",
	"control/hub/work/multicluster.go":     "input; DesiredMultiClusterWorks asks",
	"control/hub/access/search_handler.go": "input; sources asks",
}

// TestClustersAreAskedWhetherTheyTake: whatever goes to clusters goes only to those that an
// administrator has accepted (Cluster.Takes). A file that lists Clusters anew calls it, or is in the
// list above.
func TestClustersAreAskedWhetherTheyTake(t *testing.T) {
	fset := token.NewFileSet()
	found := map[string]bool{}
	err := filepath.WalkDir("../../control", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		lists, asks := false, false
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				of, _ := s.X.(*ast.Ident) // nil: of no package
				lists = lists || s.Sel.Name == "ClusterList" && of != nil && of.Name == "clusterv1alpha1"
				asks = asks || s.Sel.Name == "Takes"
			}
			return true
		})
		name := filepath.ToSlash(strings.TrimPrefix(path, "../../"))
		if lists {
			found[name] = true
		}
		if lists && !asks && clusterLists[name] == "" {
			t.Errorf("%s lists Clusters and does not ask Takes: clusters that are not accepted would be sent something", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range clusterLists {
		if !found[name] {
			t.Errorf("%s lists no Clusters any more: remove it from the list", name)
		}
	}
}
