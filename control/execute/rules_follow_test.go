package execute

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
)

// answer is a hub that answers so.
type answer struct {
	client.Reader
	errs []error
	done context.CancelFunc
}

func (a *answer) List(context.Context, client.ObjectList, ...client.ListOption) error {
	if len(a.errs) == 0 {
		a.done()
		return errors.New("nothing answers")
	}
	err := a.errs[0]
	a.errs = a.errs[1:]
	return err
}

func TestOlderHubs(t *testing.T) {
	gr := schema.GroupResource{Group: "pelago.io", Resource: "kindrules"}
	for name, tt := range map[string]struct {
		errs     []error
		released bool
	}{
		"has no such kind":       {[]error{apierrors.NewNotFound(gr, "")}, true},
		"does not let members":   {[]error{apierrors.NewForbidden(gr, "", errors.New("no"))}, true},
		"has KindRules":          {[]error{nil}, false},
		"does not answer":        {nil, false},
		"answers something else": {[]error{&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonUnauthorized}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			custom := kinds.NewCustom()
			asked := make(chan struct{})
			go func() {
				// that it answers is the question
				_, _ = custom.Interpreter().Health(&unstructured.Unstructured{})
				close(asked)
			}()
			f := &Follower{Live: &answer{errs: tt.errs, done: cancel}, Rules: custom, Log: slog.New(slog.DiscardHandler)}
			f.older(ctx, &pelagov1alpha1.KindRulesList{}, custom.Release)
			if tt.released {
				<-asked
				return
			}
			select {
			case <-asked:
				t.Error("it goes on without the rules that the hub may have")
			default:
			}
			custom.Release()
			<-asked
		})
	}
}

// A Work whose rule has failed since the start is reconciled when the rule is corrected.
func TestCorrectedRule(t *testing.T) {
	prune := func(text pelagov1alpha1.Expression) []pelagov1alpha1.KindRules {
		k := pelagov1alpha1.KindRules{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
		k.Spec.Kinds = []pelagov1alpha1.RuledKind{{APIVersion: "v1", Kind: "ConfigMap"}}
		k.Spec.Rules.Prune = text
		return []pelagov1alpha1.KindRules{k}
	}
	l := newLab(t, server.Config(t))
	rules := kinds.NewCustom()
	rules.Set(prune("{'data': object.data.nothing}"))
	l.run(func(o *Options) { o.Interpreter = rules.Interpreter() })
	l.work("w", configMap)
	l.failed("w", "rule prune of KindRules mine")
	rules.Set(prune("{'data': {'b': null}}"))
	l.applied("w")
	if got := value(l.there(configMap), "data"); got != "map[a:1]" {
		t.Errorf("data is %s, want what the corrected rule leaves", got)
	}
}

// Which versions the hub serves is read again while it lacks one that a rule names.
func TestServedKinds(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Farm"}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kind, meta.RESTScopeNamespace)
	rules := func(versions ...string) []pelagov1alpha1.KindRules {
		out := pelagov1alpha1.KindRules{}
		for _, v := range versions {
			out.Spec.Kinds = append(out.Spec.Kinds, pelagov1alpha1.RuledKind{APIVersion: "example.com/" + v, Kind: "Farm"})
		}
		return []pelagov1alpha1.KindRules{out}
	}
	script := configv1alpha1.ResourceInterpreterCustomization{}
	script.Spec.Target = configv1alpha1.CustomizationTarget{APIVersion: "example.com/v1", Kind: "Farm"}
	for name, tt := range map[string]struct {
		rules   []pelagov1alpha1.KindRules
		scripts []configv1alpha1.ResourceInterpreterCustomization
		served  int
		again   time.Duration
	}{
		"none":            {},
		"one":             {rules("v1"), nil, 1, 0},
		"a customization": {nil, []configv1alpha1.ResourceInterpreterCustomization{script}, 1, 0},
		"one is missing":  {rules("v1", "v1beta1"), nil, 1, servedAgain},
	} {
		served, again := servedKinds(mapper, tt.rules, tt.scripts)
		if len(served) != tt.served || again != tt.again || tt.served == 1 && !served[kind] {
			t.Errorf("%s: %v, again after %s; want %d, %s", name, served, again, tt.served, tt.again)
		}
	}
}
