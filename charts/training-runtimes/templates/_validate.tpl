{{/*
training-runtimes.validate: refuses what the schema cannot see: a cluster without Trainer, and values that contradict
each other. Every message ends with what to do. Renders nothing.
Argument: the root context.
*/}}
{{- define "training-runtimes.validate" -}}
{{- if .Values.enabled }}
  {{- include "training-runtimes.validateApis" . }}
  {{- range $name, $runtime := include "training-runtimes.catalogue" . | fromYaml }}
    {{- include "training-runtimes.validateDevices" $runtime }}
    {{- include "training-runtimes.validateEnv" (dict "root" $ "runtime" $runtime) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateApis" -}}
{{- $missing := list }}
{{- range $api := list "jobset.x-k8s.io/v1alpha2" "trainer.kubeflow.org/v1alpha1" }}
  {{- if not ($.Capabilities.APIVersions.Has $api) }}
    {{- $missing = append $missing $api }}
  {{- end }}
{{- end }}
{{- if and $missing (not .Values.skipApiCheck) }}
  {{- fail (printf (join "\n" (list
        "\n\nThe cluster does not serve %s: these runtimes need JobSet and Kubeflow Trainer 2.2 or newer. Install them:"
        ""
        "  helm upgrade --install jobset oci://registry.k8s.io/jobset/charts/jobset --version 0.12.0 \\"
        "    --namespace jobset-system --create-namespace --wait"
        "  helm upgrade --install kubeflow-trainer oci://ghcr.io/kubeflow/charts/kubeflow-trainer --version 2.3.0 \\"
        "    --namespace kubeflow-system --create-namespace --wait --set jobset.install=false \\"
        "    --set manager.config.featureGates.TrainJobStatus=true"
        ""
        "Rendering without a cluster (helm template, Argo CD, Flux)? Set skipApiCheck=true.\n"))
      (join " and " $missing)) }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateNames" -}}
{{- $entries := include "training-runtimes.entries" . | fromYaml }}
{{- $profiles := .Values.accelerators }}
{{- range $name, $override := .Values.runtimes }}
  {{- if not (hasKey $entries $name) }}
    {{- fail (printf "\n\nruntimes.%s: no such runtime in the catalogue; it has: %s.\n"
          $name (keys $entries | sortAlpha | join ", ")) }}
  {{- end }}
  {{- with $override.accelerator }}
    {{- include "training-runtimes.validateAccelerator" (list . (printf "runtimes.%s.accelerator" $name) $profiles) }}
  {{- end }}
{{- end }}
{{- include "training-runtimes.validateAccelerator" (list .Values.accelerator "accelerator" $profiles) }}
{{- end }}

{{- define "training-runtimes.validateAccelerator" -}}
{{- $accelerator := index . 0 }}
{{- $profiles := index . 2 }}
{{- if not (hasKey $profiles $accelerator) }}
  {{- fail (printf "\n\n%s: no profile named %q; accelerators has: %s.\n"
        (index . 1) $accelerator (keys $profiles | sortAlpha | join ", ")) }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateDevices" -}}
{{- if and .resources.devices (not .resourceName) }}
  {{- fail (printf (join " " (list
        "\n\nRuntime %q asks for %v device(s), but its accelerator %q has no resourceName to ask for:"
        "set accelerators.%s.resourceName, or leave devices out.\n"))
      .name .resources.devices .accelerator .accelerator) }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateEnv" -}}
{{- $own := dict "root" .root "runtime" (omit .runtime "env") }}
{{- $taken := list }}
{{- range include "training-runtimes.env" $own | fromYamlArray }}
  {{- $taken = append $taken .name }}
{{- end }}
{{- range $name, $value := .runtime.env }}
  {{- if hasPrefix "STOKER_ARG_" $name }}
    {{- fail (printf "\n\nRuntime %q: %s in env: set the trainer's flags by runtimes.%s.args instead.\n"
          $.runtime.name $name $.runtime.name) }}
  {{- else if has $name $taken }}
    {{- fail (printf "\n\nRuntime %q: %s in env: the chart sets this one itself; leave it out.\n"
          $.runtime.name $name) }}
  {{- end }}
{{- end }}
{{- end }}
