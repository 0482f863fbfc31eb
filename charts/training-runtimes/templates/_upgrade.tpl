{{/*
training-runtimes.validateUpgrade: refuses an upgrade that Kubernetes would refuse half-way, with the commands that make
it possible. A field that Kubernetes calls immutable may be taken away, and another one put in its place. Asks the
cluster, so it sees nothing under `helm template` and Argo CD. Renders nothing.
Arguments, a dict:
  root       the root context
  catalogue  the resolved runtimes by name
*/}}
{{- define "training-runtimes.validateUpgrade" -}}
{{- if not .root.Values.skipUpgradeCheck }}
  {{- include "training-runtimes.validateRuntimes" . }}
{{- end }}
{{- end }}

{{- /* training-runtimes.validateRuntimes: some fields of a runtime may not change. Arguments: as above. */}}
{{- define "training-runtimes.validateRuntimes" -}}
{{- $root := .root }}
{{- $kind := $root.Values.kind }}
{{- $namespaces := ternary (list "") (include "training-runtimes.namespaces" $root | fromYamlArray)
      (eq $kind "ClusterTrainingRuntime") }}
{{- /* What to take away → the runtimes to take it from, in the words of a command. */}}
{{- $stuck := dict }}
{{- $fields := list }}
{{- if $root.Capabilities.APIVersions.Has "trainer.kubeflow.org/v1alpha1" }}
{{- range $namespace := $namespaces }}
{{- range $name, $runtime := $.catalogue }}
  {{- $live := lookup "trainer.kubeflow.org/v1alpha1" $kind $namespace $name | dig "spec" "template" "spec" dict }}
  {{- $wanted := include "training-runtimes.immutableSpec" (dict "root" $root "runtime" $runtime) | fromYaml }}
  {{- $removals := list }}
  {{- range $field, $value := $wanted }}
    {{- if and (hasKey $live $field) (ne (toRawJson (get $live $field)) (toRawJson $value)) }}
      {{- $removals = append $removals (printf "{\"op\": \"remove\", \"path\": \"/spec/template/spec/%s\"}" $field) }}
      {{- $fields = append $fields $field }}
    {{- end }}
  {{- end }}
  {{- with $removals }}
    {{- $key := printf "%s--type json --patch \\\n    '[%s]'"
          (ternary "" (printf "--namespace %s " $namespace) (empty $namespace)) (join ", " .) }}
    {{- $_ := set $stuck $key (append (get $stuck $key | default list) $name) }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if $stuck }}
  {{- $commands := list }}
  {{- range $patch, $names := $stuck }}
    {{- $commands = append $commands (printf "  for runtime in %s; do\n    kubectl patch %s \"$runtime\" %s\n  done"
          (join " " $names) (lower $kind) $patch) }}
  {{- end }}
  {{- fail (printf (join "\n" (list
        "\n\nThis upgrade would change %s of a runtime, and Kubernetes does not allow that."
        "Existing TrainJobs keep what they started with (with Trainer 2.2: those that are not suspended). A TrainJob"
        "created before the upgrade is done gets neither retries nor a claim, so let nobody create one meanwhile."
        "Remove the old fields, then upgrade right away:"
        "" "%s\n"))
      ($fields | uniq | sortAlpha | join " and ") (join "\n" $commands)) }}
{{- end }}
{{- end }}
