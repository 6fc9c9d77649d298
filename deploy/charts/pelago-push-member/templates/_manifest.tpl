{{- define "pelago.manifest" -}}
{{- $name := printf "karmada-%s" (required "cluster: the name of the cluster at the hub" .Values.cluster) }}
{{- dict "Account" (quote $name) "Role" (printf "karmada-controller-manager:%s" $name | quote)
  "HubID" (required "hubID: the UID of the hub's namespace kube-system" .Values.hubID | quote) | toJson }}
{{- end }}
