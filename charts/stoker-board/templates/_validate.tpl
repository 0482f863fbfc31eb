{{/*
stoker-board.validate: refuses what the schema cannot see. Every message ends with the fix. Renders nothing.
Argument: the root context.
*/}}
{{- define "stoker-board.validate" -}}
{{- $labels := include "stoker.labels" . | fromYaml }}
{{- $hook := include "stoker.testHook" . | fromYaml }}
{{- $container := dict "kubectl.kubernetes.io/default-container" "" }}
{{- include "stoker.refuseOwnKeys" (list
      (list "commonLabels" .Values.commonLabels (set (deepCopy $labels) "stoker.dev/test" ""))
      (list "commonAnnotations" .Values.commonAnnotations $hook)
      (list "podLabels" .Values.podLabels (include "stoker-board.podLabels" . | fromYaml))
      (list "podAnnotations" .Values.podAnnotations $container)) }}
{{- include "stoker.validateServiceAccount" . }}
{{- include "stoker.validateResources" (list "resources" .Values.resources) }}
{{- if not (include "stoker-board.account" .) }}
  {{- fail "\n\nserviceAccount: without one of its own, every pod of the namespace would have the page's rights. Set serviceAccount.name, or serviceAccount.create=true.\n" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}
  {{- fail "\n\ningress.enabled: an Ingress needs a host name. Set ingress.host.\n" }}
{{- end }}
{{- $names := list }}
{{- range .Values.claims }}
  {{- if has .name $names }}
    {{- fail (printf "\n\nclaims: %s is named twice. Remove one, or name a folder that holds both with path.\n" .name) }}
  {{- end }}
  {{- $names = append $names .name }}
{{- end }}
{{- if and (not .Values.skipApiCheck) (not (.Capabilities.APIVersions.Has "trainer.kubeflow.org/v1alpha1")) }}
  {{- fail "\n\nThe cluster does not serve trainer.kubeflow.org/v1alpha1. Install Kubeflow Trainer. Rendering without a cluster, or only releases to show? Set skipApiCheck=true.\n" }}
{{- end }}
{{- end }}
