{{/*
training-runtimes.entries: every runtime of the catalogue as it is written in runtimes/, a YAML map by name.
Argument: the root context.
*/}}
{{- define "training-runtimes.entries" -}}
{{- $entries := dict }}
{{- range $path, $content := .Files.Glob "files/runtimes/*.yaml" }}
  {{- $entry := $content | toString | fromYaml }}
  {{- $_ := set $entries $entry.name $entry }}
{{- end }}
{{- toYaml $entries }}
{{- end }}

{{/*
training-runtimes.overlay: one flat YAML map of many, the last one winning. Unlike mergeOverwrite it lets an empty
string win too, which is how values take a default back.
Argument: a list of maps, or of nothing in a map's place.
*/}}
{{- define "training-runtimes.overlay" -}}
{{- $overlay := dict }}
{{- range . }}
  {{- range $key, $value := . }}
    {{- $_ := set $overlay $key $value }}
  {{- end }}
{{- end }}
{{- toYaml $overlay }}
{{- end }}

{{/*
training-runtimes.catalogue: the enabled runtimes, resolved, a YAML map by name. Whatever is decided per runtime is
decided here, weakest first: accelerator profile, entry, values; templates only write it down.
Argument: the root context.
*/}}
{{- define "training-runtimes.catalogue" -}}
{{- include "training-runtimes.validateNames" . }}
{{- $catalogue := dict }}
{{- range $name, $entry := include "training-runtimes.entries" . | fromYaml }}
  {{- $override := get $.Values.runtimes $name | default dict }}
  {{- if dig "enabled" true $override }}
    {{- $accelerator := $override.accelerator | default $.Values.accelerator }}
    {{- $profile := get $.Values.accelerators $accelerator }}
    {{- $image := include "training-runtimes.image" (dict
          "root" $ "runtime" $name "accelerator" $accelerator "name" $entry.image
          "variant" $profile.imageVariant "override" ($override.image | default dict)) }}
    {{- $_ := set $catalogue $name (dict
          "name" $name
          "description" $entry.description
          "framework" $entry.framework
          "accelerator" $accelerator
          "acceleratorKind" $profile.kind
          "image" $image
          "method" ($override.method | default $entry.method)
          "numNodes" ($override.numNodes | default $entry.numNodes)
          "args" (include "training-runtimes.overlay" (list $entry.args $override.args) | fromYaml)
          "env" (include "training-runtimes.overlay" (list $profile.env $entry.env $override.env) | fromYaml)
          "processesPerNode" $profile.processesPerNode
          "resourceName" $profile.resourceName
          "resources" (mergeOverwrite (deepCopy $profile.resources) (deepCopy ($override.resources | default dict)))
          "sharedMemory" ($override.sharedMemory | default $profile.sharedMemory)
          "runtimeClassName" $profile.runtimeClassName
          "nodeSelector" (include "training-runtimes.overlay"
            (list $profile.nodeSelector $.Values.nodeSelector $override.nodeSelector) | fromYaml)
          "tolerations" (concat
            ($profile.tolerations | default list) $.Values.tolerations ($override.tolerations | default list) | uniq)
        ) }}
  {{- end }}
{{- end }}
{{- toYaml $catalogue }}
{{- end }}
