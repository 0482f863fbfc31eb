{{/*
Helpers of all charts below one parent share one namespace, other people's libraries included: the names here begin
with the project's. Two releases of a chart may meet there too: a helper that changes its arguments gets another name.
*/}}

{{/*
stoker.image: the full reference of an image, as images.lock.yaml has it unless values say otherwise. A tag or digest in
values stands alone: the lock's digest belongs to the lock's tag, and that of values for all to another image than an
override.
Arguments, a dict:
  root      the root context
  name      the image's name in the lock and in values
  variant   the variant it takes
  override  a repository, tag and digest that win over values (optional)
  for       what needs the image, for messages (optional)
  instead   what else helps, for messages (optional)
*/}}
{{- define "stoker.image" -}}
{{- $lock := .root.Files.Get "files/images.lock.yaml" | fromYaml }}
{{- $variants := get $lock.images .name | default dict | dig "variants" dict }}
{{- $override := .override | default dict }}
{{- $all := get (.root.Values.images | default dict) .name | default dict }}
{{- if or $override.tag $override.digest }}
  {{- $all = pick $all "repository" }}
{{- end }}
{{- $own := mergeOverwrite dict $all $override }}
{{- $reference := $own.repository | default (printf "%s/%s" (include "stoker.registry" .root) .name) }}
{{- $pinned := $own }}
{{- if not (or $own.tag $own.digest) }}
  {{- if not (hasKey $variants .variant) }}
    {{- fail (printf (join " " (list
          "\n\n%s needs the variant %q of image %q, and images.lock.yaml has only: %s."
          "Set images.%s.tag or images.%s.digest to an image made for it%s.\n"))
        (.for | default (printf "accelerator %q" .root.Values.accelerator)) .variant .name
        (keys $variants | sortAlpha | join ", " | default "none") .name .name
        (.instead | default ", or choose another accelerator")) }}
  {{- end }}
  {{- $pinned = get $variants .variant }}
{{- end }}
{{- with $pinned.tag }}{{ $reference = printf "%s:%s" $reference . }}{{ end }}
{{- with $pinned.digest }}{{ $reference = printf "%s@%s" $reference . }}{{ end }}
{{- $reference }}
{{- end }}

{{/*
stoker.imageNodes: labels of the nodes that images of the lock can run on, a YAML map; empty where they run on all, or
values name images of their own, about which nobody here knows, or say the processor.
Arguments, a dict:
  root          the root context
  names         the images of a pod, as in the lock and in values
  override      a repository, tag and digest that win over values, for the only image (optional)
  architecture  the processor that values say (optional)
*/}}
{{- define "stoker.imageNodes" -}}
{{- $platforms := (.root.Files.Get "files/images.lock.yaml" | fromYaml).platforms | default list }}
{{- $nodes := dict }}
{{- range .names }}
  {{- $own := mergeOverwrite (dict) (get ($.root.Values.images | default dict) . | default dict) ($.override | default dict) }}
  {{- if and (eq (len $platforms) 1) (not (or $.architecture $own.repository $own.tag $own.digest)) }}
    {{- $_ := set $nodes "kubernetes.io/arch" (first $platforms | splitList "/" | last) }}
  {{- end }}
{{- end }}
{{- toYaml $nodes }}
{{- end }}

{{/*
stoker.registry: registry and path that all images of the lock are pulled from.
Argument: the root context.
*/}}
{{- define "stoker.registry" -}}
{{- $registry := (.Files.Get "files/images.lock.yaml" | fromYaml).registry }}
{{- with (.Values.global | default dict).imageRegistry }}
  {{- $registry = regexReplaceAll "^[^/]+" $registry (trimSuffix "/" .) }}
{{- end }}
{{- $registry }}
{{- end }}
