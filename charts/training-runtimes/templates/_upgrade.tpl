{{/*
training-runtimes.validateUpgrade: refuses an upgrade that Kubernetes would refuse half-way, with the commands that make
it possible. A field that Kubernetes calls immutable may be taken away, and another one put in its place. Asks the
cluster, so it sees nothing under `helm template` and Argo CD. Renders nothing.
Arguments, a dict:
  root       the root context
  catalogue  the resolved runtimes by name
*/}}
{{- define "training-runtimes.validateUpgrade" -}}
{{- $root := .root }}
{{- $kind := $root.Values.kind }}
{{- $namespaces := ternary (list "") (include "training-runtimes.namespaces" $root | fromYamlArray)
      (eq $kind "ClusterTrainingRuntime") }}
{{- $commands := list }}
{{- $blocked := list }}
{{- if and ($root.Capabilities.APIVersions.Has "trainer.kubeflow.org/v1alpha1") (not $root.Values.skipUpgradeCheck) }}
{{- range $namespace := $namespaces }}
{{- range $name, $runtime := $.catalogue }}
  {{- $found := lookup "trainer.kubeflow.org/v1alpha1" $kind $namespace $name }}
  {{- $live := $found | dig "spec" "template" "spec" dict }}
  {{- $wanted := include "training-runtimes.immutableSpec" (dict "root" $root "runtime" $runtime) | fromYaml }}
  {{- $removals := list }}
  {{- range $field, $value := $wanted }}
    {{- if and (hasKey $live $field) (ne (toRawJson (get $live $field)) (toRawJson $value)) }}
      {{- $removals = append $removals (printf "{\"op\": \"remove\", \"path\": \"/spec/template/spec/%s\"}" $field) }}
      {{- $blocked = append $blocked $field }}
    {{- end }}
  {{- end }}
  {{- with $removals }}
    {{- $commands = append $commands (printf "  kubectl patch %s %s%s --type json --patch \\\n    '[%s]'"
          (lower $kind) $name (ternary "" (printf " --namespace %s" $namespace) (empty $namespace)) (join ", " .)) }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if $commands }}
  {{- fail (printf (join "\n" (list
        "\n\nKubernetes does not let %s of a runtime change, and this upgrade would. Take the old ones away, then upgrade at once:"
        "" "%s" ""
        "TrainJobs that exist keep what they started with (with Trainer 2.2: those that are not suspended). One that is"
        "created between the two commands has neither retries nor a claim, so let nobody create one.\n"))
      ($blocked | uniq | sortAlpha | join " and ") (join "\n" $commands)) }}
{{- end }}
{{- end }}
