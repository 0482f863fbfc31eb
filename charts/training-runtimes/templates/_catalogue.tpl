{{/*
training-runtimes.entries: every runtime there is, enabled or not, a YAML map by name: those of the catalogue as they are
written in runtimes/, and those that values make from one of them.
Argument: the root context.
*/}}
{{- define "training-runtimes.entries" -}}
{{- $entries := dict }}
{{- range $path, $content := .Files.Glob "files/runtimes/*.yaml" }}
  {{- $entry := $content | toString | fromYaml }}
  {{- $_ := set $entries $entry.name $entry }}
{{- end }}
{{- $catalogue := keys $entries | sortAlpha }}
{{- range $name, $own := .Values.runtimes }}
  {{- if not (has $name $catalogue) }}
    {{- if not $own.base }}
      {{- fail (printf "\n\nruntimes.%s: the catalogue has no runtime of this name. It has: %s. To make your own, set runtimes.%s.base to one of them.\n"
            $name (join ", " $catalogue) $name) }}
    {{- else if not (has $own.base $catalogue) }}
      {{- fail (printf "\n\nruntimes.%s.base: the catalogue has no runtime %q. Use one of: %s.\n"
            $name $own.base (join ", " $catalogue)) }}
    {{- end }}
    {{- $_ := set $entries $name (merge (dict "name" $name "own" true) (get $entries $own.base)) }}
  {{- else if $own.base }}
    {{- fail (printf "\n\nruntimes.%s.base: the catalogue has a runtime of this name already. Give your own another name.\n" $name) }}
  {{- end }}
{{- end }}
{{- toYaml $entries }}
{{- end }}

{{/*
training-runtimes.catalogue: the runtimes to install, resolved, a YAML map by the name they get. Whatever is decided per
runtime is decided here, weakest first: accelerator profile, entry, values; templates only write it down.
Argument: the root context.
*/}}
{{- define "training-runtimes.catalogue" -}}
{{- /* Most templates ask for it, and resolving all runtimes takes most of the time of rendering. */}}
{{- if not (hasKey . "resolvedCatalogue") }}
  {{- $_ := set . "resolvedCatalogue" (include "training-runtimes.resolvedCatalogue" .) }}
{{- end }}
{{- get . "resolvedCatalogue" }}
{{- end }}

{{- define "training-runtimes.resolvedCatalogue" -}}
{{- include "training-runtimes.validateNames" . }}
{{- include "training-runtimes.validateTracking" . }}
{{- $catalogue := dict }}
{{- range $name, $entry := include "training-runtimes.entries" . | fromYaml }}
  {{- $override := get ($.Values.runtimes | default dict) $name | default dict }}
  {{- $kind := get $.Values.accelerators ($override.accelerator | default $.Values.accelerator) | default dict | dig "kind" "" }}
  {{- $fits := or (not $entry.accelerators) (has $kind $entry.accelerators) }}
  {{- $wanted := or $entry.own (and $fits (has $.Values.profile (list "all" $entry.framework))) }}
  {{- if dig "enabled" $wanted $override }}
    {{- $resolved := include "training-runtimes.resolve" (list $ $entry $override) | fromYaml }}
    {{- range $given := include "training-runtimes.names" (list $ $resolved) | fromYamlArray }}
      {{- if hasKey $catalogue $given }}
        {{- fail (printf (join " " (list
              "\n\nTwo runtimes would have the name %q, one of them because of names.style %s."
              "Rename the one under runtimes, or set names.version.\n")) $given $.Values.names.style) }}
      {{- else if gt (len $given) 63 }}
        {{- fail (printf "\n\nnames.version: the name %q has %d characters, and a runtime's name may have 63. Choose a shorter version.\n"
              $given (len $given)) }}
      {{- end }}
      {{- $_ := set $catalogue $given (set (deepCopy $resolved) "name" $given) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toYaml $catalogue }}
{{- end }}

{{/*
training-runtimes.names: the names a runtime gets, a YAML list. Trainer reads TorchTune's model from the plain name.
Argument: a list of the root context and a resolved entry.
*/}}
{{- define "training-runtimes.names" -}}
{{- $root := index . 0 }}
{{- $runtime := index . 1 }}
{{- $style := $root.Values.names.style }}
{{- $names := list }}
{{- if or (ne $style "versioned") $runtime.own }}
  {{- $names = append $names $runtime.entry }}
{{- end }}
{{- if and (ne $style "plain") (ne $runtime.framework "torchtune") (not $runtime.own) }}
  {{- $line := regexFind "^[0-9]+\\.[0-9]+" $root.Chart.AppVersion }}
  {{- $names = append $names (printf "%s-%s" $runtime.entry ($root.Values.names.version | default $line)) }}
{{- end }}
{{- toYaml $names }}
{{- end }}

{{/*
training-runtimes.resolve: one entry with its accelerator and the values that change it, a YAML map.
Argument: a list of the root context, the entry and its override.
*/}}
{{- define "training-runtimes.resolve" -}}
{{- $root := index . 0 }}
{{- $entry := index . 1 }}
{{- $override := index . 2 }}
{{- $values := $root.Values }}
{{- $accelerator := $override.accelerator | default $values.accelerator }}
{{- $profile := get $values.accelerators $accelerator }}
{{- $samplersAccelerator := ($override.samplers | default dict).accelerator | default $accelerator }}
{{- $sizes := $entry.sizes | default dict }}
{{- /* A model takes as much host memory beside a GPU of another maker. */}}
{{- $sizes = get $sizes $profile.kind | default (ternary $sizes.nvidia dict (has $profile.kind (list "amd" "intel"))) | default dict }}
{{- $resources := mergeOverwrite (deepCopy $profile.resources) (deepCopy $sizes) (deepCopy ($override.resources | default dict)) }}
{{- /* `stoker validate` cannot count the devices of a claim. */}}
{{- $processes := $profile.processesPerNode }}
{{- if and (not $processes) (or $profile.deviceClassName $override.deviceClaims) }}
  {{- $processes = $resources.devices }}
{{- end }}
{{- $workspace := mergeOverwrite
      (dict "size" ($entry.workspaceSize | default "50Gi"))
      (ternary (omit $values.workspace "size") (deepCopy $values.workspace) (empty $values.workspace.size))
      ($override.workspace | default dict) }}
{{- $model := dig "model" ($entry.model | default "") $override }}
{{- $framework := $override.framework | default $entry.framework }}
{{- $tracked := list $values.tracking ($entry.endpoint | empty | ternary $framework "") }}
{{- $trackingArgs := include "training-runtimes.trackingArgs" $tracked | fromYaml }}
{{- $trackingEnv := include "training-runtimes.trackingEnv" $tracked | fromYaml }}
{{- $external := include "training-runtimes.externalSamplersOf" (list $entry $override) | fromYaml }}
{{- $deprecated := ternary $override.deprecated $entry.deprecated (hasKey $override "deprecated") }}
{{- toYaml (dict
      "entry" $entry.name
      "catalogue" (include "training-runtimes.catalogueId" $root)
      "own" ($entry.own | default false)
      "description" ($override.description | default $entry.description)
      "framework" ($override.framework | default $entry.framework)
      "deprecated" $deprecated
      "accelerator" $accelerator
      "acceleratorKind" $profile.kind
      "architecture" $profile.architecture
      "image" (include "stoker.image" (dict
        "root" $root "name" $entry.image "variant" $profile.imageVariant "override" $override.image
        "for" (printf "Runtime %q on accelerator %q" $entry.name $accelerator)
        "instead" (printf (join " " (list
          " (for this runtime alone: runtimes.%s.image), choose another accelerator, or switch the runtime off with"
          "profile or runtimes.%s.enabled")) $entry.name $entry.name)))
      "method" ($override.method | default $entry.method)
      "numNodes" ($override.numNodes | default $entry.numNodes)
      "samplers" (include "training-runtimes.samplersOf" (list $root $entry $override $samplersAccelerator) | fromYaml)
      "externalSamplers" $external
      "endpoint" ($entry.endpoint | default "")
      "sharding" ($override.sharding | default $entry.sharding)
      "command" ($override.command | default $entry.command)
      "args" (include "stoker.overlay" (list $trackingArgs $entry.args $external.args $override.args) | fromYaml)
      "env" (include "training-runtimes.outboundEnv" (list $root
        (list $trackingEnv $profile.env $entry.env $external.env $override.env)) | fromYaml)
      "initializers" (dig "initializers" $values.initializers.enabled $override)
      "model" $model
      "gated" (and $entry.gated (eq $model $entry.model))
      "dataset" (dig "dataset" ($entry.dataset | default "") $override)
      "processesPerNode" $processes
      "resourceName" $profile.resourceName
      "deviceClassName" $profile.deviceClassName
      "deviceSelectors" $profile.deviceSelectors
      "deviceClaims" ($override.deviceClaims | default list)
      "resources" $resources
      "rdma" (mergeOverwrite (deepCopy ($profile.rdma | default dict)) (deepCopy ($override.rdma | default dict)))
      "sharedMemory" ($override.sharedMemory | default $profile.sharedMemory)
      "workspace" $workspace
      "runtimeClassName" $profile.runtimeClassName
      "priorityClassName" (dig "priorityClassName" $values.priorityClassName $override)
      "podGroupPolicy" (dig "podGroupPolicy" $values.podGroupPolicy $override)
      "labels" (include "stoker.overlay" (list $values.commonLabels $override.labels) | fromYaml)
      "annotations" (include "stoker.overlay"
        (list $values.commonAnnotations $override.annotations) | fromYaml)
      "nodeSelector" (include "stoker.overlay"
        (list (include "stoker.imageNodes" (dict "root" $root "names" (list $entry.image) "override" $override.image
          "architecture" $profile.architecture) | fromYaml)
          (include "stoker.profileNodes" $profile | fromYaml) $values.nodeSelector $override.nodeSelector) | fromYaml)
      "tolerations" (concat
        ($profile.tolerations | default list) ($values.tolerations | default list) ($override.tolerations | default list) | uniq)
      "affinity" ($override.affinity | default dict)
      "topologySpreadConstraints" ($override.topologySpreadConstraints | default list)
      "volumes" ($override.volumes | default list)
      "volumeMounts" ($override.volumeMounts | default list)
      "podTemplate" ($override.podTemplate | default dict)
    ) }}
{{- end }}

{{/*
training-runtimes.catalogueId: what the runs of a release are known by to Prometheus, also when their runtimes are gone.
No two releases in a cluster have the same.
Argument: the root context.
*/}}
{{- define "training-runtimes.catalogueId" -}}
{{- printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 16 }}
{{- end }}

{{/*
training-runtimes.namespaces: namespaces that the release puts namespaced objects into, a YAML list.
Argument: the root context.
*/}}
{{- define "training-runtimes.namespaces" -}}
{{- toYaml (.Values.namespaces | default (list .Release.Namespace)) }}
{{- end }}

{{/*
training-runtimes.runtimeNamespaces: namespaces that runtimes are looked for in, a YAML list; an empty one where they
belong to no namespace.
Argument: the root context.
*/}}
{{- define "training-runtimes.runtimeNamespaces" -}}
{{- if eq .Values.kind "TrainingRuntime" }}
{{- include "training-runtimes.namespaces" . }}
{{- else }}
{{- toYaml (list "") }}
{{- end }}
{{- end }}
