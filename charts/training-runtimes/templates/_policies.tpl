{{/*
training-runtimes.policies: the rules for TrainJobs, a YAML map by the value that switches them on. Each is CEL for
ValidatingAdmissionPolicy: what must hold, what the user reads if it does not, and at which operations besides CREATE it
is checked. Most are not checked at UPDATE: suspend, resume and Kueue's admission of older TrainJobs must go on.
No argument.
*/}}
{{- define "training-runtimes.policies" -}}
nameLength:
  expression: "!variables.ours || size(object.metadata.name) <= variables.room"
  message: >-
    "the name has " + string(size(object.metadata.name)) + " characters and may have " + string(variables.room) +
    " with runtime " + variables.runtime + ", for Kubernetes adds to it: choose a shorter one"
catalogueRuntimes:
  expression: >-
    variables.ours || (variables.kind == "ClusterTrainingRuntime" ? variables.runtime : variables.kind + "/" +
    variables.runtime) in variables.otherRuntimes
  message: >-
    variables.kind + " " + variables.runtime + " is not in the catalogue: set spec.runtimeRef to kind " +
    variables.catalogueKind + " and one of " + variables.catalogue.join(", ")
noDeprecatedRuntimes:
  expression: "!variables.ours || !(variables.runtime in variables.replacements)"
  message: >-
    "runtime " + variables.runtime + " is deprecated" + variables.replacements[variables.runtime]
maxNodes:
  expression: variables.nodes <= variables.maxNodes && (variables.ours || object.spec.?trainer.?numNodes.hasValue())
  message: >-
    variables.nodes <= variables.maxNodes
    ? "runtime " + variables.runtime + " is not in the catalogue, so its own number of nodes is not known: set " +
    "spec.trainer.numNodes to " + string(variables.maxNodes) + " at most" :
    "spec.trainer.numNodes is " + string(variables.nodes) +
    (has(object.spec.trainer) && has(object.spec.trainer.numNodes) ? "" : " by the runtime's own default") +
    " and may be " + string(variables.maxNodes) + " at most"
imageRegistries:
  expression: >-
    variables.image == "" || variables.registries.exists(registry, variables.image.startsWith(registry + "/"))
  message: >-
    "spec.trainer.image " + variables.image + " must come from one of " + variables.registries.join(", ")
queue:
  # A TrainJob that lost its label, or whose label is empty, would leave its queue, and start by `spec.suspend`.
  operations: [UPDATE]
  expression: >-
    object.metadata.?labels[?variables.queueLabel].orValue("") != "" ||
    (request.operation == "UPDATE" && oldObject.metadata.?labels[?variables.queueLabel].orValue("") == "")
  message: >-
    "a TrainJob here waits in a queue: name one in the label " + variables.queueLabel
{{- end }}

{{/*
training-runtimes.policyConstants: what a rule must know of this release, a YAML map from the name of a CEL variable to
its value. They stand in the policy itself and not in a ConfigMap: once the last policy with a ConfigMap for a parameter
is deleted, the API server finds no ConfigMap for policies any more until it is restarted (Kubernetes 1.34 to 1.36), and
a release that is installed again would refuse every TrainJob.
Argument: the root context.
*/}}
{{- define "training-runtimes.policyConstants" -}}
{{- $catalogue := include "training-runtimes.catalogue" . | fromYaml }}
{{- $withInitializers := list }}
{{- $samplerRoom := dict }}
{{- $replacements := dict }}
{{- $defaultNodes := dict }}
{{- $registries := list }}
{{- range $name, $runtime := $catalogue }}
  {{- if $runtime.initializers }}
    {{- $withInitializers = append $withInitializers $name }}
  {{- end }}
  {{- with $runtime.samplers }}
    {{- /* What a label takes, less what JobSet and Job add to a sampler's name: -sampler-0-<index>-abcde. */}}
    {{- $_ := set $samplerRoom $name (sub 46 (sub (int .maxCount) 1 | toString | len)) }}
  {{- end }}
  {{- if gt (int $runtime.numNodes) 1 }}
    {{- $_ := set $defaultNodes $name (int $runtime.numNodes) }}
  {{- end }}
  {{- $registries = append $registries (regexReplaceAll "/[^/]*$" $runtime.image "") }}
  {{- if $runtime.deprecated }}
    {{- $advice := "" }}
    {{- if kindIs "map" $runtime.deprecated }}
      {{- $advice = printf ": use %s" $runtime.deprecated.replacement }}
    {{- end }}
    {{- $_ := set $replacements $name $advice }}
  {{- end }}
{{- end }}
{{- with $.Values.policies.registries }}
  {{- $registries = list }}
  {{- range . }}
    {{- $registries = append $registries (trimSuffix "/" .) }}
  {{- end }}
{{- end }}
{{- toYaml (dict
      "catalogue" (keys $catalogue | sortAlpha)
      "catalogueKind" .Values.kind
      "withInitializers" $withInitializers
      "samplerRoom" $samplerRoom
      "replacements" $replacements
      "otherRuntimes" (.Values.policies.otherRuntimes | default list)
      "defaultNodes" $defaultNodes
      "maxNodes" (int .Values.policies.nodes)
      "registries" (uniq $registries)
      "queueLabel" .Values.policies.queueLabel) }}
{{- end }}

{{/*
training-runtimes.enabledPolicies: names of the rules that hold, a YAML list.
Argument: the root context.
*/}}
{{- define "training-runtimes.enabledPolicies" -}}
{{- $enabled := list }}
{{- if and .Values.enabled .Values.policies.enabled }}
  {{- range $rule, $_ := include "training-runtimes.policies" . | fromYaml }}
    {{- if get (get $.Values.policies $rule) "enabled" }}
      {{- $enabled = append $enabled $rule }}
    {{- end }}
  {{- end }}
{{- end }}
{{- toYaml $enabled }}
{{- end }}

{{/*
training-runtimes.policyNamespaces: labels of the namespaces in which the rules apply. Not a default in values.yaml: Helm
would add it to the labels that values give instead.
Argument: the root context.
*/}}
{{- define "training-runtimes.policyNamespaces" -}}
{{- toYaml (.Values.policies.namespaceSelector | default (dict "stoker.dev/policies" "enabled")) }}
{{- end }}

{{/*
training-runtimes.policyName: name of a rule's policy and binding, which belong to no namespace. Those of two releases
differ, also where the releases have one name in two namespaces: no namespace has a dot in its name.
Argument: a list of the root context and the rule.
*/}}
{{- define "training-runtimes.policyName" -}}
{{- $release := (index . 0).Release }}
{{- printf "%s-%s.%s" $release.Name (kebabcase (index . 1)) $release.Namespace }}
{{- end }}
