{{/*
vllm-serving.image: the full reference of an image, as images.lock.yaml has it unless values say otherwise. A tag or
digest in values stands alone: the lock's digest belongs to the lock's tag.
Arguments, a list: the root context, the image's name in the lock and in values, the variant.
*/}}
{{- define "vllm-serving.image" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $variant := index . 2 }}
{{- $own := get ($root.Values.images | default dict) $name | default dict }}
{{- $lock := $root.Files.Get "files/images.lock.yaml" | fromYaml }}
{{- $registry := $lock.registry }}
{{- with ($root.Values.global | default dict).imageRegistry }}
  {{- $registry = regexReplaceAll "^[^/]+" $registry (trimSuffix "/" .) }}
{{- end }}
{{- $reference := $own.repository | default (printf "%s/%s" $registry $name) }}
{{- $pinned := $own }}
{{- if not (or $own.tag $own.digest) }}
  {{- $variants := (get $lock.images $name).variants }}
  {{- if not (hasKey $variants $variant) }}
    {{- fail (printf (join " " (list
          "\n\naccelerator %q needs the variant %q of image %q, and images.lock.yaml has only: %s."
          "Name an image made for it by images.%s.tag or .digest, or choose another accelerator.\n"))
        $root.Values.accelerator $variant $name (keys $variants | sortAlpha | join ", ") $name) }}
  {{- end }}
  {{- $pinned = get $variants $variant }}
{{- end }}
{{- with $pinned.tag }}{{ $reference = printf "%s:%s" $reference . }}{{ end }}
{{- with $pinned.digest }}{{ $reference = printf "%s@%s" $reference . }}{{ end }}
{{- $reference }}
{{- end }}
