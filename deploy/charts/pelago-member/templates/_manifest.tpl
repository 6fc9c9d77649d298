{{- /* The values by which deploy.MemberOptions fills in the manifests. */ -}}
{{- define "pelago.manifest" -}}
{{- $tolerations := list }}
{{- range .Values.tolerations }}{{ $tolerations = append $tolerations (toJson .) }}{{ end }}
{{- $proxy := dict }}
{{- with .Values.httpProxy }}{{ $_ := set $proxy "HTTP_PROXY" . }}{{ end }}
{{- with .Values.httpsProxy }}{{ $_ := set $proxy "HTTPS_PROXY" . }}{{ end }}
{{- if $proxy }}{{ $_ := set $proxy "NO_PROXY" (trimSuffix "," (printf "$(KUBERNETES_SERVICE_HOST),.svc,%s" .Values.noProxy)) }}{{ end }}
{{- dict "Image" (quote .Values.image) "PullPolicy" (quote .Values.imagePullPolicy) "PullSecrets" .Values.imagePullSecrets
  "IKE" (has .Values.cableDriver (list "libreswan" "ipsec")) "NodeSelector" .Values.nodeSelector "Tolerations" $tolerations "Proxy" $proxy
  "CoreDNS" (list (.Values.corednsCustomConfigmap | default "coredns") "rke2-coredns-rke2-coredns" "node-local-dns" "nodelocaldns" "kube-dns") | toJson }}
{{- end }}

{{- define "pelago.joinSecret" -}}
{{- if .Values.existingSecret }}{{ .Values.existingSecret }}{{ else if .Values.brokerInfo }}pelago-broker-info{{ end }}
{{- end }}
