{{- define "pelago.manifest" -}}
{{- dict "Image" (quote .Values.image) "PullPolicy" (quote .Values.imagePullPolicy)
  "Namespace" (quote "pelago-system") "Hosted" false | toJson }}
{{- end }}
