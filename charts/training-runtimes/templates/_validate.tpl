{{/*
training-runtimes.validate: refuses what the schema cannot see: a cluster that lacks something, and values that contradict
each other or the runner. Every message ends with the fix. Renders nothing.
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
    {{- include "stoker.validateResources" (list (printf "Runtime %q" $name) $runtime.resources) }}
    {{- include "training-runtimes.validateMethod" $arguments }}
    {{- include "training-runtimes.validateEnv" $arguments }}
    {{- include "training-runtimes.validateVolumes" $arguments }}
    {{- include "training-runtimes.validateSamplers" $arguments }}
    {{- include "training-runtimes.validatePodTemplate" $arguments }}
    {{- if $runtime.initializers }}
      {{- include "training-runtimes.validateInitializersClaims" $arguments }}
      {{- include "training-runtimes.validateGang" $runtime }}
    {{- end }}
  {{- end }}
  {{- include "training-runtimes.validateSharing" $catalogue }}
  {{- include "training-runtimes.validateLabels" . }}
  {{- include "training-runtimes.validateMonitoring" . }}
  {{- include "training-runtimes.validateInitializers" . }}
  {{- include "stoker.validateOutbound" . }}
  {{- include "stoker.validateServiceAccount" . }}
  {{- include "stoker.validateResources" (list "initializers" .Values.initializers.resources) }}
  {{- include "training-runtimes.validateInitializersEnv" (dict "env" .Values.initializers.env "runner" $runner) }}
  {{- include "training-runtimes.validateUpgrade" (dict "root" $ "catalogue" $catalogue) }}
{{- end }}
{{- end }}

{{- /* training-runtimes.validateInitializersClaims: the claims of the jobs that fetch for a runtime. */}}
{{- define "training-runtimes.validateInitializersClaims" -}}
{{- $volumes := include "training-runtimes.initializerVolumes" . | fromYamlArray }}
{{- include "stoker.validateClaims" (dict
      "where" "initializers"
      "volumes" (concat $volumes (.root.Values.initializers.volumes | default list))
      "fix" "Give each volume its own claim (workspace.existingClaim, scratch.cacheClaim, initializers.volumes).") }}
{{- end }}

{{- /* training-runtimes.validateGang: Trainer counts every job into a gang, and the nodes start after those that fetch. */}}
{{- define "training-runtimes.validateGang" -}}
{{- if .podGroupPolicy }}
  {{- fail (printf "\n\nruntimes.%s.podGroupPolicy: the jobs that fetch count into the gang, and the nodes start after them, so no pod would start. Set initializers.enabled=false, or runtimes.%s.podGroupPolicy={}.\n"
        .entry .entry) }}
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
        "\n\nThe cluster does not serve %s. These runtimes need JobSet and Kubeflow Trainer 2.2 or newer. Install them:"
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
          "\n\naccelerators: the name %q is not a valid label value. Use at most 63 letters, digits, dots, dashes and"
          "underscores, with a letter or digit at both ends.\n")) $name) }}
  {{- end }}
{{- end }}
{{- range $name, $override := .Values.runtimes }}
  {{- with $override.accelerator }}
    {{- include "training-runtimes.validateAccelerator" (list . (printf "runtimes.%s.accelerator" $name) $profiles) }}
  {{- end }}
  {{- with dig "accelerator" "" ($override.samplers | default dict) }}
    {{- include "training-runtimes.validateAccelerator" (list . (printf "runtimes.%s.samplers.accelerator" $name) $profiles) }}
  {{- end }}
{{- end }}
{{- include "training-runtimes.validateAccelerator" (list .Values.accelerator "accelerator" $profiles) }}
{{- end }}

{{- define "training-runtimes.validateAccelerator" -}}
{{- $accelerator := index . 0 }}
{{- $profiles := index . 2 }}
{{- if not (hasKey $profiles $accelerator) }}
  {{- fail (printf "\n\n%s: there is no accelerator profile %q. Use one of: %s; or add yours under accelerators.\n"
        (index . 1) $accelerator (keys $profiles | sortAlpha | join ", ")) }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateDevices" -}}
{{- $runtime := .runtime }}
{{- $accelerator := $runtime.accelerator }}
{{- $claimed := concat $runtime.deviceClaims (dig "deviceClaims" list ($runtime.samplers | default dict)) }}
{{- if and $runtime.resources.devices (not (or $runtime.resourceName $runtime.deviceClassName $runtime.deviceClaims)) }}
  {{- fail (printf (join " " (list
        "\n\nRuntime %q asks for %v device(s), but its accelerator %q has no resourceName."
        "Set accelerators.%s.resourceName, or remove devices.\n"))
      $runtime.name $runtime.resources.devices $accelerator $accelerator) }}
{{- end }}
{{- if and (or $runtime.resourceName $runtime.deviceClassName) (not $runtime.resources.devices) }}
  {{- fail (printf (join " " (list
        "\n\nRuntime %q has accelerator %q but asks for no device, so it would train without one. Set"
        "accelerators.%s.resources.devices, or choose an accelerator without resourceName and deviceClassName.\n"))
      $runtime.name $accelerator $accelerator) }}
{{- end }}
{{- if and $runtime.resourceName $runtime.deviceClassName }}
  {{- fail (printf (join " " (list
        "\n\naccelerators.%s has both resourceName and deviceClassName and would take its devices twice."
        "Remove one of them.\n")) $accelerator) }}
{{- end }}
{{- if and $runtime.deviceSelectors (not $runtime.deviceClassName) }}
  {{- fail (printf "\n\naccelerators.%s.deviceSelectors: only claims have selectors. Set deviceClassName, or remove them.\n" $accelerator) }}
{{- end }}
{{- if or $runtime.deviceClassName $claimed }}
  {{- if not (or .root.Values.skipApiCheck (.root.Capabilities.APIVersions.Has "resource.k8s.io/v1")) }}
    {{- if $claimed }}
      {{- fail (printf (join " " (list
            "\n\nruntimes.%s.deviceClaims or its samplers': the cluster does not serve resource.k8s.io/v1 (dynamic resource"
            "allocation). Use Kubernetes 1.34 or newer with the device's DRA driver, or drop the claims. Rendering without a cluster (helm template, Argo CD, Flux)? Set skipApiCheck=true.\n"))
          $runtime.entry) }}
    {{- end }}
    {{- fail (printf (join " " (list
          "\n\nAccelerator %q uses dynamic resource allocation, but the cluster does not serve resource.k8s.io/v1."
          "Use Kubernetes 1.34 or newer with the device's DRA driver, or choose an accelerator with a resourceName. Rendering without a cluster (helm template, Argo CD, Flux)? Set skipApiCheck=true.\n"))
        $accelerator) }}
  {{- end }}
{{- end }}
{{- end }}

{{- /*
training-runtimes.validateSharing: refuses claims that a trainer and a sampler would have at the same time: each takes as
much memory of the device as it finds. Argument: the resolved runtimes by name.
*/}}
{{- define "training-runtimes.validateSharing" -}}
{{- $trainers := dict }}
{{- range . }}
  {{- $entry := .entry }}
  {{- range .deviceClaims }}
    {{- with .resourceClaimName }}
      {{- $_ := set $trainers . $entry }}
    {{- end }}
  {{- end }}
{{- end }}
{{- $leases := dict }}
{{- $seconds := dict }}
{{- range $runtime := . }}
  {{- $slice := dig "slice" dict ($runtime.samplers | default dict) }}
  {{- $lease := $slice.lease | default "" }}
  {{- if $lease }}
    {{- if and (hasKey $seconds $lease) (ne (get $seconds $lease | first) (int $slice.leaseSeconds)) }}
      {{- fail (printf (join " " (list
            "\n\nruntimes.%s.samplers.slice.leaseSeconds: the samplers of runtimes.%s take turns by the Lease %q too, with"
            "other seconds, and would lose their place in the queue. Set the same leaseSeconds in both.\n"))
          $runtime.entry (get $seconds $lease | last) $lease) }}
    {{- end }}
    {{- $_ := set $seconds $lease (list (int $slice.leaseSeconds) $runtime.entry) }}
  {{- end }}
  {{- range dig "deviceClaims" list ($runtime.samplers | default dict) }}
    {{- with .resourceClaimName }}
      {{- if and (hasKey $leases .) (ne (get $leases . | first) $lease) }}
        {{- fail (printf (join " " (list
              "\n\nruntimes.%s.samplers.slice.lease: the samplers of runtimes.%s have the claim %q too, and take turns by"
              "another Lease or not at all. Set the same Lease in both.\n"))
            $runtime.entry (get $leases . | last) .) }}
      {{- end }}
      {{- $_ := set $leases . (list $lease $runtime.entry) }}
      {{- if hasKey $trainers . }}
        {{- fail (printf (join " " (list
              "\n\nruntimes.%s.samplers.deviceClaims: the pods of runtimes.%s that train have the claim %q too. Both would"
              "run out of the device's memory, because trainers cannot take turns. Use another claim for one of the two.\n"))
            $runtime.entry (get $trainers .) .) }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateMethod" -}}
{{- $runtime := .runtime }}
{{- if $runtime.endpoint }}
  {{- range $what := list "method" "sharding" "command" }}
    {{- if get $runtime $what }}
      {{- fail (printf "\n\nruntimes.%s.%s: this runtime serves clients and runs no method. Remove it.\n" $runtime.entry $what) }}
    {{- end }}
  {{- end }}
  {{- if ne (int $runtime.numNodes) 1 }}
    {{- fail (printf "\n\nruntimes.%s.numNodes is %d, and an endpoint trains in one pod. Remove it.\n" $runtime.entry (int $runtime.numNodes)) }}
  {{- end }}
  {{- $flags := get .runner.endpoints $runtime.endpoint }}
  {{- range $flag, $value := $runtime.args }}
    {{- if and $value (not (has $flag $flags)) }}
      {{- fail (printf "\n\nruntimes.%s.args.%s: `stoker %s` has no such flag. Use one of: %s.\n"
            $runtime.entry $flag $runtime.endpoint (join ", " $flags)) }}
    {{- end }}
  {{- end }}
{{- else }}
{{- with get .runner.frameworks $runtime.framework }}
  {{- if and $runtime.method (not (has $runtime.method .methods)) }}
    {{- fail (printf "\n\nruntimes.%s.method: %q is not a method of %s. Use one of: %s.\n"
          $runtime.entry $runtime.method $runtime.framework (join ", " .methods)) }}
  {{- end }}
  {{- if and $runtime.sharding (not (has $runtime.sharding .shardings)) }}
    {{- fail (printf "\n\nruntimes.%s.sharding: %s cannot do %q. Remove it, or use one of: %s.\n"
          $runtime.entry $runtime.framework $runtime.sharding (join ", " .shardings)) }}
  {{- end }}
  {{- range $flag, $value := $runtime.args }}
    {{- if $value }}
      {{- with get $.runner.frameworks $runtime.framework }}
      {{- if hasKey .refused $flag }}
        {{- fail (printf "\n\nruntimes.%s.args.%s: %s.\n" $runtime.entry $flag (get .refused $flag)) }}
      {{- else if and .flags (not (has $flag .flags)) }}
        {{- fail (printf "\n\nruntimes.%s.args.%s: no method of %s has this flag. Run `stoker flags METHOD` to see those it has.\n"
              $runtime.entry $flag $runtime.framework) }}
      {{- end }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateSamplers" -}}
{{- $runtime := .runtime }}
{{- $override := get (.root.Values.runtimes | default dict) $runtime.entry | default dict }}
{{- if and $override.samplers (not $runtime.samplers) }}
  {{- fail (printf (join " " (list
        "\n\nruntimes.%s.samplers: this runtime has no samplers. Remove it, or set runtimes.%s.base to a runtime that has"
        "them, such as trl-grpo-async.\n")) $runtime.entry $runtime.entry) }}
{{- end }}
{{- with $override.externalSamplers }}
  {{- if not $runtime.externalSamplers }}
    {{- fail (printf (join " " (list
          "\n\nruntimes.%s.externalSamplers: the samplers of this runtime are not a release. Remove it, or set"
          "runtimes.%s.base to a runtime whose samplers are a release, such as trl-grpo-async-external.\n")) $runtime.entry $runtime.entry) }}
  {{- else if ne (empty .url) (empty .claim) }}
    {{- fail (printf (join " " (list
          "\n\nruntimes.%s.externalSamplers.%s is missing: a run reaches its samplers by an address and by a claim that"
          "they watch. Set url and claim.\n")) $runtime.entry (empty .url | ternary "url" "claim")) }}
  {{- end }}
{{- end }}
{{- with $runtime.samplers }}
  {{- if and (not $runtime.workspace.existingClaim) (has "ReadWriteOncePod" $runtime.workspace.accessModes) }}
    {{- fail (printf (join " " (list
          "\n\nruntimes.%s: nodes and samplers mount the claim of a run at the same time, and ReadWriteOncePod gives it to"
          "one pod. Set runtimes.%s.workspace.accessModes to [ReadWriteMany], or runtimes.%s.enabled to false.\n"))
          $runtime.entry $runtime.entry $runtime.entry) }}
  {{- end }}
  {{- if lt (int .maxCount) (int .count) }}
    {{- fail (printf "\n\nruntimes.%s.samplers.maxCount is %d, and a run starts with %d samplers: write %d or more.\n"
          $runtime.entry (int .maxCount) (int .count) (int .count)) }}
  {{- end }}
  {{- include "stoker.validateResources" (list (printf "runtimes.%s.samplers" $runtime.entry) .resources) }}
  {{- include "training-runtimes.validateDevices" (dict "root" $.root
        "runtime" (include "training-runtimes.ofSamplers" $runtime | fromYaml)) }}
  {{- with .slice }}
    {{- if and (eq $runtime.samplers.acceleratorKind "cpu") .sleepLevel }}
      {{- fail (printf (join " " (list
            "\n\nruntimes.%s.samplers.slice.sleepLevel is %d, and vLLM cannot sleep on CPUs. Set it to 0, which pauses, or"
            "remove it.\n")) $runtime.entry (int .sleepLevel)) }}
    {{- else if and (eq (int .sleepLevel) 2) (eq (get $runtime.args "use_peft" | toString | lower) "true") }}
      {{- fail (printf (join " " (list
            "\n\nruntimes.%s.samplers.slice.sleepLevel is 2, and runs of this runtime train LoRA, with which vLLM cannot wake"
            "up from it. Set it to 1, or runtimes.%s.args.use_peft to \"false\".\n")) $runtime.entry $runtime.entry) }}
    {{- end }}
  {{- end }}
  {{- include "training-runtimes.validateSamplersEnv" $ }}
  {{- $served := list "model" "served-model-name" "logprobs-mode" "host" "port" "enable-lora" "lora-modules" }}
  {{- range $flag := concat $served (include "stoker.vllmReach" . | fromYamlArray) }}
    {{- if hasKey $runtime.samplers.args $flag }}
      {{- fail (printf "\n\nruntimes.%s.samplers.args.%s: the run decides how vLLM is reached and what it serves. Remove it.\n"
            $runtime.entry $flag) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateSamplersEnv" -}}
{{- $taken := list "VLLM_API_KEY" }}
{{- range include "training-runtimes.samplerServerEnv" . | fromYamlArray }}
  {{- $taken = append $taken .name }}
{{- end }}
{{- include "training-runtimes.validateVariables" (dict
      "where" (printf "runtimes.%s.samplers.env" .runtime.entry) "env" .runtime.samplers.env "taken" $taken "runner" .runner) }}
{{- end }}

{{- define "training-runtimes.validateEnv" -}}
{{- $own := dict "root" .root "runtime" (omit .runtime "env") }}
{{- $taken := list }}
{{- range include "training-runtimes.env" $own | fromYamlArray }}
  {{- $taken = append $taken .name }}
{{- end }}
{{- range $name, $value := .runtime.env }}
  {{- if hasPrefix "STOKER_ARG_" $name }}
    {{- fail (printf "\n\nRuntime %q: %s in env sets a flag of the trainer. Use runtimes.%s.args instead.\n"
          $.runtime.name $name $.runtime.entry) }}
  {{- else if has $name $taken }}
    {{- fail (printf "\n\nRuntime %q: the chart sets %s in env itself. Remove it.\n"
          $.runtime.name $name) }}
  {{- else if and (hasPrefix "STOKER_" $name) (not (has $name $.runner.variables)) }}
    {{- fail (printf "\n\nRuntime %q: stoker does not know the variable %s in env. Remove it, or use one of: %s.\n"
          $.runtime.name $name (include "training-runtimes.difference" (list $.runner.variables $taken))) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateInitializersEnv" -}}
{{- $taken := list "JOBSET_NAME" "STOKER_JOB_ID" "STOKER_WORKSPACE" "STORAGE_URI" }}
{{- include "training-runtimes.validateVariables" (dict "where" "initializers.env" "env" .env "taken" $taken "runner" .runner) }}
{{- end }}

{{- /*
training-runtimes.validateVariables: variables that the chart sets itself, and those of stoker that it does not know.
Arguments, a dict: where they stand in values, env, taken (names that the chart sets), runner.
*/}}
{{- define "training-runtimes.validateVariables" -}}
{{- range $name, $value := .env }}
  {{- if has $name $.taken }}
    {{- fail (printf "\n\n%s.%s: the chart sets this variable itself. Remove it.\n" $.where $name) }}
  {{- else if and (hasPrefix "STOKER_" $name) (not (has $name $.runner.variables)) }}
    {{- fail (printf "\n\n%s.%s: stoker does not know this variable. Remove it, or use one of: %s.\n"
          $.where $name (include "training-runtimes.difference" (list $.runner.variables $.taken))) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "training-runtimes.validateVolumes" -}}
{{- $own := dict "root" .root "runtime" (omit .runtime "volumes" "volumeMounts" "podTemplate") }}
{{- $pod := (include "training-runtimes.renderedPodTemplate" $own | fromYaml).spec }}
{{- $given := list }}
{{- range dig "spec" "volumes" list .runtime.podTemplate }}
  {{- $given = append $given .name }}
{{- end }}
{{- include "stoker.refuseTaken" (dict
      "where" (printf "runtimes.%s." .runtime.entry)
      "given" (pick .runtime "volumes" "volumeMounts")
      "volumes" (prepend $pod.volumes (dict "name" "initializer"))
      "volumeMounts" (first $pod.containers).volumeMounts
      "mountable" $given
      "containers" list) }}
{{- end }}

{{- /* training-runtimes.validateInitializers: what values add to the jobs that fetch. Argument: the root context. */}}
{{- define "training-runtimes.validateInitializers" -}}
{{- $runtime := dict "workspace" (dict "existingClaim" "") }}
{{- $arguments := dict "root" . "runtime" $runtime }}
{{- include "stoker.refuseTaken" (dict
      "where" "initializers."
      "given" (pick .Values.initializers "volumes" "volumeMounts" "sidecars" "initContainers")
      "volumes" (include "training-runtimes.initializerVolumes" $arguments | fromYamlArray | concat (list (dict "name" "initializer")))
      "volumeMounts" (include "training-runtimes.initializerMounts" $arguments | fromYamlArray)
      "containers" (list "dataset-initializer" "model-initializer")) }}
{{- end }}

{{- /*
training-runtimes.validatePodTemplate: a list in podTemplate replaces the chart's, and Kubernetes looks at a pod only when
a TrainJob makes it.
*/}}
{{- define "training-runtimes.validatePodTemplate" -}}
{{- $where := printf "runtimes.%s.podTemplate.spec" .runtime.entry }}
{{- $given := dig "spec" dict .runtime.podTemplate }}
{{- $pod := (include "training-runtimes.nodePodTemplate" . | fromYaml).spec }}
{{- $node := dict }}
{{- range $pod.containers }}
  {{- if eq (toString .name) "node" }}
    {{- $node = . }}
  {{- end }}
{{- end }}
{{- if not $node }}
  {{- fail (printf "\n\n%s.containers: none of these is called node, which is the one that Trainer and the retry rules know. %s\n"
        $where "Give it one, with all that it needs, for the list replaces the chart's; or remove the list.") }}
{{- end }}
{{- if not $node.image }}
  {{- fail (printf "\n\n%s.containers: the container node has no image, for the list replaces the chart's. %s\n"
        $where "Write all that it needs, or remove the list and set the runtime's own values (image, env, resources).") }}
{{- end }}
{{- include "stoker.validateClaims" (dict
      "where" (printf "runtimes.%s" .runtime.entry)
      "volumes" $pod.volumes
      "fix" "Give each volume its own claim (workspace.existingClaim, scratch.cacheClaim, volumes), or keep one volume and mount it at both paths.") }}
{{- /* JobSet adds the volume of a TrainJob's own claim. */}}
{{- $names := empty .runtime.workspace.existingClaim | ternary (list "initializer") list }}
{{- range $pod.volumes }}
  {{- $names = append $names .name }}
{{- end }}
{{- range concat ($pod.initContainers | default list) $pod.containers }}
  {{- $container := .name }}
  {{- range .volumeMounts }}
    {{- if not (has .name $names) }}
      {{- fail (printf "\n\n%s%s: the container %s mounts %q, and there is no such volume. %s\n"
            $where (ternary ".volumes" "" (hasKey $given "volumes")) $container .name
            (ternary "Write all volumes, for the list replaces the chart's; or use the runtime's value volumes, which adds to them."
              (printf "Use one of: %s." (join ", " $names)) (hasKey $given "volumes"))) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* training-runtimes.validateLabels: labels and annotations that are written twice. Argument: the root context. */}}
{{- define "training-runtimes.validateLabels" -}}
{{- $nameless := dict "framework" "" "name" "" "accelerator" "" "catalogue" "" }}
{{- $labels := merge (dict "trainer.kubeflow.org/support" "" "stoker.dev/role" "" "stoker.dev/lease" "")
      (include "stoker.labels" . | fromYaml) (include "training-runtimes.runLabels" $nameless | fromYaml) }}
{{- $own := include "stoker.labels" . | fromYaml }}
{{- $annotations := merge (dict "stoker.dev/description" "" "stoker.dev/replacement" ""
      "kubectl.kubernetes.io/default-container" "" "stoker.dev/Caddyfile" "")
      (include "stoker.keep" . | fromYaml) (include "stoker.testHook" . | fromYaml) }}
{{- $given := list
      (list "commonLabels" .Values.commonLabels $labels)
      (list "commonAnnotations" .Values.commonAnnotations $annotations)
      (list "serviceAccount.annotations" .Values.serviceAccount.annotations $annotations)
      (list "initializers.annotations" .Values.initializers.annotations $annotations)
      (list "test.labels" .Values.test.labels $labels)
      (list "monitoring.labels" .Values.monitoring.labels $own)
      (list "monitoring.dashboardLabels" .Values.monitoring.dashboardLabels $own) }}
{{- range $name, $override := .Values.runtimes }}
  {{- with $override }}
    {{- $given = append $given (list (printf "runtimes.%s.labels" $name) .labels $labels) }}
    {{- $given = append $given (list (printf "runtimes.%s.annotations" $name) .annotations $annotations) }}
  {{- end }}
{{- end }}
{{- include "stoker.refuseOwnKeys" $given }}
{{- end }}

{{- /* training-runtimes.difference: the words of the first list that are not in the second, with commas. */}}
{{- define "training-runtimes.difference" -}}
{{- $left := list }}
{{- range index . 0 }}
  {{- if not (has . (index $ 1)) }}
    {{- $left = append $left . }}
  {{- end }}
{{- end }}
{{- join ", " $left }}
{{- end }}
