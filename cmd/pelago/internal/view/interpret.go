package view

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds"
)

// interpretation is what `pelago interpret` reads.
type interpretation struct {
	file, operation, desired, observed, status string
	replicas                                   int32
	check                                      bool
}

// InterpretCommand tests customizations and KindRules against files.
func InterpretCommand() *cobra.Command {
	var o interpretation
	cmd := &cobra.Command{
		Use:   "interpret -f FILE (--check | --operation OPERATION)",
		Short: "Test interpreter customizations and KindRules against files",
		Long: `interpret compiles the ResourceInterpreterCustomizations and KindRules of a file and, with
--operation, evaluates one operation on objects in files, as the hub and the members' agents do.
What the file does not customize is interpreted by what is built in. No cluster is contacted.`,
		Example: `  pelago interpret -f farms.yaml --check
  pelago interpret -f farms.yaml --operation InterpretHealth --observed-file farm.yaml
  pelago interpret -f farms.yaml --operation InterpretComponent --desired-file farm.yaml
  pelago interpret -f farms.yaml --operation ReviseReplica --desired-file farm.yaml --desired-replica 3
  pelago interpret -f farms.yaml --operation AggregateStatus --desired-file farm.yaml --status-file status.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "filename", "f", "", "file with customizations and KindRules")
	f.BoolVar(&o.check, "check", false, "only compile")
	f.StringVar(&o.operation, "operation", "", strings.Join(slices.Sorted(maps.Keys(interpretations)), ", "))
	f.StringVar(&o.desired, "desired-file", "", "file with the template, or with what is to be written to a member (Retain)")
	f.StringVar(&o.observed, "observed-file", "", "file with the member's object")
	f.StringVar(&o.status, "status-file", "", "file with a list of {clusterName, status, applied, health} (AggregateStatus)")
	f.Int32Var(&o.replicas, "desired-replica", 0, "replicas to set (ReviseReplica)")
	_ = cmd.MarkFlagRequired("filename") // fails only for an unknown flag
	return cmd
}

func (o *interpretation) run(out io.Writer) error {
	in, err := o.interpreter()
	if err != nil {
		return err
	}
	if o.check {
		_, err := fmt.Fprintln(out, "all rules compile")
		return err
	}
	do := interpretations[o.operation]
	if do == nil {
		return fmt.Errorf("unknown operation %q: use --operation with one of %s, or --check", o.operation,
			strings.Join(slices.Sorted(maps.Keys(interpretations)), ", "))
	}
	result, err := do(in, o)
	if err != nil {
		return err
	}
	return Encode(out, "yaml", result)
}

// interpreter compiles the rules of the file.
func (o *interpretation) interpreter() (*kinds.Interpreter, error) {
	text, err := os.ReadFile(o.file)
	if err != nil {
		return nil, err
	}
	var rules []pelagov1alpha1.KindRules
	var scripts []configv1alpha1.ResourceInterpreterCustomization
	documents := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	for document := make([]byte, len(text)+1); ; {
		n, err := documents.Read(document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", o.file, err)
		}
		var is unstructured.Unstructured
		if err := yaml.Unmarshal(document[:n], &is.Object); err != nil {
			return nil, fmt.Errorf("read %s: %w", o.file, err)
		}
		switch is.GetKind() {
		case "":
		case "KindRules":
			rules = append(rules, pelagov1alpha1.KindRules{})
			err = yaml.UnmarshalStrict(document[:n], &rules[len(rules)-1])
		case "ResourceInterpreterCustomization":
			scripts = append(scripts, configv1alpha1.ResourceInterpreterCustomization{})
			err = yaml.UnmarshalStrict(document[:n], &scripts[len(scripts)-1])
		default:
			err = fmt.Errorf("%s is neither ResourceInterpreterCustomization nor KindRules", is.GetKind())
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", o.file, err)
		}
	}
	if len(rules)+len(scripts) == 0 {
		return nil, fmt.Errorf("%s has no ResourceInterpreterCustomization and no KindRules", o.file)
	}
	custom := kinds.NewCustom()
	var errs []error
	for _, verdicts := range []map[string]kinds.Verdict{custom.SetScripts(scripts), custom.Set(rules)} {
		for _, name := range slices.Sorted(maps.Keys(verdicts)) {
			errs = append(errs, verdicts[name].Invalid...)
			for _, conflict := range verdicts[name].Conflicts {
				errs = append(errs, errors.New(conflict))
			}
		}
	}
	return custom.Interpreter(), errors.Join(errs...)
}

// interpretations are the operations, by their names in Karmada.
var interpretations = map[string]func(in *kinds.Interpreter, o *interpretation) (any, error){
	"InterpretReplica": func(in *kinds.Interpreter, o *interpretation) (any, error) {
		obj, err := objectIn("desired-file", o.desired)
		if err != nil {
			return nil, err
		}
		n, each, _, err := in.Replicas(obj)
		return map[string]any{"replica": n, "requires": each}, err
	},
	"InterpretComponent": func(in *kinds.Interpreter, o *interpretation) (any, error) {
		obj, err := objectIn("desired-file", o.desired)
		if err != nil {
			return nil, err
		}
		all, _, err := in.Components(obj)
		return map[string]any{"components": all}, err
	},
	"ReviseReplica": func(in *kinds.Interpreter, o *interpretation) (any, error) {
		obj, err := objectIn("desired-file", o.desired)
		if err != nil {
			return nil, err
		}
		return obj, in.Revise(obj, o.replicas)
	},
	"Retain": func(in *kinds.Interpreter, o *interpretation) (any, error) {
		desired, errDesired := objectIn("desired-file", o.desired)
		observed, err := objectIn("observed-file", o.observed)
		if err := errors.Join(errDesired, err); err != nil {
			return nil, err
		}
		return in.Retain(desired, observed)
	},
	"InterpretStatus": func(in *kinds.Interpreter, o *interpretation) (any, error) {
		obj, err := objectIn("observed-file", o.observed)
		if err != nil {
			return nil, err
		}
		return in.ReflectStatus(obj)
	},
	"InterpretHealth": func(in *kinds.Interpreter, o *interpretation) (any, error) {
		obj, err := objectIn("observed-file", o.observed)
		if err != nil {
			return nil, err
		}
		health, err := in.Health(obj)
		return map[string]any{"health": health}, err
	},
	"AggregateStatus": func(in *kinds.Interpreter, o *interpretation) (any, error) {
		obj, err := objectIn("desired-file", o.desired)
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(o.status)
		if err != nil {
			return nil, fmt.Errorf("--status-file: %w", err)
		}
		var items []workv1alpha2.AggregatedStatusItem
		if err := yaml.UnmarshalStrict(text, &items); err != nil {
			return nil, fmt.Errorf("read --status-file %s: %w", o.status, err)
		}
		status, err := in.AggregateStatus(obj, items)
		return map[string]any{"status": status}, err
	},
	"InterpretDependency": func(in *kinds.Interpreter, o *interpretation) (any, error) {
		obj, err := objectIn("desired-file", o.desired)
		if err != nil {
			return nil, err
		}
		return in.Dependencies(obj)
	},
}

// objectIn reads the object of a file.
func objectIn(flag, path string) (*unstructured.Unstructured, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	encoded, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("read --%s %s: %w", flag, path, err)
	}
	u := new(unstructured.Unstructured)
	if err := u.UnmarshalJSON(encoded); err != nil {
		return nil, fmt.Errorf("read --%s %s: %w", flag, path, err)
	}
	return u, nil
}
