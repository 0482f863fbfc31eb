{{/*
training-runtimes.networkPolicies: the policy for one role of runs with samplers, in each namespace.
Arguments, a dict:
  root  the root context
  role  sampler, which only nodes reach and which reaches nobody, or node, which only nodes reach
They stay when the release no longer has them: pods of runs that are under way are to stay protected.
*/}}
{{- define "training-runtimes.networkPolicies" -}}
{{- $sampled := false }}
{{- range include "training-runtimes.catalogue" .root | fromYaml }}
  {{- $sampled = or $sampled .samplers (and (eq $.role "node") .externalSamplers) }}
{{- end }}
{{- if and .root.Values.enabled .root.Values.networkPolicy.enabled $sampled }}
{{- range $namespace := include "training-runtimes.namespaces" .root | fromYamlArray }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- /* Releases of one name in two namespaces may meet here. */}}
  name: {{ printf "%s-%ss-%s" $.root.Release.Name $.role ($.root.Release.Namespace | sha256sum | trunc 8) | toYaml }}
  namespace: {{ toYaml $namespace }}
  {{- include "stoker.metadata" (dict "root" $.root "annotations" (include "stoker.keep" $.root | fromYaml)) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      stoker.dev/role: {{ $.role }}
  policyTypes: [Ingress{{ if eq $.role "sampler" }}, Egress{{ end }}]
  ingress:
    - from:
        - podSelector:
            matchLabels:
              stoker.dev/role: node
      {{- if eq $.role "sampler" }}
      ports:
        - port: 8080
  egress:
    - ports:
        - port: 53
          protocol: UDP
        - port: 53
          protocol: TCP
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
