{{- define "pelago.manifest" -}}
{{- $tolerations := list }}
{{- range .Values.tolerations }}{{ $tolerations = append $tolerations (toJson .) }}{{ end }}
{{- $proxy := dict }}
{{- with .Values.httpProxy }}{{ $_ := set $proxy "HTTP_PROXY" . }}{{ end }}
{{- with .Values.httpsProxy }}{{ $_ := set $proxy "HTTPS_PROXY" . }}{{ end }}
{{- if $proxy }}{{ $_ := set $proxy "NO_PROXY" (trimSuffix "," (printf "$(KUBERNETES_SERVICE_HOST),.svc,%s" .Values.noProxy)) }}{{ end }}
{{- dict "Image" (quote .Values.image) "PullPolicy" (quote .Values.imagePullPolicy) "PullSecrets" .Values.imagePullSecrets
  "NodeSelector" .Values.nodeSelector "Tolerations" $tolerations "Proxy" $proxy | toJson }}
{{- end }}
