# Builds the images with Docker, from the repository's root:
#   docker buildx bake --file images/docker-bake.hcl --file images/docker-bake.json [trl-cuda | torchtune-cpu | fetch | …]
# Names, versions and tags come from docker-bake.json, which `images/bake` makes from images.lock.yaml.
# Images without Docker: images/build.

# Base image; empty: the Dockerfile's own.
variable "BASE_IMAGE" {
  default = ""
}

# Upstream's vLLM image for CUDA, of the version in images/vllm/Dockerfile.cuda; empty: from Docker Hub.
variable "VLLM_IMAGE" {
  default = ""
}

# Image with Go that builds programs; empty: the Dockerfile's own.
variable "GO_IMAGE" {
  default = ""
}

# Commit the images are built from.
variable "REVISION" {
  default = "unknown"
}

# Platforms to build for, with commas, such as linux/amd64,linux/arm64; empty: the builder's own.
variable "PLATFORMS" {
  default = ""
}

# Folder that may hold a CPU torch; empty: PyTorch's CPU index, else PyPI.
variable "WHEELS" {
  default = ""
}

# pip.conf for the build alone, e.g. with the address of an own package index.
variable "PIP_CONF" {
  default = ""
}

# Certificate authorities for the build alone.
variable "CA_CRT" {
  default = ""
}

group "default" {
  targets = ["trl-cuda", "trl-cpu", "torchtune-cuda", "torchtune-cpu", "fetch", "vllm-cuda", "vllm-cpu", "lab-cuda", "lab-cpu", "board", "proxy"]
}

target "_any" {
  context   = "."
  platforms = PLATFORMS == "" ? null : split(",", PLATFORMS)
}

target "_image" {
  inherits = ["_any"]
  args = {
    BASE_IMAGE = BASE_IMAGE == "" ? null : BASE_IMAGE
    REVISION   = REVISION
  }
  secret = concat(
    PIP_CONF == "" ? [] : ["id=pip.conf,src=${PIP_CONF}"],
    CA_CRT == "" ? [] : ["id=ca.crt,src=${CA_CRT}"],
  )
}

target "_trl" {
  inherits   = ["_image"]
  dockerfile = "images/trl/Dockerfile"
  contexts   = WHEELS == "" ? {} : { wheels = WHEELS }
}

target "trl-cuda" {
  inherits = ["_trl"]
  args = {
    ACCELERATOR   = "cuda"
    IMAGE_VERSION = TRL_CUDA_TAG
  }
  tags = ["${REGISTRY}/trl:${TRL_CUDA_TAG}"]
}

target "trl-cpu" {
  inherits = ["_trl"]
  args = {
    ACCELERATOR   = "cpu"
    IMAGE_VERSION = TRL_CPU_TAG
  }
  tags = ["${REGISTRY}/trl:${TRL_CPU_TAG}"]
}

target "_torchtune" {
  inherits   = ["_image"]
  dockerfile = "images/torchtune/Dockerfile"
  contexts   = WHEELS == "" ? {} : { wheels = WHEELS }
}

target "torchtune-cuda" {
  inherits = ["_torchtune"]
  args = {
    ACCELERATOR   = "cuda"
    IMAGE_VERSION = TORCHTUNE_CUDA_TAG
  }
  tags = ["${REGISTRY}/torchtune:${TORCHTUNE_CUDA_TAG}"]
}

target "torchtune-cpu" {
  inherits = ["_torchtune"]
  args = {
    ACCELERATOR   = "cpu"
    IMAGE_VERSION = TORCHTUNE_CPU_TAG
  }
  tags = ["${REGISTRY}/torchtune:${TORCHTUNE_CPU_TAG}"]
}

target "fetch" {
  inherits   = ["_image"]
  dockerfile = "images/fetch/Dockerfile"
  args = {
    IMAGE_VERSION = FETCH_TAG
  }
  tags = ["${REGISTRY}/fetch:${FETCH_TAG}"]
}

# Upstream's image is its base, whatever the others' is.
target "vllm-cuda" {
  inherits   = ["_any"]
  dockerfile = "images/vllm/Dockerfile.cuda"
  args = {
    BASE_IMAGE    = VLLM_IMAGE == "" ? null : VLLM_IMAGE
    REVISION      = REVISION
    IMAGE_VERSION = VLLM_CUDA_TAG
  }
  tags = ["${REGISTRY}/vllm:${VLLM_CUDA_TAG}"]
}

target "vllm-cpu" {
  inherits   = ["_image"]
  dockerfile = "images/vllm/Dockerfile"
  contexts   = WHEELS == "" ? {} : { wheels = WHEELS }
  args = {
    ACCELERATOR   = "cpu"
    IMAGE_VERSION = VLLM_CPU_TAG
  }
  tags = ["${REGISTRY}/vllm:${VLLM_CPU_TAG}"]
}

# Its packages are locked apart from those of the image for CPUs, which has another build of vLLM.
target "lab-cuda" {
  inherits   = ["_image"]
  dockerfile = "images/lab-cuda/Dockerfile"
  args = {
    ACCELERATOR   = "cuda"
    IMAGE_VERSION = LAB_CUDA_TAG
  }
  tags = ["${REGISTRY}/lab:${LAB_CUDA_TAG}"]
}

target "lab-cpu" {
  inherits   = ["_image"]
  dockerfile = "images/lab/Dockerfile"
  contexts   = WHEELS == "" ? {} : { wheels = WHEELS }
  args = {
    ACCELERATOR   = "cpu"
    IMAGE_VERSION = LAB_CPU_TAG
  }
  tags = ["${REGISTRY}/lab:${LAB_CPU_TAG}"]
}

target "board" {
  inherits   = ["_image"]
  dockerfile = "images/board/Dockerfile"
  args = {
    IMAGE_VERSION = BOARD_TAG
  }
  tags = ["${REGISTRY}/board:${BOARD_TAG}"]
}

target "proxy" {
  inherits   = ["_any"]
  dockerfile = "images/proxy/Dockerfile"
  args = {
    BASE_IMAGE    = GO_IMAGE == "" ? null : GO_IMAGE
    REVISION      = REVISION
    IMAGE_VERSION = PROXY_TAG
  }
  tags = ["${REGISTRY}/proxy:${PROXY_TAG}"]
}
