{{/*
training-runtimes.image: the full reference of a runtime's image, as images.lock.yaml has it unless values say otherwise.
A tag or digest in values stands alone: the lock's digest belongs to the lock's tag.
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
{{- $own := mergeOverwrite dict (get .root.Values.images .name | default dict) .override }}
{{- $registry := $lock.registry }}
{{- with .root.Values.global.imageRegistry }}
  {{- $registry = regexReplaceAll "^[^/]+" $registry (trimSuffix "/" .) }}
{{- end }}
{{- $reference := $own.repository | default (printf "%s/%s" $registry .name) }}
{{- $pinned := dict "tag" $own.tag "digest" $own.digest }}
{{- if not (or $own.tag $own.digest) }}
  {{- if not (hasKey $variants .variant) }}
    {{- $choices := keys $variants | sortAlpha | join ", " }}
    {{- fail (printf (join " " (list
          "\n\nRuntime %q: accelerator %q needs the variant %q of image %q, and images.lock.yaml has only: %s."
          "Name an image made for it by runtimes.%s.image.tag or .digest, or choose another accelerator.\n"))
        .runtime .accelerator .variant .name $choices .runtime) }}
  {{- end }}
  {{- $pinned = get $variants .variant }}
{{- end }}
{{- with $pinned.tag }}{{ $reference = printf "%s:%s" $reference . }}{{ end }}
{{- with $pinned.digest }}{{ $reference = printf "%s@%s" $reference . }}{{ end }}
{{- $reference }}
{{- end }}
