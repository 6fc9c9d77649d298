{{- define "pelago.manifest" -}}
{{- $tolerations := list }}
{{- range .Values.tolerations }}{{ $tolerations = append $tolerations (toJson .) }}{{ end }}
{{- dict "Image" (quote .Values.image) "PullPolicy" (quote .Values.imagePullPolicy) "PullSecrets" .Values.imagePullSecrets
  "NodeSelector" .Values.nodeSelector "Tolerations" $tolerations "Namespace" (quote "pelago-system") "Hosted" false "KarmadaTools" false | toJson }}
{{- end }}
