{{/*
training-runtimes.validateUpgrade: refuses what Helm or Kubernetes would refuse half-way, with the commands that make it
possible. A field that Kubernetes calls immutable may be taken away, and another one put in its place. Asks the cluster,
so it sees nothing under `helm template` and Argo CD. Renders nothing.
Arguments, a dict:
  root       the root context
  catalogue  the resolved runtimes by name
*/}}
{{- define "training-runtimes.validateUpgrade" -}}
{{- if not .root.Values.skipUpgradeCheck }}
  {{- include "training-runtimes.validateOwners" . }}
  {{- include "training-runtimes.validateRuntimes" . }}
{{- end }}
{{- end }}

{{- /*
training-runtimes.validateOwners: runtimes of the same names may be there already, as Kubeflow Trainer's own for
TorchTune. Arguments: as above.
*/}}
{{- define "training-runtimes.validateOwners" -}}
{{- $root := .root }}
{{- $release := $root.Release }}
{{- $kind := $root.Values.kind }}
{{- $owners := list }}
{{- $switches := list }}
{{- $commands := list }}
{{- if $root.Capabilities.APIVersions.Has "trainer.kubeflow.org/v1alpha1" }}
{{- range $namespace := include "training-runtimes.runtimeNamespaces" $root | fromYamlArray }}
  {{- $names := list }}
  {{- range $name, $runtime := $.catalogue }}
    {{- with lookup "trainer.kubeflow.org/v1alpha1" $kind $namespace $name }}
      {{- $given := dig "metadata" "annotations" dict . }}
      {{- $owner := list (get $given "meta.helm.sh/release-namespace") (get $given "meta.helm.sh/release-name") }}
      {{- if ne (join "/" $owner) (printf "%s/%s" $release.Namespace $release.Name) }}
        {{- $names = append $names $name }}
        {{- $switches = append $switches (printf "runtimes.%s.enabled=false" ($runtime.entry | replace "." "\\.")) }}
        {{- $owners = append $owners (printf "  %s%s: %s" $name (ternary "" (printf " in namespace %s" $namespace) (empty $namespace))
              (index $owner 1 | empty | ternary "made without Helm" (printf "of release %s in namespace %s" (index $owner 1) (index $owner 0)))) }}
      {{- end }}
    {{- end }}
  {{- end }}
  {{- with $names }}
    {{- $which := printf "%s %s%s --overwrite" (lower $kind) (join " " .)
          (ternary "" (printf " --namespace %s" $namespace) (empty $namespace)) }}
    {{- $commands = concat $commands (list
          (printf "    kubectl label %s app.kubernetes.io/managed-by=Helm" $which)
          (printf "    kubectl annotate %s \\\n      meta.helm.sh/release-name=%s meta.helm.sh/release-namespace=%s"
            $which $release.Name $release.Namespace)) }}
  {{- end }}
{{- end }}
{{- end }}
{{- with $owners }}
  {{- fail (printf (join "\n" (list
        "\n\nRuntimes of these names are in the cluster and do not belong to this release, so Helm would stop:"
        "" "%s" ""
        "Do one of these for each:"
        ""
        "  Leave it out of this release:"
        "    --set '%s'"
        "  Rename it: leave it out, and make your own from it:"
        "    --set runtimes.YOURS.base=NAME"
        "  Adopt it, if nothing else goes on to manage it:"
        "%s"
        "\nTo adopt with Helm's --take-ownership instead, set skipUpgradeCheck=true as well.\n"))
      (join "\n" .) ($switches | uniq | join ",") (join "\n" $commands)) }}
{{- end }}
{{- end }}

{{- /* training-runtimes.validateRuntimes: some fields of a runtime may not change. Arguments: as above. */}}
{{- define "training-runtimes.validateRuntimes" -}}
{{- $root := .root }}
{{- $kind := $root.Values.kind }}
{{- /* What to take away → the runtimes to take it from, in the words of a command. */}}
{{- $stuck := dict }}
{{- $fields := list }}
{{- if $root.Capabilities.APIVersions.Has "trainer.kubeflow.org/v1alpha1" }}
{{- range $namespace := include "training-runtimes.runtimeNamespaces" $root | fromYamlArray }}
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
        "created before the upgrade is done gets neither retries nor a claim, so create none meanwhile."
        "Remove the old fields, then upgrade right away:"
        "" "%s\n"))
      ($fields | uniq | sortAlpha | join " and ") (join "\n" $commands)) }}
{{- end }}
{{- end }}
