{{/*
training-runtimes.validate: refuses what the schema cannot see: a cluster that lacks something, and values that contradict
each other or the runner. Every message ends with what to do. Renders nothing.
Argument: the root context.
*/}}
{{- define "training-runtimes.validate" -}}
{{- if .Values.enabled }}
  {{- include "training-runtimes.validateApis" . }}
  {{- $catalogue := include "training-runtimes.catalogue" . | fromYaml }}
  {{- $runner := .Files.Get "files/runner.json" | fromJson }}
  {{- range $name, $runtime := $catalogue }}
    {{- $arguments := dict "root" $ "runtime" $runtime "runner" $runner }}
    {{- include "training-runtimes.validateDevices" $arguments }}
    {{- include "training-runtimes.validateResources" (list (printf "Runtime %q" $name) $runtime.resources) }}
    {{- include "training-runtimes.validateMethod" $arguments }}
    {{- include "training-runtimes.validateEnv" $arguments }}
    {{- include "training-runtimes.validateVolumes" $runtime }}
  {{- end }}
  {{- include "training-runtimes.validateLabels" . }}
  {{- include "training-runtimes.validateResources" (list "initializers" .Values.initializers.resources) }}
  {{- include "training-runtimes.validateInitializersEnv" (dict "env" .Values.initializers.env "runner" $runner) }}
  {{- include "training-runtimes.validateUpgrade" (dict "root" $ "catalogue" $catalogue) }}
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
{{- $profiles := .Values.accelerators }}
{{- range $name, $_ := $profiles }}
  {{- if not (regexMatch "^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$" $name) }}
    {{- fail (printf (join " " (list
          "\n\naccelerators: %q cannot be the value of a label: use at most 63 letters, digits, dots, dashes and"
          "underscores.\n")) $name) }}
  {{- end }}
{{- end }}
{{- range $name, $override := .Values.runtimes }}
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
{{- $runtime := .runtime }}
{{- $accelerator := $runtime.accelerator }}
{{- if and $runtime.resources.devices (not (or $runtime.resourceName $runtime.deviceClassName)) }}
  {{- fail (printf (join " " (list
        "\n\nRuntime %q asks for %v device(s), but its accelerator %q has no resourceName to ask for:"
        "set accelerators.%s.resourceName, or leave devices out.\n"))
      $runtime.name $runtime.resources.devices $accelerator $accelerator) }}
{{- end }}
{{- if and (or $runtime.resourceName $runtime.deviceClassName) (not $runtime.resources.devices) }}
  {{- fail (printf (join " " (list
        "\n\nRuntime %q has accelerator %q and asks for no device, so it would train without: set"
        "accelerators.%s.resources.devices, or choose an accelerator without resourceName and deviceClassName.\n"))
      $runtime.name $accelerator $accelerator) }}
{{- end }}
{{- if and $runtime.resourceName $runtime.deviceClassName }}
  {{- fail (printf (join " " (list
        "\n\naccelerators.%s has both resourceName and deviceClassName, and would take its devices twice:"
        "leave one of them out.\n")) $accelerator) }}
{{- end }}
{{- if $runtime.deviceClassName }}
  {{- if not (or .root.Values.skipApiCheck (.root.Capabilities.APIVersions.Has "resource.k8s.io/v1")) }}
    {{- fail (printf (join " " (list
          "\n\nAccelerator %q hands out devices by dynamic resource allocation, and the cluster does not serve"
          "resource.k8s.io/v1: use Kubernetes 1.34 or newer with the DRA driver of the device, or an accelerator with a"
          "resourceName. Rendering without a cluster (helm template, Argo CD, Flux)? Set skipApiCheck=true.\n"))
        $accelerator) }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Argument: a list of what the resources are of, for messages, and resources. */}}
{{- define "training-runtimes.validateResources" -}}
{{- $resources := index . 1 }}
{{- range $name, $limit := $resources.limits }}
  {{- with get $resources.requests $name }}
    {{- if gt (include "training-runtimes.quantity" . | float64) (include "training-runtimes.quantity" $limit | float64) }}
      {{- fail (printf "\n\n%s: requests.%s is %s and limits.%s is %s: a pod cannot ask for more than it may use; raise the limit.\n"
            (index $ 0) $name . $name $limit) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* training-runtimes.quantity: a Kubernetes quantity as a number. */}}
{{- define "training-runtimes.quantity" -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15
      "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 }}
{{- mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[A-Za-z]*$" .)) }}
{{- end }}

{{- define "training-runtimes.validateMethod" -}}
{{- $runtime := .runtime }}
{{- with get .runner.frameworks $runtime.framework }}
  {{- if and $runtime.method (not (has $runtime.method .methods)) }}
    {{- fail (printf "\n\nruntimes.%s.method: %q is not a method of %s; it has: %s.\n"
          $runtime.entry $runtime.method $runtime.framework (join ", " .methods)) }}
  {{- end }}
  {{- range $flag, $value := $runtime.args }}
    {{- if $value }}
      {{- with get $.runner.frameworks $runtime.framework }}
      {{- if hasKey .refused $flag }}
        {{- fail (printf "\n\nruntimes.%s.args.%s: %s.\n" $runtime.entry $flag (get .refused $flag)) }}
      {{- else if and .flags (not (has $flag .flags)) }}
        {{- fail (printf "\n\nruntimes.%s.args.%s: no method of %s has a flag of that name; `stoker flags METHOD` lists them.\n"
              $runtime.entry $flag $runtime.framework) }}
      {{- end }}
      {{- end }}
    {{- end }}
  {{- end }}
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
          $.runtime.name $name $.runtime.entry) }}
  {{- else if has $name $taken }}
    {{- fail (printf "\n\nRuntime %q: %s in env: the chart sets this one itself; leave it out.\n"
          $.runtime.name $name) }}
  {{- else if and (hasPrefix "STOKER_" $name) (not (has $name $.runner.variables)) }}
    {{- fail (printf "\n\nRuntime %q: %s in env is not a variable stoker knows; it knows: %s.\n"
          $.runtime.name $name (include "training-runtimes.difference" (list $.runner.variables $taken))) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateInitializersEnv" -}}
{{- $taken := list "JOBSET_NAME" "STOKER_JOB_ID" "STOKER_WORKSPACE" "STORAGE_URI" }}
{{- range $name, $value := .env }}
  {{- if has $name $taken }}
    {{- fail (printf "\n\ninitializers.env.%s: the chart sets this one itself; leave it out.\n" $name) }}
  {{- else if and (hasPrefix "STOKER_" $name) (not (has $name $.runner.variables)) }}
    {{- fail (printf "\n\ninitializers.env.%s is not a variable stoker knows; it knows: %s.\n"
          $name (include "training-runtimes.difference" (list $.runner.variables $taken))) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateVolumes" -}}
{{- $own := list "initializer" "shm" "cache" "tmp" }}
{{- $names := $own }}
{{- range .volumes }}
  {{- if has .name $own }}
    {{- fail (printf "\n\nruntimes.%s.volumes: the name %q is the chart's own; take another.\n" $.entry .name) }}
  {{- end }}
  {{- $names = append $names .name }}
{{- end }}
{{- range dig "spec" "volumes" list .podTemplate }}
  {{- $names = append $names .name }}
{{- end }}
{{- range .volumeMounts }}
  {{- if not (has .name $names) }}
    {{- fail (printf "\n\nruntimes.%s.volumeMounts: there is no volume %q; there are: %s.\n"
          $.entry .name (join ", " $names)) }}
  {{- else if has (trimSuffix "/" .mountPath) (list "/workspace" "/dev/shm" "/cache" "/tmp") }}
    {{- fail (printf "\n\nruntimes.%s.volumeMounts: %s is the chart's own; mount %q elsewhere.\n"
          $.entry .mountPath .name) }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Two of one name are one too many for Flux and kustomize. Argument: the root context. */}}
{{- define "training-runtimes.validateLabels" -}}
{{- $nameless := dict "framework" "" "name" "" "accelerator" "" }}
{{- $labels := merge (include "stoker.labels" . | fromYaml) (include "training-runtimes.runLabels" $nameless | fromYaml) }}
{{- $annotations := dict "stoker.dev/description" "" "stoker.dev/replacement" "" "helm.sh/resource-policy" "" }}
{{- $given := list
      (list "commonLabels" .Values.commonLabels $labels)
      (list "commonAnnotations" .Values.commonAnnotations $annotations)
      (list "test.labels" .Values.test.labels $labels) }}
{{- range $name, $override := .Values.runtimes }}
  {{- with $override }}
    {{- $given = append $given (list (printf "runtimes.%s.labels" $name) .labels $labels) }}
    {{- $given = append $given (list (printf "runtimes.%s.annotations" $name) .annotations $annotations) }}
  {{- end }}
{{- end }}
{{- range $given }}
  {{- $where := index . 0 }}
  {{- $own := index . 2 }}
  {{- range $name, $_ := index . 1 }}
    {{- if hasKey $own $name }}
      {{- fail (printf "\n\n%s: the chart sets %s itself; leave it out.\n" $where $name) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* training-runtimes.difference: the words of the first list that the second has not, with commas. */}}
{{- define "training-runtimes.difference" -}}
{{- $left := list }}
{{- range index . 0 }}
  {{- if not (has . (index $ 1)) }}
    {{- $left = append $left . }}
  {{- end }}
{{- end }}
{{- join ", " $left }}
{{- end }}
