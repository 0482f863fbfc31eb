{{/*
training-runtimes.shownRuntime: name of the runtime that the notes use: the generic one, else the first that is not
deprecated, else the first; those that need more than a model and data last of all: one of TorchTune that leaves the
recipe to its TrainJobs, and those for reinforcement learning with samplers.
Argument: the resolved runtimes by name.
*/}}
{{- define "training-runtimes.shownRuntime" -}}
{{- $names := list }}
{{- $last := list }}
{{- $bare := list }}
{{- range $name, $runtime := . }}
  {{- if eq $runtime.entry "trl-distributed" }}
    {{- $names = prepend $names $name }}
  {{- else if or (and (eq $runtime.framework "torchtune") (not $runtime.command)) $runtime.endpoint $runtime.samplers $runtime.externalSamplers }}
    {{- $bare = append $bare $name }}
  {{- else if $runtime.deprecated }}
    {{- $last = append $last $name }}
  {{- else }}
    {{- $names = append $names $name }}
  {{- end }}
{{- end }}
{{- concat $names $last $bare | first }}
{{- end }}

{{/*
training-runtimes.requiredObjects: what the runtimes refer to and a TrainJob's namespace has to have, a YAML list.
Arguments, a dict:
  root       the root context
  catalogue  the resolved runtimes by name
*/}}
{{- define "training-runtimes.requiredObjects" -}}
{{- $root := .root }}
{{- $needed := list }}
{{- range $root.Values.imagePullSecrets }}
  {{- $needed = append $needed (printf "Secret %s, to pull images" .name) }}
{{- end }}
{{- with $root.Values.scratch.cacheClaim }}
  {{- $needed = append $needed (printf "PersistentVolumeClaim %s, for caches" .) }}
{{- end }}
{{- with $root.Values.outbound.caBundle }}
  {{- range $kind, $name := dict "ConfigMap" .configMap "Secret" .secret }}
    {{- if $name }}
      {{- $needed = append $needed (printf "%s %s with key %s, for certificate authorities" $kind $name $root.Values.outbound.caBundle.key) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- with include "stoker.serviceAccountName" (dict "root" $root "name" $root.Release.Name) }}
  {{- $made := printf " (this release makes it in: %s)" (include "training-runtimes.namespaces" $root | fromYamlArray | join ", ") }}
  {{- $needed = append $needed (printf "ServiceAccount %s%s" . (empty $root.Values.serviceAccount.create | ternary "" $made)) }}
{{- end }}
{{- range $root.Values.initializers.volumes }}
  {{- $needed = concat $needed (include "training-runtimes.volumeSources" (list "the initializers" .) | fromYamlArray) }}
{{- end }}
{{- if include "training-runtimes.networkPolicies" (dict "root" $root "role" "node") }}
  {{- $needed = append $needed (printf "NetworkPolicies, so that no other run reaches samplers (this release makes them in: %s)"
        (include "training-runtimes.namespaces" $root | fromYamlArray | join ", ")) }}
{{- end }}
{{- $gated := list }}
{{- $variables := list $root.Values.initializers.env }}
{{- range $name, $runtime := .catalogue }}
  {{- $variables = concat $variables (list $runtime.env (dig "env" dict ($runtime.samplers | default dict))) }}
  {{- with $runtime.workspace.existingClaim }}
    {{- $needed = append $needed (printf "PersistentVolumeClaim %s, for the runs' files" .) }}
  {{- end }}
  {{- with dig "claim" "" $runtime.externalSamplers }}
    {{- $needed = append $needed (printf "PersistentVolumeClaim %s, for the adapters that runs publish to their samplers" .) }}
  {{- end }}
  {{- range concat $runtime.volumes (dig "spec" "volumes" list $runtime.podTemplate) }}
    {{- $needed = concat $needed (include "training-runtimes.volumeSources" (list $name .) | fromYamlArray) }}
  {{- end }}
  {{- with dig "spec" "serviceAccountName" "" $runtime.podTemplate }}
    {{- $needed = append $needed (printf "ServiceAccount %s, for the pods of %s" . $name) }}
  {{- end }}
  {{- range concat $runtime.deviceClaims (dig "deviceClaims" list ($runtime.samplers | default dict)) }}
    {{- with .resourceClaimName }}
      {{- $needed = append $needed (printf "ResourceClaim %s, for the pods of %s" . $name) }}
    {{- end }}
    {{- with .resourceClaimTemplateName }}
      {{- $needed = append $needed (printf "ResourceClaimTemplate %s, for the pods of %s" . $name) }}
    {{- end }}
  {{- end }}
  {{- with dig "slice" "lease" "" ($runtime.samplers | default dict) }}
    {{- $needed = append $needed (printf "Lease %s, for the turns of the samplers of %s" . $name) }}
    {{- $needed = append $needed (printf "ServiceAccount %s and a Role and a RoleBinding of this name (this release makes them in: %s)"
          (include "training-runtimes.sliceName" (list $root .))
          (include "training-runtimes.namespaces" $root | fromYamlArray | join ", ")) }}
  {{- end }}
  {{- if and $runtime.gated $runtime.initializers }}
    {{- $gated = append $gated $name }}
  {{- end }}
{{- end }}
{{- range $name, $_ := include "training-runtimes.deviceClaims" (dict "root" $root "catalogue" .catalogue) | fromYaml }}
  {{- $needed = append $needed (printf "ResourceClaimTemplate %s (this release makes it in: %s)" $name
        (include "training-runtimes.namespaces" $root | fromYamlArray | join ", ")) }}
{{- end }}
{{- range $environment := $variables }}
  {{- range $variable, $value := $environment }}
    {{- if kindIs "map" $value }}
      {{- range $kind, $reference := $value }}
        {{- if not $reference.optional }}
          {{- $needed = append $needed (printf "%s %s with key %s, for %s"
                (ternary "Secret" "ConfigMap" (eq $kind "secretKeyRef")) $reference.name $reference.key $variable) }}
        {{- end }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- if and $gated (not (hasKey ($root.Values.initializers.env | default dict) "HF_TOKEN")) }}
  {{- $needed = append $needed (printf
        "a Secret with HF_TOKEN, named in spec.initializer.model.secretRef or initializers.env, for gated models (%s)"
        (join ", " $gated)) }}
{{- end }}
{{- toYaml (uniq $needed) }}
{{- end }}

{{/*
training-runtimes.volumeSources: what a volume of values needs in its namespace, a YAML list.
Argument: a list of the runtime's name and the volume.
*/}}
{{- define "training-runtimes.volumeSources" -}}
{{- $needed := list }}
{{- $volume := index . 1 }}
{{- $purpose := printf "for the volume %s of %s" $volume.name (index . 0) }}
{{- with dig "persistentVolumeClaim" "claimName" "" $volume }}
  {{- $needed = append $needed (printf "PersistentVolumeClaim %s, %s" . $purpose) }}
{{- end }}
{{- $sources := prepend (dig "projected" "sources" list $volume) $volume }}
{{- range $source := $sources }}
  {{- range $field, $kind := dict "secret" "Secret" "configMap" "ConfigMap" }}
    {{- with get $source $field }}
      {{- if not .optional }}
        {{- $needed = append $needed (printf "%s %s, %s" $kind (.secretName | default .name) $purpose) }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toYaml $needed }}
{{- end }}
