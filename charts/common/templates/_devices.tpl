{{/*
stoker.deviceClaim: spec of a ResourceClaimTemplate for devices of one class.
Arguments, a dict:
  name       name of the claim in the pod
  class      the devices' class
  count      how many
  selectors  CEL expressions that each device meets; may be empty
*/}}
{{- define "stoker.deviceClaim" -}}
spec:
  devices:
    requests:
      - name: {{ .name }}
        exactly:
          deviceClassName: {{ .class }}
          allocationMode: ExactCount
          count: {{ int .count }}
          {{- with .selectors }}
          selectors:
            {{- range . }}
            - cel:
                expression: {{ . | quote }}
            {{- end }}
          {{- end }}
{{- end }}

{{/*
stoker.deviceClaimName: name of a ResourceClaimTemplate. Its content never changes: a claim for other devices has another
name, and the template before stays for pods that name it. Releases of one name in two namespaces may meet in a third.
Arguments, a dict:
  root   the root context
  owner  what the name begins with
  claim  what stoker.deviceClaim takes
*/}}
{{- define "stoker.deviceClaimName" -}}
{{- printf "%s-%s" .owner (printf "%s %s" .root.Release.Namespace (include "stoker.deviceClaim" .claim) | sha256sum | trunc 8) }}
{{- end }}

{{/*
stoker.claimNames: names of the claims that values give a pod, a YAML list. Two of one name are refused.
Arguments, a list: the claims, their path in values.
*/}}
{{- define "stoker.claimNames" -}}
{{- $names := list }}
{{- range index . 0 }}
  {{- if has .name $names }}
    {{- fail (printf "\n\n%s: two claims have the name %q. Choose another name for one of them.\n" (index $ 1) .name) }}
  {{- end }}
  {{- $names = append $names .name }}
{{- end }}
{{- toYaml $names }}
{{- end }}

{{/*
stoker.keep: annotations of an object that stays in the cluster when its release no longer has it. The second is for
Argo CD, which keeps it for the first but would call the application out of sync. No argument.
*/}}
{{- define "stoker.keep" -}}
helm.sh/resource-policy: keep
argocd.argoproj.io/compare-options: IgnoreExtraneous
{{- end }}

{{/*
stoker.profileNodes: labels of the nodes that an accelerator profile is for, a YAML map.
Argument: the profile.
*/}}
{{- define "stoker.profileNodes" -}}
{{- $nodes := dict }}
{{- if not (has .architecture (list nil "" "any")) }}
  {{- $_ := set $nodes "kubernetes.io/arch" .architecture }}
{{- end }}
{{- include "stoker.overlay" (list $nodes .nodeSelector) }}
{{- end }}
