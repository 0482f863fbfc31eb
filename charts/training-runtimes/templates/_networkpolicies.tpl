{{/*
training-runtimes.networkPolicies: the policies for one role of runs with samplers, in each namespace.
Arguments, a dict:
  root  the root context
  role  sampler, which only nodes reach and which reaches nobody, or node, which only nodes reach
Nobody reaches the pods of a session but who a policy of its own names: `stoker rl up` makes it.
They stay when the release no longer has them: pods of runs that are under way are to stay protected.
*/}}
{{- define "training-runtimes.networkPolicies" -}}
{{- $sampled := false }}
{{- range include "training-runtimes.catalogue" .root | fromYaml }}
  {{- $sampled = or $sampled .samplers (and (eq $.role "node") .externalSamplers) }}
{{- end }}
{{- if and .root.Values.enabled .root.Values.networkPolicy.enabled $sampled }}
{{- range $namespace := include "training-runtimes.namespaces" .root | fromYamlArray }}
{{- range $whose := list "" "session-" }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- /* Releases of one name in two namespaces may meet here. */}}
  name: {{ printf "%s-%s%ss-%s" $.root.Release.Name $whose $.role ($.root.Release.Namespace | sha256sum | trunc 8) | toYaml }}
  namespace: {{ toYaml $namespace }}
  {{- include "stoker.metadata" (dict "root" $.root "annotations" (include "stoker.keep" $.root | fromYaml)) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      stoker.dev/role: {{ $.role }}
    matchExpressions:
      - {key: stoker.dev/session, operator: {{ if $whose }}Exists{{ else }}DoesNotExist{{ end }}}
  policyTypes: [Ingress{{ if eq $.role "sampler" }}, Egress{{ end }}]
  {{- $port := eq $.role "node" | ternary (include "training-runtimes.metricsPort" $.root) "" }}
  {{- if and $whose (not $port) }}
  ingress: []
  {{- else }}
  ingress:
    {{- if not $whose }}
    - from:
        - podSelector:
            matchLabels:
              stoker.dev/role: node
            matchExpressions:
              - {key: stoker.dev/session, operator: DoesNotExist}
      {{- if eq $.role "sampler" }}
      ports:
        - port: 8080
      {{- end }}
    {{- end }}
    {{- with $port }}
    - ports:
        - port: {{ . }}
      from:
        {{- with $.root.Values.networkPolicy.prometheusFrom }}
        {{- toYaml . | nindent 8 }}
        {{- else }}
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: monitoring
        {{- end }}
    {{- end }}
  {{- end }}
  {{- if eq $.role "sampler" }}
  egress:
    - ports:
        {{- include "stoker.dnsPorts" . | trim | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
