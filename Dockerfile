# One file for every flavour: base -> core -> cpu | cuda, base -> cuda-verl04; each -> raydebug (of FLAVOUR) -> dev.
#
#   docker buildx build --target raydebug --build-arg FLAVOUR=cuda -t raydebug:cuda .
#
# docs/07-containers.md has the other build arguments, secrets and contexts. Builds with engines from 20.10 on (BuildKit).
ARG FLAVOUR=cuda
# Another image with Python 3.12 (cuda) or 3.11 (the others): a mirror's copy, or one made by ci/base-image.
ARG BASE_IMAGE=base-${FLAVOUR}

FROM nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:5dc1bca23d05bd37b011be68ec470c03b403a5da07ec3a86e41af9470e9d0cc6 AS base-cuda
FROM debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171 AS base-cpu
FROM base-cpu AS base-core
# Python 3.11, which no Ubuntu with CUDA 12.4 has; the packages bring CUDA's libraries.
FROM base-cpu AS base-cuda-verl04

# Wheels that no public index has (torch's CPU build): `--build-context wheels=FOLDER` replaces this stage.
FROM scratch AS wheels

# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS base
SHELL ["/bin/bash", "-o", "pipefail", "-euc"]
# python3-venv: the environment; libnuma1: vLLM for CPU links it; procps: `ps` for inspecting a node.
# No versions: the base is pinned by digest, and its distribution keeps no older packages. https://github.com/hadolint/hadolint/wiki/DL3008
# hadolint ignore=DL3008
RUN --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/fixed-times; \
    packages=(python3 python3-venv ca-certificates libnuma1 procps); \
    if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then \
      apt-get update -qq; \
      apt-get install -y -qq --no-install-recommends "${packages[@]}"; \
      rm -rf /var/lib/apt/lists/*; \
    fi
# User 1000, which Ubuntu's images have under another name. Any other uid works too: the writable folders are writable for all.
# SOURCE_DATE_EPOCH: useradd writes the day into /etc/shadow.
RUN --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/fixed-times; \
    if name=$(getent passwd 1000 | cut -d: -f1) && [ -n "$name" ]; then \
      usermod -l ray -d /home/ray "$name"; \
      groupmod -n ray "$(getent group 1000 | cut -d: -f1)"; \
    else \
      groupadd -g 1000 ray; \
      SOURCE_DATE_EPOCH=0 useradd -l -u 1000 -g 1000 -d /home/ray -s /bin/bash ray; \
    fi; \
    install -d -m 1777 /home/ray /workspace /cache /runs /spill /gateway
ENV PATH=/opt/venv/bin:$PATH \
    LANG=C.UTF-8 \
    HOME=/home/ray \
    USER=ray \
    LOGNAME=ray \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    VLLM_CACHE_ROOT=/cache/vllm \
    TRITON_CACHE_DIR=/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/cache/torchinductor \
    FLASHINFER_WORKSPACE_BASE=/cache \
    RAY_USAGE_STATS_ENABLED=0 \
    VLLM_NO_USAGE_STATS=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    DO_NOT_TRACK=1

# The installer, by version and hash; no final image contains it.
FROM base AS uv
RUN --mount=type=secret,id=extra_ca \
    --mount=type=secret,id=package_env \
    --mount=type=cache,id=raydebug-pip,target=/root/.cache/pip \
    --mount=type=bind,source=ci/package-access,target=/mnt/package-access \
    --mount=type=bind,source=env/installer.txt,target=/mnt/installer.txt \
    . /mnt/package-access; \
    python3 -m venv /opt/uv; \
    HOME=/root /opt/uv/bin/pip install --disable-pip-version-check -q --require-hashes -r /mnt/installer.txt
ENV UV_CACHE_DIR=/root/.cache/uv UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never

# raydebug's own wheels, built with the locked hatchling.
FROM uv AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE docker-compose.yml docker-compose.cpu.yml ./
COPY env env
COPY packages packages
COPY src src
RUN --mount=type=secret,id=extra_ca \
    --mount=type=secret,id=package_env \
    --mount=type=cache,id=raydebug-uv,target=/root/.cache/uv,sharing=locked \
    --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,source=ci/package-access,target=/mnt/package-access \
    . /mnt/package-access; \
    for project in . packages/raydebug-cpu; do \
      /opt/uv/bin/uv build --quiet --wheel --build-constraints env/dev.lock --require-hashes --out-dir /dist "$project"; \
    done

# Ray and debugpy, without torch.
FROM base AS core
# Python does not check this bytecode against its source: a cluster is up 6 s earlier. The build is reproducible with one hash seed,
# an empty /tmp, no notes of the installer, and build tools for source packages from the lock (--build-constraints); uv's cache
# would give what it built with other tools (--refresh-package).
ENV PYC_INVALIDATION_MODE=UNCHECKED_HASH
RUN --mount=type=secret,id=extra_ca \
    --mount=type=secret,id=package_env \
    --mount=type=cache,id=raydebug-uv,target=/root/.cache/uv,sharing=locked \
    --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,from=uv,source=/opt/uv,target=/mnt/uv \
    --mount=type=bind,source=ci/package-access,target=/mnt/package-access \
    --mount=type=bind,source=env/core.lock,target=/mnt/core.lock \
    --mount=type=bind,source=ci/slim-environment,target=/mnt/slim-environment \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/package-access; . /mnt/fixed-times; \
    export UV_CACHE_DIR=/root/.cache/uv UV_LINK_MODE=copy UV_NO_INSTALLER_METADATA=1 PYTHONHASHSEED=0; \
    python3 -m venv --without-pip /opt/venv; \
    /mnt/uv/bin/uv pip sync --quiet --python /opt/venv/bin/python --require-hashes /mnt/core.lock; \
    /opt/venv/bin/python /mnt/slim-environment

# A complete training without a GPU.
FROM core AS cpu
SHELL ["/bin/bash", "-o", "pipefail", "-euc"]
RUN --mount=type=secret,id=extra_ca \
    --mount=type=secret,id=package_env \
    --mount=type=cache,id=raydebug-uv,target=/root/.cache/uv,sharing=locked \
    --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,from=wheels,target=/mnt/wheels \
    --mount=type=bind,from=uv,source=/opt/uv,target=/mnt/uv \
    --mount=type=bind,source=ci/package-access,target=/mnt/package-access \
    --mount=type=bind,source=env/cpu.lock,target=/mnt/cpu.lock \
    --mount=type=bind,source=ci/slim-environment,target=/mnt/slim-environment \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/package-access; . /mnt/fixed-times; \
    export UV_CACHE_DIR=/root/.cache/uv UV_LINK_MODE=copy UV_NO_INSTALLER_METADATA=1 PYTHONHASHSEED=0; \
    if compgen -G '/mnt/wheels/torch-*.whl' >/dev/null; then torch=(--find-links /mnt/wheels); \
    else torch=(--torch-backend cpu); fi; \
    /mnt/uv/bin/uv pip sync --quiet --python /opt/venv/bin/python --require-hashes \
      --build-constraints /mnt/cpu.lock --refresh-package antlr4-python3-runtime "${torch[@]}" /mnt/cpu.lock; \
    /opt/venv/bin/python /mnt/slim-environment

# NVIDIA GPUs. Triton and FlashInfer compile at run time: in addition to nvcc they need Python's headers and a compiler.
# verl loads libnuma.so by that name (utils/distributed.py), which only the -dev package has; NCCL loads libibverbs.so.1 and
# the provider of the card (mlx5) where deploy/compose-rdma.yml gives it one.
FROM core AS cuda
# GPU generations that flash-attn is built for, and that kernels are kept for: `raydebug image` names the host's, because all of
# them take hours. A wheel of flash-attn in the context `wheels` is installed instead; the lock has the hash of its source only.
ARG FLASH_ATTN_CUDA_ARCHS="80;90;100;120"
# Number of parallel compilers; each takes up to 9 GB of memory. flash-attn 2.8.3 would start four threads in each (setup.py).
ARG MAX_JOBS=4
ARG NVCC_THREADS=1
# 0 leaves flash-attn out: a base without CUDA's toolkit has too few headers for it.
ARG FLASH_ATTN=1
# The toolkit for compilation at run time: the base's, or on a base without one the lock's. Cache folders outlive a container.
ENV CUDA_HOME=/usr/local/cuda \
    PATH=$PATH:/usr/local/cuda/bin \
    CUDA_CACHE_PATH=/cache/nv \
    TILELANG_CACHE_DIR=/cache/tilelang \
    HUMMING_CACHE_DIR=/cache/humming \
    TVM_FFI_CACHE_DIR=/cache/tvm-ffi \
    VLLM_CONFIG_ROOT=/cache/vllm-config
SHELL ["/bin/bash", "-o", "pipefail", "-euc"]
# hadolint ignore=DL3008
RUN --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/fixed-times; \
    packages=(python3-dev build-essential libnuma-dev libibverbs1 ibverbs-providers); \
    if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then \
      apt-get update -qq; \
      apt-get install -y -qq --no-install-recommends "${packages[@]}"; \
      rm -rf /var/lib/apt/lists/*; \
    fi
# nvidia-cutlass-dsl-libs-cu13 replaces files of -libs-base, so it comes after it: installed at once, either of them would win.
RUN --mount=type=secret,id=extra_ca \
    --mount=type=secret,id=package_env \
    --mount=type=cache,id=raydebug-uv,target=/root/.cache/uv,sharing=locked \
    --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,from=uv,source=/opt/uv,target=/mnt/uv \
    --mount=type=bind,source=ci/package-access,target=/mnt/package-access \
    --mount=type=bind,source=env/cuda.lock,target=/mnt/cuda.lock \
    --mount=type=bind,source=ci/slim-environment,target=/mnt/slim-environment \
    --mount=type=bind,source=env/uv.toml,target=/mnt/uv.toml \
    --mount=type=bind,from=wheels,target=/mnt/wheels \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/package-access; . /mnt/fixed-times; \
    export UV_CACHE_DIR=/root/.cache/uv UV_LINK_MODE=copy UV_NO_INSTALLER_METADATA=1 PYTHONHASHSEED=0; \
    install=(/mnt/uv/bin/uv --config-file /mnt/uv.toml pip install --quiet --python /opt/venv/bin/python --no-deps --require-hashes \
      --build-constraints /mnt/cuda.lock --refresh-package antlr4-python3-runtime); \
    "${install[@]}" --excludes <(printf 'flash-attn\nnvidia-cutlass-dsl-libs-cu13\n') -r /mnt/cuda.lock; \
    "${install[@]}" --excludes <(echo flash-attn) -r /mnt/cuda.lock; \
    if [ "$FLASH_ATTN" = 0 ]; then :; \
    elif compgen -G '/mnt/wheels/flash_attn-*.whl' >/dev/null; then \
      pin=$(grep -o '^flash-attn==[0-9.]*' /mnt/cuda.lock); \
      /mnt/uv/bin/uv pip install --quiet --python /opt/venv/bin/python --no-deps \
        --no-index --find-links /mnt/wheels "$pin"; \
    else \
      FLASH_ATTENTION_FORCE_BUILD=TRUE "${install[@]}" --no-build-isolation -r /mnt/cuda.lock; \
    fi; \
    if [ ! -e /usr/local/cuda ]; then \
      toolkit=$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13; \
      ln -s "$toolkit" /usr/local/cuda; \
      ln -s lib "$toolkit/lib64"; \
    fi; \
    /opt/venv/bin/python /mnt/slim-environment "$FLASH_ATTN_CUDA_ARCHS"

# The older line: verl 0.4 with the Ray of its time, so not on core. Triton compiles at run time with a C compiler and Python's
# headers. There is no nvcc: flash-attn, which verl 0.4 imports on a GPU (workers/actor/dp_actor.py:42), comes from the context
# `wheels` or not at all.
FROM base AS cuda-verl04
ENV PYC_INVALIDATION_MODE=UNCHECKED_HASH \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    CUDA_CACHE_PATH=/cache/nv \
    VLLM_CONFIG_ROOT=/cache/vllm-config
SHELL ["/bin/bash", "-o", "pipefail", "-euc"]
# hadolint ignore=DL3008
RUN --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/fixed-times; \
    packages=(python3-dev build-essential); \
    if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then \
      apt-get update -qq; \
      apt-get install -y -qq --no-install-recommends "${packages[@]}"; \
      rm -rf /var/lib/apt/lists/*; \
    fi
RUN --mount=type=secret,id=extra_ca \
    --mount=type=secret,id=package_env \
    --mount=type=cache,id=raydebug-uv,target=/root/.cache/uv,sharing=locked \
    --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,from=uv,source=/opt/uv,target=/mnt/uv \
    --mount=type=bind,from=wheels,target=/mnt/wheels \
    --mount=type=bind,source=ci/package-access,target=/mnt/package-access \
    --mount=type=bind,source=env/cuda-verl04.lock,target=/mnt/cuda-verl04.lock \
    --mount=type=bind,source=ci/slim-environment,target=/mnt/slim-environment \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/package-access; . /mnt/fixed-times; \
    export UV_CACHE_DIR=/root/.cache/uv UV_LINK_MODE=copy UV_NO_INSTALLER_METADATA=1 PYTHONHASHSEED=0; \
    python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "build it with --build-arg FLAVOUR=cuda-verl04")'; \
    python3 -m venv --without-pip /opt/venv; \
    /mnt/uv/bin/uv pip sync --quiet --python /opt/venv/bin/python --require-hashes \
      --build-constraints /mnt/cuda-verl04.lock --refresh-package antlr4-python3-runtime /mnt/cuda-verl04.lock; \
    if compgen -G '/mnt/wheels/flash_attn-*.whl' >/dev/null; then \
      /mnt/uv/bin/uv pip install --quiet --python /opt/venv/bin/python --no-deps \
        --no-index --find-links /mnt/wheels flash-attn; \
    fi; \
    /opt/venv/bin/python /mnt/slim-environment

# The image that runs: a flavour, plus the layers that change with every commit.
# hadolint ignore=DL3006
FROM ${FLAVOUR} AS raydebug
ARG FLAVOUR
# `raydebug image` sets these from the lock; the build fails if they do not match it.
ARG LOCK_DIGEST=""
ARG RAY_VERSION="" DEBUGPY_VERSION="" TORCH_VERSION="" VLLM_VERSION="" VERL_VERSION="" REVISION=""
RUN --mount=type=bind,from=wheel,source=/dist,target=/mnt/dist \
    --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,from=uv,source=/opt/uv,target=/mnt/uv \
    --mount=type=bind,source=env,target=/mnt/env \
    --mount=type=bind,source=entrypoints,target=/mnt/entrypoints \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/fixed-times; \
    install -D -m 755 -t /opt/raydebug/entrypoints /mnt/entrypoints/*; \
    export UV_LINK_MODE=copy UV_NO_INSTALLER_METADATA=1 PYTHONHASHSEED=0; \
    set -- /mnt/dist/raydebug-*.whl; \
    if [ "$FLAVOUR" = cpu ]; then set -- "$@" /mnt/dist/raydebug_cpu-*.whl; fi; \
    /mnt/uv/bin/uv pip install --quiet --no-cache --offline --no-deps --python /opt/venv/bin/python "$@"; \
    installed=$(/opt/venv/bin/python -c 'import raydebug; print(raydebug.__path__[0])'); \
    /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash "$installed"*/; \
    grep -qF "# body: ${LOCK_DIGEST}" "$installed/env/${FLAVOUR}.lock"; \
    /opt/venv/bin/python /mnt/env/sbom.py "$FLAVOUR" /opt/raydebug/sbom.cdx.json
ENV RAYDEBUG_FLAVOUR=${FLAVOUR}
LABEL org.opencontainers.image.title="raydebug" \
      org.opencontainers.image.description="Ray with a debugger at every stop" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.raydebug.flavour="${FLAVOUR}" \
      org.raydebug.lock="${LOCK_DIGEST}" \
      org.raydebug.ray="${RAY_VERSION}" \
      org.raydebug.debugpy="${DEBUGPY_VERSION}" \
      org.raydebug.torch="${TORCH_VERSION}" \
      org.raydebug.vllm="${VLLM_VERSION}" \
      org.raydebug.verl="${VERL_VERSION}"
USER 1000:1000
WORKDIR /workspace
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 \
  CMD ["/opt/raydebug/entrypoints/healthcheck", "node"]
# The base's own entrypoint prints a banner; docker-compose.yml names one of ours.
ENTRYPOINT []
CMD ["/opt/raydebug/entrypoints/head"]

# The image of the Dev Container: the same, with git and the tools of env/dev.lock.
FROM raydebug AS dev
USER 0
# Set it to an empty value where apt reaches no mirror.
ARG DEV_PACKAGES="git less openssh-client"
SHELL ["/bin/bash", "-o", "pipefail", "-euc"]
# hadolint ignore=DL3008
RUN --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/fixed-times; \
    read -ra packages <<<"$DEV_PACKAGES"; \
    if [ "${#packages[@]}" -gt 0 ] && ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then \
      apt-get update -qq; \
      apt-get install -y -qq --no-install-recommends "${packages[@]}"; \
      rm -rf /var/lib/apt/lists/*; \
    fi
RUN --mount=type=secret,id=extra_ca \
    --mount=type=secret,id=package_env \
    --mount=type=cache,id=raydebug-uv,target=/root/.cache/uv,sharing=locked \
    --mount=type=tmpfs,target=/tmp \
    --mount=type=bind,from=uv,source=/opt/uv,target=/mnt/uv \
    --mount=type=bind,source=ci/package-access,target=/mnt/package-access \
    --mount=type=bind,source=env,target=/mnt/env \
    --mount=type=bind,source=ci/fixed-times,target=/mnt/fixed-times \
    . /mnt/package-access; . /mnt/fixed-times; \
    export UV_CACHE_DIR=/root/.cache/uv UV_LINK_MODE=copy; \
    /mnt/uv/bin/uv pip install --quiet --python /opt/venv/bin/python --no-deps --require-hashes -r /mnt/env/dev.lock; \
    /opt/venv/bin/python /mnt/env/sbom.py "$RAYDEBUG_FLAVOUR" /opt/raydebug/sbom.cdx.json
USER 1000:1000
HEALTHCHECK NONE
CMD ["sleep", "infinity"]
