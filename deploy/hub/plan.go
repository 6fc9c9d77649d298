// Package hub installs, backs up, restores and removes a hub that `pelago init` makes: as pods of a
// host cluster from a spec.Hub, or as processes of one machine. Read reads what an earlier init has
// left in a host cluster, and NewPlan decides from that and from what is wanted, without access to
// anything. The command line calls it.
package hub

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/spec"
)

// Have is what an earlier init has left in a namespace of a host cluster; the zero value if there
// was none.
type Have struct {
	// Settings are those of the installation, nil without one.
	Settings map[string]string
	// Images are those that run, by program; of programs that are not installed none exist.
	Images map[string]string
}

// Installed reports whether there was one.
func (h Have) Installed() bool { return h.Settings != nil }

// Read reads what an earlier init has left.
func Read(ctx context.Context, host client.Reader, namespace string) (h Have, err error) {
	get := func(obj client.Object, name string) (found bool) {
		failed := host.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj)
		if failed != nil && !apierrors.IsNotFound(failed) && err == nil {
			err = fmt.Errorf("get %T %s/%s: %w", obj, namespace, name, failed)
		}
		return failed == nil
	}
	settings, etcd, api := &corev1.ConfigMap{}, &appsv1.StatefulSet{}, &appsv1.Deployment{}
	if get(settings, HostedSettings) {
		if h.Settings = settings.Data; h.Settings == nil {
			h.Settings = map[string]string{}
		}
	}
	h.Images = map[string]string{}
	if get(etcd, HostedEtcd) {
		h.Images["etcd"] = etcd.Spec.Template.Spec.Containers[0].Image
	}
	if get(api, HostedAPIServer) {
		h.Images["kube-apiserver"] = api.Spec.Template.Spec.Containers[0].Image
	}
	return h, err
}

// NewPlan completes what is wanted by what an earlier init was given, and refuses what is not
// valid, what cannot change, and versions that cannot follow those that run. given reports whether
// a field, by its path, was given; the others are kept.
func NewPlan(want spec.Hub, given func(path string) bool, have Have) (spec.Hub, error) {
	if have.Installed() {
		former, err := spec.SettingsHub(want.Namespace, have.Settings)
		if err != nil {
			return want, err
		}
		want.Keep(former, given)
		if fixed := want.Fixed(former); len(fixed) > 0 {
			return want, spec.Join(fixed[:1])
		}
	}
	if invalid := want.Validate(); len(invalid) > 0 {
		return want, spec.Join(invalid[:1])
	}
	next, err := images(want)
	if err != nil {
		return want, err
	}
	for _, program := range []struct{ name, field, also string }{
		{"etcd", "etcdImage", ""}, {"kube-apiserver", "kubeAPIServerImage", "spec.kubeControllerManagerImage"},
	} {
		if err := checkStep(program.name, have.Images[program.name], next[program.name], program.field, program.also); err != nil {
			return want, err
		}
	}
	return want, nil
}

// checkStep refuses an upgrade that skips minor versions, and a downgrade: an older etcd does not
// start with the data of a newer one, and an older kube-apiserver does not read every stored version
// of a newer one. kube-apiserver must not skip any, also a
// single one (https://kubernetes.io/releases/version-skew-policy/): what a version has stored is
// read, and migrated, by the next one only. etcd supports one minor version at a time
// (https://etcd.io/docs/v3.6/upgrades/upgrading-etcd/). Images whose tags are no versions cannot be
// compared.
func checkStep(program, have, want, field, also string) error {
	from, to := tagVersion(have), tagVersion(want)
	if from == nil || to == nil || from.Major() != to.Major() {
		return nil
	}
	if to.Minor() < from.Minor() {
		return spec.Refuse(field, "spec.%s %s: %s of this hub is %d.%d, and an older version does not read what it has stored: use the `pelago` of the hub's release, "+
			"or give spec.%s an image of %d.%d; to go back, restore a backup of the older release into a new hub (`pelago hub restore`)",
			field, want, program, from.Major(), from.Minor(), field, from.Major(), from.Minor())
	}
	if to.Minor() <= from.Minor()+1 {
		return nil
	}
	images := fmt.Sprintf("give spec.%s an image of %d.%d", field, from.Major(), from.Minor()+1)
	if program == "kube-apiserver" {
		images += fmt.Sprintf(" such as %s:v%d.%d.0", repository(want), from.Major(), from.Minor()+1)
	}
	if also != "" {
		images += fmt.Sprintf(", and %s the same version", also)
	}
	return spec.Refuse(field, "spec.%s %s: %s of this hub is %d.%d, and it must not skip a minor version: %s; run `pelago init` again for each version "+
		"up to %d.%d, and at last with empty images, which are the default", field, want, program, from.Major(), from.Minor(), images, to.Major(), to.Minor())
}

// tagVersion is the version in the tag of an image, nil if it is not one.
func tagVersion(image string) *utilversion.Version {
	image, _, _ = strings.Cut(image, "@")
	_, tag, _ := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	version, err := utilversion.ParseGeneric(tag)
	if err != nil {
		return nil
	}
	return version
}

// repository is the name of an image without its tag and digest.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		image = image[:i]
	}
	return image
}
