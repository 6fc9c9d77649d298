{{- define "pelago.manifest" -}}
{{- dict "Image" (quote .Values.image) "PullPolicy" (quote .Values.imagePullPolicy) | toJson }}
{{- end }}
