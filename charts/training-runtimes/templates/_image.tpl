{{/*
training-runtimes.image: the full reference of a runtime's image, as images.lock.yaml has it unless values say otherwise.
A tag or digest in values stands alone: the lock's digest belongs to the lock's tag, and that of values for all runtimes
to another image than one runtime's own.
Arguments, a dict:
  root         the root context
  runtime      name of the runtime, for messages
  accelerator  name of its accelerator profile, for messages
  name         the image's name in the lock
  variant      the variant the profile asks for
  override     the runtime's own repository, tag, digest
*/}}
{{- define "training-runtimes.image" -}}
{{- $lock := .root.Files.Get "files/images.lock.yaml" | fromYaml }}
{{- $variants := get $lock.images .name | default dict | dig "variants" dict }}
{{- $all := get .root.Values.images .name | default dict }}
{{- if or .override.tag .override.digest }}
  {{- $all = pick $all "repository" }}
{{- end }}
{{- $own := mergeOverwrite dict $all .override }}
{{- $registry := include "training-runtimes.registry" .root }}
{{- $reference := $own.repository | default (printf "%s/%s" $registry .name) }}
{{- $pinned := dict "tag" $own.tag "digest" $own.digest }}
{{- if not (or $own.tag $own.digest) }}
  {{- if not (hasKey $variants .variant) }}
    {{- $choices := keys $variants | sortAlpha | join ", " }}
    {{- fail (printf (join " " (list
          "\n\nRuntime %q: accelerator %q needs the variant %q of image %q, and images.lock.yaml has only: %s."
          "Name an image made for it by images.%s.tag or .digest (for one runtime: runtimes.%s.image), choose another"
          "accelerator, or leave the runtime out by profile or runtimes.%s.enabled.\n"))
        .runtime .accelerator .variant .name ($choices | default "none") .name .runtime .runtime) }}
  {{- end }}
  {{- $pinned = get $variants .variant }}
{{- end }}
{{- with $pinned.tag }}{{ $reference = printf "%s:%s" $reference . }}{{ end }}
{{- with $pinned.digest }}{{ $reference = printf "%s@%s" $reference . }}{{ end }}
{{- $reference }}
{{- end }}

{{/*
training-runtimes.registry: registry and path that all images of the lock are pulled from.
Argument: the root context.
*/}}
{{- define "training-runtimes.registry" -}}
{{- $registry := (.Files.Get "files/images.lock.yaml" | fromYaml).registry }}
{{- with .Values.global.imageRegistry }}
  {{- $registry = regexReplaceAll "^[^/]+" $registry (trimSuffix "/" .) }}
{{- end }}
{{- $registry }}
{{- end }}
