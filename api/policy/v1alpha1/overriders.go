package v1alpha1

import apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

// Overriders are applied in the order image, command, args, labels, annotations, field, plaintext.
type Overriders struct {
	// Plaintext is a JSON patch (RFC 6902) over the object.
	//
	// +optional
	// +listType=atomic
	Plaintext []PlaintextOverrider `json:"plaintext,omitempty"`
	// +optional
	// +listType=atomic
	ImageOverrider []ImageOverrider `json:"imageOverrider,omitempty"`
	// +optional
	// +listType=atomic
	CommandOverrider []CommandArgsOverrider `json:"commandOverrider,omitempty"`
	// +optional
	// +listType=atomic
	ArgsOverrider []CommandArgsOverrider `json:"argsOverrider,omitempty"`
	// +optional
	// +listType=atomic
	LabelsOverrider []LabelAnnotationOverrider `json:"labelsOverrider,omitempty"`
	// +optional
	// +listType=atomic
	AnnotationsOverrider []LabelAnnotationOverrider `json:"annotationsOverrider,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	FieldOverrider []FieldOverrider `json:"fieldOverrider,omitempty"`
}

// OverriderOperator is what an overrider does.
type OverriderOperator string

const (
	OverriderOpAdd     OverriderOperator = "add"
	OverriderOpRemove  OverriderOperator = "remove"
	OverriderOpReplace OverriderOperator = "replace"
)

// PlaintextOverrider is one operation of a JSON patch.
type PlaintextOverrider struct {
	// Path is a JSON pointer (RFC 6901).
	Path string `json:"path"`
	// +kubebuilder:validation:Enum=add;remove;replace
	Operator OverriderOperator `json:"operator"`
	// +optional
	Value apiextensionsv1.JSON `json:"value,omitempty"`
}

// ImageComponent is a part of an image's name, [registry/]repository[:tag].
type ImageComponent string

const (
	Registry   ImageComponent = "Registry"
	Repository ImageComponent = "Repository"
	// Tag is also a digest, @sha256:…
	Tag ImageComponent = "Tag"
)

// ImageOverrider changes names of images: add appends to the part, replace sets it, remove drops
// it.
type ImageOverrider struct {
	// Predicate names one image; without it all images of the containers, but not of the init
	// containers, of the kinds that have pods are changed.
	//
	// +optional
	Predicate *ImagePredicate `json:"predicate,omitempty"`
	// +kubebuilder:validation:Enum=Registry;Repository;Tag
	Component ImageComponent `json:"component"`
	// +kubebuilder:validation:Enum=add;remove;replace
	Operator OverriderOperator `json:"operator"`
	// +optional
	Value string `json:"value,omitempty"`
}

// ImagePredicate names the field of one image.
type ImagePredicate struct {
	// Path is a JSON pointer (RFC 6901).
	//
	// +kubebuilder:validation:Pattern=`^(/([^/~]|~[01])*)*$`
	Path string `json:"path"`
}

// CommandArgsOverrider appends items to the command or the arguments of a container, or removes
// equal ones.
type CommandArgsOverrider struct {
	ContainerName string `json:"containerName"`
	// +kubebuilder:validation:Enum=add;remove
	Operator OverriderOperator `json:"operator"`
	// +optional
	// +listType=atomic
	Value []string `json:"value,omitempty"`
}

// LabelAnnotationOverrider changes labels or annotations of the object: add sets them, replace and
// remove work only on those that exist.
type LabelAnnotationOverrider struct {
	// +kubebuilder:validation:Enum=add;remove;replace
	Operator OverriderOperator `json:"operator"`
	// +optional
	Value map[string]string `json:"value,omitempty"`
}

// FieldOverrider patches a document inside a text field, such as an entry of a ConfigMap.
//
// +kubebuilder:validation:XValidation:rule="(has(self.json) && self.json.size() > 0) != (has(self.yaml) && self.yaml.size() > 0)",message="exactly one of json and yaml must be set"
type FieldOverrider struct {
	// FieldPath is a JSON pointer (RFC 6901).
	//
	// +kubebuilder:validation:Pattern=`^(/([^/~]|~[01])*)*$`
	FieldPath string `json:"fieldPath"`
	// +optional
	// +listType=atomic
	JSON []FieldPatchOperation `json:"json,omitempty"`
	// +optional
	// +listType=atomic
	YAML []FieldPatchOperation `json:"yaml,omitempty"`
}

// FieldPatchOperation is one operation of a JSON patch (RFC 6902) in that document.
type FieldPatchOperation struct {
	// SubPath is a JSON pointer (RFC 6901).
	//
	// +kubebuilder:validation:Pattern=`^(/([^/~]|~[01])*)*$`
	SubPath string `json:"subPath"`
	// +kubebuilder:validation:Enum=add;remove;replace
	Operator OverriderOperator `json:"operator"`
	// Value is required for add and replace and not allowed for remove.
	//
	// +optional
	Value apiextensionsv1.JSON `json:"value,omitempty"`
}
